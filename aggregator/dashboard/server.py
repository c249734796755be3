"""The dashboard's server: one page, its script and style, and what it shows as JSON; nothing here changes anything.

On loopback anybody at this machine may look. On any other address what the page shows is given to those alone who send
the token in ``Authorization: Bearer``; the page asks for it and keeps it for its tab. The token never stands in an
address, a log or a cookie, so neither a link nor a page from elsewhere can use it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aggregator.configuration import require_aggregator
from aggregator.dashboard.state import page_state, run_report
from shared.errors import ActionRequiredError
from shared.exchange.names import is_name
from shared.folder.address import is_loopback_host
from shared.folder.durable import read_private, write_file
from shared.pages.render import render
from shared.quiet_server import QuietServer

TOKEN_FILE = "dashboard.token"  # noqa: S105  (a file's name)
"""Name of the file in the work directory that holds the token, readable by its owner alone."""

SHORTEST_LOOK_S = 1.0  # a look at the work directory serves everybody for so long at least,
REST_PER_LOOK = 4  # and for so many times as long as it took: the dashboard never keeps a core busy
REQUEST_BYTES = 16 << 10  # of a request's head, at most
THREADS = 32
PATIENCE_S = 3.0  # with who connects and says nothing

_HERE = Path(__file__).parent
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)

REPORT = "/report/"
"""Behind it comes the name of a run."""

Headers = list[tuple[str, str]]
NOTHING_HERE: tuple[str, str, bytes, Headers] = ("404 Not Found", "text/plain", b"There is nothing here.\n", [])


class Dashboard:
    """The WSGI application.

    Args:
        token: demanded before anything of the run is told; None demands nothing.
        names: host names by which a browser may ask, besides addresses; others are a page from elsewhere that had its
            own name lead here.
    """

    def __init__(self, work: Path, *, token: str | None, names: Iterable[str] = ()) -> None:
        page = render(_HERE / "page.html", title="dropfed dashboard")
        style = " ".join(f"'sha256-{_hash_of(found)}'" for found in _STYLE.findall(page))
        self._policy = (
            f"default-src 'none'; script-src 'self'; style-src 'self' {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._files = {
            "/": ("text/html", page.encode()),
            "/page.js": ("text/javascript", (_HERE / "page.js").read_bytes()),
            "/page.css": ("text/css", (_HERE / "page.css").read_bytes()),
        }
        self._token = token
        self._names = {"localhost", *(name.lower() for name in names)}
        self._state = _Looks(lambda _: json.dumps(page_state(work), allow_nan=False))
        self._reports = _Looks(partial(run_report, work))

    def __call__(self, environ: dict[str, Any], start_response: Callable[[str, Headers], object]) -> Iterable[bytes]:
        """Answer one request."""
        status, kind, content, more = self._answer(environ)
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", self._policy),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ]
        start_response(status, [*headers, *more])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, str, bytes, Headers]:
        path, plain = environ["PATH_INFO"], "text/plain"
        if not self._is_ours(environ.get("HTTP_HOST", "")):
            return "421 Misdirected Request", plain, b"Ask by this machine's own name or address.\n", []
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, b"The dashboard only shows.\n", [("Allow", "GET, HEAD")]
        if path in self._files:
            return "200 OK", *self._files[path], []
        run = path.removeprefix(REPORT)
        is_report = path.startswith(REPORT) and is_name(run)
        if path != "/state.json" and not is_report:
            return NOTHING_HERE
        if not self._may_look(environ.get("HTTP_AUTHORIZATION", "")):
            return "401 Unauthorized", plain, b"The token is missing or wrong.\n", [("WWW-Authenticate", "Bearer")]
        if environ.get("HTTP_SEC_FETCH_SITE") in ("cross-site", "same-site"):  # it could not read the answer anyway
            return "403 Forbidden", plain, b"Another page has asked for this.\n", []
        text = self._reports.content(run) if is_report else self._state.content()
        kind = plain if is_report else "application/json"
        return NOTHING_HERE if text is None else ("200 OK", kind, text.encode(), [])

    def _may_look(self, authorization: str) -> bool:
        expected = f"Bearer {self._token}".encode()
        return self._token is None or hmac.compare_digest(authorization.encode(), expected)

    def _is_ours(self, host: str) -> bool:
        """Return whether a request was meant for this machine: an address names it, a name has to be one of ours."""
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::\d+)?", host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._token is not None or address.is_loopback


class _Looks:
    """What is shown, by name, each read for all who ask at one time, and one after the other."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._found: dict[str, tuple[float, str]] = {}  # until when it is good, and what it is

    def content(self, name: str = "") -> str | None:
        with self._lock:
            began = time.monotonic()
            good_until, text = self._found.get(name, (began, ""))
            if began < good_until:
                return text
            if (read := self._read(name)) is None:
                return None
            ended = time.monotonic()
            self._found[name] = ended + max(SHORTEST_LOOK_S, REST_PER_LOOK * (ended - began)), read
            return read


@contextmanager
def serving(work: Path, host: str, port: int) -> Iterator[str]:
    """Serve the dashboard until the block ends; yields its address.

    Args:
        host: name or address to listen at; anything but loopback demands the token that is kept in ``work``.
        port: 0 takes any that is free.

    Raises:
        ConfigurationError: there is no such work directory.
        ActionRequiredError: the address cannot be listened at, or the token's file is unusable.
    """
    require_aggregator(work)
    if is_loopback_host(host):
        app = Dashboard(work, token=None)
    else:
        app = Dashboard(work, token=kept_token(work), names=(host, socket.gethostname()))
    address = "127.0.0.1" if host == "localhost" else host
    server = QuietServer((address, port), app, numthreads=THREADS, server_name="dropfed", shutdown_timeout=1)
    server.timeout = PATIENCE_S
    server.max_request_header_size = server.max_request_body_size = REQUEST_BYTES
    try:
        # Tried by itself first: the server would tell a port that is taken in other words than the system's.
        socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
        server.prepare()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or error
        raise ActionRequiredError(
            f"{host}, port {port}, cannot be listened at ({why}): choose another --port or --host"
        ) from None
    thread = threading.Thread(target=server.serve, name="dashboard", daemon=True)
    thread.start()
    try:
        shown = f"[{address}]" if ":" in address else address
        yield f"http://{shown}:{server.bind_addr[1]}/"
    finally:
        server.stop()
        thread.join()


def kept_token(work: Path) -> str:
    """Return the token of a work directory, made when it is first asked for.

    Raises:
        ActionRequiredError: its file can be read by others, or holds no token.
    """
    path = work / TOKEN_FILE
    if not path.exists():
        write_file(path, f"{secrets.token_urlsafe(32)}\n".encode(), private=True)
    token = read_private(path).decode("ascii", errors="replace").strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,}", token):
        raise ActionRequiredError(f"{path} holds no token: remove it, and the next start makes one")
    return token


def _hash_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
