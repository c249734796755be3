"""Recordings with one class each, listed in a table, from which the samples are cut.

A data folder holds ``recordings.csv`` with the columns ``id``, ``file`` (a path within the folder), ``label`` and, if
several recordings belong together, ``group``: the person, say. What a file holds is each task's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from shared.errors import added_to, all_told
from shared.escaping import escape
from shared.learning.data.images import list_images
from shared.learning.data.tables import path_within, read_table, wrong_columns
from shared.learning.data.units import Unit, hashed
from shared.service import alive

RECORDINGS_FILE = "recordings.csv"
_COLUMNS = ("id", "file", "label")
_GROUP = "group"

ExcerptT = TypeVar("ExcerptT")
Cut = Callable[[Path], Sequence[ExcerptT]]
"""What is taken of one file, one or more; raises DataError."""


@dataclass(frozen=True)
class Held:
    """What the file of a recording holds, before a run says what is read of it.

    Args:
        channels: the columns that a run may name; a sound has none.
        rate_hz: rows, or samples, a second.
        seconds: how long it lasts.
        sha256: of all its numbers.
    """

    channels: tuple[str, ...]
    rate_hz: float
    seconds: float
    sha256: bytes


@dataclass(frozen=True)
class Listed:
    """What the table says of a recording.

    Args:
        file: within the data folder, resolved.
        label: the name of its class.
        group: None where the table has no such column.
    """

    id: str
    file: Path
    label: str
    group: str | None


@dataclass(frozen=True)
class Recording(Generic[ExcerptT]):
    """A recording and what was cut from it, in order."""

    listed: Listed
    excerpts: Sequence[ExcerptT]


def read_recordings(root: Path, labels: Sequence[str] | None, cut: Cut[ExcerptT]) -> list[Recording[ExcerptT]]:
    """Read every recording of a folder, sorted by id.

    Args:
        labels: the names of the classes; None: any.
        cut: reads a file.

    Raises:
        DataError: names every line that is wrong and every file that is missing or unreadable.
    """
    recordings: list[Recording[ExcerptT]] = []
    with all_told() as problems:
        for line, listed in list_recordings(root, labels, problems):
            with added_to(problems, f"{RECORDINGS_FILE}, line {line}: "):
                recordings.append(Recording(listed, _excerpts(listed.file, cut)))
    return sorted(recordings, key=lambda recording: recording.listed.id)


def recording_units(root: Path) -> list[Unit]:
    """Return every recording of a folder, by the bytes of its file, with its label, whichever that is.

    Raises:
        DataError: names every line that is wrong and every file that is missing.
    """
    with all_told() as problems:
        listed = list_recordings(root, None, problems)
    return [Unit(each.id, (hashed(each.file),), each.label, kind=each.label, group=each.group) for _, each in listed]


def read_unlisted(path: Path, extension: str, cut: Cut[ExcerptT]) -> dict[str, Sequence[ExcerptT]]:
    """Return the excerpts of one file, or of each file of a folder, by the file's stem.

    Args:
        extension: of the files that count, in small letters.
        cut: reads a file.

    Raises:
        DataError: names every file that is none, or unreadable.
    """
    found: dict[str, Sequence[ExcerptT]] = {}
    with all_told() as problems:
        for file in list_images(path, (extension,)):
            with added_to(problems):
                found[file.stem] = _excerpts(file, cut)
    return found


def list_recordings(root: Path, labels: Sequence[str] | None, problems: list[str]) -> list[tuple[int, Listed]]:
    """Return the table's lines that are right, each with its number.

    Args:
        labels: those that there may be; None: any.
        problems: a sentence is added for each line that is not.

    Raises:
        DataError: the table cannot be read, or its columns are others.
    """
    columns, rows = read_table(root / RECORDINGS_FILE, problems)
    if sorted(set(columns) - {_GROUP}) != sorted(_COLUMNS) or len(set(columns)) < len(columns):
        raise wrong_columns(RECORDINGS_FILE, f"{', '.join(_COLUMNS)}, and {_GROUP} if wanted", columns)
    listed: list[tuple[int, Listed]] = []
    ids: set[str] = set()
    files: set[Path] = set()
    for line, cells in rows:
        where = f"{RECORDINGS_FILE}, line {line}"
        name, text, label, group = (cells.get(column, "") for column in (*_COLUMNS, _GROUP))
        file = path_within(root, text)
        if not name or name in ids or set(name) & set("/\\"):
            problems.append(f"{where}: id {escape(name)!r} is empty, there twice, or has a slash; correct it.")
        elif file is None:
            problems.append(f"{where}: {escape(text)!r} is no path within the data folder; correct it.")
        elif file in files:
            problems.append(f"{where}: {escape(text)} is listed twice; keep one line.")
        elif labels is not None and label not in labels:
            problems.append(f"{where}: label must be one of {', '.join(labels)}, not {escape(label)!r}.")
        elif _GROUP in columns and not group:
            problems.append(f"{where}: the group is empty; name one for each recording, or leave the column out.")
        else:
            listed.append((line, Listed(name, file, label, group if _GROUP in columns else None)))
        ids.add(name)
        if file is not None:
            files.add(file)
    if not rows:
        problems.append(f"{RECORDINGS_FILE}: lists no recording; write a line for each.")
    return listed


def _excerpts(file: Path, cut: Cut[ExcerptT]) -> Sequence[ExcerptT]:
    alive()
    return cut(file)
