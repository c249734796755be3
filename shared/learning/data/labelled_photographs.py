"""Photographs with the name of one class each: cropped to the retina, its contrast evened out.

A data folder holds ``images/`` and ``labels.csv`` with the columns ``id`` (a file's stem) and ``label``, or one folder
for each class, called by the class's name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.errors import DataError, added_to, all_told
from shared.escaping import escape
from shared.learning.data import MOST_LABELS
from shared.learning.data.graded_images import GRADED_EXTENSIONS, LABELS_FILE, GradedImage, read_colour
from shared.learning.data.images import brightest, files_by_stem, formats_of, misnamed, not_hidden
from shared.learning.data.tables import named_rows, read_table, wrong_columns
from shared.learning.data.units import Listed, Unit, hashed
from shared.plurals import pluralize

_DARK = 12  # of 255: what lies outside the retina is darker than this in every channel
_CLIP_LIMIT, _TILES = 2.0, (8, 8)  # of the contrast-limited histograms; OpenCV's usual ones
_READ_SIDE = 1024  # in pixels; what is larger is scaled down before it is cropped


def read_labelled(
    root: Path,
    classes: Sequence[str],
    read: Callable[[Path], NDArray[np.uint8]],
    extensions: Sequence[str] = GRADED_EXTENSIONS,
) -> list[GradedImage]:
    """Read every photograph of a folder, sorted by id; ``grade`` is the place of its label in ``classes``.

    Args:
        root: a data folder with ``images`` and ``labels.csv``.
        classes: the labels that there may be, in the order of their numbers.
        read: reads one file: (side, side, 3) uint8.
        extensions: in small letters, what the name of a photograph ends in.

    Raises:
        DataError: names every file, folder and line that is missing, wrong or unreadable.
    """
    images: list[GradedImage] = []
    with all_told() as problems:
        files, label_of = _list_labelled(root, classes, extensions, problems)
        for name in sorted(files.keys() & label_of.keys()):
            with added_to(problems):
                images.append(GradedImage(name, read(files[name]), classes.index(label_of[name])))
        if not images and not problems:
            problems.append(f"{root.name}: has no image in it; put {formats_of(extensions)} files there.")
    return images


def labelled_units(root: Path, extensions: Sequence[str] = GRADED_EXTENSIONS) -> list[Unit]:
    """Return every photograph of a folder, by the bytes of its file, with its label, whichever that is.

    Raises:
        DataError: names every file, folder and line that is missing or wrong.
    """
    files, label_of = _require_labelled(root, None, extensions)
    return [Unit(name, (hashed(files[name]),), label, kind=label) for name, label in label_of.items()]


def labelled_files(root: Path, classes: Sequence[str], extensions: Sequence[str] = GRADED_EXTENSIONS) -> list[Listed]:
    """Return every photograph of a folder, unread, with its label; sorted by id.

    Raises:
        DataError: names every file, folder and line that is missing or wrong.
    """
    files, label_of = _require_labelled(root, classes, extensions)
    return [Listed(name, {"images": files[name]}, label_of[name]) for name in sorted(label_of)]


def own_labels(root: Path, extensions: Sequence[str] = GRADED_EXTENSIONS) -> tuple[str, ...]:
    """Return the labels of a folder's images, in the order of the alphabet.

    Raises:
        DataError: as for ``labelled_units``; or there is but one, or more than ``MOST_LABELS``.
    """
    labels = tuple(sorted({unit.kind or "" for unit in labelled_units(root, extensions)}))
    if not 2 <= len(labels) <= MOST_LABELS:
        told = pluralize(len(labels), "label")
        raise DataError([f"{root.name}: has images of {told}; from 2 to {MOST_LABELS} can be told apart."])
    if "" in labels:
        raise DataError([f"{root.name}: {LABELS_FILE}: an image has no label; add it, or take the image out."])
    return labels


def read_retina(path: Path, side: int) -> NDArray[np.uint8]:
    """Return one photograph: cropped to the square around the retina, scaled, each channel's contrast evened out.

    Source: Jiang et al. 2025 (CLAHE, the bounding square of the retina).

    Returns:
        (side, side, 3) uint8.

    Raises:
        DataError: it cannot be read.
    """
    square = retina_square(read_colour(path, _READ_SIDE))
    scaled = np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BOX))
    even = cv2.createCLAHE(clipLimit=_CLIP_LIMIT, tileGridSize=_TILES)
    return np.stack([even.apply(np.ascontiguousarray(scaled[..., channel])) for channel in range(3)], axis=2)


def retina_square(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the smallest square that holds all that is not dark, filled up with black where it leaves the image.

    Args:
        image: (H, W, 3).

    Returns:
        (S, S, 3); the image itself, filled up, where all of it is dark.
    """
    bright = brightest(image) > _DARK  # (H, W, 3) -> (H, W)
    rows, columns = np.flatnonzero(bright.any(axis=1)), np.flatnonzero(bright.any(axis=0))
    if not rows.size:
        rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
    found = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = found.shape[:2]
    side = max(height, width)
    square = np.zeros((side, side, 3), dtype=np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = found
    return square


_Listed = tuple[dict[str, Path], dict[str, str]]
"""The files and the labels by id."""


def _require_labelled(root: Path, classes: Sequence[str] | None, extensions: Sequence[str]) -> _Listed:
    """Return the files and the labels by id, or raise one error about all that is missing or wrong."""
    with all_told() as problems:
        return _list_labelled(root, classes, extensions, problems)


def _list_labelled(
    root: Path, classes: Sequence[str] | None, extensions: Sequence[str], problems: list[str]
) -> _Listed:
    """Return what a folder holds, unread; a sentence is added for all that is missing or wrong.

    Args:
        classes: the labels that there may be; None: any.

    Raises:
        DataError: there is no such folder, or it is laid out in neither way.
    """
    if not root.is_dir():
        raise DataError([f"{root}: there is no such folder; correct the path, or make it and put the images there."])
    return (_listed if (root / LABELS_FILE).exists() else _folders)(root, classes, extensions, problems)


def _listed(root: Path, classes: Sequence[str] | None, extensions: Sequence[str], problems: list[str]) -> _Listed:
    files = files_by_stem(root / "images", problems, extensions)
    return files, labels_of(root, files, classes, problems)


def labels_of(
    root: Path, files: Mapping[str, Path], classes: Sequence[str] | None, problems: list[str]
) -> dict[str, str]:
    """Return what ``labels.csv`` says of each file; a sentence is added for all that is missing or wrong.

    Args:
        classes: the labels that there may be; None: any.

    Raises:
        DataError: it has other columns.
    """
    columns, rows = read_table(root / LABELS_FILE, problems)
    if sorted(columns) != ["id", "label"]:
        raise wrong_columns(LABELS_FILE, "id and label, with commas between", columns)
    label_of: dict[str, str] = {}
    for name, (line, cells) in named_rows(LABELS_FILE, rows, files, "the image ", problems):
        label = cells["label"]
        if classes is None or label in classes:
            label_of[name] = label
        else:
            told = ", ".join(classes)
            problems.append(f"{LABELS_FILE}, line {line}: label must be one of {told}, not {escape(label)!r}.")
    return label_of


def meant_class(name: str, classes: Sequence[str]) -> str | None:
    """Return the class that a folder is of: the one of its name, or one that differs in case or in how accents are
    written alone.
    """
    alike = [each for each in classes if _composed(each) == _composed(name.strip())]
    return name if name in alike else next(iter(alike), None)


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _folders(root: Path, classes: Sequence[str] | None, extensions: Sequence[str], problems: list[str]) -> _Listed:
    files: dict[str, Path] = {}
    label_of: dict[str, str] = {}
    folders = [path for path in not_hidden(root) if path.is_dir() and (classes is None or path.name in classes)]
    if not folders:
        told = ", ".join(classes or ["by a label"])
        raise DataError(
            [f"{root.name}: holds neither {LABELS_FILE} nor a folder called {told}; give the labels one way."]
        )
    for folder in folders:
        problems += misnamed(folder)
        odd: list[str] = []
        for stem, path in files_by_stem(folder, odd, extensions).items():
            if stem in files:
                problems.append(f"{folder.name}/{path.name}: another class has a file of that name; rename one.")
            files[stem], label_of[stem] = path, folder.name
        problems += odd if classes is not None else []  # what no run asks for may hold anything
    return files, label_of
