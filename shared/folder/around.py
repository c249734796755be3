"""A folder around another: what it does not do otherwise, the one inside does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shared.folder.contract import Entry, Folder

Result = TypeVar("Result")


class FolderAround(Folder):
    """Hands every call on to ``folder``, each through ``_call``."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _call(self, work: Callable[[], Result]) -> Result:
        return work()

    def read(self, path: str, *, max_bytes: int) -> bytes:
        return self._call(lambda: self._folder.read(path, max_bytes=max_bytes))

    def download(self, path: str, target: Path, *, size: int) -> str:
        return self._call(lambda: self._folder.download(path, target, size=size))

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        self._call(lambda: self._folder.upload(path, source, sha256=sha256))

    def remove(self, path: str) -> None:
        self._call(lambda: self._folder.remove(path))

    def room(self) -> int | None:
        return self._call(self._folder.room)

    def create(self, path: str, content: bytes) -> None:
        self._call(lambda: self._folder.create(path, content))

    def overwrite(self, path: str, content: bytes) -> None:
        self._call(lambda: self._folder.overwrite(path, content))

    def list(self, path: str) -> list[Entry]:
        return self._call(lambda: self._folder.list(path))

    def tag(self) -> str | None:
        return self._call(self._folder.tag)

    def interrupt(self) -> None:
        self._folder.interrupt()

    def check(self) -> None:
        self._call(self._folder.check)
