"""How the password is shown to the server: by Basic, and by Digest from when the server first asks for that alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from requests import PreparedRequest, Response
from requests.auth import AuthBase, HTTPBasicAuth, HTTPDigestAuth

from shared.doors import Refusal, door
from shared.doors.http_answer import offers
from shared.folder.answers import drain


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


class PasswordLogin(AuthBase):
    """Speaks for one user over one connection.

    Attributes:
        kind: what the server wants, as far as it has said.
        is_refused: the server refused the password; before the next request it is read again.
    """

    def __init__(self, user: str, password: Password) -> None:
        """Read the password.

        Raises:
            ActionRequiredError: it cannot be read.
        """
        self.kind: Literal["Basic", "Digest"] = "Basic"
        self._user = user
        self._password = password
        self._read()

    def _read(self) -> None:
        text = self._password.read()
        self._basic = HTTPBasicAuth(self._user.encode(), text.encode())  # as text it would go out as Latin-1
        self._digest = _Digest(self._user, text)
        self.is_refused = False

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the header on a request that is about to go out.

        Raises:
            ActionRequiredError: the password was refused, and cannot be read any more.
        """
        if self.is_refused:
            self._read()
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
