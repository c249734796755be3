"""Files and folders for wsgidav that change in one step.

wsgidav's own provider writes a PUT in place and does not check its length, so that a reader may see half of it and
a client that vanishes leaves half of it; and its MOVE deletes the target first and renames then.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any, BinaryIO

from wsgidav import dav_error
from wsgidav.dav_error import DAVError
from wsgidav.fs_dav_provider import FileResource, FilesystemProvider, FolderResource

from shared.folder.durable import put_where_nothing_is, sync_folder

PART = ".part-"  # files still arriving: never listed, never served
_FULL = (ENOSPC, EDQUOT)

logger = logging.getLogger(__name__)


class AtomicProvider(FilesystemProvider):  # type: ignore[misc]  # wsgidav has no types
    """A site's folder on disk."""

    def get_resource_inst(self, path: str, environ: dict[str, Any]) -> FileResource | FolderResource | None:
        """Return what lies at ``path``, or None."""
        if any(segment.startswith(PART) for segment in path.split("/")):
            raise DAVError(dav_error.HTTP_FORBIDDEN)
        return _resource(path, self.place_of(path, environ), environ)

    def place_of(self, path: str, environ: dict[str, Any]) -> Path:
        """Return where ``path`` lies on disk; DAVError 403 if that is outside of the site's folder.

        Only what lies below the folder is looked at; wsgidav's own would resolve every part above it too, each time.
        """
        place = Path(self.root_folder_path)
        for name in filter(None, path.split("/")):
            place = _below(place, name)
        return place


def _below(folder: Path, name: str) -> Path:
    if name in (".", "..") or Path(name).name != name or "\0" in name or (folder / name).is_symlink():
        raise DAVError(dav_error.HTTP_FORBIDDEN)
    return folder / name


def _resource(path: str, place: Path, environ: dict[str, Any]) -> FileResource | FolderResource | None:
    try:
        return (AtomicFolder if place.is_dir() else AtomicFile)(path, environ, str(place))
    except (FileNotFoundError, NotADirectoryError):
        return None


class AtomicFolder(FolderResource):  # type: ignore[misc]  # wsgidav has no types
    """A folder that hides files still arriving."""

    def get_member_names(self) -> list[str]:
        """Return the names of what lies in the folder."""
        return [name for name in super().get_member_names() if not name.startswith(PART)]

    def get_member(self, name: str) -> FileResource | FolderResource | None:
        """Return what lies in the folder under a name, or None."""
        return _resource(f"{self.path.rstrip('/')}/{name}", _below(Path(self._file_path), name), self.environ)

    def get_member_list(self) -> list[FileResource | FolderResource]:
        """Return what lies in the folder, but not what was moved or removed since its name was read."""
        members = map(self.get_member, self.get_member_names())
        return [member for member in members if member is not None]

    def create_empty_resource(self, name: str) -> FileResource:
        """Return a file to be written; it appears when its content is complete."""
        path = f"{self.path.rstrip('/')}/{name}"
        place = self.provider.place_of(path, self.environ)
        if self.environ["REQUEST_METHOD"] != "PUT":  # LOCK on a free name makes an empty file
            place.touch()
        return AtomicFile(path, self.environ, str(place), is_new=True)


class AtomicFile(FileResource):  # type: ignore[misc]  # wsgidav has no types
    """A file that is replaced in one step."""

    def __init__(self, path: str, environ: dict[str, Any], file_path: str, *, is_new: bool = False) -> None:
        # wsgidav reads the status of an existing file here; a new one borrows its folder's until it is there
        super().__init__(path, environ, str(Path(file_path).parent) if is_new else file_path)
        self._file_path = file_path
        self.name = Path(file_path).name
        self._arriving: Arriving | None = None
        self._content: BinaryIO | None = None
        if environ["REQUEST_METHOD"] == "GET" and not is_new:
            # opened once: else the length may be of one file and the content of another that has replaced it
            self._content = Path(file_path).open("rb")  # noqa: SIM115  (wsgidav closes it)
            self.file_stat = os.fstat(self._content.fileno())

    def get_content(self) -> BinaryIO:
        """Return the file that all else is told about."""
        if self._content is None:
            raise DAVError(dav_error.HTTP_INTERNAL_ERROR)
        return self._content

    def get_etag(self) -> str | None:
        """Return a tag that changes with each replacement, even within one second."""
        try:
            status = Path(self._file_path).stat() if self._content is None else self.file_stat
        except FileNotFoundError:
            return None
        return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"

    def begin_write(self, *, content_type: str | None = None) -> Arriving:
        """Return what the body of a PUT is written to."""
        announced = self.environ.get("CONTENT_LENGTH") or None
        is_chunked = "chunked" in self.environ.get("HTTP_TRANSFER_ENCODING", "").lower()
        self._arriving = Arriving(
            Path(self._file_path),
            size=None if is_chunked or announced is None else int(announced),
            exclusive=self.environ.get("HTTP_IF_NONE_MATCH", "").strip() == "*",
        )
        return self._arriving

    def end_write(self, *, with_errors: bool) -> None:
        """Remove what a PUT that failed has left."""
        if self._arriving is not None:
            self._arriving.discard()

    def handle_move(self, dest_path: str) -> bool:
        """Rename in one step; False leaves it to wsgidav, which would delete first and rename then."""
        source, target = Path(self._file_path), self.provider.place_of(dest_path, self.environ)
        if target.is_dir():
            return False
        _publish(source, target, exclusive=self.environ.get("HTTP_OVERWRITE") == "F")
        self.provider.prop_manager.move_properties(
            self.get_ref_url(), self._url_at(dest_path), with_children=False, environ=self.environ
        )
        self.remove_all_locks(recursive=True)
        return True

    def copy_move_single(self, dest_path: str, *, is_move: bool) -> None:
        """Copy in one step, and the properties."""
        self.copy_to(self.provider.place_of(dest_path, self.environ))
        self.provider.prop_manager.copy_properties(self.get_ref_url(), self._url_at(dest_path), self.environ)

    def copy_to(self, place: Path) -> None:
        """Give the content a second name, at once: nothing here is ever changed but by replacing it."""
        part = _part_beside(place)
        try:
            os.link(self._file_path, part)
        except OSError as error:  # a folder on another disk, or a disk without links
            raise _failed_write(error) from error
        try:
            _publish(part, place, exclusive=False)
        finally:
            part.unlink(missing_ok=True)

    def _url_at(self, path: str) -> str:
        """Return the key under which wsgidav keeps the properties of what lies at ``path``."""
        url: str = self.provider.get_resource_inst(path, self.environ).get_ref_url()
        return url


class Arriving:
    """A file that is being written; it gets its name when it is complete and on disk.

    Args:
        target: its name to be.
        size: bytes it must have in the end, or None if nobody said.
        exclusive: refuse if there is something at ``target`` by then.
    """

    def __init__(self, target: Path, *, size: int | None, exclusive: bool) -> None:
        self._target = target
        self._size = size
        self._exclusive = exclusive
        self._part = _part_beside(target)
        self._file = self._part.open("xb")

    def write(self, block: bytes) -> None:
        """Append ``block``; DAVError 507 when the disk is full."""
        try:
            self._file.write(block)
        except OSError as error:
            raise _failed_write(error) from error

    def close(self) -> None:
        """Publish the file; DAVError 400 if it is not complete, 507 if the disk is full, 412 if it is too late."""
        arrived = self._file.tell()
        if self._size is not None and arrived != self._size:
            raise DAVError(dav_error.HTTP_BAD_REQUEST, f"the body ended after {arrived} of {self._size} bytes")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _failed_write(error) from error
        self._file.close()
        _publish(self._part, self._target, exclusive=self._exclusive)

    def discard(self) -> None:
        """Remove what is not published; nothing otherwise."""
        with suppress(OSError):  # closing flushes, perhaps onto a full disk
            self._file.close()
        self._part.unlink(missing_ok=True)


def _publish(source: Path, target: Path, *, exclusive: bool) -> None:
    """Give ``source`` the name ``target`` in one step; DAVError 412 if ``exclusive`` and the name is taken."""
    if exclusive:
        try:
            put_where_nothing_is(source, target)
        except FileExistsError:
            raise DAVError(dav_error.HTTP_PRECONDITION_FAILED) from None
    elif target.exists() and source.samefile(target):  # renaming one name of a file to another would leave both
        source.unlink()
    else:
        source.replace(target)
    sync_folder(target.parent)


def _part_beside(target: Path) -> Path:
    return target.with_name(f"{PART}{secrets.token_hex(8)}")


def _failed_write(error: OSError) -> DAVError:
    """Return the answer to a failed write, and tell the log."""
    logger.warning("cannot write %s: %s", error.filename or "a file", error.strerror)
    return DAVError(dav_error.HTTP_INSUFFICIENT_STORAGE if error.errno in _FULL else dav_error.HTTP_INTERNAL_ERROR)


def remove_torn(folder: Path) -> None:
    """Remove what a crash left half arrived below ``folder``."""
    for part in folder.rglob(f"{PART}*"):
        part.unlink()
