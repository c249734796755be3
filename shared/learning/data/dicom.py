"""DICOM images, where the optional pydicom is installed: what their pixels need is read, never whose eye it is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.errors import DropfedError
from shared.learning.data.images import read_levels, short_name, unreadable
from shared.service import alive
from shared.software import installing

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_DICOM_COLOURS = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
_DICOM_GREYS = {"MONOCHROME1", "MONOCHROME2"}
_DICOM_TAGS = [
    "Rows",
    "Columns",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "PixelRepresentation",
]
_MOST_DICOM_PIXELS = 89_478_485  # as many as Pillow takes of the other formats


def read_any_levels(path: Path) -> tuple[NDArray[np.uint8] | NDArray[np.uint16], int]:
    """Return the stored values of one image, by ``read_dicom_levels`` or, for any other file, ``images.read_levels``.

    Returns:
        (H, W) or (H, W, 3) uint8 or uint16, and the highest value that their bits allow.

    Raises:
        DataError: the file is not one image of 8 to 16 bits.
        DropfedError: it is a DICOM file, and pydicom is not installed.
    """
    return read_dicom_levels(path) if path.suffix.lower() == ".dcm" else read_levels(path)


def read_dicom_levels(path: Path) -> tuple[NDArray[np.uint8] | NDArray[np.uint16], int]:
    """Return the stored values of one image, as ``images.read_levels`` does; an inverted grey image is turned back.

    Returns:
        (H, W) or (H, W, 3) uint8 or uint16, and the highest value that their bits allow.

    Raises:
        DataError: the file is not one image of 8 to 16 bits.
        DropfedError: pydicom is not installed.
    """
    try:
        from pydicom.filereader import dcmread, read_file_meta_info  # noqa: PLC0415  (an extra)
        from pydicom.pixels.utils import pixel_array  # noqa: PLC0415
        from pydicom.uid import DeflatedExplicitVRLittleEndian  # noqa: PLC0415
    except ImportError as error:
        raise DropfedError(
            f"{short_name(path)}: DICOM files need pydicom; run {installing('dicom')}, or convert them to PNG."
        ) from error
    alive()
    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")  # about values of other tags, which nobody here shall see
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if read_file_meta_info(path).TransferSyntaxUID == DeflatedExplicitVRLittleEndian:
                raise ValueError("it is compressed as a whole, to nobody knows what size")
            header = dcmread(file, stop_before_pixels=True, specific_tags=[*_DICOM_TAGS, "NumberOfFrames"])
            fault = _dicom_fault(header)
            if fault:
                raise ValueError(fault)
            levels = pixel_array(file)
            if levels.shape not in {(header.Rows, header.Columns), (header.Rows, header.Columns, 3)}:
                raise ValueError(f"its pixels have the shape {levels.shape}")
    except Exception as error:  # pydicom lets through whatever its parsers and decoders raise over wrong bytes
        raise unreadable(path, error) from error
    highest = 2**header.BitsStored - 1
    levels = np.minimum(levels, highest)  # bits above the stored ones may hold anything
    if header.PhotometricInterpretation == "MONOCHROME1":
        levels = highest - levels
    return levels.astype(np.uint8 if header.BitsAllocated == 8 else np.uint16), highest


def _dicom_fault(header: Dataset) -> str | None:
    """Return why this is not one image of 8 to 16 bits, or None."""
    lacking = [keyword for keyword in _DICOM_TAGS if header.get(keyword) is None]
    if lacking:
        return f"it does not say its {' and '.join(lacking)}"
    if int(header.get("NumberOfFrames") or 1) > 1:
        return f"it has {header.NumberOfFrames} frames instead of one"
    if header.Rows * header.Columns > _MOST_DICOM_PIXELS:
        return f"it claims to have {header.Columns}x{header.Rows} pixels"
    if header.PhotometricInterpretation not in _DICOM_COLOURS | _DICOM_GREYS:
        return f"its colours are {header.PhotometricInterpretation} instead of grey, RGB or YBR"
    if header.BitsAllocated not in {8, 16} or not 8 <= header.BitsStored <= header.BitsAllocated:
        return f"it has {header.BitsStored} of {header.BitsAllocated} bits instead of 8 to 16"
    if header.PixelRepresentation != 0:
        return "its values have a sign"
    return None
