"""A table as the bytes of a file: CSV in UTF-8, each line ended by a line feed, and cells quoted where they must be."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable


def as_csv(rows: Iterable[Iterable[object]]) -> bytes:
    """Return a table's rows, the header's first."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
