"""How a large file goes up: in one PUT, which is the quickest, or in chunks, of which a cut costs only some.

In chunks goes, where the server offers them,

* what was cut before, or is there in part from before this process began;
* what is as large as a file that the server refused for its size (413);
* what the line, at the speed of the last large file, would take longer than ``LONG_S`` for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.errors import DropfedError
from shared.folder.answers import TooLargeError
from shared.folder.chunks import CHUNK, ChunkedUploads, upload_name
from shared.folder.connection import Connection, FileBody
from shared.folder.meter import Meter

LONG_S = 180.0  # so much may have to be sent again after a cut


class Division:
    """Which files go up in chunks; one such memory for each folder. It asks nobody and sends nothing.

    Args:
        begun: names of uploads that an earlier process began in chunks.
    """

    def __init__(self, begun: set[str]) -> None:
        self._in_part = begun
        self._refused_bytes: int | None = None

    def is_due(self, name: str, size: int, bytes_per_second: float | None) -> bool:
        """Return whether a file goes in chunks.

        Args:
            name: of its upload (``upload_name``).
            size: bytes.
            bytes_per_second: of the last large file sent; None if there was none yet.
        """
        if size <= CHUNK:
            return False
        is_refused = self._refused_bytes is not None and size >= self._refused_bytes
        is_long = bytes_per_second is not None and size > LONG_S * bytes_per_second
        return name in self._in_part or is_refused or is_long

    def note_refused(self, size: int) -> None:
        """Remember that the server takes no file of this size."""
        self._refused_bytes = min(size, self._refused_bytes or size)

    def note_cut(self, name: str) -> None:
        """Remember that a file was cut on its way."""
        self._in_part.add(name)

    def note_arrived(self, name: str) -> None:
        """Forget a file that has arrived."""
        self._in_part.discard(name)


class LargeUploads:
    """Sends the large files of one folder. Not shared between threads, but for ``interrupt``.

    Args:
        put: sends a body to a path by one PUT, and raises what stands against it.
        demand_arrived: demands that so many bytes are at a path: with a full disk, or a body that was cut, some servers
            report success.
    """

    def __init__(
        self,
        connection: Connection,
        meter: Meter,
        *,
        put: Callable[[str, FileBody], None],
        require_arrived: Callable[[str, int], None],
    ) -> None:
        self._meter = meter
        self._put = put
        self._require_arrived = require_arrived
        self._chunks = ChunkedUploads.beside(connection)
        self._division: Division | None = None  # made when it is first needed: it asks the server

    def interrupt(self) -> None:
        """Have what the threads of an upload wait for end at once, but for the connection that was given."""
        if self._chunks is not None:
            self._chunks.interrupt()

    def send(self, path: str, source: Path, size: int, sha256: str | None) -> None:
        """Bring a file to ``path``.

        Args:
            sha256: of it; without it the file goes in one PUT.

        Raises:
            TransientError: it was cut, among others; the next call goes on in chunks.
            ActionRequiredError: the server refuses it.
        """
        if self._chunks is None or sha256 is None or size <= CHUNK:
            self._put_whole(path, source, size)
            return
        division = self._division = self._division or Division(self._chunks.begun())
        name = upload_name(path, sha256)
        if not division.is_due(name, size, self._meter.speeds.get("up")):
            try:
                self._put_whole(path, source, size, when_cut=lambda: division.note_cut(name))
                return
            except TooLargeError:
                division.note_refused(size)
                if not self._put_in_chunks(path, source, size, sha256):
                    raise
        elif not self._put_in_chunks(path, source, size, sha256):
            self._put_whole(path, source, size)
        division.note_arrived(name)

    def _put_in_chunks(self, path: str, source: Path, size: int, sha256: str) -> bool:
        """Return whether the server takes chunks after all."""
        if self._chunks is None or not self._chunks.upload(path, source, size, sha256, self._meter):
            return False
        self._require_arrived(path, size)
        return True

    def _put_whole(self, path: str, source: Path, size: int, when_cut: Callable[[], None] = lambda: None) -> None:
        gone = 0

        def note(count: int) -> None:
            nonlocal gone
            moved(count)
            gone += count

        try:
            with source.open("rb") as file, self._meter.transfer(path, "up", size) as moved:
                self._put(path, FileBody(file, size, note))
            self._require_arrived(path, size)
        except TooLargeError:
            raise
        except DropfedError:
            if gone:
                when_cut()
            raise
