"""What stops a program that runs on until then, cleanly: Ctrl-C or TERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def set_by_signals(stop: Event) -> Event:
    """Have Ctrl-C and TERM set an event from now on, instead of ending the process; return it."""
    _listen(stop)
    return stop


@contextmanager
def stopped_by_signals(stop: Event) -> Iterator[None]:
    """Have signals set an event while the block runs."""
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    came = _listen(stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        came.put(None)


def _listen(stop: Event) -> SimpleQueue[int | None]:
    """Set an event once a signal comes; return what it is put into, or None, which ends the listening.

    A handler runs in the midst of whatever the main thread does. That may be the event's own ``wait``, which holds the
    lock that ``set`` takes: called by the handler, ``set`` would wait for ever. So another thread calls it; a
    ``SimpleQueue`` may be interrupted by itself.
    """
    came: SimpleQueue[int | None] = SimpleQueue()

    def listen() -> None:
        if came.get() is not None:
            stop.set()

    Thread(target=listen, name="stop-by-signal", daemon=True).start()
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: came.put(number))
    return came
