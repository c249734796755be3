"""Counts in words."""

from __future__ import annotations


def pluralize(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun, as in "1 round", "2 rounds" and "1,234 images".

    Args:
        many: what more than one are called, if not as ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
