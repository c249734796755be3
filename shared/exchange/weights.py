"""Tensor files: safetensors, exactly the tensors of the run's list, by default as float32. Never pickle.

What a file holds where a run wants its weights in another form is in ``encoding.py``; how any file is laid out, and
what of it is refused before anything computes with it, is here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.doors import Refusal, tensor_file
from shared.doors.tensor_file import Shape, count_of
from shared.errors import RejectedError
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.wire import FileEntry
from shared.folder.durable import hash_file, writing

Array = NDArray[np.float32]
AnyArray = NDArray[Any]
Layout = dict[str, tuple[str, Shape]]
"""A file's tensors by name: dtype, as safetensors names it, and shape."""

LARGEST = 2.0**24
"""The greatest magnitude of a number that travels: far beyond what any network has that was not spoilt, and far below
what its sums with others could not hold.
"""

PART = 1 << 17
"""Numbers that are looked at together where each is looked at alone."""

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
            file.write(_header(dtype, shapes, room=len(header)))
    return FileEntry(size=size, sha256=digest.hexdigest()) if shapes == largest else entry_of(path)


def entry_of(path: Path) -> FileEntry:
    """Return what a manifest says of a file, read for that."""
    size, sha256 = hash_file(path)
    return FileEntry(size=size, sha256=sha256)


def layout_of(path: Path, shown_as: str) -> Layout:
    """Return what a file's header says that it holds, sorted by name; its numbers are not read.

    Raises:
        RejectedError: it is not a safetensors file.
    """
    arrays = _opened(path, shown_as).arrays
    return {name: (arrays[name].dtype, arrays[name].shape) for name in sorted(arrays)}


class TensorFile:
    """A checked file, whose header is read once: read again for each tensor, it would take most of the time.

    No more than what is asked for is in memory afterwards, or mapped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrays = _opened(path, str(path)).arrays

    @property
    def names(self) -> list[str]:
        """Of its tensors, sorted."""
        return sorted(self._arrays)

    def place(self, name: str) -> tuple[Path, int, int]:
        """Return where the bytes of an array lie: the file, where they begin in it, and how many they are."""
        array = self._arrays[name]
        return self._path, array.start, count_of(array.shape) * tensor_file.WIDTHS[array.dtype]

    def array(self, name: str) -> AnyArray:
        """Return one array, as it is laid out."""
        shape = self._arrays[name].shape
        return self._read(name, 0, count_of(shape)).reshape(shape)

    def tensor(self, name: str) -> Array:
        """Return one tensor of a plain file."""
        return self.array(name).astype(np.float32, copy=False)

    def part(self, name: str, start: int, count: int) -> Array:
        """Return ``count`` numbers of one tensor of a plain file, from number ``start`` on, counted row by row."""
        return self._read(name, start, count).astype(np.float32, copy=False)

    def parts(self, name: str) -> Iterator[Array]:
        """Yield the numbers of one tensor of a plain file, as many at a time as a processor holds beside it."""
        count = count_of(self._arrays[name].shape)
        for start in range(0, count, PART):
            yield self.part(name, start, min(PART, count - start))

    def _read(self, name: str, start: int, count: int) -> AnyArray:
        array = self._arrays[name]
        layout = np.dtype(_LAID_OUT[array.dtype])
        return np.fromfile(self._path, layout, count, offset=array.start + start * layout.itemsize)


def check_tensors(path: Path, tensors: TensorList, shown_as: str, *, largest: float = LARGEST) -> None:
    """Check that a plain file holds exactly the list's tensors (names, dtypes, shapes), all within ``largest``.

    Args:
        shown_as: the file's path inside the folder, for the error.
        largest: the greatest magnitude; infinity where any finite number will do.

    Raises:
        RejectedError: saying what is different.
    """
    check_arrays(path, "F32", shapes_of(tensors), shown_as)
    file = TensorFile(path)
    for name in tensors.tensors:
        for part in file.parts(name):
            require_bounded(part, name, shown_as, largest)


def rewrite_tensors(source: Path, target: Path, tensors: TensorList, shown_as: str) -> FileEntry:
    """Write the tensors of a file that some other program wrote as a plain file; nothing else of it is in that.

    Returns:
        What a manifest says of the plain file.

    Raises:
        RejectedError: it does not hold exactly these tensors, as float32, or a number that nobody honest has.
    """
    try:
        with source.open("rb") as file:
            found = tensor_file.foreign_arrays(file, source.stat().st_size)
    except Refusal as refusal:
        raise RejectedError(shown_as, f"is not a safetensors file ({refusal})") from None
    _require_arrays(found, "F32", shapes_of(tensors), shown_as)

    def read(name: str) -> Array:
        shape = found[name].shape
        numbers = np.fromfile(source, np.dtype("<f4"), count_of(shape), offset=found[name].start)
        require_bounded(numbers, name, shown_as)
        return numbers.astype(np.float32, copy=False).reshape(shape)

    return write_tensors(target, tensors, read)


def _require_arrays(
    arrays: Mapping[str, tensor_file.Array],
    dtype: str,
    shapes: Mapping[str, Shape],
    shown_as: str,
    *,
    are_largest: bool = False,
) -> None:
    _require_names(arrays, shapes, shown_as)
    for name, expected in shapes.items():
        array = arrays[name]
        fits = len(array.shape) == 1 and array.shape[0] <= expected[0] if are_largest else array.shape == expected
        if array.dtype != dtype or not fits:
            at_most = "at most " if are_largest else ""
            raise RejectedError(shown_as, f"{name} is {array.dtype}{array.shape}, not {at_most}{dtype}{list(expected)}")


def _require_names(found: Mapping[str, object], expected: Mapping[str, object], shown_as: str) -> None:
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())
        raise RejectedError(shown_as, f"does not hold the run's tensors: {', '.join(odd[:5])} differ")


def require_bounded(array: Array, name: str, shown_as: str, largest: float = LARGEST) -> None:
    """Check that a tensor's numbers are finite, and none greater in magnitude than ``largest``.

    Raises:
        RejectedError: one is.
    """
    greatest = magnitude_of(array)
    if not np.isfinite(greatest):
        raise RejectedError(shown_as, f"{name} holds a value that is not finite")
    if greatest > largest:
        raise RejectedError(shown_as, f"{name} holds {greatest:.3g}, and no number may be beyond {largest:.9g}")


def magnitude_of(array: AnyArray) -> float:
    """Return the greatest magnitude among an array's numbers, 0 of none; not a number if one is none."""
    return 0.0 if array.size == 0 else max(array.max().item(), -array.min().item())


def check_arrays(
    path: Path, dtype: str, shapes: Mapping[str, Shape], shown_as: str, *, are_largest: bool = False
) -> None:
    """Check that a file holds exactly these arrays, nothing else, and the header that ``write_arrays`` writes for them.

    Args:
        are_largest: they are vectors of any length up to their shapes'.

    Raises:
        RejectedError: saying what is different.
    """
    found = _opened(path, shown_as)
    _require_arrays(found.arrays, dtype, shapes, shown_as, are_largest=are_largest)
    room = len(_header(dtype, shapes))
    if found.header != _header(dtype, {name: array.shape for name, array in found.arrays.items()}, room=room):
        raise RejectedError(shown_as, "has another header than the protocol writes for its tensors")


def shapes_of(tensors: TensorList) -> dict[str, Shape]:
    """Return each tensor's shape by name."""
    return {name: tensor.shape for name, tensor in tensors.tensors.items()}


def _header(dtype: str, shapes: Mapping[str, Shape], *, room: int = 0) -> bytes:
    """Return the header of arrays of one dtype, in so many bytes, or as few as can be."""
    return tensor_file.header({name: (dtype, shape) for name, shape in shapes.items()}, room)


def _opened(path: Path, shown_as: str) -> tensor_file.Layout:
    try:
        with path.open("rb") as file:
            return tensor_file.layout(file, path.stat().st_size)
    except Refusal as refusal:
        raise RejectedError(shown_as, f"is not a safetensors file ({refusal})") from None
