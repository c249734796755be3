"""What comes to the stand-in for ownCloud after a request's headers."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from io import BufferedIOBase

BLOCK = 1 << 20
ANSWERS_WITHIN_S = 0.2  # how soon a machine says that the program at the other end has gone; at once, on loopback
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class Body:
    """The body of one request.

    Attributes:
        length: in bytes, None where it comes in chunks of HTTP's own.
        received: how many bytes of it have been read.
        is_whole: it has been read to its end; one that was cut never is.
    """

    def __init__(self, file: BufferedIOBase, headers: Message[str, str], connection: socket.socket) -> None:
        is_chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
        self.length = None if is_chunked else int(headers.get("Content-Length", 0))
        self.received = 0
        self.is_whole = self.length == 0
        self._connection = connection
        self._file = file
        self._blocks = self._in_chunks() if self.length is None else self._of(self.length)

    def blocks(self) -> Iterator[bytes]:
        """Yield what has not been read yet, or what arrives of it."""
        with suppress(ConnectionError):
            for block in self._blocks:
                self.received += len(block)
                self.is_whole = self.received == self.length
                yield block

    def is_sender_gone(self) -> bool:
        """Whether the sender of a cut body was killed, rather than only sends no more but still listens.

        Both look alike to who reads. Whoever listens passes over an interim answer; to one that finds no program, the
        other machine says so.
        """
        try:
            self._connection.sendall(_INTERIM)
        except ConnectionError:
            return True
        watch = select.poll()
        watch.register(self._connection, 0)  # errors and resets alone
        return bool(watch.poll(ANSWERS_WITHIN_S * 1000))

    def _of(self, length: int) -> Iterator[bytes]:
        while length and (block := self._file.read1(min(BLOCK, length))):
            length -= len(block)
            yield block

    def _in_chunks(self) -> Iterator[bytes]:
        while size := self._size_of_next():
            for block in self._of(size):
                size -= len(block)
                yield block
            if size:
                raise ConnectionError("cut within a chunk")
            self._file.readline()
        self._file.readline()
        self.is_whole = True

    def _size_of_next(self) -> int:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("cut between two chunks")
        return int(line.split(b";")[0], 16)
