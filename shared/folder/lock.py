"""One daemon per work directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import StandingError


@contextmanager
def work_lock(work: Path) -> Iterator[None]:
    """Hold a work directory until the block ends, however it ends.

    Raises:
        StandingError: another daemon holds it.
    """
    work.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(work / "daemon.lock", timeout=0):
            yield
    except Timeout:
        raise StandingError(f"{work}: another daemon works in this directory; stop it first") from None
