"""What a cell leaves in its folder, and whether it is finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.matrix import Cell

CELLS = "cells"
CONFIGURATION = "cell.json"
RESULT = "result.json"
PREDICTIONS = "predictions"
_KEYS = {"configuration", "rows", "cost", "weights"}


def folder_of(home: Path, cell: Cell) -> Path:
    """Return where a cell's files lie."""
    return home / CELLS / cell.name


def result_of(home: Path, cell: Cell) -> dict[str, Any] | None:
    """Return what a cell came to; None while it is not finished."""
    try:
        found = json.loads((folder_of(home, cell) / RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    is_whole = isinstance(found, dict) and found.keys() >= _KEYS  # a damaged one is played anew
    return found if is_whole and found["configuration"] == cell.digest else None


def rounds_without_a_model(result: Mapping[str, Any]) -> int:
    """Return in how many training rounds of a finished cell no site's model counted: each ended as it began."""
    return sum(not any(of_round.values()) for of_round in result["weights"].values())
