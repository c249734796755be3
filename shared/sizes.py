"""Amounts of bytes in words, for people."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB")  # each a thousand of the one before


def size_text(size: float) -> str:
    """Return a size in bytes to three digits, as in "31.6 kB"."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if size >= 999.5 or unit == 0 else f"{size:.3g} {_UNITS[unit]}"
