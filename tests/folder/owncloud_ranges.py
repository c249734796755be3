"""Parts of files, as ownCloud under Apache gives them."""

from __future__ import annotations

import re

from tests.folder.owncloud_refusal import Refusal

BOUNDARY = "stand-in"
_ONE = re.compile(r"(\d*)-(\d*)")


def ranges_of(header: str, size: int) -> list[tuple[int, int]]:
    """Return the first byte of each part that is asked for, and the one after its last.

    Args:
        header: what ``Range`` says; one that says nothing of bytes asks for no part.

    Raises:
        Refusal: 416, the file has none of them.
    """
    unit, _, parts = header.partition("=")
    asked = [_ONE.fullmatch(part.strip()) for part in parts.split(",")]
    found = [(part[1], part[2]) for part in asked if part is not None and (part[1] or part[2])]
    if unit != "bytes" or len(found) < len(asked):
        return []
    within = [_within(first, last, size) for first, last in found]
    there = [(start, end) for start, end in within if start < end]
    if not there:
        raise Refusal(416, "Sabre\\DAV\\Exception\\RequestedRangeNotSatisfiable")
    return there


def _within(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def heads_of(ranges: list[tuple[int, int]], size: int, content_type: str) -> list[bytes]:
    """Return what stands before each of several parts."""
    kind = f"\r\n--{BOUNDARY}\r\nContent-Type: {content_type}\r\n"
    return [f"{kind}Content-Range: bytes {start}-{end - 1}/{size}\r\n\r\n".encode() for start, end in ranges]


END = f"\r\n--{BOUNDARY}--\r\n".encode()
