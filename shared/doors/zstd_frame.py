"""zstd (RFC 8878): one frame of a known content, opened in pieces.

frame    magic number, header, blocks, perhaps a checksum of 4 bytes
block    3 bytes, little-endian: whether it is the last (1 bit), its kind (2 bits), its size (21 bits); then, unless
         one byte stands for all of it, as many bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, cast

import zstandard

from shared.doors import Refusal, door

LEVEL = 3  # 9 takes several times as long and saves about one byte in a hundred
LARGEST_WINDOW = 8 << 20  # bytes that are kept to look back at; every decoder supports so many
PIECE = 1 << 18  # bytes opened at a time
_MAGIC = b"\x28\xb5\x2f\xfd"
_PER_BLOCK, _MORE_BLOCKS = 1024, 64
_LONGEST_HEADER = 18
_CHECKSUM = 4
_ONE_BYTE, _RESERVED = 1, 3  # kinds of blocks


def most_bytes(size: int) -> int:
    """Return the largest frame that holds so many bytes."""
    return size + size // 256 + 64


def compress(content: bytes) -> bytes:
    """Make one frame, which names its content's size."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(content)


def expand(file: BinaryIO, length: int, size: int) -> Iterator[bytes]:
    """Yield the ``size`` bytes that a frame of ``length`` bytes holds, which begins where ``file`` stands.

    No more than a few pieces of it is in memory at any time.

    Raises:
        Refusal: it is no frame, holds another number of bytes, needs a dictionary or a larger window, is cut into more
            blocks than so many bytes need, or something follows it.
    """
    with door("is damaged"):
        start = file.tell()
        _require_one_frame(file, length, size)
        file.seek(start)
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        left = size
        section = cast(BinaryIO, _Section(file, length))
        with decompressor.stream_reader(section, read_across_frames=False, closefd=False) as reader:
            while piece := reader.read(min(PIECE, left + 1)):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        if left != 0:
            raise Refusal("another size")


class _Section:
    """So many bytes of a file, from where it stands."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def read(self, count: int) -> bytes:
        """Return the next bytes; none at its end."""
        block = self._file.read(min(count, self._left))
        self._left -= len(block)
        return block


def _require_one_frame(file: BinaryIO, length: int, size: int) -> None:
    """Check that one frame, which says that it holds so many bytes, fills its place to the last byte."""
    head = file.read(min(length, _LONGEST_HEADER))
    if not head.startswith(_MAGIC):
        raise Refusal("it is no frame")
    found = zstandard.get_frame_parameters(head)
    if found.content_size != size:
        raise Refusal("another size")
    if found.dict_id != 0:
        raise Refusal("it needs a dictionary")
    if found.window_size > LARGEST_WINDOW:
        raise Refusal(f"it needs a window of more than {LARGEST_WINDOW} bytes")
    at, left = zstandard.frame_header_size(head), size // _PER_BLOCK + _MORE_BLOCKS
    file.seek(at - len(head), 1)
    is_last = False
    while not is_last:
        block = int.from_bytes(file.read(3), "little")
        is_last, kind, taken = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED or left == 0:
            raise Refusal("it is cut into more blocks than it needs")
        taken = 1 if kind == _ONE_BYTE else taken
        file.seek(taken, 1)
        at, left = at + 3 + taken, left - 1
        if at > length:
            raise Refusal("it is cut off")
    if at + found.has_checksum * _CHECKSUM != length:
        raise Refusal("something follows it, or it is cut off")
