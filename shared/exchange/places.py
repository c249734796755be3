"""Where messages lie in a folder, or are about to, as it lists them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from shared.doors.numbers import whole
from shared.exchange.names import RUNS, MessageRef, is_name, ref_at
from shared.folder.contract import Folder


def runs_in(folder: Folder) -> list[str]:
    """Return the runs that have a place in a folder."""
    return [entry.name for entry in folder.entries(RUNS) if entry.is_folder and is_name(entry.name)]


def rounds_in(folder: Folder, run: str) -> list[int]:
    """Return the rounds of a run that have a place in a folder; what else lies there is left alone (protocol 1.1)."""
    names = [entry.name for entry in folder.entries(f"{RUNS}/{run}/rounds") if entry.is_folder]
    return [whole(name.lstrip("0")) for name in names if re.fullmatch(r"[0-9]{4}", name) and name != "0000"]


def places_in(folder: Folder, run: str, *, but: Collection[int] = ()) -> Iterator[MessageRef]:
    """Yield the places of a run's messages, but for those of some rounds."""
    of_rounds = [f"{RUNS}/{run}/rounds/{number:04d}" for number in rounds_in(folder, run) if number not in but]
    for path in (f"{RUNS}/{run}", *of_rounds):
        of_path = [ref_at(f"{path}/{entry.name}") for entry in folder.entries(path)]
        yield from (ref for ref in of_path if ref is not None)
