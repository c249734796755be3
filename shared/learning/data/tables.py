"""The small tables that a hospital writes beside its images: CSV in UTF-8, with a header."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import DataError

_MOST_SAID = 3  # names of which each has a sentence of its own


def path_within(root: Path, text: str) -> Path | None:
    """Return the path that a table names, resolved; None if it does not lie within the folder."""
    path = (root / text).resolve()
    return path if text and path.is_relative_to(root.resolve()) else None


def without_line(file: str, kind: str, names: Sequence[str]) -> list[str]:
    """Return for which names a table has no line: each if they are few, else their number.

    Args:
        kind: what the names are of, with a space behind it; empty where they say it.
    """
    if len(names) <= _MOST_SAID:
        return [f"{file}: {kind}'{name}' has no line; add one." for name in names]
    first = ", ".join(f"'{name}'" for name in names[:_MOST_SAID])
    return [f"{file}: {len(names)} names have no line, as {kind}{first}; add one for each."]


def read_table(path: Path) -> tuple[Sequence[str], list[tuple[int, dict[str, Any]]]]:
    """Return a table's columns, and each row's cells by column with the line on which the row ends.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            return columns, [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError([f"{path.name}: cannot be read ({error}); save it as CSV in UTF-8."]) from error
