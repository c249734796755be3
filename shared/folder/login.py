"""How the password is shown to the server: by Basic, and by Digest from when the server first asks for that alone.

Servers lock an account, or all that comes from one address, after some wrong passwords. So one that was refused is left
alone by all connections together: first for a moment, for a server may be wrong for as long, and later for an hour.

Some servers say 401 too where an account lacks rights in a single folder. So a password is left alone for longer by the
folder that it was refused for: another is asked first, and where that lets it in, all but the one go on.
"""

from __future__ import annotations

import math
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
from shared.folder.answers import drain
from shared.moments import moment_text

LEFT_ALONE_S = (30.0, 30.0, 3600.0)
"""For how long after the first refusal in a row, after the second, and after each further one."""
LONGER_THERE = 4
"""So many times as long, but for the last, for the folder that refused it: the others' next tries come before."""


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
    """What a server said of one password of one user, over all connections of this process.

    Args:
        times_as_long: how many times as long as elsewhere it is left alone here.

    Attributes:
        is_standing: it was let in nowhere here since it was last refused.
    """

    def __init__(self, times_as_long: int) -> None:
        self.is_standing = False
        self._times_as_long = times_as_long
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

    def wait_s(self) -> float:
        """Return for how many seconds more the password is left alone; none or fewer if it may be shown."""
        with self._lock:
            if not self._times:
                return 0.0
            usual_s = LEFT_ALONE_S[min(self._times, len(LEFT_ALONE_S)) - 1]
            return self._at + min(usual_s * self._times_as_long, LEFT_ALONE_S[-1]) - time.monotonic()


_REFUSALS: dict[tuple[str, str, str, int], _Refusals] = {}
"""By server or folder, user, password and how many times as long it is left alone there."""


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
        self._refusals = [
            _REFUSALS.setdefault((where, self._user, text, times), _Refusals(times))
            for where, times in ((self._server, 1), (self._folder, LONGER_THERE))
        ]
        self._basic = HTTPBasicAuth(self._user.encode(), text.encode())  # as text it would go out as Latin-1
        self._digest = _Digest(self._user, text)

    def refused(self, *, is_wrong: bool) -> None:
        """Note that the server refused the password; until it takes one, that is read anew before each request."""
        for refusals in self._refusals:
            refusals.add(self._shown_at, is_wrong=is_wrong)

    def taken(self, request: PreparedRequest) -> None:
        """Note that the server took a request. A session's cookie counts for more than the password beside it."""
        if "Cookie" not in request.headers:
            for refusals in self._refusals:
                refusals.end(self._shown_at)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the header on a request that is about to go out.

        Raises:
            ActionRequiredError: the password was refused, and cannot be read any more, or is to be left alone.
        """
        if any(refusals.is_standing for refusals in self._refusals):
            self._read()
        if (wait_s := max(refusals.wait_s() for refusals in self._refusals)) > 0:
            again_at = moment_text(datetime.now().timestamp() + wait_s)
            raise ActionRequiredError(
                f"{self._server} has refused user {self._shown_user!r} with this password, and to show it again and "
                f"again could lock the account: it is shown again at {again_at}, or once it is another; "
                f"{self._password.remedy}."
            )
        self._shown_at = time.monotonic()
        if self.kind == "Digest":
            self._digest(request)
        else:
            self._basic(request)
            request.hooks["response"].append(self._perhaps_by_digest)
        return request

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
