"""What listens on loopback and serves each connection in a thread of its own."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress


class Listener(ABC):
    """Listens at ``port`` until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve_and_close, args=(client,), daemon=True).start()

    def _serve_and_close(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self.serve(client)

    @abstractmethod
    def serve(self, client: socket.socket) -> None:
        """Speak with a client to its end; an OSError cuts the connection."""


def join_ends(
    client: socket.socket, server: socket.socket, on_bytes: Callable[[int], None] = lambda count: None
) -> None:
    """Pass bytes on, both ways, until either side ends.

    Args:
        on_bytes: told of every block that has passed; an OSError of it cuts the connection.
    """
    back = threading.Thread(target=_pass_on, args=(server, client, on_bytes), daemon=True)
    back.start()
    _pass_on(client, server, on_bytes)
    back.join()


def _pass_on(source: socket.socket, sink: socket.socket, on_bytes: Callable[[int], None]) -> None:
    with suppress(OSError):
        while block := source.recv(1 << 16):
            sink.sendall(block)
            on_bytes(len(block))
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # wakes the other direction's thread, which close alone does not
