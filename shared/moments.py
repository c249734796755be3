"""A moment for people: one form wherever one is shown, by the clock of the machine that shows it, with its zone."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime


def moment_text(moment: str | float) -> str:
    """Return a moment as in "2026-11-24 08:35:12+01:00" (ISO 8601).

    Args:
        moment: seconds since 1970; or a time in UTC as records have it, 2026-11-24T07:35:12Z.
    """
    told = datetime.fromisoformat(moment) if isinstance(moment, str) else datetime.fromtimestamp(moment, UTC)
    with suppress(OverflowError, OSError, ValueError):  # a record may tell the year 9999's last second: it stays in UTC
        told = told.astimezone()
    return told.isoformat(" ", "seconds")
