"""The small tables that a hospital writes beside its images: CSV in UTF-8, with a header."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.errors import DataError
from shared.plurals import MOST_SAID, few_or_number

_LONGEST_SHOWN = 60  # letters
_ENDING = re.compile(r"\.[a-z][a-z0-9]{1,4}$")  # of a file's name in small letters


class Row(NamedTuple):
    """One row of a table.

    Args:
        line: on which it ends.
        cells: by column, without blanks around them; empty where there is none.
    """

    line: int
    cells: Mapping[str, str]


def path_within(root: Path, text: str) -> Path | None:
    """Return the path that a table names, resolved; None if it does not lie within the folder."""
    path = (root / text).resolve()
    return path if text and path.is_relative_to(root.resolve()) else None


def without_line(file: str, kind: str, names: Sequence[str]) -> list[str]:
    """Return for which names a table has no line: each if they are few, else their number.

    Args:
        kind: what the names are of, with a space behind it; empty where they say it.
    """
    first = ", ".join(f"'{name}'" for name in names[:MOST_SAID])
    return few_or_number(
        [f"{file}: {kind}'{name}' has no line; add one." for name in names],
        f"{file}: {len(names)} names have no line, as {kind}{first}; add one for each.",
    )


def read_table(path: Path, problems: list[str]) -> tuple[Sequence[str], list[Row]]:
    """Return a table's columns and its rows, without those whose cells are all blank, as spreadsheets leave them.

    Args:
        problems: a sentence is added for each row that has more cells than there are columns, of many how many.

    Raises:
        DataError: the file cannot be read.
    """
    rows: list[Row] = []
    too_long: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            for read in reader:
                beyond = read.pop(None, [])
                cells = {column: (cell or "").strip() for column, cell in read.items()}
                too_long += [reader.line_num] if any(map(str.strip, beyond)) else []
                rows += [Row(reader.line_num, cells)] if any(cells.values()) else []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError([f"{path.name}: cannot be read ({error}); save it as CSV in UTF-8."]) from error
    what = "more cells than columns; put a text with a comma into quotation marks, or remove what is too much."
    problems += few_or_number(
        [f"{path.name}, line {line}: has {what}" for line in too_long],
        f"{path.name}: {len(too_long)} lines, as {', '.join(map(str, too_long[:MOST_SAID]))}, have {what}",
    )
    return columns, rows


def wrong_columns(file: str, right: str, columns: Sequence[str]) -> DataError:
    """Return the error for a table with other columns than the right ones."""
    found = ", ".join(str(column) for column in columns) or "none"
    return DataError([f"{file}: the columns must be {right}; found: {found}."])


def named_rows(
    file: str, rows: Iterable[Row], names: Collection[str], kind: str, problems: list[str]
) -> list[tuple[str, Row]]:
    """Return the rows whose cell ``id`` is a name, each with that name; accents may be written in either of two ways.

    Args:
        names: of which each must have one row.
        kind: as for ``without_line``.
        problems: a sentence is added for each name that has two rows or none, and for each row of no name; of many
            such, how many.
    """
    known = set(names)
    composed = {unicodedata.normalize("NFC", name): name for name in names}
    alike = {_loosely(name): name for name in names}
    found: list[tuple[str, Row]] = []
    seen: set[str] = set()
    twice: list[Row] = []
    unknown: list[Row] = []
    for row in rows:
        written = row.cells["id"]
        name = written if written in known else composed.get(unicodedata.normalize("NFC", written))
        if name is None:
            unknown.append(row)
            continue
        twice += [row] if name in seen else []
        seen.add(name)
        found.append((name, row))
    # a name that such a row was perhaps meant for has no second sentence, that it has no row
    guessed = [alike.get(_loosely(row.cells["id"])) for row in unknown]
    meant = [None if name in seen else name for name in guessed]
    remedies = [_remedy(row.cells["id"], name) for row, name in zip(unknown, meant, strict=True)]
    problems += _of_rows(file, twice, "{} is there twice", "are there twice", ["keep one line."] * len(twice))
    problems += _of_rows(file, unknown, "nothing here is called {}", "are of nothing here", remedies)
    problems += without_line(file, kind, sorted(known - seen - set(meant)))
    return found


def shown(text: str) -> str:
    """Return text from a file as part of a sentence: in quotes, without line breaks, not too long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")


def _of_rows(file: str, rows: Sequence[Row], one: str, many: str, remedies: Sequence[str]) -> list[str]:
    """Return what is wrong with the ids of some rows, and what to do about each; of many, about the first."""
    names = [shown(row.cells["id"]) for row in rows]
    return few_or_number(
        [
            f"{file}, line {row.line}: {one.format(name)}; {remedy}"
            for row, name, remedy in zip(rows, names, remedies, strict=True)
        ],
        f"{file}: {len(rows)} ids {many}, as {', '.join(names[:MOST_SAID])}; {remedies[0] if remedies else ''}",
    )


def _loosely(name: str) -> str:
    """Return what names share that differ in an ending, in zeros in front of a number, or in capital letters."""
    stem = _ENDING.sub("", unicodedata.normalize("NFC", name).casefold())
    return stem.lstrip("0") or stem[-1:]


def _remedy(written: str, meant: str | None) -> str:
    """Return what to do about a row that is of no name, but was perhaps meant for one."""
    if meant is None:
        return "write a name that is here, or remove the line."
    if _ENDING.search(written.casefold()) and not _ENDING.search(meant.casefold()):
        return f"write it without its ending, as {shown(meant)}."
    if written.lstrip("0") == meant.lstrip("0"):
        return f"did you mean {shown(meant)}? Excel drops zeros in front."
    return f"did you mean {shown(meant)}?"
