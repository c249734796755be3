"""A study's table, ``results.csv``: what all finished cells came to.

One row for each finished cell, site whose model it is, site whose images they are, and split: the columns below, then
every score. Empty: not defined. Seconds, bytes and answers are the cell's, repeated in each of its rows; bytes are of
one site and training round, answers are those of all sites in all of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shared.folder.durable import write_file
from studies.matrix import Cell
from studies.results import result_of, rounds_without_a_model

TABLE = "results.csv"
_OF_A_ROW = ("arm", "seed", "outer", "inner", "model_of", "tested_on", "split", "images", "loss")
_OF_A_CELL = (
    *("chosen_round", "rounds", "rounds_without_a_model", "answers", "bytes_to_site", "bytes_from_site"),
    *("parameters", "flops", "seconds", "configuration"),
)


def read_results(home: Path, cells: Sequence[Cell]) -> pd.DataFrame:
    """Return the rows of the cells that are finished."""
    rows = []
    for cell in cells:
        if (result := result_of(home, cell)) is None:
            continue
        fixed = {
            "arm": cell.arm,
            "seed": cell.configuration.run.seed,
            "outer": cell.turn.outer if cell.turn else None,
            "inner": cell.turn.inner if cell.turn else None,
            "rounds": cell.configuration.run.rounds,
            "rounds_without_a_model": rounds_without_a_model(result),
            "configuration": cell.digest,
        }
        rows += [fixed | result["cost"] | row for row in result["rows"]]
    return as_table(rows)


def as_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table, with the ``scores`` of each as columns."""
    scores = sorted({name for row in rows for name in row["scores"]})
    columns = [*_OF_A_ROW, *_OF_A_CELL, *scores]
    kinds = dict.fromkeys(("outer", "inner"), "Int64") | dict.fromkeys(("loss", *scores), "float64")
    return pd.DataFrame([{**row, **row["scores"]} for row in rows], columns=columns).astype(kinds)


def write_table(home: Path, results: pd.DataFrame) -> Path:
    """Write ``results.csv``."""
    path = home / TABLE
    write_file(path, results.to_csv(index=False, lineterminator="\n").encode())
    return path
