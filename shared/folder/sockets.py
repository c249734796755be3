"""The sockets beneath a connection: none waits for drips, and all can be cut from another thread.

An answer stands still when fewer than ``LEAST_BYTES`` of it come within the time that is allowed for standstill, its
head included. How long the whole may take has no limit; a large one on a slow line is never cut.
"""

from __future__ import annotations

import io
import socket
import time
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from threading import Lock
from typing import Any
from weakref import WeakSet

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.poolmanager import PoolManager

LEAST_BYTES = 256  # that must come within the time for standstill
CONNECT_S = 20.0  # to find the server and greet it
MAX_HEAD_BYTES = 1 << 18  # status lines and headers, those of interim answers too
MOST_LINES = 1000  # one after the other, in a head or behind the last chunk


class Sockets:
    """All sockets of one connection.

    Args:
        stall_s: seconds of standstill after which an answer is abandoned.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._open: WeakSet[socket.socket] = WeakSet()
        self._lock = Lock()

    def add(self, sock: socket.socket) -> None:
        """Note a socket that was connected."""
        with self._lock:
            self._open.add(sock)

    def cut(self) -> None:
        """Have all that waits on a socket end at once, as if the other side had hung up."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):  # closed meanwhile
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own, which would go on in the clear


class Adapter(HTTPAdapter):
    """Has requests use such sockets, straight or through a proxy."""

    def __init__(self, sockets: Sockets) -> None:
        self._pools = _pools(sockets)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:
        """Make what keeps connections straight to the server."""
        super().init_poolmanager(*arguments, **settings)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *arguments: Any, **settings: Any) -> PoolManager:
        """Return what keeps connections through a proxy."""
        manager: PoolManager = super().proxy_manager_for(*arguments, **settings)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(sockets: Sockets) -> dict[str, type[HTTPConnectionPool]]:
    class Answer(_SteadyAnswer):
        stall_s = sockets.stall_s

    class Plain(HTTPConnection):
        response_class = Answer

        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class Encrypted(HTTPSConnection):
        response_class = Answer

        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


class _SteadyAnswer(HTTPResponse):
    """An answer, read through ``_Steady``."""

    stall_s: float

    def __init__(self, sock: socket.socket, *arguments: Any, **settings: Any) -> None:
        super().__init__(sock, *arguments, **settings)
        self._steady = _Steady(self.fp.detach(), self.stall_s)
        self.fp = _Lines(self._steady)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        self._steady.is_head = False


class _Lines(io.BufferedReader):
    """Gives at most ``MOST_LINES`` lines one after the other."""

    _count = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line.

        Raises:
            HTTPException: there are too many, one after the other.
        """
        self._count += 1
        if self._count > MOST_LINES:
            raise HTTPException("the headers of the answer, or what follows its body, do not end")
        return super().readline(size)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some of the body."""
        self._count = 0
        return super().read(size)


class _Steady(io.RawIOBase):
    """What comes over a socket, as long as it goes on coming."""

    def __init__(self, raw: io.RawIOBase, stall_s: float) -> None:
        self.is_head = True
        self._raw = raw
        self._stall_s = stall_s
        self._since: float | None = None  # when the first of the newest ``_moved`` bytes came
        self._moved = 0
        self._head_bytes = 0

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for the next bytes.

        Raises:
            TimeoutError: too few came for too long.
            HTTPException: the head does not end.
        """
        count = self._raw.readinto(buffer)
        if self.is_head:
            self._head_bytes += count or 0
            if self._head_bytes > MAX_HEAD_BYTES:
                raise HTTPException("the head of the answer does not end")
        self._require_progress(count or 0)
        return count

    def _require_progress(self, count: int) -> None:
        now = time.monotonic()
        if self._since is None or self._moved + count >= LEAST_BYTES:
            self._since, self._moved = now, 0
            return
        self._moved += count
        if now - self._since > self._stall_s:
            raise TimeoutError(f"fewer than {LEAST_BYTES} bytes came in {self._stall_s:g} s")

    def close(self) -> None:
        """Let the socket go."""
        self._raw.close()
        super().close()
