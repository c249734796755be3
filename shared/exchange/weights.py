"""Tensor files: safetensors, exactly the tensors of the run's list, by default as float32. Never pickle.

What a file holds where a run wants its weights in another form is in ``encoding.py``; how any file is laid out, and
what of it is refused before anything computes with it, is here.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shared.errors import PoisonError
from shared.exchange.records import FileEntry, TensorList
from shared.folder.durable import hash_file, writing

Array = NDArray[np.float32]
AnyArray = NDArray[Any]
Shape = list[int]
Layout = dict[str, tuple[str, Shape]]
"""A file's tensors by name: dtype, as safetensors names it, and shape."""
MAX_HEADER_BYTES = 1 << 20

_METADATA = "__metadata__"
_PARTS = {"dtype", "shape", "data_offsets"}
"""Of an array's entry in the header."""
_LAID_OUT = {"F32": "<f4", "F16": "<u2", "BF16": "<u2", "U32": "<u4", "U16": "<u2", "U8": "u1"}
"""What numpy holds a file's dtype as: numbers of 16 bits as their bit patterns, because it knows no bfloat16."""


def write_tensors(path: Path, tensors: TensorList, tensor: Callable[[str], Array]) -> FileEntry:
    """Write a plain file one tensor at a time, all or nothing; the same tensors give the same bytes.

    Args:
        tensor: returns the float32 array of a name; called once per name, in sorted order.

    Returns:
        What a manifest says of the file.

    Raises:
        ValueError: an array has another shape or dtype than the list says.
    """

    def checked(name: str) -> Array:
        array = tensor(name)
        if list(array.shape) != tensors.tensors[name].shape or array.dtype != np.float32:
            raise ValueError(f"{name} is {array.dtype}{array.shape}, not {tensors.tensors[name]}")
        return array

    return write_arrays(path, "F32", shapes_of(tensors), checked)


def write_zeros(path: Path, tensors: TensorList) -> None:
    """Write a plain file of zeros."""
    write_tensors(path, tensors, lambda name: np.zeros(tensors.tensors[name].shape, dtype=np.float32))


def write_arrays(path: Path, dtype: str, largest: Mapping[str, Shape], array: Callable[[str], AnyArray]) -> FileEntry:
    """Write a safetensors file one array at a time, all or nothing.

    Args:
        dtype: of all arrays, as safetensors names it; an array's own only has to be as wide.
        largest: each array's shape; of a vector, the most elements that it may have.
        array: called once per name, in sorted order.

    Returns:
        What a manifest says of the file. It was hashed while it was written, so that it need not be read for that.
    """
    header = _header(dtype, largest)
    begin = struct.pack("<Q", len(header))
    shapes: dict[str, Shape] = {}
    digest = hashlib.sha256(begin + header)
    with writing(path) as file:
        file.write(begin + header)
        for name in sorted(largest):
            found = array(name)
            shapes[name] = list(found.shape)
            content = np.ascontiguousarray(found, found.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
            digest.update(content.data)
            file.write(content.data)
        size = file.tell()
        if shapes != largest:
            file.seek(len(begin))
            file.write(_header(dtype, shapes).ljust(len(header)))
    return FileEntry(size=size, sha256=digest.hexdigest()) if shapes == largest else entry_of(path)


def entry_of(path: Path) -> FileEntry:
    """What a manifest says of a file, read for that."""
    size, sha256 = hash_file(path)
    return FileEntry(size=size, sha256=sha256)


def layout_of(path: Path, shown_as: str) -> Layout:
    """What a file's header says that it holds, sorted by name; its numbers are not read.

    Raises:
        PoisonError: it is not a safetensors file.
    """
    try:
        _check_header(path, shown_as)
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise PoisonError(shown_as, f"is not a safetensors file ({error})") from None


class TensorFile:
    """A checked file, whose header is read once: read again for each tensor, it would take most of the time.

    No more than what is asked for is in memory afterwards, or mapped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._begin, self._entries = _read_header(file)

    @property
    def names(self) -> list[str]:
        """Of its tensors, sorted."""
        return sorted(self._entries)

    def array(self, name: str) -> AnyArray:
        """One array, as it is laid out."""
        shape = self._entries[name]["shape"]
        return self._read(name, 0, count_of(shape)).reshape(shape)

    def tensor(self, name: str) -> Array:
        """One tensor of a plain file."""
        return self.array(name).astype(np.float32, copy=False)

    def part(self, name: str, start: int, count: int) -> Array:
        """``count`` numbers of one tensor of a plain file, from number ``start`` on, counted row by row."""
        return self._read(name, start, count).astype(np.float32, copy=False)

    def _read(self, name: str, start: int, count: int) -> AnyArray:
        entry = self._entries[name]
        layout = np.dtype(_LAID_OUT[entry["dtype"]])
        begin = self._begin + entry["data_offsets"][0] + start * layout.itemsize
        return np.fromfile(self._path, layout, count, offset=begin)


def _read_header(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Where a checked file's arrays begin, and each array's dtype, shape and offsets from there."""
    room = struct.unpack("<Q", file.read(8))[0]
    return 8 + room, json.loads(file.read(room))


def check_tensors(path: Path, tensors: TensorList, shown_as: str) -> None:
    """Demand a plain file of exactly the list's tensors: names, dtypes, shapes, and nothing but finite numbers.

    Args:
        shown_as: the file's path inside the folder, for the error.

    Raises:
        PoisonError: saying what is different.
    """
    check_arrays(path, "F32", shapes_of(tensors), shown_as)
    file = TensorFile(path)
    for name in tensors.tensors:
        if not np.isfinite(file.tensor(name)).all():
            raise PoisonError(shown_as, f"{name} holds a value that is not finite")


def check_arrays(
    path: Path, dtype: str, shapes: Mapping[str, Shape], shown_as: str, *, are_largest: bool = False
) -> None:
    """Demand exactly these arrays, and nothing but arrays.

    Args:
        are_largest: they are vectors of any length up to their shapes'.

    Raises:
        PoisonError: saying what is different.
    """
    try:
        _check_header(path, shown_as)
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            if names != set(shapes):
                odd = sorted(names ^ set(shapes))
                raise PoisonError(shown_as, f"does not hold the run's tensors: {', '.join(odd[:5])} differ")
            for name, expected in shapes.items():
                part = file.get_slice(name)
                found = part.get_shape()
                fits = len(found) == 1 and found[0] <= expected[0] if are_largest else found == expected
                if part.get_dtype() != dtype or not fits:
                    at_most = "at most " if are_largest else ""
                    raise PoisonError(
                        shown_as, f"{name} is {part.get_dtype()}{found}, not {at_most}{dtype}{list(expected)}"
                    )
    except (SafetensorError, OSError) as error:
        raise PoisonError(shown_as, f"is not a safetensors file ({error})") from None


def shapes_of(tensors: TensorList) -> dict[str, Shape]:
    """Each tensor's shape by name."""
    return {name: tensor.shape for name, tensor in tensors.tensors.items()}


def count_of(shape: Shape) -> int:
    """How many numbers an array of this shape has."""
    return int(np.prod(shape, dtype=np.int64))


def _header(dtype: str, shapes: Mapping[str, Shape]) -> bytes:
    """The header of arrays one after another in sorted order, padded so that they begin at a multiple of 8."""
    width = np.dtype(_LAID_OUT[dtype]).itemsize
    header: dict[str, object] = {}
    offset = 0
    for name in sorted(shapes):
        end = offset + count_of(shapes[name]) * width
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _check_header(path: Path, shown_as: str) -> None:
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= MAX_HEADER_BYTES:
            raise PoisonError(shown_as, "is not a safetensors file (no header of a reasonable size)")
        header = file.read(size)
    try:
        entries = json.loads(header, object_pairs_hook=_without_repeats)
        # Whatever its keys: what metadata holds is text, and named as a tensor's parts it is text all the same.
        has_more = _METADATA in entries or any(set(entry) != _PARTS for entry in entries.values())
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise PoisonError(shown_as, "is not a safetensors file (its header is not one)") from None
    if has_more or json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode() != header.rstrip(b" "):
        raise PoisonError(shown_as, "carries free text beside its tensors")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
