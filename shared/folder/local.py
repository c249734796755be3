"""A drop folder that is a directory on this machine: for tests, for trying, and for an auditor's copy on a stick."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shared.errors import ActionRequiredError, AlreadyExistsError, NotFoundError, RejectedError
from shared.folder.contract import MAX_ENTRIES, Entry, Folder, check_path
from shared.folder.durable import (
    BLOCK,
    copy_content,
    disk_trouble,
    hash_file,
    put_where_nothing_is,
    sync_folder,
    temporary_name,
    write_file,
    writing,
)


class LocalFolder(Folder):
    """A drop folder below ``root``, which must exist. Its listings show everything, for an auditor's sake."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return f"LocalFolder({str(self.root)!r})"

    def read(self, path: str, *, max_bytes: int) -> bytes:
        with self._translated(path), self._file(path).open("rb") as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise RejectedError(path, f"larger than the {max_bytes} bytes allowed for it")
        return content

    def download(self, path: str, target: Path, *, size: int) -> str:
        digest = hashlib.sha256()
        with self._translated(path):
            file = self._file(path)
            found = file.stat().st_size
            if found != size:
                raise RejectedError(path, f"has {found} bytes instead of {size}")
            with file.open("rb") as source, writing(target, durable=False) as copy:
                remaining = size
                while block := source.read(min(BLOCK, remaining)):
                    digest.update(block)
                    copy.write(block)
                    remaining -= len(block)
                if remaining:
                    raise RejectedError(path, f"shrank by {remaining} bytes while it was read")
        return digest.hexdigest()

    def hash(self, path: str) -> tuple[int, str]:
        """Return size in bytes and SHA-256 (hex) of a file of any size.

        Raises:
            NotFoundError: there is no such file.
        """
        with self._translated(path):
            return hash_file(self._file(path))

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        target = self.locate(path)
        with self._translated(path), source.open("rb") as stream, self._making(target) as copy:
            copy_content(stream, copy)

    def remove(self, path: str) -> None:
        with self._translated(path):
            self.locate(path).unlink(missing_ok=True)

    def room(self) -> int | None:
        with self._translated(""):
            return shutil.disk_usage(self.root).free

    def create(self, path: str, content: bytes) -> None:
        target = self.locate(path)
        with self._translated(path):
            if self._holds(target, path, content):
                return
            self.check()
            complete = target.with_name(temporary_name(f"{target.name}.new"))
            write_file(complete, content)
            try:
                put_where_nothing_is(complete, target)
            except FileExistsError:
                self._holds(target, path, content)
            finally:
                complete.unlink(missing_ok=True)
            sync_folder(target.parent)

    def overwrite(self, path: str, content: bytes) -> None:
        target = self.locate(path)
        with self._translated(path), self._making(target) as file:
            file.write(content)

    def list(self, path: str) -> list[Entry]:
        folder = self.locate(path) if path else self.root
        entries: dict[str, Entry] = {}
        with self._translated(path):
            if not path:
                self.check()
            elif not folder.is_dir():
                raise NotFoundError(f"{path} is not a folder in {self.root}.")
            with os.scandir(folder) as found:
                for item in found:
                    if len(entries) == MAX_ENTRIES:
                        raise RejectedError(path or ".", f"holds more than {MAX_ENTRIES} entries")
                    with suppress(FileNotFoundError):  # renamed or removed since its name was read
                        is_file = item.is_file(follow_symlinks=False)
                        size = item.stat(follow_symlinks=False).st_size if is_file else None
                        entries[item.name] = Entry(item.name, item.is_dir(follow_symlinks=False), size)
        return [entries[name] for name in sorted(entries)]

    def interrupt(self) -> None:
        """Do nothing: a local folder waits for no network."""

    def check(self) -> None:
        if not self.root.is_dir():
            raise ActionRequiredError(
                f"{self.root} is not a folder: create it, or correct the path in the configuration."
            )

    @contextmanager
    def _making(self, target: Path) -> Iterator[BinaryIO]:
        """Open ``target`` for writing, making its parents but never the root itself (perhaps an unplugged disk)."""
        self.check()
        with writing(target) as file:
            yield file

    def locate(self, path: str) -> Path:
        """Return where ``path`` lies on disk.

        Raises:
            ValueError: the path is malformed.
            RejectedError: a symbolic link leads out of the folder.
        """
        place = self.root / check_path(path)
        if not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(self.root)):  # unlike resolve, bears loops
            raise RejectedError(path, "leads out of the folder through a symbolic link")
        return place

    def _file(self, path: str) -> Path:
        """Return where a file lies on disk; opened, no pipe may keep us waiting.

        Raises:
            NotFoundError: there is no such file.
        """
        file = self.locate(path)
        if not file.is_file():
            raise NotFoundError(f"{path} is not in {self.root}.")
        return file

    def _holds(self, target: Path, path: str, content: bytes) -> bool:
        """Return whether ``content`` is there already; raise AlreadyExistsError if something else is."""
        if not target.exists():
            return False
        if target.is_file() and target.stat().st_size == len(content) and target.read_bytes() == content:
            return True
        raise AlreadyExistsError(f"{path} is in {self.root} already, with other content; it was left as it is.")

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_trouble(error, self.root / path) from error
