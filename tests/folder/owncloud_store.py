"""What the stand-in for ownCloud keeps: files on disk and, in memory, their ids, ETags, checksums, locks and quotas."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.folder.owncloud_locks import LockTable
from tests.folder.owncloud_refusal import Refusal

UPLOADS = ".uploads"  # beside the users' homes: chunks, which no quota counts
ARRIVING = ".arriving"  # likewise: bodies that have not arrived whole
MAX_NAME_BYTES = 249


@dataclass
class Node:
    """What is remembered of one file or folder besides its bytes."""

    id: int
    etag: str = field(default_factory=lambda: secrets.token_hex(16))
    checksums: dict[str, str] | None = None


class Store:
    """The homes of all users below ``root``. A received share is a symbolic link into its owner's home.

    Attributes:
        quotas: bytes each owner may keep; who is not in it has no limit.
        locks: who holds which file, each named as below ``root``, like ``aggregator/north/status.json``.
    """

    def __init__(self, root: Path, locks: LockTable) -> None:
        self.root = root.resolve()
        self.quotas: dict[str, int] = {}
        self.locks = locks
        self._nodes: dict[Path, Node] = {}
        self._ids = count(1)
        self._lock = threading.RLock()
        (self.root / ARRIVING).mkdir(parents=True, exist_ok=True)

    def node(self, path: Path) -> Node:
        with self._lock:
            return self._nodes.setdefault(path, Node(next(self._ids)))

    def owner(self, path: Path) -> str:
        return path.relative_to(self.root).parts[0]

    def used(self, path: Path) -> int:
        """Return the bytes of all files of the one who owns ``path``."""
        return size_below(self.root / self.owner(path))

    def available(self, path: Path) -> int | None:
        """Return the bytes for which there is room, None without a limit. Chunks are not counted."""
        quota = self.quotas.get(self.owner(path))
        return None if quota is None else max(0, quota - self.used(path))

    def require_room(self, path: Path, size: int) -> None:
        """Refuse what has no room; where there is none at all, also what needs none."""
        available = self.available(path)
        if available is not None and (size > available or available == 0):
            raise Refusal(507, "Sabre\\DAV\\Exception\\InsufficientStorage")

    def new_part(self) -> Path:
        """Return where a body may be kept until it is whole."""
        return self.root / ARRIVING / secrets.token_hex(8)

    def name(self, path: Path) -> str:
        """Return what the locks call a file."""
        return path.relative_to(self.root).as_posix()

    @contextmanager
    def written(self, *paths: Path) -> Iterator[None]:
        """Write or remove files; who comes second is refused with 423."""
        with ExitStack() as holds:
            for path in dict.fromkeys(paths):
                holds.enter_context(self.locks.writing(self.name(path)))
            yield

    def publish(self, part: Path, target: Path) -> bool:
        """Give a complete file its name; return whether the name is new.

        As on ownCloud, an overwrite within one second leaves the file's ETag as it was.
        """
        checksums = checksums_of(part)
        with self._lock:
            is_new = not target.exists()
            before = None if is_new else int(target.stat().st_mtime)
            part.replace(target)
            node = self.node(target)
            if int(target.stat().st_mtime) != before:
                node.etag = secrets.token_hex(16)
            node.checksums = checksums
            self._tell_parents(target)
        return is_new

    def make_folder(self, path: Path) -> None:
        with self._lock:
            try:
                path.mkdir()
            except FileExistsError:
                raise Refusal(405, "Sabre\\DAV\\Exception\\MethodNotAllowed", "The resource already exists") from None
            self._tell_parents(path)

    def remove(self, path: Path) -> None:
        """Remove a file, a folder with all in it, or a received share, which its owner keeps."""
        with self._lock:
            _delete(path)
            for known in [known for known in self._nodes if known.is_relative_to(path)]:
                del self._nodes[known]
            self._tell_parents(path)

    def move(self, source: Path, target: Path) -> None:
        with self._lock:
            if target.exists():
                self.remove(target)
            shutil.move(source, target)
            for known in [known for known in self._nodes if known.is_relative_to(source)]:
                self._nodes[target / known.relative_to(source)] = self._nodes.pop(known)
            self._tell_parents(source)
            self._tell_parents(target)

    def copy(self, source: Path, target: Path, *, keep_checksums: bool) -> None:
        with self._lock:
            if target.exists():
                self.remove(target)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
            if keep_checksums:
                for known in [known for known in self._nodes if known.is_relative_to(source)]:
                    self.node(target / known.relative_to(source)).checksums = self._nodes[known].checksums
            self._tell_parents(target)

    def _tell_parents(self, path: Path) -> None:
        """Give every folder above ``path`` a new ETag, and the home of everyone who received one of them."""
        above = [folder for folder in path.parents if folder != self.root and folder.is_relative_to(self.root)]
        for home in self.root.iterdir():
            received = (entry.resolve() for entry in home.iterdir() if entry.is_symlink())
            if any(share in above for share in received):
                above.append(home)
        for folder in above:
            self.node(folder).etag = secrets.token_hex(16)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def size_below(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


def checksums_of(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    return {
        "SHA1": hashlib.sha1(content).hexdigest(),
        "MD5": hashlib.md5(content).hexdigest(),
        "ADLER32": f"{zlib.adler32(content):08x}",
    }


def require_checksum(announced: str | None, path: Path) -> None:
    """Refuse a file that is not what ``OC-Checksum`` announced; any other spelling is refused as well."""
    kind, _, value = (announced or "").partition(":")
    if announced is not None and checksums_of(path).get(kind) != value:
        raise Refusal(
            400,
            "Sabre\\DAV\\Exception\\BadRequest",
            "The computed checksum does not match the one received from the client.",
        )


def checked_name(segment: str) -> str:
    """Return a name as ownCloud stores it."""
    name = unicodedata.normalize("NFC", segment)
    if name in (".", "..") or name.lower() == ".htaccess":
        raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise Refusal(400, "OCP\\Files\\FileNameTooLongException", "File name is too long")
    if re.search(r"[\x00-\x1f\\]", name) or name.endswith((".part", ".filepart")):
        raise Refusal(400, "OCA\\DAV\\Connector\\Sabre\\Exception\\InvalidPath", f"{name!r} is not a valid name")
    return name


def in_natural_order(names: list[str]) -> list[str]:
    """Sort ``2`` before ``10``."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
