"""Lists for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def column_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield one line for each row, every column but the last as wide as its widest cell.

    Args:
        rows: one or more, all of the same length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
