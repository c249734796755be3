"""A proxy as hospitals have one: CONNECT to a name that it alone knows, with or without a login."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.folder.listener import Listener, join_ends


class ConnectProxy(Listener):
    """Listens on loopback.

    Args:
        known: to which local port each ``HOST:PORT`` leads.
        answer: what is said, status line and headers, instead of connecting; None connects.
        login: the value of Proxy-Authorization that is wanted; None wants none.
    """

    def __init__(self, known: Mapping[str, int], answer: str | None = None, login: str | None = None) -> None:
        self.asked: list[str] = []
        self._known = known
        self._answer = answer
        self._login = login
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and (block := client.recv(1)):
            head += block
        request, *headers = head.decode("latin-1").split("\r\n")
        target = request.split(" ")[1]
        self.asked.append(request)
        said = self._refusal(target, headers)
        if said is not None:
            client.sendall(f"{said}\r\nContent-Length: 0\r\n\r\n".encode("latin-1"))
            return
        with socket.create_connection(("127.0.0.1", self._known[target])) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            join_ends(client, server)

    def _refusal(self, target: str, headers: list[str]) -> str | None:
        if self._answer is not None:
            return self._answer
        if self._login is not None and f"Proxy-Authorization: {self._login}" not in headers:
            return 'HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="x"'
        return None if target in self._known else "HTTP/1.1 502 Bad Gateway"


@contextmanager
def connect_proxy(
    known: Mapping[str, int], answer: str | None = None, login: str | None = None
) -> Iterator[ConnectProxy]:
    """Run one."""
    proxy = ConnectProxy(known, answer, login)
    try:
        yield proxy
    finally:
        proxy.close()
