"""What finished cells came to: one file each, and one table of all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.folder.durable import write_file
from studies.matrix import Cell

CELLS = "cells"
CONFIGURATION = "cell.json"
RESULT = "result.json"
PREDICTIONS = "predictions"
TABLE = "results.csv"
_FIXED = (
    *("arm", "seed", "outer", "inner", "model_of", "tested_on", "split", "images", "loss"),
    *(
        "chosen_round",
        "rounds",
        "rounds_without_a_model",
        "answers",
        "bytes_to_site",
        "bytes_from_site",
        "parameters",
        "flops",
        "seconds",
        "configuration",
    ),
)


def folder_of(home: Path, cell: Cell) -> Path:
    """Where a cell's files lie."""
    return home / CELLS / cell.name


def result_of(home: Path, cell: Cell) -> dict[str, Any] | None:
    """What a cell came to; None while it is not finished."""
    try:
        found: dict[str, Any] = json.loads((folder_of(home, cell) / RESULT).read_text())
    except (FileNotFoundError, ValueError):  # a damaged one is played anew
        return None
    return found if found.get("configuration") == cell.digest else None


def rounds_without_a_model(result: Mapping[str, Any]) -> int:
    """In how many training rounds of a finished cell no site's model counted: each ended as it began."""
    return sum(not any(of_round.values()) for of_round in result["weights"].values())


def table_rows(home: Path, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """One row for each finished cell, site whose model it is, site whose images they are, and split.

    Seconds, bytes and answers are the cell's, repeated in each of its rows; bytes are of one site and training round,
    answers are those of all sites in all of these.
    """
    for cell in cells:
        if (result := result_of(home, cell)) is None:
            continue
        turn = cell.turn
        fixed = {
            "arm": cell.arm,
            "seed": cell.configuration.run.seed,
            "outer": turn.outer if turn else None,
            "inner": turn.inner if turn else None,
            "rounds": cell.configuration.run.rounds,
            "rounds_without_a_model": rounds_without_a_model(result),
            "configuration": cell.digest,
        }
        for row in result["rows"]:
            yield fixed | result["cost"] | row


def write_table(home: Path, cells: Sequence[Cell]) -> Path:
    """Write ``results.csv``: the columns above, then every score; an empty cell is a score that is not defined."""
    rows = list(table_rows(home, cells))
    scores = sorted({name for row in rows for name in row["scores"]})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIXED, *scores])
    for row in rows:
        writer.writerow([_text(row.get(name)) for name in _FIXED] + [_text(row["scores"].get(name)) for name in scores])
    path = home / TABLE
    write_file(path, text.getvalue().encode())
    return path


def _text(value: object) -> object:
    return "" if value is None else value
