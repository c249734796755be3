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
        StandingError: there is no such directory, or another daemon holds it.
    """
    if not work.is_dir():
        raise StandingError(
            f"{work}: there is no such work directory; name it with --work, or make it with "
            "`dropfed-aggregator init` or `dropfed-site join`"
        )
    try:
        with FileLock(work / "daemon.lock", timeout=0):
            yield
    except Timeout:
        raise StandingError(f"{work}: another daemon works in this directory; stop it first") from None
