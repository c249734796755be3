"""One daemon per work directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import ConfigurationError, StandingError

if sys.platform != "win32":
    import fcntl

LOCK = "daemon.lock"
EITHER = "`dropfed-aggregator init` or `dropfed-site join`"
LOOKS_S = 1.0  # who only looks whether a daemon is there holds the lock for less


def is_at_work(work: Path) -> bool:
    """Whether a daemon works in a directory, which this user may perhaps only read."""
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
    """Whether anybody holds the lock of a file that may not be written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def demand_work(work: Path, made_by: str = EITHER) -> None:
    """Demand that a work directory is there.

    Args:
        made_by: the command that makes one.

    Raises:
        ConfigurationError: it is not.
    """
    if not work.is_dir():
        remedy = f"name it with --work, or make it with {made_by}"
        raise ConfigurationError([f"{work}: there is no such work directory; {remedy}"])


@contextmanager
def work_lock(
    work: Path, taken: str = "another daemon works in this directory; stop it first", made_by: str = EITHER
) -> Iterator[None]:
    """Hold a work directory until the block ends, however it ends.

    Args:
        taken: what to say where another process holds it.
        made_by: as for ``demand_work``.

    Raises:
        ConfigurationError: there is no such directory.
        StandingError: another daemon holds it.
    """
    demand_work(work, made_by)
    try:
        with FileLock(work / LOCK, timeout=LOOKS_S):
            yield
    except Timeout:
        raise StandingError(f"{work}: {taken}") from None
