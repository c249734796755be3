"""Scans of several pictures each: superficial and deep OCTA, and two structural projections, listed in a table.

A data folder holds ``scans.csv`` with the columns ``id``, ``superficial``, ``deep``, ``structural_superficial``,
``structural_deep`` and ``severity``. The four in the middle are paths of PNG, JPEG or TIFF files within the folder. The
severity is a name from the run's list, or its number from 0; where a model is only asked, the column may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.errors import DataError, added_to, all_told
from shared.escaping import escape
from shared.learning.data import SMALLEST_SIDE
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import read_image, short_name
from shared.learning.data.tables import path_within, read_table, wrong_columns
from shared.learning.data.units import Unit, hashed

SCANS_FILE = "scans.csv"
PICTURES = ("superficial", "deep", "structural_superficial", "structural_deep")
_COLUMNS = ("id", *PICTURES, "severity")


@dataclass(frozen=True)
class Scan(GradedImage):
    """One eye's scan.

    Args:
        severity: in [0, severities); ``grade`` is the class that follows from it.
    """

    severity: int


def read_scans(root: Path, severities: Sequence[str], referable_from: int, side: int) -> list[Scan]:
    """Read every scan of a folder, sorted by id.

    The three channels are superficial OCTA, deep OCTA, and the greater of the two structural projections; each is
    scaled to [0, 1] by its own least and greatest value, and kept in 8 bits.

    Source: Lo et al. 2021, referable diabetic retinopathy.

    Args:
        severities: their names, from the slightest upwards.
        referable_from: the first severity of class 1.
        side: of each image, in pixels.

    Raises:
        DataError: names every line that is wrong and every file that is missing or unreadable.
    """
    scans = []
    with all_told() as problems:
        for line, listed in _listed(root, severities, problems).items():
            severity = _severity(listed.severity, severities)
            with added_to(problems, f"{SCANS_FILE}, line {line}: "):
                image = _read(listed.pictures, side)
                scans.append(Scan(listed.id, image, int(severity >= referable_from), severity))
    return sorted(scans, key=lambda scan: scan.id)


def read_ungraded(path: Path, side: int, problems: list[str]) -> list[Scan]:
    """Read every scan that a table lists, whatever severity it says, sorted by id; the scans' own means nothing.

    Args:
        path: the table, or its folder.
        side: of each image, in pixels.
        problems: a sentence is added for each line that is wrong and each file that is missing or unreadable.

    Raises:
        DataError: there is no table, it cannot be read, or its columns are others.
    """
    root = path.parent if path.name == SCANS_FILE else path
    if not (root / SCANS_FILE).is_file():
        raise DataError([f"{path}: a scan is four pictures; name a folder whose {SCANS_FILE} lists them."])
    scans = []
    for line, listed in _listed(root, None, problems, needs_severity=False).items():
        with added_to(problems, f"{SCANS_FILE}, line {line}: "):
            scans.append(Scan(listed.id, _read(listed.pictures, side), 0, 0))
    return sorted(scans, key=lambda scan: scan.id)


def scan_units(root: Path) -> list[Unit]:
    """Return every scan of a folder, by the bytes of its four pictures, with its severity, whichever that is.

    Raises:
        DataError: names every line that is wrong and every file that is missing.
    """
    with all_told() as problems:
        listed = _listed(root, None, problems)
    return [
        Unit(each.id, tuple(map(hashed, each.pictures)), each.severity, kind=each.severity) for each in listed.values()
    ]


def three_channels(pictures: Sequence[NDArray[np.float32]], side: int) -> NDArray[np.uint8]:
    """Return the superficial, deep and structural channel of one scan.

    Args:
        pictures: the four of ``PICTURES``, (H, W) float32 each, of any sizes.

    Returns:
        (side, side, 3) uint8; each channel's least value is 0 and its greatest 255, of a constant one all are 0.
    """
    scaled = [_scaled(picture, side) for picture in pictures]
    channels = scaled[0], scaled[1], np.maximum(scaled[2], scaled[3])
    return np.stack([_stretched(channel) for channel in channels], axis=2)  # 3 of (S, S) -> (S, S, 3)


@dataclass(frozen=True)
class _Listed:
    """What the table says of a scan: its four files, and its severity in small letters."""

    id: str
    pictures: tuple[Path, ...]
    severity: str


def _listed(
    root: Path, severities: Sequence[str] | None, problems: list[str], *, needs_severity: bool = True
) -> dict[int, _Listed]:
    """Return the table's lines that are right, by their number; a sentence is added for each that is not.

    Args:
        severities: those that there may be; None: any.

    Raises:
        DataError: the table cannot be read, or its columns are others.
    """
    columns, rows = read_table(root / SCANS_FILE, problems)
    if sorted(columns) not in (sorted(_COLUMNS), *([] if needs_severity else [sorted(_COLUMNS[:-1])])):
        raise wrong_columns(SCANS_FILE, ", ".join(_COLUMNS), columns)
    listed: dict[int, _Listed] = {}
    ids: set[str] = set()
    for line, cells in rows:
        where = f"{SCANS_FILE}, line {line}"
        name, severity = cells["id"], cells.get("severity", "")
        paths = {cells[picture]: path_within(root, cells[picture]) for picture in PICTURES}
        outside = [text for text, path in paths.items() if path is None]
        if not name or name in ids or "/" in name or "\\" in name:
            problems.append(f"{where}: id {escape(name)!r} is empty, there twice, or has a slash; correct it.")
        elif severities is not None and not _is_severity(severity, severities):
            told = ", ".join(severities)
            problems.append(f"{where}: severity must be one of {told}, or its number, not {escape(severity)!r}.")
        elif outside:
            problems += [
                f"{where}: {escape(text)!r} is no path within the data folder; correct it." for text in outside
            ]
        else:
            pictures = tuple(path for picture in PICTURES if (path := paths[cells[picture]]) is not None)
            listed[line] = _Listed(name, pictures, severity.lower())
        ids.add(name)
    if not rows:
        problems.append(f"{SCANS_FILE}: lists no scan; write a line for each.")
    return listed


def _read(paths: Sequence[Path], side: int) -> NDArray[np.uint8]:
    pictures = []
    with all_told() as problems:
        for path in paths:
            with added_to(problems):
                pictures.append(picture := read_image(path))
                if min(picture.shape) < SMALLEST_SIDE:
                    problems.append(f"{short_name(path)} is too small; each side needs {SMALLEST_SIDE} pixels.")
    return three_channels(pictures, side)


def _is_severity(text: str, severities: Sequence[str]) -> bool:
    is_number = re.fullmatch("[0-9]{1,3}", text) is not None and int(text) < len(severities)
    return is_number or text.lower() in [name.lower() for name in severities]


def _severity(text: str, severities: Sequence[str]) -> int:
    """Return the place of a severity, by its name or its number."""
    names = [name.lower() for name in severities]
    return names.index(text) if text in names else int(text)


def _scaled(picture: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    if picture.shape == (side, side):
        return picture
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR), dtype=np.float32)


def _stretched(channel: NDArray[np.float32]) -> NDArray[np.uint8]:
    low, high = float(channel.min()), float(channel.max())
    if high == low:
        return np.zeros(channel.shape, dtype=np.uint8)
    return np.asarray(np.rint((channel - low) * (255 / (high - low))), dtype=np.uint8)
