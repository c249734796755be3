"""What one image file says of itself for a survey: a few numbers and words of fixed lists, and nothing else of it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from shared.exchange.records.surveys import BINS, BIT_DEPTHS, COLOURS, MAKERS, NOT_SAID, OTHER
from shared.learning.data.dicom import read_any_levels
from shared.learning.data.images import PICTURES, brightest, grey_of, stored_mask

_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".tif": "tiff", ".tiff": "tiff", ".dcm": "dicom"}
_BLACK = 12 / 255  # of the brightest a file can say; see labelled_photographs
_SHARPNESS_SIDE = 512  # pixels


@dataclass(frozen=True)
class Picture:
    """One image, measured.

    Args:
        field_of_view: share of its pixels that are not black.
        intensity: (BINS,) shares of its pixels, which sum to 1.
        sharpness: variance of its Laplacian, times 1000.
    """

    format: str
    bit_depth: str
    colour: str
    maker: str
    longer_side: int
    shorter_side: int
    field_of_view: float
    intensity: NDArray[np.float64]
    sharpness: float


def measured(path: Path) -> Picture:
    """Read an image and measure it.

    Raises:
        DataError: it cannot be read.
    """
    levels, highest = read_any_levels(path)
    height, width = levels.shape[:2]
    colour = levels.ndim == 3 and bool((levels != levels[..., :1]).any())
    lightest = brightest(levels) if levels.ndim == 3 else levels
    grey = grey_of(levels, highest)
    counts, _ = np.histogram(grey, bins=BINS, range=(0, 1))
    return Picture(
        format=_FORMATS.get(path.suffix.lower(), OTHER),
        bit_depth=BIT_DEPTHS[highest > 255],
        colour=COLOURS[colour],
        maker=maker_of(path),
        longer_side=max(height, width),
        shorter_side=min(height, width),
        field_of_view=float((lightest > _BLACK * highest).mean()),
        intensity=counts / counts.sum(),
        sharpness=_sharpness(grey),
    )


def class_shares(mask: Path, classes: int) -> NDArray[np.float64] | None:
    """Return the share of a mask's pixels that is of each class, (classes,); None if JPEG has changed their numbers.

    A mask may have classes that nobody asked for, or mark what is transparent: which images count must not depend on
    what is in them (protocol 5.3).

    Raises:
        DataError: it cannot be read.
    """
    stored = stored_mask(mask, classes)
    if classes != 2 and stored.is_jpeg:
        return None
    found = stored.second_of_two() if classes == 2 else stored.levels
    shares: NDArray[np.float64] = np.bincount(found.ravel(), minlength=classes)[:classes] / found.size
    return shares


def maker_of(path: Path) -> str:
    """Return who made the device that took an image, of the known makers; whatever else a file says is ``other``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about values that nobody here shall see
            said = _maker_in_dicom(path) if path.suffix.lower() == ".dcm" else _maker_in_picture(path)
    except Exception:  # Pillow and pydicom let through whatever their readers raise over wrong bytes
        return NOT_SAID
    text = str(said or "").strip().lower()
    return next((maker for maker in MAKERS[:-2] if maker in text), OTHER if text else NOT_SAID)


def _maker_in_picture(path: Path) -> Any:
    with Image.open(path, formats=PICTURES) as file:
        return file.getexif().get(ExifTags.Base.Make)


def _maker_in_dicom(path: Path) -> Any:
    from pydicom.filereader import dcmread  # noqa: PLC0415  (an extra)

    return dcmread(path, stop_before_pixels=True, specific_tags=["Manufacturer"]).get("Manufacturer")


def _sharpness(grey: NDArray[np.float32]) -> float:
    """Return the variance of the Laplacian of an image, (H, W) in [0, 1], at one scale, times 1000.

    Source: Pech-Pacheco et al. 2000.
    """
    image = Image.fromarray(grey)
    image.thumbnail((_SHARPNESS_SIDE, _SHARPNESS_SIDE), Image.Resampling.BOX)
    small = np.asarray(image, dtype=np.float64)
    if min(small.shape) < 3:
        return 0.0
    inner = small[1:-1, 1:-1]
    laplacian = small[:-2, 1:-1] + small[2:, 1:-1] + small[1:-1, :-2] + small[1:-1, 2:] - 4 * inner
    return float(laplacian.var() * 1000)
