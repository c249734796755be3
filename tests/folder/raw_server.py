"""A server that answers every request with the same bytes, whatever these are, over real sockets."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

from tests.folder.listener import Listener


class RawServer(Listener):
    """Sends ``answer`` and hangs up.

    Args:
        send: sends an answer its own way.
    """

    def __init__(
        self, answer: bytes = b"", send: Callable[[socket.socket, bytes], None] = lambda client, answer: None
    ) -> None:
        self.answer = answer
        self._send = send
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}/drop"

    def serve(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            if not (block := client.recv(1 << 16)):
                return
            request += block
        head, _, body = request.partition(b"\r\n\r\n")
        announced = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)", head)
        while announced and len(body) < int(announced[1]):
            body += client.recv(1 << 16)
        client.sendall(self.answer)
        self._send(client, self.answer)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):  # so that nothing is lost that is still on its way there
            pass
