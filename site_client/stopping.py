"""What stops a daemon cleanly: Ctrl-C, TERM, or the end of a time."""

from __future__ import annotations

import re
import threading

from shared.errors import ConfigurationError
from shared.stopping import set_by_signals

_DAY_S = 86400


def stop_event(duration: str | None) -> threading.Event:
    """Return an event that Ctrl-C, TERM or the end of a time sets.

    Args:
        duration: the time, as in 90m or 24h; None: no end.

    Raises:
        ConfigurationError: it is written otherwise, or longer than this system can wait.
    """
    seconds = None if duration is None else _seconds(duration)
    stop = set_by_signals(threading.Event())
    if seconds is not None:
        timer = threading.Timer(seconds, stop.set)
        timer.daemon = True
        timer.start()
    return stop


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise ConfigurationError([f"--for {text}: must be a number and s, m, h or d, as in 90m or 24h"])
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": _DAY_S}[match[2]]
    if seconds > threading.TIMEOUT_MAX:
        longest = f"{threading.TIMEOUT_MAX // _DAY_S:.0f}d"
        raise ConfigurationError([f"--for {text}: this system waits for {longest} at most; leave --for out"])
    return seconds
