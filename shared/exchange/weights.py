"""Tensor files: safetensors, float32, exactly the tensors of the run's list. Never pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shared.errors import PoisonError
from shared.exchange.records import TensorList
from shared.folder.durable import writing

Array = NDArray[np.float32]
MAX_HEADER_BYTES = 1 << 20


def max_file_bytes(tensors: TensorList) -> int:
    """The largest file that can hold exactly ``tensors``."""
    return 8 + MAX_HEADER_BYTES + sum(_count(tensor.shape) * 4 for tensor in tensors.tensors.values())


def write_tensors(path: Path, tensors: TensorList, tensor: Callable[[str], Array]) -> None:
    """Write a safetensors file one tensor at a time, all or nothing; the same tensors give the same bytes.

    Args:
        tensor: returns the float32 array of a name; called once per name, in sorted order.

    Raises:
        ValueError: an array has another shape or dtype than the list says.
    """
    header: dict[str, object] = {}
    offset = 0
    names = sorted(tensors.tensors)
    for name in names:
        shape = tensors.tensors[name].shape
        end = offset + _count(shape) * 4
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    with writing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            array = tensor(name)
            if list(array.shape) != tensors.tensors[name].shape or array.dtype != np.float32:
                raise ValueError(f"{name} is {array.dtype}{array.shape}, not {tensors.tensors[name]}")
            file.write(np.ascontiguousarray(array).astype("<f4", copy=False).tobytes())


def read_tensor(path: Path, name: str) -> Array:
    """One tensor of a checked file. Opened anew each time, so that no more than it stays mapped in memory."""
    with safe_open(path, framework="numpy") as file:
        tensor: Array = file.get_tensor(name)
    return tensor


def check_tensors(path: Path, tensors: TensorList, shown_as: str) -> None:
    """Demand exactly the tensors of the list: names, dtypes, shapes, and nothing but finite numbers.

    Args:
        shown_as: the file's path inside the folder, for the error.

    Raises:
        PoisonError: saying what is different.
    """
    try:
        _check_header(path, shown_as)
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            if names != set(tensors.tensors):
                odd = sorted(names ^ set(tensors.tensors))
                raise PoisonError(shown_as, f"does not hold the run's tensors: {', '.join(odd[:5])} differ")
            for name, expected in tensors.tensors.items():
                part = file.get_slice(name)
                if part.get_dtype() != expected.dtype or part.get_shape() != expected.shape:
                    found = f"{part.get_dtype()}{part.get_shape()}"
                    raise PoisonError(shown_as, f"{name} is {found}, not {expected.dtype}{expected.shape}")
                if not np.isfinite(read_tensor(path, name)).all():
                    raise PoisonError(shown_as, f"{name} holds a value that is not finite")
    except (SafetensorError, OSError) as error:
        raise PoisonError(shown_as, f"is not a safetensors file ({error})") from None


def _check_header(path: Path, shown_as: str) -> None:
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= MAX_HEADER_BYTES:
            raise PoisonError(shown_as, "is not a safetensors file (no header of a reasonable size)")
        header = file.read(size)
    try:
        entries = json.loads(header, object_pairs_hook=_without_repeats)
        has_more = any(set(entry) != {"dtype", "shape", "data_offsets"} for entry in entries.values())
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise PoisonError(shown_as, "is not a safetensors file (its header is not one)") from None
    if has_more:
        raise PoisonError(shown_as, "carries free text beside its tensors")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _count(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
