"""Chunked upload as ownCloud and Nextcloud offer it ("NG"): after a cut, what has arrived is not sent again.

    MKCOL  /remote.php/dav/uploads/USER/ID                a folder for the chunks
    PUT    …/ID/00000, …/ID/00001, …                      each of the same size, the last shorter; some at a time
    MOVE   …/ID/.file → /remote.php/dav/files/USER/PATH   the server puts them together, in the order of their names

ID follows from the destination and the content, so an upload goes on where it was even after the process was killed.
The server stores a chunk that was cut on its way as if it were whole; therefore chunks count by their size, and the
MOVE says how long the whole must be. What is there is looked up in listings of folders: asking for a file that is not
there prolongs a lock that an earlier request may have left on its name.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.errors import DropfedError, NotFoundError, TransientError
from shared.folder.connection import Connection, FileBody
from shared.folder.meter import Meter

CHUNK = 8 << 20  # bytes
AT_A_TIME = 3  # chunks on their way, each over a connection of its own
_EXISTS = 405
_NOT_OFFERED = (403, 404, 409, 501)


class ChunkedUploads:
    """The upload area that belongs to a folder.

    Args:
        area: path of the user's uploads on the server.
        files: path of the user's files on the server, where finished uploads go.
        inside: path of the folder below ``files``.
    """

    def __init__(self, connection: Connection, *, area: str, files: str, inside: str) -> None:
        self._connection = connection
        self._further: list[Connection] = []
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

    def interrupt(self) -> None:
        """Have what the threads of an upload wait for end at once, but for the connection that was given."""
        for connection in self._further.copy():
            connection.interrupt()

    def is_offered(self) -> bool:
        """Return whether the server has an area for uploads in chunks for this user."""
        home = f"{self._area}/dropfed-{secrets.token_hex(16)}"
        made = self._connection.send("MKCOL", home)
        return made.status == 201 and self._connection.send("DELETE", home).status in (200, 204)

    def begun(self) -> set[str]:
        """Return the unfinished uploads, each by its ``upload_name``; none if the server does not list them."""
        try:
            return {entry.name for entry in self._connection.listing(f"{self._area}/", depth=1).entries}
        except DropfedError:
            return set()

    def upload(self, path: str, source: Path, size: int, sha256: str, meter: Meter) -> bool:
        """Bring a file to ``path`` in the folder; False if the server does not offer this after all.

        Raises:
            TransientError: not all has arrived; the next call sends what is missing.
        """
        home, target = f"{self._area}/{upload_name(path, sha256)}", f"{self._files}{self._inside}/{path}"
        made = self._connection.send("MKCOL", home)
        if made.status in _NOT_OFFERED:
            return False
        if made.status not in (201, _EXISTS):
            raise self._connection.error(made, "MKCOL", home)
        try:
            if made.status == 201 and self._size_of(target) == size:  # the answer to our MOVE, or to a PUT, was lost
                self._connection.send("DELETE", home)
            else:
                self._send_missing(home, path, source, size, meter)
                self._put_together(home, target, size)
        except NotFoundError:
            raise TransientError(f"{self._connection.where(home)} has gone while it was filled.") from None
        return True

    def _send_missing(self, home: str, path: str, source: Path, size: int, meter: Meter) -> None:
        arrived = {entry.name: entry.size for entry in self._connection.listing(f"{home}/", depth=1).entries}
        starts = {f"{number:05d}": start for number, start in enumerate(range(0, size, CHUNK))}
        due = {name: start for name, start in starts.items() if arrived.get(name) != min(CHUNK, size - start)}
        there = sum(min(CHUNK, size - start) for name, start in starts.items() if name not in due)
        with meter.transfer(path, "up", size, moved=there) as moved:

            def send(connection: Connection, name: str) -> None:
                start, chunk = due[name], f"{home}/{name}"
                with source.open("rb") as file:
                    body = FileBody(file, min(CHUNK, size - start), moved, start=start)
                    answer = connection.send("PUT", chunk, body=body)
                if answer.status not in (201, 204):
                    raise connection.error(answer, "PUT", chunk)

            self._share_out(due, send)

    def _share_out(self, names: Iterable[str], send: Callable[[Connection, str], None]) -> None:
        """Have each of ``names`` sent over one of some connections; after a failure no further one is begun.

        When this returns or raises, no thread moves anything any more.
        """
        waiting = deque(names)

        def work(connection: Connection) -> None:
            try:
                for name in _taken_from(waiting):
                    send(connection, name)
            except BaseException:
                waiting.clear()  # what others have on its way may arrive: it need not be sent again
                raise

        while len(self._further) < AT_A_TIME - 1:
            self._further.append(self._connection.another())
        connections = [self._connection, *self._further]
        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="chunks") as threads:
            try:
                for sending in [threads.submit(work, connection) for connection in connections]:
                    sending.result()
            except KeyboardInterrupt:  # does not wait for what the threads wait for
                waiting.clear()
                for connection in connections:
                    connection.interrupt()
                raise

    def _put_together(self, home: str, target: str, size: int) -> None:
        headers = {
            "Destination": self._connection.address(target),
            "OC-Total-Length": str(size),
            "Overwrite": "T",  # as a PUT would: what is there may be a part of the same
        }
        answer = self._connection.send("MOVE", f"{home}/.file", headers=headers)
        if answer.status in (201, 204) or self._size_of(target) == size:
            return
        if answer.status in (400, 404, 412):
            where = self._connection.where(target)
            raise TransientError(f"{where} was not put together by the server ({answer.status}).")
        raise self._connection.error(answer, "MOVE", target)

    def _size_of(self, target: str) -> int | None:
        folder, _, name = target.rpartition("/")
        try:
            entries = self._connection.listing(f"{folder}/", depth=1).entries
        except NotFoundError:
            return None
        return next((entry.size for entry in entries if entry.name == name), None)


def _taken_from(waiting: deque[str]) -> Iterator[str]:
    """Yield one name after the other, as long as other threads leave any."""
    while True:
        try:
            name = waiting.popleft()
        except IndexError:
            return
        yield name


def upload_name(path: str, sha256: str) -> str:
    """Return the name of the upload of this content to this path."""
    return f"dropfed-{hashlib.sha256(f'{path} {sha256}'.encode()).hexdigest()[:32]}"
