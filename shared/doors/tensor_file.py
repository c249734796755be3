"""safetensors: where each array of a file lies.

    8 bytes     length of the header, little-endian
    header      JSON: for each array its dtype, shape, and where its bytes begin and end behind the header
    arrays      their bytes, one after another

The library that the format comes from is not asked: what it lets pass, as free text, is refused here. A header has one
text alone, which ``header`` writes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from shared.doors import Refusal, door
from shared.doors.json_text import parse_integers

MAX_HEADER_BYTES = 1 << 20
MOST_NUMBERS = 1 << 30
"""Of one array: more than any layer of a network has."""
MOST_DIMENSIONS = 8
WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes of a number, by dtype as the format names it."""
Shape = list[int]

_METADATA = "__metadata__"
_PARTS = ["dtype", "shape", "data_offsets"]
_MOST_BLANKS = 64  # for each array: a vector's length may turn out to have fewer digits than there was room for
_NAME = re.compile(r"[!#-\[\]-~]{1,200}")  # printable ASCII but space, quotation mark and backslash


@dataclass(frozen=True)
class Array:
    """One array of a file.

    Args:
        start: where its first byte lies in the file.
    """

    dtype: str
    shape: Shape
    start: int


@dataclass(frozen=True)
class Layout:
    """What a file holds.

    Args:
        arrays: by name, in the header's order, in which their bytes lie.
        header: as it stands in the file, blanks at its end included.
    """

    arrays: Mapping[str, Array]
    header: bytes


@door("its header is not one")
def layout(file: BinaryIO, size: int) -> Layout:
    """Read the header of a file of so many bytes, which stands at its beginning.

    Raises:
        Refusal: it is no safetensors file, holds anything but arrays, or they do not fill it.
    """
    text = _header_of(file)
    entries, room = parse_integers(text, MAX_HEADER_BYTES), len(text)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise Refusal("its header is not one")
    # Whatever its keys: what metadata holds is text, and named as an array's parts it is text all the same.
    has_more = _METADATA in entries or any(list(entry) != _PARTS for entry in entries.values())
    if has_more or not all(map(_NAME.fullmatch, entries)):
        raise Refusal("carries free text beside its tensors")
    arrays: dict[str, Array] = {}
    end = 0
    for name, entry in entries.items():
        arrays[name] = Array(entry["dtype"], entry["shape"], 8 + room + end)
        end = _end(name, entry, end)
    if 8 + room + end != size:
        raise Refusal(f"its arrays take {end} bytes, and it has {size - 8 - room} for them")
    stripped = text.rstrip(b" ")
    if len(text) - len(stripped) > 8 + _MOST_BLANKS * len(arrays):
        raise Refusal("its header is blank for the most part")
    if _text({name: (array.dtype, array.shape) for name, array in arrays.items()}) != stripped:
        raise Refusal("carries free text beside its tensors")
    return Layout(arrays, text)


@door("its header is not one")
def foreign_arrays(file: BinaryIO, size: int) -> dict[str, Array]:
    """Read the header of a file of so many bytes that some other program wrote: its arrays may lie in any order, and
    what it holds beside them is left out.

    Raises:
        Refusal: it is no safetensors file, or an array's bytes are not in it.
    """
    text = _header_of(file)
    entries, room = parse_integers(text, MAX_HEADER_BYTES), len(text)
    entries.pop(_METADATA, None)
    arrays: dict[str, Array] = {}
    for name, entry in entries.items():
        begin = entry["data_offsets"][0]
        if begin < 0 or 8 + room + _end(name, entry, begin) > size:
            raise Refusal(f"the bytes of {name} are not in it")
        arrays[name] = Array(entry["dtype"], entry["shape"], 8 + room + begin)
    return arrays


def _header_of(file: BinaryIO) -> bytes:
    start = file.read(8)
    room = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < room <= MAX_HEADER_BYTES:
        raise Refusal("no header of a reasonable size")
    return file.read(room)


def header(arrays: Mapping[str, tuple[str, Shape]], room: int = 0) -> bytes:
    """Return the header of arrays that lie one after another in the order of their names.

    Args:
        arrays: dtype and shape by name.
        room: how many bytes it takes, filled up with blanks; at least a multiple of 8 that it fits into.
    """
    text = _text({name: arrays[name] for name in sorted(arrays)})
    return (text + b" " * (-len(text) % 8)).ljust(room)


def count_of(shape: Shape) -> int:
    """Return how many numbers an array of this shape has."""
    return math.prod(shape)


def _text(arrays: Mapping[str, tuple[str, Shape]]) -> bytes:
    entries: dict[str, object] = {}
    offset = 0
    for name, (dtype, shape) in arrays.items():
        end = offset + count_of(shape) * WIDTHS[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    return json.dumps(entries, separators=(",", ":")).encode()


def _end(name: str, entry: Mapping[str, Any], start: int) -> int:
    """Return where an array's bytes end, behind the header.

    Raises:
        Refusal: its dtype or shape is none, or its bytes lie elsewhere.
    """
    dtype, shape = entry["dtype"], entry["shape"]
    is_shape = isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS and all(type(size) is int for size in shape)
    if dtype not in WIDTHS or not is_shape or min(shape, default=0) < 0 or not _fits(shape):
        raise Refusal(f"{name} is no array, or one of more than {MOST_NUMBERS} numbers")
    end = start + count_of(shape) * WIDTHS[dtype]
    if entry["data_offsets"] != [start, end]:
        raise Refusal(f"the bytes of {name} do not lie where they belong")
    return end


def _fits(shape: Shape) -> bool:
    return max(shape, default=0) <= MOST_NUMBERS and count_of(shape) <= MOST_NUMBERS
