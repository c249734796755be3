"""How much memory something takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Bytes that Python and numpy held at most inside the block, beyond what they held before."""
    tracemalloc.start()
    try:
        peaks: list[int] = []
        yield lambda: peaks[0]
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
