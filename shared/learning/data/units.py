"""What a data folder holds, before a pixel is read: each image, scan or recording, known by the bytes of its files.

A **unit** is what a folder holds as one labelled thing, whatever a run makes of it: an image with its mask or grade, a
scan of several pictures, a whole recording. A recording is one unit however many windows a run cuts from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shared.errors import DataError
from shared.folder.durable import hash_file
from shared.learning.data.splits import SPLIT_FILE, SplitFile, SplitName, groups_by_pattern, read_split_file
from shared.service import alive


@dataclass(frozen=True)
class Unit:
    """One thing in a data folder.

    Args:
        id: what ``split.csv`` calls it by: a file's stem, or an id in the folder's own table.
        contents: SHA-256 (hex) of each of its files, in the order in which a task reads them.
        label: what the folder says about it, as a text; of a mask, the SHA-256 of its file.
        kind: its class, where the folder says one; None where it says none.
        group: the person, or what else it belongs together with; None: it is by itself.
        split: the set that the hospital's own ``split.csv`` puts it into, if it says so.
    """

    id: str
    contents: tuple[str, ...]
    label: str
    kind: str | None = None
    group: str | None = None
    split: SplitName | None = None


@dataclass(frozen=True)
class Listed:
    """Where the files of one thing in a data folder lie.

    Args:
        files: by the folder that each lies in, as ``images`` and ``masks``.
        label: its class, where the folder says one.
    """

    id: str
    files: Mapping[str, Path]
    label: str | None = None


def count_groups(units: Iterable[Unit]) -> int:
    """Return of how many persons or other groups units are; one without a group is by itself."""
    return len({(unit.group, unit.id if unit.group is None else "") for unit in units})


def hashed(file: Path) -> str:
    """Return the SHA-256 of a file (hex).

    Raises:
        DataError: it cannot be read.
    """
    alive()
    try:
        return hash_file(file)[1]
    except OSError as error:
        raise DataError([f"{file.parent.name}/{file.name}: cannot be read ({error.strerror}); correct it."]) from error


def settled(found: Sequence[Unit], root: Path, pattern: str | None) -> tuple[Unit, ...]:
    """Return the units of a folder with their groups and sets, each content once, sorted by id.

    Args:
        found: as the task lists them.
        root: the data folder, where ``split.csv`` may be.
        pattern: finds a unit's group in its id, see ``splits.groups_by_pattern``, where no table says it.

    Raises:
        DataError: ``split.csv`` is wrong or says the groups a second time, a group is in two sets, or a file lies there
            twice and two things are said about it.
    """
    ids, path = [unit.id for unit in found], root / SPLIT_FILE
    listed = read_split_file(path, ids) if path.exists() else SplitFile(split={}, group={})
    said = {unit.id: unit.group for unit in found if unit.group is not None}
    if said and listed.group:
        raise DataError([f"{SPLIT_FILE}: the groups are said elsewhere already; take the column group out of it."])
    group_of = said or listed.group or (groups_by_pattern(ids, pattern) if pattern is not None else {})
    units = [replace(unit, group=group_of.get(unit.id), split=listed.split.get(unit.id)) for unit in found]
    if problems := [*_torn_groups(units), *_contradictions(units)]:
        raise DataError(problems)
    return tuple(copies[0] for copies in _by_content(units))


def _by_content(units: Iterable[Unit]) -> list[list[Unit]]:
    """Return units of the same files together, in the order of their ids."""
    copies: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: unit.id):
        copies[unit.contents].append(unit)
    return [*copies.values()]


def _torn_groups(units: Iterable[Unit]) -> list[str]:
    """Return what is wrong with groups that ``split.csv`` puts into two sets."""
    sets: dict[str, set[str]] = defaultdict(set)
    for unit in units:
        if unit.group is not None and unit.split is not None:
            sets[unit.group].add(unit.split)
    return [
        f"{SPLIT_FILE}: group '{group}' is in {' and '.join(sorted(names))}; put it into one."
        for group, names in sorted(sets.items())
        if len(names) > 1
    ]


def _contradictions(units: Iterable[Unit]) -> list[str]:
    """Return what is wrong with files that lie there twice."""
    return [
        f"'{first.id}' and '{other.id}' are the same, byte by byte, and their {what} differ; remove one of them."
        for first, *others in _by_content(units)
        for other in others
        for what, differ in (
            ("labels", first.label != other.label),
            ("groups", first.group != other.group),
            ("sets", first.split != other.split),
        )
        if differ
    ]
