"""Images and their masks, read from two folders and checked.

A data folder holds ``images/`` and ``masks/``; an image and its mask have the same stem: ``images/eye-7.png`` and
``masks/eye-7.tif``. PNG, JPEG and TIFF, 8 or 16 bits, grey or colour.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from PIL.ImageFile import ImageFile

from shared.desktop import is_left_by_desktop
from shared.errors import DataError, added_to, all_told
from shared.escaping import escape
from shared.learning.data import SMALLEST_SIDE
from shared.learning.data.units import Listed, Unit, hashed
from shared.plurals import MOST_SAID, few_or_number
from shared.service import alive

JPEG_EXTENSIONS = (".jpg", ".jpeg")
EXTENSIONS = (".png", *JPEG_EXTENSIONS, ".tif", ".tiff")
PICTURES = ("PNG", "JPEG", "TIFF")
"""What such a file may hold, by Pillow's names: no program that draws, as PostScript is, whatever it is called."""

_DICOM_EXTENSION = ".dcm"
_DICOM_MARK, _DICOM_MARK_AT = b"DICM", 128
_NAMES = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".dcm": "DICOM"}  # others are called as they end
_EIGHT_BIT_MODES = {"L", "LA", "RGB", "RGBA", "P", "1"}
_SIXTEEN_BIT_MODES = {"I;16", "I;16L", "I;16B"}
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a tag of TIFF
_UPRIGHT, _TURNS = 1, range(2, 9)  # orientations of EXIF
_DIM = 1 / 8  # of the highest value; so dark are 12 bits in a file of 16


OfLevels = Callable[[NDArray[np.uint8] | NDArray[np.uint16], int], NDArray[np.float32]]
"""Makes what a model sees of the stored values, (H, W) or (H, W, 3), and their highest."""


def grey_of(levels: NDArray[np.uint8] | NDArray[np.uint16], highest: int) -> NDArray[np.float32]:
    """Return the one channel of an image that ``read_image`` takes: (H, W) or (H, W, 3) -> (H, W) in [0, 1]."""
    grey = levels[..., 1] if levels.ndim == 3 else levels  # (H, W, 3) -> (H, W)
    return grey.astype(np.float32) / np.float32(highest)


def colour_of(levels: NDArray[np.uint8] | NDArray[np.uint16], highest: int) -> NDArray[np.float32]:
    """Return all three channels of an image, equal ones of a grey one: (H, W) or (H, W, 3) -> (H, W, 3) in [0, 1]."""
    colour = levels if levels.ndim == 3 else np.repeat(levels[..., None], 3, axis=2)  # (H, W) -> (H, W, 3)
    return colour.astype(np.float32) / np.float32(highest)


@dataclass(frozen=True)
class SegmentedImage:
    """One image and its mask.

    Args:
        id: the stem that both files share, unique within their folder.
        image: (H, W), or (H, W, 3) in colour, float32 in [0, 1].
        mask: (H, W) uint8, the class of each pixel.
    """

    id: str
    image: NDArray[np.float32]
    mask: NDArray[np.uint8]


def read_pairs(
    root: Path, classes: int, longer_side: int | None = None, of_levels: OfLevels = grey_of
) -> list[SegmentedImage]:
    """Read every image of a folder with its mask, sorted by stem.

    Args:
        root: a folder with ``images`` and ``masks``.
        classes: how many a mask may tell apart.
        longer_side: what the longer side is scaled to, in pixels, or None to keep every image as it is.
        of_levels: what of an image's file is taken: ``grey_of`` or ``colour_of``.

    Raises:
        DataError: names every file that is missing, unreadable, too small or of another size than its partner.
    """
    pairs: list[SegmentedImage] = []
    with all_told() as problems:
        for stem, (image, mask) in _list_pairs(root, problems).items():
            with added_to(problems):
                pairs.append(_read_pair(stem, image, mask, classes, longer_side, of_levels=of_levels))
    return pairs


def pair_units(root: Path) -> list[Unit]:
    """Return every image of a folder with its mask, by the bytes of their files.

    Raises:
        DataError: names every file that is missing or cannot be read.
    """
    with all_told() as problems:
        pairs = _list_pairs(root, problems)
    return [Unit(stem, (hashed(image),), hashed(mask)) for stem, (image, mask) in pairs.items()]


def pair_files(root: Path) -> list[Listed]:
    """Return every image of a folder with its mask, unread.

    Raises:
        DataError: names every file that is missing.
    """
    with all_told() as problems:
        pairs = _list_pairs(root, problems)
    return [Listed(stem, {"images": image, "masks": mask}) for stem, (image, mask) in pairs.items()]


def _list_pairs(root: Path, problems: list[str]) -> dict[str, tuple[Path, Path]]:
    """Return the files of each image and its mask, sorted by stem; a sentence is added for each that is missing."""
    if not root.is_dir():
        problems.append(f"{root}: there is no such folder; correct the path, or make it and put the images there.")
        return {}
    images = files_by_stem(root / "images", problems)
    masks = files_by_stem(root / "masks", problems)
    problems += _without([images[stem] for stem in sorted(images.keys() - masks.keys())], "image", "mask")
    problems += _without([masks[stem] for stem in sorted(masks.keys() - images.keys())], "mask", "image")
    if not images and not problems:
        problems.append("images: has no image in it; put PNG, JPEG or TIFF files there, and their masks in masks.")
    return {stem: (images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())}


def _without(files: Sequence[Path], kind: str, partner: str) -> list[str]:
    """Return which files have no partner: each by name if they are few, else their number."""
    remedy = f"or remove the {kind}"
    return few_or_number(
        [f"{short_name(path)}: has no {partner}; add {partner}s/{path.stem}.png {remedy}." for path in files],
        f"{kind}s: {len(files)} files have no {partner}, as {_some(files)}; add {partner}s/NAME.png for each or remove "
        "them.",
    )


@dataclass(frozen=True)
class OddMasks:
    """Masks that may mean something else than they say.

    Args:
        empty: of the first class alone.
        full: without a pixel of the first class.
        grey: of two classes, with more than two values: whatever is not 0 is the second.
        turned: images whose EXIF says another turn than their masks' does.
    """

    empty: Sequence[Path]
    full: Sequence[Path]
    grey: Sequence[Path]
    turned: Sequence[Path]


def odd_masks(root: Path, classes: int) -> OddMasks:
    """Look through the masks of a folder that ``read_pairs`` reads.

    Raises:
        DataError: one cannot be read.
    """
    empty, full, grey, turned = [], [], [], []
    images = files_by_stem(root / "images", [])
    for stem, path in files_by_stem(root / "masks", []).items():
        stored = stored_mask(path, classes)
        mask = _classes_of(stored, classes)
        if not mask.any():
            empty.append(path)
        if mask.all():
            full.append(path)
        if classes == 2 and not stored.is_jpeg and len(np.unique(stored.levels)) > 2:
            grey.append(path)
        if stem in images and _turn_of(images[stem]) != stored.turn:
            turned.append(images[stem])
    return OddMasks(empty, full, grey, turned)


def _turn_of(path: Path) -> int:
    with _decoded(path) as (_, _, turn):
        return turn


def dim_images(root: Path) -> list[Path]:
    """Return the images of a data folder whose brightest pixel does not reach an eighth of what their file can say.

    The PNG, JPEG and TIFF files of ``images`` are looked at, or of the whole folder where it has no such folder. What
    cannot be read is passed over; that is told elsewhere.
    """
    images = root / "images"
    found = []
    for path in files_within(images if images.is_dir() else root, EXTENSIONS):
        with suppress(DataError):
            levels, highest = read_levels(path)
            found += [path] if levels.max() < _DIM * highest else []
    return found


def read_image(path: Path) -> NDArray[np.float32]:
    """Read one image as one grey channel, on the fixed range of the file's bit depth.

    Of a colour image the green channel is taken, not the luminance: blood absorbs green most, so vessels and lesions
    stand out there, while red is often saturated and blue noisy. A grey image that was saved as colour has its grey in
    green, unchanged.

    Returns:
        (H, W) float32 in [0, 1]: the stored value over the highest that its bits allow, whatever values are in use.

    Raises:
        DataError: the file cannot be read as an image of 8 or 16 bits.
    """
    return grey_of(*read_levels(path))


def read_mask(path: Path, classes: int) -> NDArray[np.uint8]:
    """Read one mask.

    Where it tells two classes apart, every value but 0 is the second in PNG and TIFF, so that masks of 0 and 1, of 0
    and 255 and of numbered classes all work. JPEG blurs 0 into small numbers beside each edge: there a pixel is set
    from half of the range upwards. Where it tells more apart, a value is the number of its class, as ``stored_mask``
    takes it, and JPEG cannot say it. In a colour mask the brightest channel counts.

    Returns:
        (H, W) uint8, each in [0, classes).

    Raises:
        DataError: the file cannot be read as an image of 8 or 16 bits, marks transparent pixels, or has a value that is
            no class.
    """
    return _classes_of(stored_mask(path, classes), classes)


@dataclass(frozen=True)
class StoredMask:
    """A mask as its file has it.

    Args:
        path: the file.
        levels: (H, W), the stored value of each pixel.
        highest: what a value can be.
        is_marked_unseen: whether a transparent pixel has another value than 0: what was erased may keep its colour.
        turn: how the file's EXIF says that it is turned, 1 to 8; 1: not.
    """

    path: Path
    levels: NDArray[np.integer]
    highest: int
    is_marked_unseen: bool
    turn: int

    @property
    def is_jpeg(self) -> bool:
        """Whether numbers of classes are blurred in it."""
        return self.path.suffix.lower() in JPEG_EXTENSIONS

    def second_of_two(self) -> NDArray[np.uint8]:
        """Return where the second of two classes is: (H, W), 0 or 1."""
        return np.asarray(self.levels > (self.highest // 2 if self.is_jpeg else 0), dtype=np.uint8)


def stored_mask(path: Path, classes: int) -> StoredMask:
    """Return what is stored in a mask's file.

    Of colours the brightest channel is taken. Where a mask tells more than two classes apart, it is the number in the
    file: the index of a palette's colour, and a grey value of 1, 2 or 4 bits as it is, not spread over 0 to 255.

    Raises:
        DataError: the file cannot be read as an image of 8 or 16 bits.
    """
    are_numbers = classes > 2
    with _decoded(path) as (file, bits, turn):
        levels, highest = (np.asarray(file), 255) if are_numbers and file.mode == "P" else _levels(path, file, bits)
        grey = brightest(levels) if levels.ndim == 3 else levels
        is_marked_unseen = bool((grey[_transparent(file)] > 0).any())
        if are_numbers and bits < 8 and file.mode != "P":
            grey = grey // (255 // (2**bits - 1))
    return StoredMask(path, grey, highest, is_marked_unseen, turn)


def _classes_of(mask: StoredMask, classes: int) -> NDArray[np.uint8]:
    """Return the class of each pixel of a mask; errors as for ``read_mask``."""
    if mask.is_marked_unseen:
        raise DataError([f"{short_name(mask.path)}: has transparent pixels that are marked; flatten it on black."])
    if classes == 2:
        return mask.second_of_two()
    if mask.is_jpeg:
        raise DataError([f"{short_name(mask.path)}: JPEG changes the numbers of classes; save the mask as PNG."])
    if (most := int(mask.levels.max())) >= classes:
        told = f"has a pixel of {most}, and the classes are numbered 0 to {classes - 1}"
        raise DataError([f"{short_name(mask.path)}: {told}; correct it."])
    return mask.levels.astype(np.uint8)


def brightest(levels: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return each pixel's greatest channel, (H, W, 3) -> (H, W): ``levels.max(axis=2)`` in a sixteenth of the time."""
    red, green, blue = np.moveaxis(levels, 2, 0)
    greatest: NDArray[np.integer] = np.maximum(np.maximum(red, green), blue)
    return greatest


def scale_to(
    image: NDArray[np.float32], mask: NDArray[np.uint8], longer_side: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Scale an image and its mask so that the longer side has so many pixels; the shape is kept.

    The image is interpolated linearly over the area that each new pixel covers; a pixel of the new mask is of the class
    that covers most of it, of equals the higher.

    Args:
        image: (H, W), or (H, W, 3) in colour, float32 in [0, 1].
        mask: (H, W) uint8, the class of each pixel.
        longer_side: in pixels, >= 1.

    Returns:
        (h, w) or (h, w, 3) float32 in [0, 1] and (h, w) uint8.
    """
    height, width = mask.shape
    factor = longer_side / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    if size == (width, height):
        return image, mask
    channels = [image] if image.ndim == 2 else np.moveaxis(image, 2, 0)
    scaled = [np.asarray(Image.fromarray(each).resize(size, Image.Resampling.BILINEAR)) for each in channels]
    together = scaled[0] if image.ndim == 2 else np.stack(scaled, axis=2)
    return np.clip(together, 0, 1, dtype=np.float32), _scaled_classes(mask, size)


def _scaled_classes(mask: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a mask, (H, W) to (h, w) of ``size``, (w, h), by the class that covers most of each new pixel."""
    covers = [
        np.asarray(Image.fromarray((mask == each).astype(np.float32)).resize(size, Image.Resampling.BOX))
        for each in range(1, max(2, int(mask.max()) + 1))
    ]
    of_all = np.stack([1 - np.sum(covers, axis=0, dtype=np.float32), *covers])  # (K, h, w)
    highest_first = of_all[::-1].argmax(axis=0)
    return np.asarray(len(of_all) - 1 - highest_first, dtype=np.uint8)


def formats_of(extensions: Sequence[str]) -> str:
    """Return what files that end so are called, as in "PNG, JPEG or TIFF"."""
    *names, last = dict.fromkeys(_NAMES.get(each, each[1:].upper()) for each in extensions)
    return f"{', '.join(names)} or {last}" if names else last


def misnamed(path: Path) -> list[str]:
    """Return a sentence about a name that cannot be written down everywhere, if a file or folder has such a one."""
    if not any(unicodedata.category(each) in ("Cc", "Cs") for each in path.name):
        return []
    return [f"{escape(short_name(path))}: its name is no UTF-8, or has a character that no screen shows; rename it."]


def files_by_stem(folder: Path, problems: list[str], extensions: Sequence[str] = EXTENSIONS) -> dict[str, Path]:
    """Return the image files of a folder by stem, in order of their names; folders in it are not entered.

    Args:
        folder: where the files are.
        problems: a sentence is added for each file that has the stem of another or is no image, of many such how many.
        extensions: in small letters, what the name of an image ends in.
    """
    if not folder.is_dir():
        above = folder.parent.parent
        remedy = (
            f"name {above}, the folder that holds {folder.name}"
            if folder.parent == above / folder.name
            else f"make it and put the files there, or name the folder that holds {folder.name}"
        )
        problems.append(f"{folder.name}: there is no such folder in {folder.parent}; {remedy}.")
        return {}
    files: dict[str, Path] = {}
    others: list[Path] = []
    for path in not_hidden(folder):
        if told := misnamed(path):
            problems += told
        elif not path.is_file() or path.suffix.lower() not in extensions:
            others.append(path)
        elif path.stem in files:
            problems.append(
                f"{short_name(path)}: {short_name(files[path.stem])} has the same stem; remove or rename one."
            )
        else:
            files[path.stem] = path
    problems += _of_other_kinds(folder, others, extensions)
    return files


def _of_other_kinds(folder: Path, others: Sequence[Path], extensions: Sequence[str]) -> list[str]:
    """Return which files end in nothing that is read: each by name if they are few, else their number."""
    unnamed: list[Path] = []
    foreign: list[Path] = []
    for path in others:
        (unnamed if _DICOM_EXTENSION in extensions and _is_dicom(path) else foreign).append(path)
    formats = formats_of(extensions)
    told = few_or_number(
        [_call_it_dicom(path) for path in unnamed],
        f"{folder.name}: {len(unnamed)} DICOM files do not end in .dcm, as {_some(unnamed)}; rename them.",
    )
    return told + few_or_number(
        [f"{short_name(path)}: is not a {formats} file; convert it or move it elsewhere." for path in foreign],
        f"{folder.name}: {len(foreign)} files are not {formats}, as {_some(foreign)}; convert them or move them "
        "elsewhere.",
    )


def _call_it_dicom(path: Path) -> str:
    return f"{short_name(path)}: is a DICOM file; call it {path.name}.dcm."


def list_images(path: Path, extensions: Sequence[str] = EXTENSIONS) -> list[Path]:
    """Return images without labels: one file, or the files of a folder in order of their names.

    Args:
        extensions: as for ``files_by_stem``.

    Raises:
        DataError: there is no such file or folder, no image in it, or something that is no image.
    """
    if path.is_file() and path.suffix.lower() in extensions:
        if told := misnamed(path):
            raise DataError(told)
        return [path]
    if _DICOM_EXTENSION in extensions and _is_dicom(path):
        raise DataError([_call_it_dicom(path)])
    if not path.is_dir():
        raise DataError([f"{path}: is neither a {formats_of(extensions)} file nor a folder of them; name one."])
    with all_told() as problems:
        files = files_by_stem(path, problems, extensions)
        if not files and not problems:
            problems.append(f"{path}: has no image in it; put {formats_of(extensions)} files there.")
    return list(files.values())


def unlabelled_units(path: Path, extensions: Sequence[str] = EXTENSIONS) -> list[Unit]:
    """Return images without labels, by the bytes of their files; arguments and errors as for ``list_images``."""
    return [Unit(file.stem, (hashed(file),), "") for file in list_images(path, extensions)]


def not_hidden(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted, without hidden files and those that a desktop leaves behind."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and not is_left_by_desktop(path)]


def files_within(root: Path, extensions: Sequence[str]) -> list[Path]:
    """Return the files of a folder and of those in it that end so, sorted, without what ``not_hidden`` leaves out.

    A folder may be a link, as to a network drive; one that is reached twice, or lies in itself, is looked through once.

    Args:
        extensions: in small letters.
    """
    found: list[Path] = []
    folders, seen = [root], {root.resolve()}
    for folder in folders:
        entries: list[Path] = []
        with suppress(OSError):
            entries = not_hidden(folder)
        for path in entries:
            with suppress(OSError):  # one that nobody may look at hides no other
                if path.is_dir() and path.resolve() not in seen:
                    folders.append(path)
                    seen.add(path.resolve())
                elif path.suffix.lower() in extensions and path.is_file():
                    found.append(path)
    return sorted(found)


def read_levels(path: Path) -> tuple[NDArray[np.uint8] | NDArray[np.uint16], int]:
    """Return the stored values of one image, and the highest value that their bits allow: 255, 4095 or 65535.

    The image is turned as viewers show it: as its EXIF says. A TIFF in which 0 is white is turned back. Of colours in
    16 bits Pillow keeps the upper 8.

    Returns:
        (H, W) or (H, W, 3) uint8 or uint16, and that value.

    Raises:
        DataError: the file cannot be read as one image of 8 or 16 bits.
    """
    with _decoded(path) as (file, bits, _):
        return _levels(path, file, bits)


def _levels(path: Path, file: ImageFile, bits: int) -> tuple[NDArray[np.uint8] | NDArray[np.uint16], int]:
    if file.mode in _EIGHT_BIT_MODES:
        return np.asarray(file.convert("L" if file.mode in {"1", "L", "LA"} else "RGB")), 255
    if file.mode in _SIXTEEN_BIT_MODES:
        highest = 2**bits - 1
        levels = np.asarray(file).astype(np.uint16)
        # Pillow turns back what is inverted in 8 bits alone
        is_inverted = getattr(file, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        return highest - levels if is_inverted else levels, highest
    raise DataError([f"{short_name(path)}: has pixels of type {file.mode}; save it with 8 or 16 bits, grey or colour."])


@contextmanager
def _decoded(path: Path) -> Iterator[tuple[ImageFile, int, int]]:
    """Yield an image, decoded and turned, how many bits its file has for a grey value or a place in its palette, and
    how its EXIF says that it is turned, 1 to 8; 1: not.

    Raises:
        DataError: it cannot be read as one image; or what is done with it meanwhile raises anything.
    """
    alive()
    try:
        with warnings.catch_warnings():
            # Pillow warns where a file claims to be huge, and refuses only at twice that; here both are refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=PICTURES) as file:
                if (pages := getattr(file, "n_frames", 1)) > 1:
                    raise DataError(
                        [f"{short_name(path)}: has {pages} pages; save the one that is meant as a file of its own."]
                    )
                bits = _bits(file)  # before decoding, which forgets it
                yield file, bits, _turn(file)
    except DataError:
        raise
    except Exception as error:  # Pillow lets through whatever its readers raise over wrong bytes
        raise unreadable(path, error) from error


def _bits(file: ImageFile) -> int:
    """Return how many bits a file has for each value, by Pillow's name of how it is stored, as "L;4" or "I;16B"."""
    named = re.search(r";([0-9]+)", str(file.tile[0].args))
    return int(named[1]) if named else 1 if file.mode == "1" else 8


def _turn(file: ImageFile) -> int:
    """Turn an image as its EXIF says, and return what that is: so viewers show it, and so people draw masks on it."""
    turn: int
    if file.format == "TIFF":  # which Pillow turns itself, and then forgets how
        turn = getattr(file, "tag_v2", {}).get(ExifTags.Base.Orientation, _UPRIGHT)
        file.filename = ""  # of a file by name it maps pixels as if they were turned already
        file.info.pop("xmp", None)  # it would turn by XMP, too, where EXIF says nothing
        file.load()
        return turn if turn in _TURNS else _UPRIGHT
    file.load()
    with suppress(Exception), warnings.catch_warnings():  # EXIF that cannot be read turns nothing, whatever it raises
        warnings.simplefilter("ignore")
        exif = Image.Exif()  # of EXIF alone: Pillow's own for a file has what XMP says, too
        exif.load(file.info.get("exif", b""))
        if (turn := exif.get(ExifTags.Base.Orientation, _UPRIGHT)) in _TURNS:
            ImageOps.exif_transpose(file, in_place=True)
            return turn
    return _UPRIGHT


def _transparent(file: ImageFile) -> NDArray[np.bool_]:
    """Return which pixels of an image are not opaque, (H, W); of grey in 16 bits Pillow does not tell."""
    if file.mode not in _EIGHT_BIT_MODES or not file.has_transparency_data:
        return np.zeros((file.height, file.width), np.bool_)
    return np.asarray(file.convert("RGBA"))[..., 3] < 255


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error for a file that cannot be read as an image: one line, with only ``folder/name`` of its path."""
    if _is_dicom(path) and path.suffix.lower() != _DICOM_EXTENSION:
        remedy = f"call it {path.stem}.dcm where the task takes DICOM, or export it as PNG"
        return DataError([f"{short_name(path)}: is a DICOM file, though it is called {path.suffix}; {remedy}."])
    is_huge = isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError)
    if is_huge and (claimed := re.search("([0-9]+) pixels", str(error))):
        told = f"has {int(claimed[1]):,} pixels, more than {Image.MAX_IMAGE_PIXELS:,}"
        return DataError([f"{short_name(path)}: {told}; scale it down."])
    if isinstance(error, OSError) and error.strerror:
        return DataError([f"{short_name(path)}: cannot be read as an image ({error.strerror}); correct it."])
    reason = " ".join(str(error).replace(str(path), path.name).split())
    return DataError([f"{short_name(path)}: cannot be read as an image ({reason}); export it again."])


def _is_dicom(path: Path) -> bool:
    """Return whether a file says that it is DICOM, whatever it is called; one that cannot be opened says nothing."""
    if not path.is_file():  # to open a pipe would wait for whoever writes into it
        return False
    with suppress(OSError), path.open("rb") as file:
        return file.read(_DICOM_MARK_AT + len(_DICOM_MARK))[_DICOM_MARK_AT:] == _DICOM_MARK
    return False


def short_name(path: Path) -> str:
    """Return ``folder/name``, which is all of a path that an error may show."""
    return f"{path.parent.name}/{path.name}"


def _some(paths: Sequence[Path]) -> str:
    return ", ".join(short_name(path) for path in paths[:MOST_SAID])


def _read_pair(
    stem: str, image_path: Path, mask_path: Path, classes: int, longer_side: int | None, *, of_levels: OfLevels
) -> SegmentedImage:
    with all_told() as problems:
        with added_to(problems):
            image = of_levels(*read_levels(image_path))
        with added_to(problems):
            mask = read_mask(mask_path, classes)
    if image.shape[:2] != mask.shape:
        is_turned = image.shape[:2] == mask.shape[::-1]
        remedy = "save both alike" + (", turned as viewers show the image" if is_turned else "")
        sizes = f"{short_name(image_path)} is {_size(image)} pixels but {short_name(mask_path)} is {_size(mask)}"
        raise DataError([f"{sizes}; {remedy}."])
    if longer_side is not None:
        image, mask = scale_to(image, mask, longer_side)
    if min(mask.shape) < SMALLEST_SIDE:
        used = "is" if longer_side is None else f"scaled to {longer_side} is"
        raise DataError([f"{short_name(image_path)}: {used} {_size(image)} pixels; each side needs {SMALLEST_SIDE}."])
    return SegmentedImage(stem, image, mask)


def _size(image: NDArray[np.float32] | NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
