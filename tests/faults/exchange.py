"""One HTTP request and its answer, at a place where something can go wrong with them.

``FaultyServer`` answers requests itself, ``FaultProxy`` passes them on; a ``Fault`` steps in at either in the same way.
"""

from __future__ import annotations

import socket
import struct
import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Headers = tuple[tuple[str, str], ...]
NO_BODY = (204, 304)


@dataclass(frozen=True)
class Answer:
    """What a server says; ``headers`` are without Content-Length."""

    status: int
    body: bytes = b""
    headers: Headers = ()

    def on_the_wire(self, length: int | None) -> bytes:
        """All its bytes.

        Args:
            length: what Content-Length says, be it true or not; None leaves it out, and the connection ends the body.
        """
        extra = [("Content-Length", str(length))] if length is not None else [("Connection", "close")]
        if self.status in NO_BODY:
            extra = []
        lines = [f"HTTP/1.1 {self.status} {responses.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {text}" for name, text in (*self.headers, *extra)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


class Server(ThreadingHTTPServer):
    """Answers each client in a thread of its own."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what went wrong, unless it is only that a client hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Exchange(BaseHTTPRequestHandler):
    """One client's connection. Each request is read whole, then a fault takes it over or it is performed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    body: bytes = b""

    @abstractmethod
    def fault(self) -> Fault | None:
        """What goes wrong with the request that begins here."""

    @abstractmethod
    def perform(self) -> Answer:
        """Do what is asked."""

    def handle_any(self) -> None:
        fault = self.fault()
        if fault is None:
            self.read_body()
            self.reply(self.perform())
        else:
            fault(self)

    do_GET = do_PUT = do_DELETE = do_MKCOL = do_MOVE = do_COPY = do_PROPFIND = do_OPTIONS = handle_any  # noqa: N815 (http.server's names)

    def read_body(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.reply(Answer(status, body, headers))

    def reply(self, answer: Answer) -> None:
        self.send(answer.on_the_wire(len(answer.body)))

    def send(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()

    def hang_up(self, *, abruptly: bool = False) -> None:
        """Close the connection; abruptly with a reset, so that even what was sent may be lost."""
        self.close_connection = True
        if abruptly:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass


Fault = Callable[[Any], None]
"""Called with the exchange whose request it takes over."""
