"""Files that survive a power cut: temporary name, flush, fsync, rename, fsync of the directory."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shared.errors import ActionRequiredError, ConfigurationError, TransientError
from shared.escaping import quoted
from shared.folder.ownership import create_file, make_folder

ARRIVING = ".arriving"  # ends the name of a file of which a part is here (``partial.py``)
BLOCK = 1 << 18  # bytes read or sent at a time; each transfer holds a few of them
COPIED_BYTES = 1 << 26  # by one call of the kernel
IN_USE_S = 5.0  # how long a file may be looked into by another process where nobody can replace it meanwhile
_NO_ROOM = 1 << 16  # bytes: less than the record that is written next may need
_FULL = {errno.ENOSPC, errno.EDQUOT}
_UNKNOWN = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}  # what a disk says to a call that it does not have
_REFUSED = {errno.EACCES, errno.EPERM}


@contextmanager
def writing(path: Path, *, private: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes ``path`` when the block ends well, and vanishes when it does not.

    Args:
        private: readable and writable by the owner only, from the first byte on.
        durable: on the disk when the block has ended. What only tells people how things stand need not be, and should
            not: the disk writes out everything else first that is on its way, models too.
    """
    make_folder(path.parent)
    temporary = path.with_name(temporary_name(path.name))
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = create_file(temporary, flags, 0o600 if private else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        put_in_place(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = str(path)  # a disk that gets full while it is written does not say which
        raise
    if durable:
        sync_folder(path.parent)


def require_folder_of(path: Path) -> None:
    """Check that writing a file makes no folder.

    Raises:
        ConfigurationError: it would.
    """
    if not path.parent.is_dir():
        raise ConfigurationError([f"{path}: there is no folder {path.parent}; make it, or name another file"])


def put_in_place(complete: Path, path: Path) -> None:
    """Make a file on the same disk ``path``, in place of what is there."""
    _patiently(lambda: complete.replace(path))


def put_where_nothing_is(complete: Path, path: Path) -> None:
    """Make a file on the same disk ``path``, unless that is there.

    Raises:
        FileExistsError: it is; ``complete`` is as it was.
    """
    try:
        os.link(complete, path)  # unlike a rename, never replaces what another process just made
    except FileExistsError:
        raise
    except OSError:  # a disk without links, where a look has to do
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        put_in_place(complete, path)
    else:
        complete.unlink()


def remove_file(path: Path) -> None:
    """Remove a file that others may look into; one that is not there counts as removed."""
    _patiently(lambda: path.unlink(missing_ok=True))


def _patiently(step: Callable[[], object]) -> None:
    """Do what Windows refuses while another process has the file open: a virus scanner, or a person's `status`."""
    deadline = time.monotonic() + (IN_USE_S if sys.platform == "win32" else 0.0)
    while True:
        try:
            step()
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)
        else:
            return


def begin_to_store(file: BinaryIO, start: int) -> int:
    """Have the disk begin with what was written since ``start``, so that the fsync to come finds little left to do.

    Returns:
        Where the file ends by now: the next ``start``.
    """
    file.flush()
    end = file.tell()
    if hasattr(os, "posix_fadvise"):  # Linux then begins to write, and drops only what is on the disk already
        os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)
    return end


def write_file(path: Path, content: bytes, *, private: bool = False, durable: bool = True) -> None:
    """Write ``content`` to ``path``, all or nothing; see ``writing``."""
    with writing(path, private=private, durable=durable) as file:
        file.write(content)


def temporary_name(name: str) -> str:
    """Return the name under which ``writing`` keeps ``name`` until it is complete."""
    return f".{name}.writing"


def complete_name(name: str) -> str:
    """Return the name that a file which is being written, or is arriving, is to get, and any other file's own."""
    found = re.fullmatch(rf"\.(.+)(\.writing|\.[0-9a-f]{{16}}{re.escape(ARRIVING)})", name)
    return found[1] if found else name


def read_private(path: Path) -> bytes:
    """Read a file that holds a secret.

    Raises:
        ActionRequiredError: it is missing, or others than its owner may read it.
    """
    try:
        if path.is_char_device() or path.is_block_device():
            raise IsADirectoryError
        if sys.platform != "win32" and not path.is_dir() and path.stat().st_mode & 0o077:
            raise ActionRequiredError(f"{path} can be read by others than its owner: run `chmod 600 {quoted(path)}`")
        return path.read_bytes()
    except FileNotFoundError:
        raise ActionRequiredError(
            f"{path} is missing: put the file with the secret there, readable by you alone"
        ) from None
    except PermissionError:
        raise ActionRequiredError(f"{path} cannot be read by this user: make this user its owner") from None
    except IsADirectoryError:
        raise ActionRequiredError(f"{path} is not a file: correct the path") from None


def link_file(source: Path, target: Path, *, durable: bool = True) -> None:
    """Make ``target`` the same content as ``source``: a hard link, or a copy where the disk has no links.

    Neither may be changed afterwards except by replacing it.

    Args:
        durable: the name is on the disk afterwards. It need not be where a durable file in the same folder follows,
            without which this one counts for nothing.
    """
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as reader, writing(target) as writer:
            copy_content(reader, writer)
        return
    if durable:
        sync_folder(target.parent)


def copy_content(reader: BinaryIO, writer: BinaryIO) -> None:
    """Copy a file that was just opened into one that was, within the kernel where it can, else through this process."""
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # not between these disks, or no room: what is left is copied, or fails, below
            while os.copy_file_range(reader.fileno(), writer.fileno(), COPIED_BYTES):
                pass
    shutil.copyfileobj(reader, writer, BLOCK)


def sync_file(path: Path) -> None:
    """Wait until what was written to a file is on the disk."""
    with path.open("ab") as file:  # Windows stores what may be written alone
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make renames inside ``path`` durable. Windows has no such call and needs none, nor do some disks of a network."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 (hex) of a file, read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 (hex) of a line ``SHA-256  PATH`` for each file, sorted by path.

    Args:
        files: each file's path as it is told, and where it lies.
    """
    lines = hashlib.sha256()
    for path, file in sorted(files):
        lines.update(f"{hash_file(file)[1]}  {path}\n".encode())
    return lines.hexdigest()


def full_disk(path: Path) -> str | None:
    """Return what to say if the disk with ``path`` has no room for a record: a daemon cannot note that there itself."""
    has_room = shutil.disk_usage(path).free >= _NO_ROOM
    return None if has_room else f"the disk with {path} is full: free some space there"


def disk_trouble(error: OSError, path: Path) -> ActionRequiredError | TransientError:
    """Translate what the operating system says about a local file into a sentence with a remedy."""
    where = Path(error.filename) if isinstance(error.filename, str) else path
    where = where.with_name(complete_name(where.name)) if where.name else where
    if error.errno in _FULL:
        return ActionRequiredError(f"The disk with {where} is full: free some space there.")
    if error.errno == errno.EROFS:
        return ActionRequiredError(
            f"{where} cannot be written, its disk can only be read: have it mounted writable, or name another place."
        )
    if error.errno in _REFUSED:
        remedy = (
            "change its rights, or end what has it open" if sys.platform == "win32" else "change its owner or rights"
        )
        return ActionRequiredError(f"{where} may not be read or written here ({error.strerror}): {remedy}.")
    unfit = FileNotFoundError | FileExistsError | NotADirectoryError | IsADirectoryError
    if isinstance(error, unfit) or error.errno == errno.ENAMETOOLONG:
        return ActionRequiredError(f"{where} cannot be used ({error.strerror}): check the path.")
    return TransientError(f"{where} cannot be read or written now: {error.strerror or error}.")
