"""How the password is shown to the server: by Basic, and by Digest from when the server first asks for that alone."""

from __future__ import annotations

import re
from typing import Any, Literal

from requests import PreparedRequest, Response
from requests.auth import AuthBase, HTTPBasicAuth, HTTPDigestAuth

from shared.folder.answers import drain


class PasswordLogin(AuthBase):
    """Speaks for one user over one connection.

    Attributes:
        kind: what the server wants, as far as it has said.
    """

    def __init__(self, user: str, password: str) -> None:
        self.kind: Literal["Basic", "Digest"] = "Basic"
        self._basic = HTTPBasicAuth(user.encode(), password.encode())  # as text it would go out as Latin-1
        self._digest = _Digest(user, password)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the header on a request that is about to go out."""
        if self.kind == "Digest":
            self._digest(request)
        else:
            self._basic(request)
            request.hooks["response"].append(self._perhaps_by_digest)
        return request

    def _perhaps_by_digest(self, response: Response, **options: Any) -> Response:
        offered = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401 or not _offers(offered, "Digest") or _offers(offered, "Basic"):
            return response
        self.kind = "Digest"
        self._digest(response.request)
        return self._digest.handle_401(response, **options)


class _Digest(HTTPDigestAuth):
    """Answers a server's challenge, and uses it again with the next requests for as long as the server takes it."""

    def handle_401(self, r: Response, **kwargs: Any) -> Response:
        """Make the request once more, with what the refusal asks for."""
        if r.status_code != 401 or not drain(r):
            return r
        response: Response = super().handle_401(r, **kwargs)  # type: ignore[no-untyped-call]  # requests' stubs lack it
        return response

    def build_digest_header(self, method: str, url: str) -> str | None:
        """Return the header as HTTP carries it: bytes of UTF-8, each as one character."""
        header: str | None = super().build_digest_header(method, url)  # type: ignore[no-untyped-call]  # likewise
        return header and header.encode().decode("latin-1")


def _offers(challenges: str, kind: str) -> bool:
    return re.search(rf"(?:^|,)\s*{kind}\b(?!=)", challenges, re.IGNORECASE) is not None
