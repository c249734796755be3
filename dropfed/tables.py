"""Rows of ``metrics.csv`` as a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pandas import DataFrame

from shared.exchange.tables import MetricsRow

_FIXED = {"round": "round_no", "epoch": "epoch", "split": "split", "images": "images", "learning_rate": "learning_rate"}


def metrics_frame(before: Sequence[str], rows: Iterable[tuple[Mapping[str, object], MetricsRow]]) -> DataFrame:
    """Return one row for each of a table, with the table's columns; NaN where a site withheld a number.

    Args:
        before: names of columns that come before the table's own.
        rows: what stands in these, and the row.
    """
    found = [
        {**more, **{column: getattr(row, name) for column, name in _FIXED.items()}, "loss": row.loss, **row.scores}
        for more, row in rows
    ]
    scores = sorted({name for row in found for name in row}.difference(before, _FIXED, {"loss"}))
    frame = DataFrame(found, columns=[*before, *_FIXED, "loss", *scores])
    return frame.astype(dict.fromkeys(["loss", *scores], float))
