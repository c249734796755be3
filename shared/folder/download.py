"""A file comes from the folder: from where the last attempt stopped, if the server goes on from there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shared.errors import RejectedError, TransientError
from shared.folder.answers import RangeError
from shared.folder.connection import Connection, Incoming
from shared.folder.durable import begin_to_store
from shared.folder.meter import Meter
from shared.folder.partial import Partial

STORED_BYTES = 1 << 23  # the disk begins with so much at a time


def download(connection: Connection, path: str, target: Path, size: int, meter: Meter) -> str:
    """Bring a file of ``size`` bytes to ``target``, which appears when it is whole; return its SHA-256 (hex).

    Raises:
        NotFoundError: there is no such file.
        TransientError: it was cut; what has come stays for the next attempt.
        RejectedError: it has another size.
        OSError: the disk.
    """
    part = Partial(target)
    if part.size > size:
        part.discard()
    has_come = part.size == size > 0  # when the process ended
    digest = part.digest() if has_come else _receive(connection, path, part, size, meter)
    part.complete()
    return digest.hexdigest()


def _receive(connection: Connection, path: str, part: Partial, size: int, meter: Meter) -> hashlib._Hash:
    """Bring what is missing; return the SHA-256 of the whole."""
    wanted = {"Range": f"bytes={part.size}-"} if part.size else {}
    statuses = (200, 206) if part.size else (200,)
    try:
        with connection.open("GET", path, status=statuses, headers=wanted) as body:
            if body.start != part.size or not part.is_of(body.etag):
                part.discard()
            if body.start == part.size:
                _require_size(connection, path, body, part, size)
                return _append(path, body, part, size, meter)
    except RangeError:
        part.discard()
    return _receive(connection, path, part, size, meter)  # from its start: the server does not go on from where we were


def _append(path: str, body: Incoming, part: Partial, size: int, meter: Meter) -> hashlib._Hash:
    digest = part.digest()
    with part.growing(body.etag) as file, meter.transfer(path, "down", size, moved=part.size) as moved:
        begun = file.tell()
        for block in body.blocks(size - part.size):
            digest.update(block)
            file.write(block)
            moved(len(block))
            if file.tell() - begun >= STORED_BYTES:
                begun = begin_to_store(file, begun)
    if part.size < size:  # without an announced length, a cut body looks like a short file
        raise TransientError(f"{path} ended after {part.size} of {size} bytes.")
    return digest


def _require_size(connection: Connection, path: str, body: Incoming, part: Partial, size: int) -> None:
    """Refuse a body of another length; the listing decides whether the file has it, or something on the way cut it."""
    if body.length in (None, size - part.size):
        return
    announced = part.size + (body.length or 0)
    part.discard()
    if connection.listing(path, depth=0).itself.size == size:
        raise TransientError(f"{path} came with {announced} of {size} bytes.")
    raise RejectedError(path, f"has {announced} bytes instead of {size}")
