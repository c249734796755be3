"""Folders that two names stand for: their images would be trained and tested on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def same_folders(named: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, str]]:
    """Yield each name whose folder another one before it has, after that one."""
    owners: dict[Path, str] = {}
    for name, folder in named:
        if (owner := owners.setdefault(folder.resolve(), name)) != name:
            yield owner, name
