"""How the password is shown to the server: by Basic, and by Digest from when the server first asks for that alone.

Servers lock an account, or all that comes from one address, after some wrong passwords. So one that was refused is left
alone by all connections together: first for a moment, for a server may be wrong for as long, and later for an hour.

Some servers say 401 too where an account lacks rights in a single folder. So each time another folder is asked first,
the one that refused the longest ago: where it lets the password in, all go on but those that refused it. Those that do
so again are asked on their own, and keep nobody waiting. A single connection asks, and the others wait for the answer.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Literal

from requests import PreparedRequest, Response
from requests.auth import AuthBase, HTTPBasicAuth, HTTPDigestAuth

from shared.doors import Refusal, door
from shared.doors.http_answer import offers
from shared.errors import ActionRequiredError
from shared.folder.address import shown
from shared.folder.answers import drain
from shared.moments import moment_text

LEFT_ALONE_S = (30.0, 30.0, 600.0, 3600.0)
"""For how long after the first refusal in a row, after the second, the third, and each further one."""
LATER_S = 90.0
"""For how long a folder leaves the next try to each that was refused longer ago; these try every minute."""
_NOT_ASKED_YET = -sys.float_info.max
"""When a folder of which nothing is known refused it: it comes after those that have let it in."""


@dataclass(frozen=True)
class Password:
    """A password that a person may correct at any time.

    Args:
        read: returns it, or raises ActionRequiredError; called again after each refusal.
        remedy: what a person does about a wrong one, as the end of a sentence.
    """

    read: Callable[[], str] = field(repr=False)
    remedy: str = "correct them, or have whoever runs the server see whether that account may enter there"

    @classmethod
    def fixed(cls, text: str) -> Password:
        """Return a password that stays as it is."""
        return cls(lambda: text)


class _Refusals:
    """What a folder said of one password of one user, over all connections of this process.

    Attributes:
        is_standing: it was let in nowhere here since it was last refused.
    """

    def __init__(self) -> None:
        self.is_standing = False
        self._times = 0
        self._at = -math.inf
        self._lock = Lock()

    def add(self, shown_at: float, *, is_wrong: bool) -> None:
        """Note one more; ``is_wrong``: for the password, and not for what the account may do."""
        with self._lock:
            self.is_standing = True
            if is_wrong and shown_at > self._at:  # else it was on its way when another came back, and is no news
                self._times, self._at = self._times + 1, time.monotonic()

    def end(self, shown_at: float) -> None:
        with self._lock:
            if shown_at > self._at:
                self.is_standing = False
                self._times = 0

    def until(self) -> float:
        """Return until when the password is left alone; minus infinity where it is not."""
        with self._lock:
            return self._at + LEFT_ALONE_S[min(self._times, len(LEFT_ALONE_S)) - 1] if self._times else -math.inf


class _Tries(_Refusals):
    """What a server said of it, and whose turn it is to try again: the folder's that refused the longest ago.

    Attributes:
        by: the folder that refused it last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by = ""
        self._refused_at: dict[str, float] = {}  # minus infinity for a folder that has let it in since
        self._let_in_at = -math.inf
        self._shut: set[str] = set()  # folders that refused it again while others let it in
        self._shut_at = -math.inf  # when one of these was asked last
        self._asking: object | None = None
        self._asked_at = -math.inf

    def enter(self, folder: str) -> None:
        """Have a folder take its turns."""
        with self._lock:
            self._refused_at.setdefault(folder, _NOT_ASKED_YET)

    def add_from(self, folder: str, shown_at: float, *, is_wrong: bool) -> None:
        """Note one more, unless it is about that folder alone."""
        with self._lock:
            if is_wrong and _NOT_ASKED_YET < self._refused_at[folder] < self._let_in_at:
                self._shut.add(folder)
            if folder in self._shut:
                self._refused_at[folder] = self._shut_at = time.monotonic()
                return
        self.add(shown_at, is_wrong=is_wrong)
        if is_wrong:
            with self._lock:
                self._refused_at[folder], self.by = self._at, folder

    def end_from(self, folder: str, shown_at: float) -> None:
        """Note that a folder let it in."""
        self.end(shown_at)
        with self._lock:
            self._let_in_at = max(self._let_in_at, shown_at)
            if shown_at > self._refused_at[folder]:
                self._refused_at[folder] = -math.inf
                self._shut.discard(folder)

    def until_for(self, folder: str) -> float:
        """Return until when a folder leaves it alone, for what others of the server say of it."""
        until = self.until()
        with self._lock:
            if not self._times:
                return -math.inf
            if folder in self._shut:  # these take turns of their own, and keep nobody waiting
                until = self._shut_at + LEFT_ALONE_S[-1]
            before = {
                at
                for other, at in self._refused_at.items()
                if at < self._refused_at[folder] and (other in self._shut) == (folder in self._shut)
            }
            return until + LATER_S * len(before)

    def ask(self, who: object) -> float:
        """Take the next try after a refusal, or return for how long to wait for another's answer."""
        with self._lock:
            now = time.monotonic()
            if not self._times:
                return 0.0
            if self._asking not in (None, who) and (wait_s := self._asked_at + LEFT_ALONE_S[0] - now) > 0:
                return wait_s
            self._asking, self._asked_at = who, now
            return 0.0

    def answered(self, who: object) -> None:
        with self._lock:
            if self._asking is who:
                self._asking = None


_BY_FOLDER: dict[tuple[str, str, str], _Refusals] = {}
_BY_SERVER: dict[tuple[str, str, str], _Tries] = {}
"""By its address, the user and the password."""


class PasswordLogin(AuthBase):
    """Speaks for one user over one connection.

    Attributes:
        kind: what the server wants, as far as it has said.
    """

    def __init__(self, server: str, folder: str, user: str, password: Password, shown_user: str) -> None:
        """Read the password.

        Args:
            server: its address, without a path.
            folder: its address.
            shown_user: the user, as people may read it.

        Raises:
            ActionRequiredError: it cannot be read.
        """
        self.kind: Literal["Basic", "Digest"] = "Basic"
        self._server = server
        self._folder = folder
        self._shown_user = shown_user
        self._user = user
        self._password = password
        self._text: str | None = None
        self._shown_at = -math.inf
        self._read()

    def _read(self) -> None:
        text = self._password.read()
        if text == self._text:  # what the server asked of its login holds as well
            return
        self._text = text
        self._by_server = _BY_SERVER.setdefault((self._server, self._user, text), _Tries())
        self._by_folder = _BY_FOLDER.setdefault((self._folder, self._user, text), _Refusals())
        self._by_server.enter(self._folder)
        self._basic = HTTPBasicAuth(self._user.encode(), text.encode())  # as text it would go out as Latin-1
        self._digest = _Digest(self._user, text)

    def refused(self, *, is_wrong: bool) -> None:
        """Note that the server refused the password; until it takes one, that is read anew before each request."""
        self._by_folder.add(self._shown_at, is_wrong=is_wrong)
        self._by_server.add_from(self._folder, self._shown_at, is_wrong=is_wrong)

    def taken(self, request: PreparedRequest) -> None:
        """Note that the server took a request. A session's cookie counts for more than the password beside it."""
        if "Cookie" not in request.headers:
            self._by_folder.end(self._shown_at)
            self._by_server.end_from(self._folder, self._shown_at)

    def answered(self) -> None:
        """Note that a request has been answered, or will not be."""
        self._by_server.answered(self)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the header on a request that is about to go out.

        Raises:
            ActionRequiredError: the password was refused, and cannot be read any more, or is to be left alone.
        """
        if self._by_server.is_standing or self._by_folder.is_standing:
            self._read()
        if (wait_s := self._wait_s()) > 0:
            again_at = moment_text(datetime.now().timestamp() + wait_s)
            is_own = self._by_folder.until() > -math.inf or self._by_server.by == self._folder
            there = "" if is_own else f", last for {shown(self._by_server.by)}"
            raise ActionRequiredError(
                f"{self._server} has refused user {self._shown_user!r} with this password{there}, and to show it again "
                f"and again could lock the account: it is shown again at {again_at}, or once it is another; "
                f"{self._password.remedy}."
            )
        if self._by_server.is_standing:
            request.headers.pop("Cookie", None)  # so that the password alone counts
        self._shown_at = time.monotonic()
        if self.kind == "Digest":
            self._digest(request)
        else:
            self._basic(request)
            request.hooks["response"].append(self._perhaps_by_digest)
        return request

    def _wait_s(self) -> float:
        """Return for how many seconds the password is left alone; take the next try where it is not."""
        until = max(self._by_server.until_for(self._folder), self._by_folder.until())
        return max(0.0, until - time.monotonic()) or self._by_server.ask(self)

    def _perhaps_by_digest(self, response: Response, **options: Any) -> Response:
        offered = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401 or not offers(offered, "Digest") or offers(offered, "Basic"):
            return response
        self.kind = "Digest"
        self._digest(response.request)
        return self._digest.handle_401(response, **options)


class _Digest(HTTPDigestAuth):
    """Answers a server's challenge, and uses it again with the next requests for as long as the server takes it."""

    def handle_401(self, r: Response, **kwargs: Any) -> Response:
        """Make the request once more, with what the refusal asks for."""
        if r.status_code != 401 or drain(r) is None:
            return r
        response: Response = super().handle_401(r, **kwargs)  # type: ignore[no-untyped-call]  # requests' stubs lack it
        return response

    def build_digest_header(self, method: str, url: str) -> str | None:
        """Return the header as HTTP carries it, bytes of UTF-8 as one character each; None for what is no challenge."""
        try:
            with door("asks for something else"):
                header: str | None = super().build_digest_header(method, url)  # type: ignore[no-untyped-call]  # likewise
        except Refusal:
            return None
        return header and header.encode().decode("latin-1")
