"""What has arrived of a file so far: kept beside its target until it is whole, also when the process is killed.

The name of the part holds a tag of the file it is a part of, made of the ETag that the server gave it (or of none). A
part is only ever continued under its own tag. That the whole is right, the reader's SHA-256 decides, never the tag.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shared.folder.durable import ARRIVING, put_in_place
from shared.folder.ownership import create_file, make_folder

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class Partial:
    """The part of ``target`` that is here.

    Attributes:
        size: bytes of it, 0 if there is none.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path: Path | None = None
        self.size = 0
        for path in self._parts():
            self._path, self.size = path, path.stat().st_size

    def is_of(self, etag: str | None) -> bool:
        """Return whether this is a part of the file that the server now tags ``etag``."""
        return self._path is not None and self._path == self._named(etag)

    def discard(self) -> None:
        """Begin anew."""
        for path in self._parts():
            path.unlink()
        self._path, self.size = None, 0

    @contextmanager
    def growing(self, etag: str | None) -> Iterator[BinaryIO]:
        """Open the part for appending. What was written stays when the block ends with an error."""
        make_folder(self._target.parent)
        self._path = self._named(etag)
        with os.fdopen(create_file(self._path, _APPENDING, 0o666), "ab") as file:
            try:
                yield file
            finally:
                file.flush()
                self.size = file.tell()

    def digest(self) -> hashlib._Hash:
        """Return the SHA-256 of what is here, to go on with what comes."""
        if self._path is None:
            return hashlib.sha256()
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256")

    def complete(self) -> None:
        """Make the part, which is whole now, the target."""
        if self._path is None:
            self._path = self._named(None)  # an empty file never had a part
            make_folder(self._target.parent)
            os.close(create_file(self._path, _APPENDING, 0o666))
        put_in_place(self._path, self._target)
        self._path, self.size = None, 0

    def _named(self, etag: str | None) -> Path:
        tag = hashlib.sha256((etag or "").encode()).hexdigest()[:16]
        return self._target.with_name(f".{self._target.name}.{tag}{ARRIVING}")

    def _parts(self) -> list[Path]:
        folder, pattern = (
            self._target.parent,
            re.compile(rf"\.{re.escape(self._target.name)}\.[0-9a-f]{{16}}{re.escape(ARRIVING)}"),
        )
        return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name)) if folder.is_dir() else []
