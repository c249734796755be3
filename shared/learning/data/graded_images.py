"""A hospital's images with one grade each, read as small colour squares.

Grades are numbers from 0 upwards. A data folder says them in one of two ways:

- ``images/`` with the files, and ``labels.csv`` with the columns ``id`` (a file's stem) and ``grade``;
- one folder per grade, named by its number, with or without a name behind it: ``0``, ``1_mild``, ``2 moderate``.

``grades.txt`` may name the grades, one per line from grade 0 upwards, and so says how many there are; without it the
highest grade in ``labels.csv``, or the folders, say it. PNG, JPEG and TIFF are read, and DICOM where the optional
pydicom is installed; of a DICOM file only what its pixels need is read, never whose eye it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.errors import DataError, added_to, all_told
from shared.learning.data import SMALLEST_SIDE
from shared.learning.data.dicom import read_any_levels
from shared.learning.data.images import EXTENSIONS, files_by_stem, formats_of, not_hidden, short_name
from shared.learning.data.tables import named_rows, read_table, shown
from shared.learning.data.units import Unit, hashed

LABELS_FILE = "labels.csv"
GRADES_FILE = "grades.txt"
FEWEST_GRADES, MOST_GRADES = 2, 20
GRADED_EXTENSIONS = (*EXTENSIONS, ".dcm")
_GRADE_FOLDER = re.compile(r"(0|[1-9][0-9]?)(?:[ _-].+)?")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class GradedImage:
    """One image and its grade.

    Args:
        id: the file's stem.
        image: (S, S, 3) uint8, red, green, blue.
        grade: in [0, K).
    """

    id: str
    image: NDArray[np.uint8]
    grade: int


@dataclass(frozen=True)
class GradedFolder:
    """All of a hospital's images.

    Args:
        images: sorted by id.
        grades: the name of each of the K grades, from grade 0 upwards; a grade without a name is called by its number.
    """

    images: tuple[GradedImage, ...]
    grades: tuple[str, ...]


def read_graded(root: Path, side: int) -> GradedFolder:
    """Read every image of a folder with its grade.

    All images are kept, ``side``² · 3 bytes each.

    Args:
        root: a data folder, as this module describes it.
        side: of each image, in pixels.

    Raises:
        DataError: names every file, folder and line that is missing, wrong or unreadable.
        DropfedError: there are DICOM files, and pydicom is not installed.
    """
    images: list[GradedImage] = []
    with all_told() as problems:
        files, grade_of, grades = _list_graded(root, problems)
        for stem in sorted(files.keys() & grade_of.keys()):
            with added_to(problems):
                images.append(GradedImage(stem, read_colour(files[stem], side), grade_of[stem]))
    return GradedFolder(tuple(images), grades)


def graded_units(root: Path) -> list[Unit]:
    """Return every image of a folder, by the bytes of its file, with its grade.

    Raises:
        DataError: names every file, folder and line that is missing or wrong.
    """
    with all_told() as problems:
        files, grade_of, _ = _list_graded(root, problems)
    return [Unit(stem, (hashed(files[stem]),), str(grade), kind=str(grade)) for stem, grade in grade_of.items()]


def read_colour(path: Path, side: int) -> NDArray[np.uint8]:
    """Read one image as a square: scaled, its shape kept, into the middle of a black one.

    Each new pixel is the mean over the area that it covers; an image that is enlarged is interpolated linearly. Grey
    becomes three equal channels. More than 8 bits are scaled to 8 on the fixed range of their depth.

    Args:
        path: a PNG, JPEG, TIFF or DICOM file.
        side: in pixels, >= 1.

    Returns:
        (side, side, 3) uint8.

    Raises:
        DataError: the file cannot be read as one image of 8 to 16 bits, or is smaller than ``SMALLEST_SIDE``.
        DropfedError: it is a DICOM file, and pydicom is not installed.
    """
    levels, highest = read_any_levels(path)
    height, width = levels.shape[:2]
    if min(height, width) < SMALLEST_SIDE:
        raise DataError([f"{short_name(path)}: is {width}x{height} pixels; each side needs {SMALLEST_SIDE}."])
    if levels.dtype != np.uint8:
        levels = ((levels.astype(np.uint32) * 255 + highest // 2) // highest).astype(np.uint8)
    factor = side / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    way = Image.Resampling.BOX if factor < 1 else Image.Resampling.BILINEAR
    scaled = Image.fromarray(levels).resize(size, way).convert("RGB")
    square = Image.new("RGB", (side, side))
    square.paste(scaled, ((side - size[0]) // 2, (side - size[1]) // 2))
    return np.array(square)


_Listed = tuple[dict[str, Path], dict[str, int], tuple[str, ...]]
"""The files by id, the grade by id, and what the grades are called."""


def _list_graded(root: Path, problems: list[str]) -> _Listed:
    """Return what a folder holds, unread; a sentence is added for all that is missing or wrong.

    Raises:
        DataError: there is no such folder.
    """
    if not root.is_dir():
        raise DataError([f"{root}: there is no such folder; correct the path, or make it and put the images there."])
    names = _read_names(root / GRADES_FILE, problems)
    is_listed = (root / LABELS_FILE).exists() or (root / "images").exists()
    files, grade_of, found = (_read_listed if is_listed else _read_grade_folders)(root, names, problems)
    grades = names or found
    if not files and not problems:
        problems.append(f"{root.name}: has no image in it; put {formats_of(GRADED_EXTENSIONS)} files there.")
    elif len(grades) < FEWEST_GRADES and not problems:
        problems.append(f"{root.name}: has images of grade 0 only; name all the grades there are in {GRADES_FILE}.")
    return files, grade_of, grades


def _read_listed(root: Path, names: tuple[str, ...], problems: list[str]) -> _Listed:
    files = files_by_stem(root / "images", problems, GRADED_EXTENSIONS)
    grade_of: dict[str, int] = {}
    if (root / LABELS_FILE).exists():
        grade_of = _read_labels(root / LABELS_FILE, files, len(names) or MOST_GRADES, problems)
    else:
        problems.append(f"{LABELS_FILE}: is missing; write a line with id and grade for each file in images.")
    problems += [
        f"{path.name}: is a grade's folder beside images and {LABELS_FILE}; give the grades in one of the two ways."
        for path in not_hidden(root)
        if path.is_dir() and _GRADE_FOLDER.fullmatch(path.name)
    ]
    return files, grade_of, tuple(str(grade) for grade in range(max(grade_of.values(), default=0) + 1))


def _read_labels(path: Path, ids: Collection[str], grades: int, problems: list[str]) -> dict[str, int]:
    """Return the grade of each image, from ``labels.csv``."""
    try:
        columns, rows = read_table(path, problems)
    except DataError as error:
        problems += error.problems
        return {}
    if sorted(columns) != ["grade", "id"]:
        found = ", ".join(shown(str(column)) for column in columns) or "none"
        problems.append(f"{path.name}: the columns must be id and grade, with commas between; found: {found}.")
        return {}
    grade_of: dict[str, int] = {}
    for image, (line, cells) in named_rows(path.name, rows, ids, "the image ", problems):
        grade = cells["grade"]
        if re.fullmatch("[0-9]{1,3}", grade) and int(grade) < grades:
            grade_of[image] = int(grade)
        else:
            problems.append(
                f"{path.name}, line {line}: grade must be a whole number from 0 to {grades - 1}, not {shown(grade)}."
            )
    return grade_of


def _read_grade_folders(root: Path, names: tuple[str, ...], problems: list[str]) -> _Listed:
    folders = _find_grade_folders(root, len(names) or MOST_GRADES, problems)
    files: dict[str, Path] = {}
    grade_of: dict[str, int] = {}
    for grade, folder in folders.items():
        for stem, file in files_by_stem(folder, problems, GRADED_EXTENSIONS).items():
            if stem in files:
                problems.append(
                    f"{short_name(file)}: {short_name(files[stem])} has the same stem; remove or rename one."
                )
            else:
                files[stem], grade_of[stem] = file, grade
    if not names:
        problems += [
            f"{grade}: there is no folder for this grade; make an empty one, or name all the grades in {GRADES_FILE}."
            for grade in range(max(folders, default=0))
            if grade not in folders
        ]
    # "2_moderate" -> "moderate", "2" -> "2"
    return files, grade_of, tuple(folder.name[len(f"{grade}_") :] or str(grade) for grade, folder in folders.items())


def _find_grade_folders(root: Path, grades: int, problems: list[str]) -> dict[int, Path]:
    """Return the folder of each grade below ``grades``, from grade 0 upwards."""
    folders: dict[int, Path] = {}
    for path in not_hidden(root):
        match = _GRADE_FOLDER.fullmatch(path.name)
        if not path.is_dir():
            if path.suffix.lower() in GRADED_EXTENSIONS:
                problems.append(f"{path.name}: lies beside the folders of the grades; move it into one.")
        elif not match:
            problems.append(
                f"{path.name}: is not a grade's folder; name it by the grade's number, like 2 or 2_moderate, "
                "or move it elsewhere."
            )
        elif (grade := int(match[1])) >= grades:
            problems.append(f"{path.name}: the highest grade is {grades - 1}; rename it or move it elsewhere.")
        elif grade in folders:
            problems.append(f"{path.name}: {folders[grade].name} is the folder of grade {grade} too; keep one.")
        else:
            folders[grade] = path
    if not folders and not problems:
        problems.append(f"{root.name}: has neither images and {LABELS_FILE} nor a folder for each grade; make either.")
    return dict(sorted(folders.items()))


def _read_names(path: Path, problems: list[str]) -> tuple[str, ...]:
    """Return what ``grades.txt`` calls the grades; empty where there is no such file, or it is wrong."""
    if not path.exists():
        return ()
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name}: cannot be read ({error}); save it as text in UTF-8.")
        return ()
    wrong = [
        f"{path.name}, line {line}: {shown(name)} is not a new name of 1 to {_LONGEST_NAME} letters; write one."
        for line, name in enumerate(names, start=1)
        if not (name.isprintable() and 0 < len(name) <= _LONGEST_NAME) or name in names[: line - 1]
    ]
    if not FEWEST_GRADES <= len(names) <= MOST_GRADES:
        wrong = [
            f"{path.name}: names {len(names)} grades; write {FEWEST_GRADES} to {MOST_GRADES} lines, a name in each."
        ]
    problems += wrong
    return () if wrong else tuple(names)
