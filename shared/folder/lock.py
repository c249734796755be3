"""Work directories: nobody but their owner enters them, and one daemon at a time works there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import quoted

if sys.platform != "win32":
    import fcntl

LOCK = "daemon.lock"
EITHER = "`dropfed-aggregator init` or `dropfed-site join`"
LOOKS_S = 1.0  # who only looks whether a daemon is there holds the lock for less


def is_at_work(work: Path) -> bool:
    """Return whether a daemon works in a directory, which this user may perhaps only read."""
    try:
        with FileLock(work / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        if sys.platform == "win32":
            raise
    return _is_locked(work / LOCK)


def _is_locked(path: Path) -> bool:
    """Return whether anybody holds the lock of a file that may not be written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def require_work(work: Path, made_by: str = EITHER) -> None:
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
    work.parent.mkdir(parents=True, exist_ok=True)
    work.mkdir(mode=0o700, exist_ok=True)
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
def work_lock(
    work: Path, taken: str = "another daemon works in this directory; stop it first", made_by: str = EITHER
) -> Iterator[None]:
    """Hold a work directory until the block ends, however it ends.

    Args:
        taken: what to say where another process holds it.
        made_by: as for ``require_work``.

    Raises:
        ConfigurationError: there is no such directory.
        ActionRequiredError: another daemon holds it.
    """
    require_work(work, made_by)
    try:
        with FileLock(work / LOCK, timeout=LOOKS_S):
            yield
    except Timeout:
        raise ActionRequiredError(f"{work}: {taken}") from None
