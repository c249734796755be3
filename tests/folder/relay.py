"""A relay between client and server that lets something happen in the middle of a transfer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """Passes bytes on to ``port``; when ``after`` bytes have passed in all, calls ``event`` once before going on.

    An ``event`` that raises an OSError cuts the connection. ``passed`` counts the bytes, in both directions.
    """

    def __init__(self, port: int, after: int, event: Callable[[], None]) -> None:
        self._target = port
        self._after = after
        self.passed = 0
        self._event = event
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:  # between stop and start
                    client.close()
                    continue
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(1 << 16):
                sink.sendall(block)
                self._count(len(block))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the other direction's thread, which close alone does not
            end.close()

    def _count(self, passed: int) -> None:
        with self._lock:
            before, self.passed = self.passed, self.passed + passed
            if before < self._after <= self.passed:
                self._event()
