"""What stops a program that runs on until then, cleanly: Ctrl-C or TERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from types import FrameType

PIECE_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def set_by_signals(stop: Event) -> Event:
    """Have Ctrl-C and TERM set an event from now on, instead of ending the process; return it."""
    _listen(stop, [])
    return stop


def wait_for(stop: Event) -> None:
    """Wait until an event is set; in pieces, for nothing else has Windows see Ctrl-C."""
    while not stop.wait(PIECE_S):
        pass


@contextmanager
def stopped_by_signals(stop: Event, came: list[int]) -> Iterator[None]:
    """Have signals set an event while the block runs, and note them in ``came``: others may set the event too."""
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = _listen(stop, came)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        heard.put(None)


def _listen(stop: Event, came: list[int]) -> SimpleQueue[int | None]:
    """Set an event once a signal comes. What is returned takes None, which ends the listening.

    A handler runs in the midst of whatever the main thread does. That may be the event's own ``wait``, which holds the
    lock that ``set`` takes: called by the handler, ``set`` would wait for ever. So another thread calls it; a
    ``SimpleQueue`` may be interrupted by itself.
    """
    heard: SimpleQueue[int | None] = SimpleQueue()

    def listen() -> None:
        if heard.get() is not None:
            stop.set()

    def hear(number: int, _: FrameType | None) -> None:
        came.append(number)
        heard.put(number)

    Thread(target=listen, name="stop-by-signal", daemon=True).start()
    for number in _SIGNALS:
        signal.signal(number, hear)
    return heard
