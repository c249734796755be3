"""What stops a program that runs on until then, cleanly: Ctrl-C or TERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def set_by_signals(stop: threading.Event) -> threading.Event:
    """Have Ctrl-C and TERM set an event from now on, instead of ending the process; return it."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Have signals set an event while the block runs."""
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    set_by_signals(stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
