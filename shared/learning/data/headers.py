"""What image files say beside their pixels, and WAV files beside their sound, that may name people.

Training never reads it. Here it is looked for so that the hospital learns that it is there: the fields are named, and
what they hold is shown to nobody.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from PIL import ExifTags, Image

from shared.learning.data.images import PICTURES

_NAMED_FIELDS = (
    *("ImageDescription", "Artist", "DocumentName", "HostComputer", "Copyright", "GPSInfo"),
    *("XPTitle", "XPComment", "XPAuthor", "XPKeywords", "XPSubject"),
)
_NAMED_FIELDS_OF_CAMERA = ("UserComment", "CameraOwnerName")
_TECHNICAL = {"software", "compression", "creation time", "date:create", "date:modify", "date:timestamp"}
"""Texts of PNG and TIFF that name no one, in small letters."""
_PATIENT = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientAddress",
    "OtherPatientIDs",
    "OtherPatientNames",
    "ReferringPhysicianName",
)
SOUND = ".wav"
_TECHNICAL_OF_SOUND = {"ISFT", "ICRD"}
"""Texts of WAV that name no one: the software, and the date."""
_BLOCKS_OF_SOUND = {"bext", "iXML", "id3", "ID3"}
"""Blocks of WAV that hold text about a recording, by their names without blanks."""
_LONGEST_TEXTS = 1 << 20  # in bytes

BURNT_IN = "BurnedInAnnotation"
"""The DICOM field by which a file says that text is part of its pixels."""


def fields_that_may_name(path: Path) -> list[str]:
    """Return the fields of a file that hold text which may name people; ``BURNT_IN`` if it says so of its pixels.

    Only what stands before the pixels is read. Of a file that cannot be read nothing is found; that is told elsewhere.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about values that nobody here shall see
            return _BY_ENDING.get(path.suffix.lower(), _of_picture)(path)
    except Exception:  # Pillow and pydicom let through whatever their readers raise over wrong bytes
        return []


def _of_picture(path: Path) -> list[str]:
    with Image.open(path, formats=PICTURES) as file:
        said = file.info
        # of a PNG that has no such block before its pixels, Pillow would decode them to look behind
        exif = file.getexif() if file.format != "PNG" or "exif" in said else Image.Exif()
        named = {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in exif.items()}
        camera = {ExifTags.TAGS.get(tag, ""): value for tag, value in exif.get_ifd(ExifTags.IFD.Exif).items()}
    found = [field for field in _NAMED_FIELDS if _holds(named.get(field))]
    found += [field for field in _NAMED_FIELDS_OF_CAMERA if _holds(camera.get(field))]
    texts = [str(key) for key, value in said.items() if isinstance(value, str) and str(key).lower() not in _TECHNICAL]
    texts += [key for key in ("comment", "xmp") if key not in texts and _holds(said.get(key))]
    return sorted({*found, *(text for text in texts if text not in found and _holds(said.get(text)))})


def _of_dicom(path: Path) -> list[str]:
    from pydicom.filereader import dcmread  # noqa: PLC0415  (an extra)

    wanted = [*_PATIENT, BURNT_IN, "PatientIdentityRemoved"]
    header = dcmread(path, stop_before_pixels=True, specific_tags=wanted)
    is_removed = str(header.get("PatientIdentityRemoved") or "").upper() == "YES"
    found = [] if is_removed else [field for field in _PATIENT if _holds(header.get(field))]
    return found + ([BURNT_IN] if str(header.get(BURNT_IN) or "").upper() == "YES" else [])


def _of_wave(path: Path) -> list[str]:
    """Return what a RIFF file says beside its sound: its blocks have a name, a length, and an even number of bytes."""
    found = set()
    with path.open("rb") as file:
        file.seek(12)
        while len(head := file.read(8)) == 8:
            name, length = _block(head)
            if name == "LIST":
                found |= _texts(file.read(min(length, _LONGEST_TEXTS)))
                file.seek(max(0, length - _LONGEST_TEXTS) + length % 2, os.SEEK_CUR)
                continue
            if name in _BLOCKS_OF_SOUND and length:
                found.add(name)
            file.seek(length + length % 2, os.SEEK_CUR)
    return sorted(found)


def _texts(content: bytes) -> set[str]:
    """Return the names of the texts of a list, where it is one of texts."""
    found, place = set(), 4
    while content[:4] == b"INFO" and place + 8 <= len(content):
        name, length = _block(content[place : place + 8])
        if name not in _TECHNICAL_OF_SOUND and _holds(content[place + 8 : place + 8 + length]):
            found.add(name)
        place += 8 + length + length % 2
    return found


def _block(head: bytes) -> tuple[str, int]:
    return head[:4].decode("latin-1").strip(), int.from_bytes(head[4:], "little")


_BY_ENDING = {".dcm": _of_dicom, SOUND: _of_wave}


def _holds(value: object) -> bool:
    """Return whether a field holds more than blanks."""
    if isinstance(value, bytes):
        return bool(value.strip(b"\0 \t\r\n"))
    return value is not None and bool(str(value).strip("\0 \t\r\n"))
