"""How large files move: told to people while it happens, held back where a limit says so."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from shared.durations import duration_text
from shared.folder.contract import SMALL_BYTES
from shared.folder.durable import remove_file, write_file
from shared.service import alive
from shared.sizes import size_text

Direction = Literal["up", "down"]
TRANSFER = "transfer.json"
"""Name of the file in a work directory that tells what is on its way."""
TOLD_EVERY_S = 1.0
OLD_S = 900.0  # far longer than a block waits, be the limit ever so low
PIECE_S = 1.0  # of a wait for a limit, until it is asked again whether what moves is still wanted


@dataclass(frozen=True)
class Transfer:
    """One file on its way, as ``transfer.json`` tells it.

    Args:
        size: bytes of the whole file; ``moved`` of them are over.
        bytes_per_second: since this attempt began.
        seconds_left: at that speed.
    """

    path: str
    direction: Direction
    size: int
    moved: int
    bytes_per_second: float
    seconds_left: float


class Meter:
    """Watches the transfers of one folder, one at a time; several threads may move parts of it.

    Args:
        told: the file that says what is on its way; it vanishes when nothing is, and what a process that was killed has
            left vanishes at once. None tells nobody.
        limits: the most bytes per second, by direction.
        permit: called with the direction before each block; raises what stands against moving it now.

    Attributes:
        speeds: bytes per second of the last large file, by direction, also where it was cut. Empty at first.
    """

    def __init__(
        self,
        told: Path | None = None,
        *,
        limits: dict[Direction, float] | None = None,
        permit: Callable[[Direction], None] = lambda _: None,
    ) -> None:
        self._told = told
        self._limits = limits or {}
        self._permit = permit
        self.speeds: dict[Direction, float] = {}
        if told is not None:
            remove_file(told)

    @contextmanager
    def transfer(
        self, path: str, direction: Direction, size: int, *, moved: int = 0
    ) -> Iterator[Callable[[int], None]]:
        """Watch one file; yields what is to be called with the size of each block, before or after it moved.

        What is yielded may be called by several threads.

        Args:
            moved: bytes that an earlier attempt left in place.
        """
        if size <= SMALL_BYTES:  # over before anybody could look
            yield lambda _: None
            return
        began, told_at, start = time.monotonic(), -math.inf, moved
        limit, turn = self._limits.get(direction), Lock()

        def note(count: int) -> None:
            nonlocal moved, told_at
            alive()
            with turn:
                self._permit(direction)
                moved += count
                allowed_at = began if limit is None else began + (moved - start) / limit
            while (early := allowed_at - time.monotonic()) > 0:  # even a sleep of no time would yield the processor
                time.sleep(min(early, PIECE_S))  # not within the turn: others have waits of their own
                alive()
                with turn:
                    self._permit(direction)
            with turn:
                now = time.monotonic()
                if self._told is not None and now - told_at >= TOLD_EVERY_S:
                    told_at = now
                    speed = (moved - start) / max(now - began, 1e-6)
                    transfer = Transfer(path, direction, size, moved, round(speed), round((size - moved) / speed, 1))
                    write_file(self._told, json.dumps(asdict(transfer)).encode(), durable=False)

        try:
            yield note
        finally:
            if moved - start > SMALL_BYTES:
                self.speeds[direction] = (moved - start) / max(time.monotonic() - began, 1e-6)
            if self._told is not None:
                remove_file(self._told)


def transfer_text(transfer: Transfer) -> str:
    """Return a transfer in words."""
    way = "is sent" if transfer.direction == "up" else "is received"
    return (
        f"{transfer.path} {way}: {size_text(transfer.moved)} of {size_text(transfer.size)}, "
        f"{size_text(transfer.bytes_per_second)}/s, {duration_text(transfer.seconds_left)} left"
    )


def read_transfer(told: Path) -> Transfer | None:
    """Return what is on its way, or None if nothing is, or if nothing was told for long: whoever moved it is gone."""
    try:
        is_old = time.time() - told.stat().st_mtime > OLD_S
        return None if is_old else Transfer(**json.loads(told.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
