"""A relay between client and server that lets something happen in the middle of a transfer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from tests.folder.listener import Listener, join_ends


class Relay(Listener):
    """Passes bytes on to ``port``; when ``after`` bytes have passed in all, calls ``event`` once before going on.

    An ``event`` that raises an OSError cuts the connection. ``passed`` counts the bytes, in both directions.
    """

    def __init__(self, port: int, after: int, event: Callable[[], None]) -> None:
        self._target = port
        self._after = after
        self.passed = 0
        self._event = event
        self._lock = threading.Lock()
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            join_ends(client, server, self._count)

    def _count(self, passed: int) -> None:
        with self._lock:
            before, self.passed = self.passed, self.passed + passed
            if before < self._after <= self.passed:
                self._event()
