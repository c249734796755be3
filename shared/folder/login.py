"""How the password is shown to the server: by Basic, and by Digest from when the server first asks for that alone.

Servers lock an account, or all that comes from one address, after some wrong passwords. So one that was refused is left
alone by all connections together: first for a moment, for a server may be wrong for as long, and later for an hour.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
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
    """What a server said of one user's password, over all connections of this process.

    Attributes:
        is_standing: it has let nobody in since it last refused to.
    """

    def __init__(self) -> None:
        self._text = ""
        self.is_standing = False
        self._times = 0
        self._at = -math.inf

    def add(self, text: str, *, is_wrong: bool) -> None:
        """Note one more; ``is_wrong``: for the password, and not for what the account may do."""
        self.is_standing = True
        if text != self._text:
            self._text, self._times = text, 0
        if is_wrong and self.wait_s(text) <= 0:  # else it was on its way when another came back, and is no news
            self._times, self._at = self._times + 1, time.monotonic()

    def end(self) -> None:
        self.is_standing = False
        self._times = 0

    def wait_s(self, text: str) -> float:
        """Return for how many seconds more this password is left alone; none or fewer if it may be shown."""
        if text != self._text or not self._times:
            return 0.0
        return self._at + LEFT_ALONE_S[min(self._times, len(LEFT_ALONE_S)) - 1] - time.monotonic()


_REFUSALS: defaultdict[tuple[str, str], _Refusals] = defaultdict(_Refusals)
"""By server and user."""


class PasswordLogin(AuthBase):
    """Speaks for one user over one connection.

    Attributes:
        kind: what the server wants, as far as it has said.
    """

    def __init__(self, server: str, user: str, password: Password, shown_user: str) -> None:
        """Read the password.

        Args:
            server: its address, without a path.
            shown_user: the user, as people may read it.

        Raises:
            ActionRequiredError: it cannot be read.
        """
        self.kind: Literal["Basic", "Digest"] = "Basic"
        self._refusals = _REFUSALS[server, user]
        self._server = server
        self._shown_user = shown_user
        self._user = user
        self._password = password
        self._read()

    def _read(self) -> None:
        self._text = self._password.read()
        self._basic = HTTPBasicAuth(self._user.encode(), self._text.encode())  # as text it would go out as Latin-1
        self._digest = _Digest(self._user, self._text)

    def refused(self, *, is_wrong: bool) -> None:
        """Note that the server refused the password; until it takes one, that is read anew before each request."""
        self._refusals.add(self._text, is_wrong=is_wrong)

    def taken(self, request: PreparedRequest) -> None:
        """Note that the server took a request. A session's cookie counts for more than the password beside it."""
        if "Cookie" not in request.headers:
            self._refusals.end()

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the header on a request that is about to go out.

        Raises:
            ActionRequiredError: the password was refused, and cannot be read any more, or is to be left alone.
        """
        if self._refusals.is_standing:
            self._read()
        if (wait_s := self._refusals.wait_s(self._text)) > 0:
            again_at = moment_text(datetime.now().timestamp() + wait_s)
            raise ActionRequiredError(
                f"{self._server} has refused user {self._shown_user!r} with this password, and to show it again and "
                f"again could lock the account: it is shown again at {again_at}, or once it is another; "
                f"{self._password.remedy}."
            )
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
