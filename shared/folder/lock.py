"""Work directories: nobody but their owner enters them, and one daemon at a time works there."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import quoted
from shared.folder.ownership import give_file, make_folder

if sys.platform != "win32":
    import fcntl

LOCK = "daemon.lock"
LOOKS_S = 1.0  # who only looks whether a daemon is there holds the lock for less
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}  # what a disk without locks answers


def is_at_work(work: Path) -> bool:
    """Return whether a daemon works in a directory, which this user may perhaps only read."""
    return is_locked(work / LOCK)


def is_locked(path: Path) -> bool:
    """Return whether anybody holds the lock of a file, which need only be readable; nothing is made, but on Windows."""
    if sys.platform == "win32":
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the latter is the answer of a Windows share
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:  # without locks no daemon begins to work
                raise
        return False


def require_work(work: Path, made_by: str) -> None:
    """Check that a work directory is there.

    Args:
        made_by: the command that makes one.

    Raises:
        ConfigurationError: it is not.
    """
    if not work.is_dir():
        remedy = f"name it with --work, or make it with {made_by}"
        raise ConfigurationError([f"{work}: there is no such work directory; {remedy}"])


def make_work(work: Path) -> None:
    """Make a work directory that nobody but its owner enters, unless it is there.

    Raises:
        ActionRequiredError: it is, and others may enter it.
    """
    make_folder(work, 0o700)
    require_private(work)


def require_private(work: Path) -> None:
    """Check that nobody but its owner can enter a work directory.

    Keys and passwords, models, and parts of them that never leave a hospital lie there.

    Raises:
        ActionRequiredError: others may enter it.
    """
    if sys.platform == "win32":  # where a directory has the rights of the one above it
        return
    if work.stat().st_mode & 0o077:
        raise ActionRequiredError(f"{work} can be entered by others than its owner: run `chmod 700 {quoted(work)}`")


@contextmanager
def work_lock(work: Path, taken: str = "another daemon works in this directory; stop it first") -> Iterator[None]:
    """Hold a work directory until the block ends, however it ends. A file stays there, so it must be one of ours.

    Args:
        taken: what to say where another process holds it.

    Raises:
        ActionRequiredError: another daemon holds it.
    """
    try:
        with locked(work / LOCK, LOOKS_S):
            yield
    except Timeout:
        raise ActionRequiredError(f"{work}: {taken}") from None


@contextmanager
def locked(path: Path, patience_s: float = -1) -> Iterator[None]:
    """Hold the lock of a file, which is made, until the block ends.

    Args:
        patience_s: how long another may hold it; without end if negative.

    Raises:
        Timeout: another holds it.
        ActionRequiredError: the disk locks no files.
    """
    lock = FileLock(path, timeout=patience_s, fallback_to_soft=False)
    try:
        held = lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        remedy = "have it mounted with locks, or choose a directory on another disk"
        raise ActionRequiredError(
            f"{path.parent} lies on a disk that cannot lock files ({error.strerror}), so that two programs could "
            f"change the same files at once: {remedy}"
        ) from None
    with held:
        give_file(path)
        yield
