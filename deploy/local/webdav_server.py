"""The embedded WebDAV server: one folder and one user per site, for one machine or behind a TLS proxy.

Site X finds its folder at ``http://HOST:PORT/X/`` with user X; its files lie in ``ROOT/X``. The user ``aggregator``
may enter every folder, and no site may enter another's.

A PUT is stored whole or not at all, and a MOVE is one rename: a reader never sees half a file, and a client that
vanishes leaves nothing behind. See ``atomic_files``.

As a process of its own: ``python -m deploy.local.webdav_server CONFIG.json``, where the file, readable by its owner
only, holds ``{"root": …, "host": …, "port": …, "aggregator_password": …, "sites": {NAME: PASSWORD}}``.
It prints its address in one line when it is ready and ends on SIGTERM.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakSet

from cheroot.server import HTTPConnection
from pydantic import Field
from wsgidav.dir_browser import WsgiDavDirBrowser
from wsgidav.error_printer import ErrorPrinter
from wsgidav.http_authenticator import HTTPAuthenticator
from wsgidav.request_resolver import RequestResolver
from wsgidav.wsgidav_app import WsgiDAVApp

from deploy.local.atomic_files import AtomicProvider, remove_torn
from deploy.local.copies_across import AGGREGATOR, CopiesAcross
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError
from shared.exchange.reading import parse_json
from shared.exchange.records.values import Record
from shared.folder.durable import read_private
from shared.quiet_server import QuietServer
from shared.stopping import set_by_signals, wait_for

BLOCK_BYTES = 1 << 20  # read or sent at a time: with smaller ones wsgidav's threads keep each other waiting
IDLE_S = 60  # a connection on which nothing moves for so long is closed
USAGE = "usage: python -m deploy.local.webdav_server CONFIG.json (readable by you alone; docs/for-pis.md shows one)"
_SITE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class EmbeddedServer:
    """Serves ``root`` from threads of this process.

    Args:
        root: made if missing; one folder per site in it.
        users: each site's password.
        aggregator_password: of the user ``aggregator``.
        host: address to listen on. Anything but loopback needs a TLS proxy in front, for passwords travel in the clear.
        port: 0 = any free one; see ``port`` after ``start``.

    Raises:
        ConfigurationError: a name or a password that cannot be used.
    """

    def __init__(
        self, root: Path, users: Mapping[str, str], aggregator_password: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        problems = _user_problems(users, aggregator_password)
        if problems:
            raise ConfigurationError(problems)
        self.host = host
        self.port = port
        self._root = root
        self._passwords = {
            site: {site: {"password": password}, AGGREGATOR: {"password": aggregator_password}}
            for site, password in users.items()
        }
        self._server: _PromptServer | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self._root)!r}, {self.host}:{self.port})"

    def start(self) -> None:
        """Listen; requests are answered from now on.

        Raises:
            ActionRequiredError: the address is in use, or not this machine's.
        """
        for site in self._passwords:
            (self._root / site).mkdir(parents=True, exist_ok=True)
            remove_torn(self._root / site)
        server = _PromptServer((self.host, self.port), self._app(), numthreads=2 * len(self._passwords) + 8)
        server.request_queue_size = 128
        server.timeout = IDLE_S
        server.shutdown_timeout = 1
        server.max_request_body_size = 0  # no limit
        server.keep_alive_conn_limit = 8 * len(self._passwords) + 32  # each client keeps one or two
        try:
            server.prepare()
        except OSError as error:
            raise ActionRequiredError(
                f"nothing can listen at {self.host}:{self.port} ({error}): end what does, or take another port"
            ) from None
        self.port = server.bind_addr[1]
        self._server = server
        self._thread = threading.Thread(target=server.serve, name="webdav", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; what was still arriving is dropped. May be called twice."""
        if self._server is not None and self._thread is not None:
            self._server.stop()
            self._thread.join()
            self._server = self._thread = None

    @property
    def url(self) -> str:
        """The server's address, below which each site has its folder."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def url_of(self, site: str) -> str:
        """Return the address of a site's folder."""
        return f"{self.url}{site}/"

    def _app(self) -> WsgiDAVApp:
        shares = {
            f"/{site}": AtomicProvider(str(self._root / site), readonly=False, fs_opts={"follow_symlinks": False})
            for site in self._passwords
        }
        logging.getLogger("wsgidav").setLevel(logging.CRITICAL)  # it logs a traceback for each client that hangs up
        return WsgiDAVApp(
            {
                "provider_mapping": shares,
                "simple_dc": {"user_mapping": {f"/{site}": users for site, users in self._passwords.items()}},
                "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
                "middleware_stack": [ErrorPrinter, HTTPAuthenticator, CopiesAcross, WsgiDavDirBrowser, RequestResolver],
                "block_size": BLOCK_BYTES,
                "lock_storage": True,
                "property_manager": True,
                "dir_browser": {"enable": True, "response_trailer": "", "davmount": False, "icon": False},
                "logging": {"enable": False},
                "verbose": 0,
                "suppress_version_info": True,
            }
        )


class _Connection(HTTPConnection):
    """A connection that its server can find again."""

    def __init__(self, server: _PromptServer, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(server, sock, *arguments, **options)
        server.sockets.add(sock)


class _PromptServer(QuietServer):
    """A server that does not wait for clients that stand still."""

    ConnectionClass = _Connection
    expiration_interval = 0.05  # seconds; a stop is noticed that late, too

    def __init__(self, address: tuple[str, int], app: WsgiDAVApp, *, numthreads: int) -> None:
        super().__init__(address, app, numthreads=numthreads)
        self.sockets: WeakSet[socket.socket] = WeakSet()

    def stop(self) -> None:
        """Cut all connections and end; by itself cheroot waits until a client that stopped reading times out."""
        for connected in list(self.sockets):
            with suppress(OSError):  # closed already
                connected.shutdown(socket.SHUT_RDWR)
        super().stop()
        for forgotten in list(self.sockets):  # those that came in the meantime: nobody will answer them
            forgotten.close()


def _user_problems(users: Mapping[str, str], aggregator_password: str) -> list[str]:
    """Return a sentence for each name or password that cannot be used."""
    problems = [
        f"sites: {site!r} cannot be a site's name: use up to 64 of a-z, 0-9, '_', '.', '-', and not {AGGREGATOR!r}."
        for site in users
        if not _SITE.fullmatch(site) or site == AGGREGATOR
    ]
    problems += [
        f"sites: {site} has no password, a text in quotes: set one."
        for site, password in users.items()
        if not isinstance(password, str) or not password
    ]
    if not users:
        problems.append("sites: there is none: name at least one.")
    if not aggregator_password:
        problems.append("aggregator_password: is empty: set one.")
    return problems


class Settings(Record):
    """What CONFIG.json holds."""

    root: str
    host: str
    port: int
    aggregator_password: Annotated[str, Field(repr=False)]
    sites: Annotated[dict[str, Any], Field(repr=False)]  # what no password can be is told without showing it


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; return 0, or 2 when it cannot start."""
    if arguments == ["--help"]:
        print(USAGE)
        return 0
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    asked_to_stop = set_by_signals(threading.Event())
    try:
        settings = parse_json(read_private(Path(arguments[0])), Settings, arguments[0])
        root, password = Path(settings.root), settings.aggregator_password
        server = EmbeddedServer(root, settings.sites, password, settings.host, settings.port)
        server.start()
    except (DropfedError, OSError) as error:
        print(f"The WebDAV server cannot start: {error}", file=sys.stderr)
        return 2
    print(server.url, flush=True)
    wait_for(asked_to_stop)
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
