"""Times in words, for people."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """Return a duration to the two largest units, as in "2 h 5 min"."""
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
