"""What a hospital lets the daemon take: hours, bandwidth, processor."""

from __future__ import annotations

import os
import sys
from datetime import datetime, time, timedelta
from typing import Annotated

from pydantic import Field

from shared.errors import TransientError
from shared.exchange.forms import text_like
from shared.exchange.records.values import Record
from shared.plurals import pluralize

_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
Hours = Annotated[str, text_like(rf"{_CLOCK}-{_CLOCK}", "like 18:00-07:00")]
Megabits = Annotated[float, Field(gt=0, le=1e6, description="megabits per second")]


class Limits(Record):
    """``limits:`` in ``site.yaml``. Hours are this machine's local time, as in 18:00-07:00; null is no limit."""

    training_hours: Hours | None = None
    transfer_hours: Hours | None = None
    upload_megabits: Megabits | None = None
    download_megabits: Megabits | None = None
    nice: Annotated[int, Field(ge=0, le=19, description="how far other programs go first")] = 0


def seconds_until(hours: str | None, now: datetime) -> float:
    """Return how many seconds from ``now`` (local time) the hours begin; 0 within them, or without a limit."""
    if hours is None:
        return 0.0
    begin, end = (time.fromisoformat(text) for text in hours.split("-"))
    clock = now.time()
    is_within = begin <= clock < end if begin < end else clock >= begin or clock < end
    if is_within:
        return 0.0
    opens = datetime.combine(now.date(), begin)
    if opens <= now:
        opens += timedelta(days=1)
    return (opens - now).total_seconds()


def require_transfer_hours(hours: str | None) -> None:
    """Let a transfer go on within its hours only.

    Raises:
        TransientError: how long to wait.
    """
    wait_s = seconds_until(hours, datetime.now())
    if wait_s:
        raise TransientError(
            f"large files rest outside {hours} (site.yaml, limits: transfer_hours)", retry_after_s=wait_s
        )


def be_nice(nice: int) -> None:
    """Let other programs of this machine go first. Windows has no such number; there it changes nothing."""
    if sys.platform != "win32" and nice:
        os.nice(nice)


def describe(limits: Limits, threads: int, workers: int, processes: int = 1) -> str:
    """Return the limits in one line, for people."""
    each = f"{processes} processes of " if processes > 1 else ""
    parts = [f"{each}{pluralize(threads, 'thread')}"]
    parts += [pluralize(workers, "worker")] if workers else []
    parts += [f"trains {limits.training_hours}"] if limits.training_hours else []
    parts += [f"sends and receives models {limits.transfer_hours}"] if limits.transfer_hours else []
    parts += [f"up {limits.upload_megabits:g} Mbit/s"] if limits.upload_megabits else []
    parts += [f"down {limits.download_megabits:g} Mbit/s"] if limits.download_megabits else []
    parts += [f"nice {limits.nice}"] if limits.nice else []
    return ", ".join(parts)
