"""Chunked upload as ownCloud and Nextcloud offer it ("NG"): after a cut, what has arrived is not sent again.

    MKCOL  /remote.php/dav/uploads/USER/ID                a folder for the chunks
    PUT    …/ID/00000, …/ID/00001, …                      each of the same size, the last shorter
    MOVE   …/ID/.file → /remote.php/dav/files/USER/PATH   the server puts them together, in the order of their names

ID follows from the destination and the content, so an upload goes on where it was even after the process was killed.
The server stores a chunk that was cut on its way as if it were whole; therefore chunks count by their size, and the
MOVE says how long the whole must be.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import BinaryIO

from shared.errors import NotFoundError, PassingError
from shared.folder.connection import Connection, FileBody

CHUNK = 8 << 20  # bytes
_EXISTS = 405
_NOT_OFFERED = (401, 403, 404, 409, 501)


class ChunkedUploads:
    """The upload area that belongs to a folder.

    Args:
        area: path of the user's uploads on the server.
        files: path of the user's files on the server, where finished uploads go.
        inside: path of the folder below ``files``.
    """

    def __init__(self, connection: Connection, *, area: str, files: str, inside: str) -> None:
        self._connection = connection
        self._area = area
        self._files = files
        self._inside = inside

    @classmethod
    def beside(cls, connection: Connection) -> ChunkedUploads | None:
        """Return the area for a folder whose address is of ownCloud's or Nextcloud's form, else None."""
        form = r"(?P<base>.*/remote\.php)/(?:webdav|dav/files/(?P<user>[^/]+))(?P<inside>/.*)?"
        if (found := re.fullmatch(form, connection.path)) is None:
            return None
        user, dav = found["user"] or connection.user, f"{found['base']}/dav"
        return cls(connection, area=f"{dav}/uploads/{user}", files=f"{dav}/files/{user}", inside=found["inside"] or "")

    def is_offered(self) -> bool:
        """Whether the server has such an area for this user."""
        home = f"{self._area}/dropfed-{secrets.token_hex(16)}"
        made = self._connection.send("MKCOL", home)
        return made.status == 201 and self._connection.send("DELETE", home).status in (200, 204)

    def upload(self, path: str, file: BinaryIO, size: int, sha256: str, moved: Callable[[int], None]) -> bool:
        """Bring a file to ``path`` in the folder; False if the server does not offer this after all.

        Raises:
            PassingError: not all has arrived; the next call sends what is missing.
        """
        name = hashlib.sha256(f"{path} {sha256}".encode()).hexdigest()[:32]
        home, target = f"{self._area}/dropfed-{name}", f"{self._files}{self._inside}/{path}"
        made = self._connection.send("MKCOL", home)
        if made.status in _NOT_OFFERED:
            return False
        if made.status not in (201, _EXISTS):
            raise self._connection.error(made, "MKCOL", home)
        try:
            if made.status == 201 and self._size_of(target) == size:  # the answer to our MOVE was lost
                self._connection.send("DELETE", home)
            else:
                self._send_missing(home, file, size, moved)
                self._put_together(home, target, size)
        except NotFoundError:
            raise PassingError(f"{self._connection.where(home)} has gone while it was filled.") from None
        return True

    def _send_missing(self, home: str, file: BinaryIO, size: int, moved: Callable[[int], None]) -> None:
        arrived = {entry.name: entry.size for entry in self._connection.listing(home, depth=1).entries}
        for number, start in enumerate(range(0, size, CHUNK)):
            chunk, length = f"{home}/{number:05d}", min(CHUNK, size - start)
            if arrived.get(f"{number:05d}") != length:
                answer = self._connection.send("PUT", chunk, body=FileBody(file, length, moved, start=start))
                if answer.status not in (201, 204):
                    raise self._connection.error(answer, "PUT", chunk)

    def _put_together(self, home: str, target: str, size: int) -> None:
        headers = {
            "Destination": self._connection.address(target),
            "OC-Total-Length": str(size),
            "Overwrite": "F",
        }
        answer = self._connection.send("MOVE", f"{home}/.file", headers=headers)
        if answer.status in (201, 204) or self._size_of(target) == size:
            return
        if answer.status in (400, 404, 412):
            where = self._connection.where(target)
            raise PassingError(f"{where} was not put together by the server ({answer.status}).")
        raise self._connection.error(answer, "MOVE", target)

    def _size_of(self, place: str) -> int | None:
        try:
            return self._connection.listing(place, depth=0).itself.size
        except NotFoundError:
            return None
