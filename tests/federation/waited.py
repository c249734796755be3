"""A clock that moves only when a daemon waits, so that hours of waiting take no time."""

from __future__ import annotations

import threading


class Waited(threading.Event):
    """A stop event and that clock, for the daemon of the thread that makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._waiter = threading.current_thread()

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is not self._waiter:  # who only looks whether to cut a connection
            return super().wait(timeout)
        self.pass_over(timeout or 0.0)
        return self.is_set()

    def pass_over(self, pause_s: float) -> None:
        """Let one wait of the daemon pass."""
        self.now += pause_s
