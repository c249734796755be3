"""What stops a program that runs on until then, cleanly: Ctrl-C or TERM."""

from __future__ import annotations

import signal
import threading


def set_by_signals(stop: threading.Event) -> threading.Event:
    """Have Ctrl-C and TERM set an event from now on, instead of ending the process; return it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
