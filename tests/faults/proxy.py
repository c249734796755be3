"""A proxy between one client and the WebDAV server, that lets things go wrong as a schedule says."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Literal

from tests.faults.certificates import Certificates
from tests.faults.exchange import Answer, Exchange, Fault
from tests.ports import free_port

HOST = "127.0.0.1"
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}

Certificate = Literal["good", "expired", "wrong host"]
Schedule = Callable[[str, str], tuple[str, Fault] | None]
"""From a request's method and path to the name of what goes wrong with it, and the fault; None: nothing does."""


def _hold(port: int) -> socket.socket:
    """Bind a port without listening, so that no other test is given it while the proxy refuses connections."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((HOST, port))
    return holder


@dataclass(frozen=True)
class Happened:
    """A line of the proxy's journal: the request with this number, and what went wrong with it."""

    number: int
    method: str
    path: str
    name: str
    fault: Fault


class FaultProxy:
    """Listens on loopback, with TLS if there are certificates, and passes requests on to ``server_port``.

    Attributes:
        port: where it listens; stays the same, also while connections are refused.
        requests: how many came.
        journal: what went wrong, in order.
    """

    def __init__(self, server_port: int, schedule: Schedule, certificates: Certificates | None = None) -> None:
        self.server_port = server_port
        self.schedule = schedule
        self.requests = 0
        self.journal: list[Happened] = []
        self._contexts = certificates.contexts if certificates else None
        self._bad_handshakes: list[Certificate] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._refusals = 0
        self.port = free_port()
        self._held = _hold(self.port)
        self._listener = self._listen()

    @property
    def url(self) -> str:
        """Address of the server's root through this proxy, without a final slash."""
        return f"{'https' if self._contexts else 'http'}://{HOST}:{self.port}"

    @property
    def counts(self) -> Counter[str]:
        """How often each fault happened."""
        return Counter(happened.name for happened in list(self.journal))

    def close(self) -> None:
        """Stop listening and cut every connection."""
        with self._lock:
            self._closed = True
        self._cut_all()
        self._held.close()

    # --- for faults ----------------------------------------------------------------------------------------

    def refuse(self, seconds: float) -> None:
        """Cut every connection and refuse new ones for a while."""
        with self._lock:
            self._refusals += 1
        self._cut_all()
        timer = threading.Timer(seconds, self._listen_again)
        timer.daemon = True
        timer.start()

    def present(self, certificate: Certificate, handshakes: int) -> None:
        """Show another certificate in the next handshakes."""
        self._bad_handshakes += [certificate] * handshakes

    # --- connections ---------------------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        listener = socket.create_server((HOST, self.port), backlog=64)
        threading.Thread(target=self._accept, args=(listener,), name=f"proxy-{self.port}", daemon=True).start()
        return listener

    def _listen_again(self) -> None:
        with self._lock:
            self._refusals -= 1
            if self._refusals == 0 and not self._closed:
                self._listener = self._listen()

    def _cut_all(self) -> None:
        """End the listener and every connection. Shutting wakes whoever waits on them, which closing does not."""
        with self._lock:
            ends = [self._listener, *self._connections]
        for end in ends:
            with suppress(OSError):
                socket.socket.shutdown(end, socket.SHUT_RDWR)  # a TLS socket's own would pull it from under its reader
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client = listener.accept()
                threading.Thread(target=self._serve, args=client, name=f"proxy-{self.port}", daemon=True).start()

    def _serve(self, connection: socket.socket, address: object) -> None:
        try:
            connection = self._greet(connection)
            with self._lock:
                self._connections.add(connection)
            Passing(connection, address, self)
        except (OSError, ValueError):  # the client hung up, or did not like the certificate
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _greet(self, connection: socket.socket) -> socket.socket:
        if self._contexts is None:
            return connection
        with self._lock:
            shown = self._bad_handshakes.pop(0) if self._bad_handshakes else "good"
        return self._contexts[shown].wrap_socket(connection, server_side=True)


class Passing(Exchange):
    """A connection of the client, and one to the server that lives as long."""

    server: FaultProxy  # type: ignore[assignment]

    def __init__(self, *arguments: object) -> None:
        self._to_server: socket.socket | None = None
        super().__init__(*arguments)  # type: ignore[arg-type]

    def fault(self) -> Fault | None:
        proxy = self.server
        proxy.requests += 1
        scheduled = proxy.schedule(self.command, self.path)
        if scheduled is None:
            return None
        name, fault = scheduled
        proxy.journal.append(Happened(proxy.requests, self.command, self.path, name, fault))
        return fault

    def perform(self) -> Answer:
        """Pass the request on, and return the server's answer."""
        try:
            server = self._connected()
            server.sendall(self.request_on_the_wire())
            response = HTTPResponse(server, method=self.command)
            response.begin()
            body = response.read()
        except (OSError, HTTPException):
            self._disconnect()
            raise ConnectionResetError("the server is gone") from None
        headers = tuple(pair for pair in response.getheaders() if pair[0].lower() not in _OF_THE_CONNECTION)
        if response.will_close:
            self._disconnect()
        return Answer(response.status, body, headers)

    def pass_on_part(self, share: float) -> None:
        """Pass on the first part of the request, and reset the connection to the server."""
        with suppress(OSError):
            content = self.request_on_the_wire()
            server = self._connected()
            server.sendall(content[: int(share * len(content))])
        self._disconnect()

    def request_on_the_wire(self) -> bytes:
        """All bytes of the request, as the client sent them."""
        lines = [self.requestline, *(f"{name}: {text}" for name, text in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body

    def finish(self) -> None:
        self._disconnect()
        with suppress(OSError):
            super().finish()

    def _connected(self) -> socket.socket:
        if self._to_server is None:
            self._to_server = socket.create_connection((HOST, self.server.server_port))
            self._to_server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._to_server

    def _disconnect(self) -> None:
        if self._to_server is not None:
            self._to_server.close()
            self._to_server = None


@dataclass(frozen=True)
class Refuse:
    """Cut the connection, and refuse new ones for a while."""

    seconds: float

    def __call__(self, exchange: Exchange) -> None:
        _proxy(exchange).refuse(self.seconds)
        exchange.hang_up()


@dataclass(frozen=True)
class CutRequest:
    """After ``share`` of the request's bytes, of head and body, both connections are reset."""

    share: float

    def __call__(self, exchange: Exchange) -> None:
        assert isinstance(exchange, Passing)
        exchange.read_body()
        exchange.pass_on_part(self.share)
        exchange.hang_up(abruptly=True)


@dataclass(frozen=True)
class PresentCertificate:
    """Cut the connection, and show a bad certificate in the next handshakes."""

    certificate: Certificate
    handshakes: int

    def __call__(self, exchange: Exchange) -> None:
        _proxy(exchange).present(self.certificate, self.handshakes)
        exchange.hang_up()


def _proxy(exchange: Exchange) -> FaultProxy:
    assert isinstance(exchange, Passing)
    return exchange.server
