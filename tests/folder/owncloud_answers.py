"""What every request to the stand-in for ownCloud has: somebody who asks, a session perhaps, and an answer."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import suppress
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tests.folder.owncloud_body import Body
from tests.folder.owncloud_refusal import Refusal

if TYPE_CHECKING:
    from tests.folder.owncloud import OwnCloud

COOKIE = "ocstandin"
XML = {"Content-Type": "application/xml; charset=utf-8"}
HTML = {"Content-Type": "text/html; charset=UTF-8"}
JSON = {"Content-Type": "application/json; charset=utf-8"}


class Answering(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "ownCloud-stand-in"
    sys_version = ""
    disable_nagle_algorithm = True
    world: OwnCloud
    body: Body
    _new_cookie: str | None = None

    def setup(self) -> None:
        super().setup()
        self.world.sockets.add(self.connection)

    def finish(self) -> None:
        self.world.sockets.discard(self.connection)
        with suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    # --- who asks ------------------------------------------------------------------------------------------

    def _login(self) -> tuple[str, str]:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        with suppress(ValueError):
            user, separator, password = base64.b64decode(token).decode().partition(":")
            if kind.lower() == "basic" and separator:
                return user, password
        return "", ""

    def _linked(self) -> Path:
        """Return the folder of the link whose token the login names."""
        token, password = self._login()
        tree, right = self.world.links.get(token, (Path(), None))
        is_known = right is not None and self._session() == token  # as with accounts; that of a link was not tried
        self._require_login(is_known or password == right)
        self._begin_session(token)
        return tree

    def _account(self) -> str:
        """Return the account that asks. A session counts for more than what the login says beside it."""
        user, password = self._login()
        user = self.world.emails.get(user, user)
        if self._session() in self.world.users:
            user = self._session()
        elif user in self.world.tokens_alone:
            raise Refusal(
                401, "OCA\\DAV\\Connector\\Sabre\\Exception\\PasswordLoginForbidden", "password login forbidden"
            )
        else:
            self._require_login(self.world.users.get(user) == password)
        if user in self.world.disabled:
            if self.world.is_nextcloud:
                raise Refusal(
                    503, "Sabre\\DAV\\Exception\\ServiceUnavailable", "OC\\User\\LoginException: Account disabled"
                )
            raise Refusal(401, "Sabre\\DAV\\Exception\\NotAuthenticated", "User disabled")
        self._begin_session(user)
        self.world.ocs.mount_for(user)
        return user

    def _session(self) -> str:
        """Return whom the request's cookie was given to, empty if there is none."""
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        return self.world.sessions.get(cookie.value, "") if cookie is not None else ""

    def _begin_session(self, user: str) -> None:
        if self._session() != user and self._new_cookie is None:
            self._new_cookie = secrets.token_hex(16)
            self.world.sessions[self._new_cookie] = user

    def _require_login(self, is_right: bool) -> None:
        if not is_right:
            raise Refusal(401, "Sabre\\DAV\\Exception\\NotAuthenticated", "Username or password was incorrect")

    # --- answers -------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        headers = dict(XML)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="ownCloud", charset="UTF-8"'
        told = (
            '<?xml version="1.0" encoding="utf-8"?><d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns">'
            f"<s:exception>{escape(refusal.exception)}</s:exception><s:message>{escape(refusal.message)}</s:message>"
            "</d:error>"
        )
        self._answer(refusal.status, told.encode(), headers)

    def _answer(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        for _ in self.body.blocks():  # else the client is told only after it was cut off
            pass
        length = {} if status in (204, 304) else {"Content-Length": str(len(content))}
        with suppress(ConnectionError):
            self._begin(status, {**(headers or {}), **length})
            if self.command != "HEAD":
                self.wfile.write(content)
        self.close_connection = self.close_connection or not self.body.is_whole

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self._new_cookie is not None:
            self.send_header("Set-Cookie", f"{COOKIE}={self._new_cookie}; path=/; HttpOnly")
        self.end_headers()
