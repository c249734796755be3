"""The forms that a run may want its rounds' weights in, one from each line:

    numbers       float32; or rounded to bfloat16 or float16
    difference    the numbers themselves; or, of a site's model, how far each bit pattern is from the received one
    compression   none; or byte-shuffled zstd

Rounding is IEEE 754's: to the nearest, of two equally near ones to the even one. Subnormal numbers stay; what is too
great becomes infinite, and is refused. Nothing else loses anything: decoding gives exactly the rounded numbers.

The file remains a safetensors file with the run's names. It holds, for each tensor,

    numbers alone     F32, BF16 or F16, in the tensor's shape
    a difference      U32 or U16, in the tensor's shape. d = trained − received, both bit patterns read as integers, d
                      wrapped around into a signed one of their width; written is 2·d where d ≥ 0, −2·d − 1 elsewhere:
                      so a small step either way is a small number, whose high bytes are 0
    zstd              U8, a vector: one zstd frame of all first bytes of the above, little-endian, then all second
                      bytes, and so on, because bytes of one rank are more alike than bytes of one number
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.doors import Refusal, zstd_frame
from shared.doors.tensor_file import MAX_HEADER_BYTES, Shape, count_of
from shared.errors import RejectedError
from shared.exchange.names import FINAL_MODEL, GLOBAL_MODEL, SITE_MODEL, Kind
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.wire import PLAIN, FileEntry, Numbers, Wire
from shared.exchange.retention import kept_rounds
from shared.exchange.weights import (
    Array,
    TensorFile,
    check_arrays,
    require_bounded,
    shapes_of,
    write_arrays,
    write_tensors,
)

Bits = NDArray[Any]
"""Bit patterns as uint32 or uint16, one after another."""

_MODELS: Mapping[Kind, str] = {"round": GLOBAL_MODEL, "update": SITE_MODEL, "final": FINAL_MODEL}
_WITH_WEIGHTS: tuple[Kind, ...] = ("offer", "round", "update", "final")
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_ENDS = {"float32": "", "bfloat16": "", "float16": ", or is above 65504, where float16 ends: bfloat16 goes further"}


def encode(plain: Path, target: Path, tensors: TensorList, wire: Wire, received: Path | None = None) -> FileEntry:
    """Write a plain tensor file in the run's form, one tensor at a time, all or nothing.

    Args:
        plain: a file of exactly ``tensors``, float32. What is not finite stays so, and is refused where it is decoded.
        received: of a difference, the plain file that the round began with.

    Returns:
        What a manifest says of the file.
    """

    file, base = TensorFile(plain), _base(wire, received)

    def stored(name: str) -> Bits:
        bits = _bits_in(file, name, wire.numbers)
        if base is not None:
            bits = _steps(bits, _bits_in(base, name, wire.numbers))
        return bits.reshape(tensors.tensors[name].shape) if wire.compression == "none" else _compressed(bits)

    return write_arrays(target, _dtype(wire), _largest(tensors, wire), stored)


def check_encoded(encoded: Path, tensors: TensorList, wire: Wire, *, shown_as: str) -> None:
    """Check that a file holds arrays for exactly ``tensors`` in a run's form and nothing else, whatever the numbers.

    Args:
        shown_as: as for ``decode``.

    Raises:
        RejectedError: saying what is different.
    """
    is_compressed = wire.compression == "zstd"
    check_arrays(encoded, _dtype(wire), _largest(tensors, wire), shown_as, are_largest=is_compressed)
    if is_compressed:
        file = TensorFile(encoded)
        for name, tensor in tensors.tensors.items():
            for _ in _pieces(file, name, tensor.shape, wire, shown_as):
                pass


def decode(
    encoded: Path, target: Path, tensors: TensorList, wire: Wire, received: Path | None = None, *, shown_as: str
) -> None:
    """Write what a file in the run's form says as a plain tensor file, one tensor at a time, all or nothing.

    Args:
        received: as for ``encode``.
        shown_as: the encoded file's path inside the folder, for the error.

    Raises:
        RejectedError: it does not hold exactly ``tensors`` in this form, all finite and none beyond ``LARGEST``.
    """
    is_compressed = wire.compression == "zstd"
    check_arrays(encoded, _dtype(wire), _largest(tensors, wire), shown_as, are_largest=is_compressed)

    file, base = TensorFile(encoded), _base(wire, received)

    def tensor(name: str) -> Array:
        shape = tensors.tensors[name].shape
        if is_compressed:
            bits = _expanded(file, name, shape, wire, shown_as)
        else:
            bits = file.array(name).reshape(-1).view(_unsigned(wire))
        if base is not None:
            bits = _after(bits, _bits_in(base, name, wire.numbers))
        array = _numbers_of(bits, wire.numbers).reshape(shape)
        if not np.isfinite(array).all():
            raise RejectedError(shown_as, f"{name} holds a value that is not finite{_ENDS[wire.numbers]}")
        require_bounded(array, name, shown_as)
        return array

    write_tensors(target, tensors, tensor)


def rounded(array: Array, numbers: Numbers) -> Array:
    """Return float32 numbers as they are after the wire, in their shape; too great ones become infinite."""
    return _numbers_of(_bits_of(array.reshape(-1), numbers), numbers).reshape(array.shape)


def max_file_bytes(tensors: TensorList, wire: Wire = PLAIN) -> int:
    """Return the largest file that can hold exactly ``tensors`` in this form."""
    elements = sum(count_of(shape) for shape in _largest(tensors, wire).values())
    return 8 + MAX_HEADER_BYTES + elements * (1 if wire.compression == "zstd" else _width(wire))


def max_weights_bytes(sharing: Sharing, kind: Kind, wire: Wire) -> int:
    """Return the most bytes that all tensor files of one message of a run can have together."""
    groups = (max_file_bytes(TensorList(tensors=group)) for group in sharing.groups(kind).values())
    return max_file_bytes(sharing.shared, wire.of(kind, _MODELS.get(kind, SITE_MODEL))) + sum(groups)


def weights_bytes(sharing: Sharing, kind: Kind, wire: Wire, *, trains: bool = True) -> int:
    """Return what the numbers weigh in all tensor files of one message of a run, before compression.

    Args:
        trains: whether it is of a round that trains, or of the closing one, whose answers have no model.
    """
    beside = sum(tensor_bytes(group) for group in sharing.groups(kind, trains=trains).values())
    if kind == "offer":
        return tensor_bytes(sharing.offered.tensors)
    if kind not in _MODELS or (kind == "update" and not trains):
        return beside
    return tensor_bytes(sharing.tensors, wire.of(kind, _MODELS[kind])) + beside


def most_bytes(run: RunConfiguration, sharing: Sharing) -> int:
    """Return the most that the numbers of a run's tensor files weigh in one folder at a time, before compression."""
    offer, down, up, final = (weights_bytes(sharing, kind, run.wire) for kind in _WITH_WEIGHTS)
    closing = down + weights_bytes(sharing, "update", run.wire, trains=False)
    kept = kept_rounds(run.keep, run.rounds)
    in_training = min(run.rounds, kept + 1) * (down + up)  # with the round that is open
    return offer + max(in_training, kept * (down + up) + closing + final)


def tensor_bytes(tensors: Mapping[str, TensorShape], wire: Wire = PLAIN) -> int:
    """Return what the numbers of one tensor file weigh, before compression."""
    return _width(wire) * sum(count_of(each.shape) for each in tensors.values())


# --- what a file holds -------------------------------------------------------------------------------------


def _dtype(wire: Wire) -> str:
    if wire.compression == "zstd":
        return "U8"
    return f"U{8 * _width(wire)}" if wire.difference else _DTYPES[wire.numbers]


def _width(wire: Wire) -> int:
    """Return the bytes of a number."""
    return 4 if wire.numbers == "float32" else 2


def _unsigned(wire: Wire) -> str:
    return f"u{_width(wire)}"


def _largest(tensors: TensorList, wire: Wire) -> dict[str, Shape]:
    """Return each array's shape; of a compressed one, the most bytes that zstd makes of it."""
    if wire.compression == "none":
        return shapes_of(tensors)
    sizes = {name: count_of(shape) * _width(wire) for name, shape in shapes_of(tensors).items()}
    return {name: [zstd_frame.most_bytes(size)] for name, size in sizes.items()}


def _base(wire: Wire, received: Path | None) -> TensorFile | None:
    """Return what differences are taken from; None where a run sends none."""
    if not wire.difference:
        return None
    if received is None:
        raise ValueError("a difference needs what it is a difference to")
    return TensorFile(received)


# --- numbers ↔ bit patterns --------------------------------------------------------------------------------


def _bits_in(plain: TensorFile, name: str, numbers: Numbers) -> Bits:
    return _bits_of(plain.tensor(name).reshape(-1), numbers)


def _bits_of(array: Array, numbers: Numbers) -> Bits:
    """Return (N,) float32 as bits, rounded to the nearest, ties to even."""
    if numbers == "float32":
        return array.view(np.uint32)
    if numbers == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).view(np.uint16)
    bits = array.view(np.uint32)
    is_odd = (bits >> 16) & 1
    upper = (bits + 0x7FFF + is_odd) >> 16
    return np.where(np.isnan(array), 0x7FC0, upper).astype(np.uint16)


def _numbers_of(bits: Bits, numbers: Numbers) -> Array:
    """Return the (N,) float32 that these bits stand for, exactly."""
    if numbers == "float32":
        return bits.view(np.float32)
    if numbers == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


# --- difference --------------------------------------------------------------------------------------------


def _steps(trained: Bits, received: Bits) -> Bits:
    signed = (trained - received).view(f"i{trained.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * trained.itemsize - 1))).view(trained.dtype)


def _after(steps: Bits, received: Bits) -> Bits:
    trained: Bits = received + ((steps >> 1) ^ -(steps & 1))
    return trained


# --- compression -------------------------------------------------------------------------------------------


def _compressed(bits: Bits) -> NDArray[np.uint8]:
    """Return one frame, as a vector of bytes."""
    little = bits.astype(bits.dtype.newbyteorder("<"), copy=False)
    shuffled = little.view(np.uint8).reshape(-1, bits.itemsize).T.tobytes()
    return np.frombuffer(zstd_frame.compress(shuffled), np.uint8)


def _expanded(encoded: TensorFile, name: str, shape: Shape, wire: Wire, shown_as: str) -> Bits:
    """Return the bit patterns of one tensor, one after another.

    Raises:
        RejectedError: as ``_pieces``.
    """
    count, width = count_of(shape), _width(wire)
    shuffled, filled = np.empty(count * width, np.uint8), 0
    for piece in _pieces(encoded, name, shape, wire, shown_as):
        shuffled[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
    little = shuffled.reshape(width, count).T.copy().view(f"<u{width}")
    return little.reshape(-1).astype(f"u{width}", copy=False)


def _pieces(encoded: TensorFile, name: str, shape: Shape, wire: Wire, shown_as: str) -> Iterator[bytes]:
    """Yield the bytes of one tensor, shuffled, piece by piece.

    Raises:
        RejectedError: they are no frame of as many bytes as it has, and nothing besides.
    """
    path, start, length = encoded.place(name)
    try:
        with path.open("rb") as file:
            file.seek(start)
            yield from zstd_frame.expand(file, length, count_of(shape) * _width(wire))
    except Refusal as refusal:
        raise RejectedError(shown_as, f"{name} is not one zstd frame of its {shape} numbers ({refusal})") from None
