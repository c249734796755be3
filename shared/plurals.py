"""Counts in words, and sentences that are counted where they are many."""

from __future__ import annotations

from collections.abc import Sequence

MOST_SAID = 3
"""So many things have a sentence each, or are named as examples."""


def pluralize(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun, as in "1 round", "2 rounds" and "1,234 images".

    Args:
        many: what more than one are called, if not as ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def few_or_number(each: Sequence[str], of_many: str) -> list[str]:
    """Return a sentence for each thing; if there are more than ``MOST_SAID``, one for all, which tells their number."""
    return list(each) if len(each) <= MOST_SAID else [of_many]
