"""Files of any kind, which only a hospital's own program reads: never opened here, but for their hashes.

A data folder holds ``images/``; beside it, folders by any name with a file of the same stem for each image, as
``masks/``; or ``labels.csv`` with the columns ``id`` (a file's stem) and ``label``; or both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shared.errors import DataError
from shared.learning.data.graded_images import LABELS_FILE
from shared.learning.data.images import misnamed, not_hidden, short_name
from shared.learning.data.labelled_photographs import labels_of
from shared.learning.data.units import Listed, Unit, hashed

FIRST = "images"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""What programs are told of the names of folders, and of how those of files end: no comma, no other alphabet."""


def plain_files(root: Path, classes: Sequence[str] | None) -> list[Listed]:
    """Return what a folder holds, sorted by stem.

    Args:
        classes: the labels that there may be; None: any.

    Raises:
        DataError: names every file and line that is missing or wrong.
    """
    problems: list[str] = []
    if not (root / FIRST).is_dir():
        raise DataError([f"{root}: holds no folder {FIRST}; make it and put the files there, or correct the path."])
    folders = {path.name: _by_stem(path, problems) for path in not_hidden(root) if path.is_dir()}
    problems += [
        f"{name}: is no folder's name that every program reads; take letters from a to z, digits, - and _, and neither "
        "split nor label."
        for name in folders
        if _PLAIN.fullmatch(name) is None or name in ("split", "label")
    ]
    first = folders[FIRST]
    for name, files in folders.items():
        problems += [f"{name}: has no file {stem}, which {FIRST} has; add it." for stem in sorted(first.keys() - files)]
        problems += [
            f"{short_name(files[stem])}: {FIRST} has no {stem}; add it." for stem in sorted(files.keys() - first)
        ]
    if not first and not problems:
        problems.append(f"{FIRST}: has no file in it; put some there.")
    label_of = labels_of(root, first, classes, problems) if (root / LABELS_FILE).exists() else {}
    if problems:
        raise DataError(problems)
    return [
        Listed(stem, {name: files[stem] for name, files in folders.items()}, label_of.get(stem))
        for stem in sorted(first)
    ]


def plain_units(root: Path) -> list[Unit]:
    """Return each image as a unit, by the bytes of its files; what lies beside an image counts as its label.

    Raises:
        DataError: as for ``plain_files``.
    """
    units = []
    for each in plain_files(root, None):
        beside = [hashed(path) for name, path in sorted(each.files.items()) if name != FIRST]
        label = " ".join([*([] if each.label is None else [each.label]), *beside])
        units.append(Unit(each.id, (hashed(each.files[FIRST]),), label, kind=each.label))
    return units


def _by_stem(folder: Path, problems: list[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in not_hidden(folder):
        problems += misnamed(path)
        if not path.is_file() or path.stem in files:
            problems.append(f"{short_name(path)}: is no file, or another has the same stem; remove or rename it.")
        if path.suffix and _PLAIN.fullmatch(path.suffix[1:]) is None:
            problems.append(f"{short_name(path)}: ends in what not every program reads; take letters from a to z.")
        files[path.stem] = path
    return files
