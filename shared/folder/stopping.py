"""A daemon that was asked to stop does not wait for a server that lets it wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

GRACE_S = 5.0  # that a request still has
LOOK_EVERY_S = 1.0


@contextmanager
def cut_after(stop: Event, interrupt: Callable[[], None]) -> Iterator[None]:
    """Call ``interrupt`` again and again once ``stop`` is set, until the block ends.

    Args:
        interrupt: has all that waits for a server in other threads end at once, as ``Folder.interrupt`` does.
    """
    is_over = Event()

    def watch() -> None:
        while not stop.is_set():
            if is_over.wait(LOOK_EVERY_S):
                return
        while not is_over.wait(GRACE_S):
            interrupt()

    watching = Thread(target=watch, name="cut-after-stop", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()  # a thread that still ran at the interpreter's end might bring the process down
