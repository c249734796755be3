"""``metrics.csv``: one row per epoch and split; nothing about single images.

Columns, in this order (docs/protocol.md gives the units):

    round, epoch, split, images, learning_rate, loss, then the scores in alphabetical order

Epoch 0 is the model as received. Scores have four decimals and losses are cut at 10, so that a cell tells little of any
image, whoever made the model; what may not leave the site is an empty cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.doors import Refusal, csv_text
from shared.doors.numbers import finite, whole
from shared.errors import RejectedError
from shared.exchange.names import MAX_RECORD_BYTES
from shared.exchange.records.run import FIXED_COLUMNS, Range
from shared.exchange.records.values import COUNT_TEXT, LARGEST_COUNT, SCORE_COLUMN, decimal_text, fewest

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
RowSplit = Split | Literal["validation_alone", "test_alone"]
"""What a row is over; of the last two the model is the one that the site has trained alone."""
RECEIVED_SPLITS: tuple[Split, ...] = ("validation", "test")
"""On what a site scores the model that it received, before it trains."""
ALONE: Mapping[Split, RowSplit] = {"validation": "validation_alone", "test": "test_alone"}
"""By split: what a row says that is over it and of the model that the site has trained alone."""
EPSILON = "epsilon"
"""The column of what a site has spent of its images' privacy, in the last row of an answer to a private run."""
MICRO_BATCH = "micro_batch"
"""The column of the most images that training answered at once, in rows of training whose batches were divided so."""
DECIMALS = 4
"""Of every loss and score, and of θ."""
LARGEST_LOSS = 10.0
"""Losses beyond it, either way, are reported as this."""
_SCORES = (
    "accuracy|balanced_accuracy|sensitivity|specificity|f1|dice|iou|auroc|auroc_logits|auprc|kappa|calibration_error"
    "|misdiagnosis_auroc|selective_accuracy_[1-9]0|referral_share_9[05]|uncertainty_(right|wrong)"
)
ERROR, IMAGES_OF = "_error", "images_of_"
"""What the column ends with that tells a score's standard error; and what one begins with that counts a class."""
_DIFFERENCE = "_difference"
_SHARES = rf"({_SCORES})(_mean|_std|({_DIFFERENCE})?{ERROR})?|accuracy_of_[0-9]{{1,3}}|ood_auroc"
_COUNTS = re.compile(rf"{IMAGES_OF}[0-9]{{1,3}}")
_DIFFERENCES = re.compile(rf"({_SCORES}){_DIFFERENCE}")
_ERRORS = re.compile(rf"({_SCORES})({_DIFFERENCE})?{ERROR}")
_DECLARED = re.compile(
    rf"{_DIFFERENCES.pattern}|loss_(ice|kl|tce|dice)|{_SHARES}|{EPSILON}|{MICRO_BATCH}|{_COUNTS.pattern}"
)
"""Every score column that the protocol describes."""
_ROUNDING = 1e-9  # a mean of shares in doubles can come to 1.0000000000000002


@dataclass(frozen=True)
class MetricsRow:
    """One row: ``images`` as count text; ``loss`` and ``scores`` (column → value) None where withheld."""

    round_no: int
    epoch: int
    split: RowSplit
    images: str
    learning_rate: float
    loss: float | None
    scores: dict[str, float | None]

    @property
    def over(self) -> Split:
        """The split that it is over, whichever model it is of."""
        match self.split:
            case "validation_alone":
                return "validation"
            case "test_alone":
                return "test"
            case split:
                return split


def in_order(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Return the rows of a table in their order: by epoch, and within it as the splits are measured."""
    return sorted(rows, key=lambda row: (row.epoch, _splits_of(row.epoch).index(row.split)))


def write_metrics(rows: list[MetricsRow]) -> bytes:
    """Return the CSV bytes of at least one row, all with the same score columns."""
    names = sorted(rows[0].scores)
    return csv_text.write([[*FIXED_COLUMNS, *names], *(_cells(row, names) for row in rows)])


def read_metrics(content: bytes, path: str, *, is_early: bool = False) -> list[MetricsRow]:
    """Read a table from the folder: one that has the very bytes that ``write_metrics`` makes of its rows.

    Args:
        is_early: whether it is of protocol 1, in which rows had no order, and nothing was rounded or cut.

    Raises:
        RejectedError: too large, another form, an unknown column, or a cell that is not a number where one must be, in
            the range of its column.
    """
    try:
        rows = _read(content)
        if not is_early:
            _require_order(rows)
            for row in rows:
                _require_withheld(row)
                _require_rounded(row)
        return rows
    except Refusal as refusal:
        raise RejectedError(path, f"is not a metrics table ({refusal})") from None


def epsilon_in(table: list[MetricsRow]) -> float | None:
    """Return what a site says in its answer that it has spent of its images' privacy; None if it does not."""
    said = [row.scores.get(EPSILON) for row in table]
    return max((epsilon for epsilon in said if epsilon is not None), default=None)


def error_of(column: str) -> str:
    """Return the column of the standard error of a score."""
    return column.removesuffix("_mean") + ERROR


def difference_of(column: str) -> str:
    """Return the column of how much greater a score is than that of the model that the run began with."""
    return column.removesuffix("_mean") + _DIFFERENCE


def is_support(column: str) -> bool:
    """Return whether a column tells how much a score is over, how it was trained or compared, and is none itself."""
    # Not every name that ends in _error is a standard error: calibration_error and cup_to_disc_error are scores.
    return _is_count(column) or is_error(column) or _DIFFERENCES.fullmatch(column) is not None


def is_error(column: str) -> bool:
    """Return whether a column tells the standard error of a score, or of a difference of two."""
    return _ERRORS.fullmatch(column) is not None


def _is_count(column: str) -> bool:
    return column == MICRO_BATCH or _COUNTS.fullmatch(column) is not None


def is_declared(column: str) -> bool:
    """Return whether the protocol describes a score column."""
    return _DECLARED.fullmatch(column) is not None


def require_of_round(
    rows: list[MetricsRow],
    path: str,
    *,
    round_no: int,
    epochs: int | None,
    own: Mapping[str, Range],
    has_baseline: bool,
) -> None:
    """Check that a table is of a round, and has no columns but those that the protocol describes or the run lists.

    Args:
        epochs: how many epochs the round trains; None where nobody can tell.
        own: the columns that the run lists, each with its range.
        has_baseline: whether each site also trains a model alone, which it scores in epoch 0 of every round but the
            first.

    Raises:
        RejectedError: it is not.
    """
    if odd := sorted(name for name in (rows[0].scores if rows else ()) if not is_declared(name) and name not in own):
        undescribed = "has columns that neither the protocol describes nor the run lists"
        raise RejectedError(path, f"{undescribed}: {', '.join(odd[:5])}")
    for name, value in ((name, value) for row in rows for name, value in row.scores.items() if name in own):
        if value is not None and not own[name].holds(value):
            raise RejectedError(path, f"has {name} {decimal_text(value)}, which is not in its range")
    if any(row.round_no != round_no for row in rows):
        raise RejectedError(path, "speaks of another round")
    if epochs is not None and any(row.epoch > epochs for row in rows):
        raise RejectedError(path, f"has rows of more epochs than the {epochs} of this round")
    alone = [row for row in rows if row.split in ALONE.values()]
    if alone and not has_baseline:
        raise RejectedError(path, "scores a model that the site has trained alone, and the run has no baseline")
    if alone and round_no == 1:
        raise RejectedError(path, "scores a model that the site has trained alone where there is none to score")


def require_learning_rate(rows: list[MetricsRow], path: str, learning_rate: float) -> None:
    """Check that a table reports the learning rate of its round.

    Raises:
        RejectedError: it tells another.
    """
    if any(row.learning_rate != learning_rate for row in rows):
        raise RejectedError(path, f"tells another learning rate than the round's, {learning_rate}")


def _read(content: bytes) -> list[MetricsRow]:
    header, *lines = csv_text.parse(content, MAX_RECORD_BYTES)
    if not lines or tuple(header[: len(FIXED_COLUMNS)]) != FIXED_COLUMNS:
        raise Refusal("the header or the number of rows is wrong")
    names = header[len(FIXED_COLUMNS) :]
    if names != sorted(set(names)) or not all(re.fullmatch(SCORE_COLUMN, name) for name in names):
        raise Refusal("a score column has an unknown name")
    ranges = [(name, *_range(name)) for name in names]
    rows = [_row(line, ranges) for line in lines]
    if len({(row.round_no, row.epoch, row.split) for row in rows}) != len(rows):
        raise Refusal("two rows are of the same epoch and split")
    if write_metrics(rows) != content:
        raise Refusal("it is not written as the protocol writes these rows")
    return rows


def _require_order(rows: list[MetricsRow]) -> None:
    """Check that a table has the rows that it may have in their one order, so that the order tells nothing."""
    if any(row.split not in _splits_of(row.epoch) for row in rows):
        raise Refusal("a row is of a split that its epoch does not have")
    if rows != in_order(rows):
        raise Refusal("its rows are not in their order")


def _splits_of(epoch: int) -> tuple[RowSplit, ...]:
    """Return the splits that rows of an epoch may be of, in their order."""
    return ("train", "validation") if epoch else (*RECEIVED_SPLITS, *ALONE.values())


def _require_withheld(row: MetricsRow) -> None:
    told = [name for name, value in row.scores.items() if value is not None and name not in (EPSILON, MICRO_BATCH)]
    if not fewest(row.images) and (told or row.loss is not None):
        raise Refusal(f"a row of {row.images} images tells {told[0] if told else 'a loss'}")


def _require_rounded(row: MetricsRow) -> None:
    losses = {"loss": row.loss} | {name: value for name, value in row.scores.items() if name.startswith("loss_")}
    for name, value in {**row.scores, **losses}.items():
        if value is not None and decimal_text(round(value, DECIMALS) + 0.0) != decimal_text(value):
            raise Refusal(f"{name} is {value}, which is not rounded to {DECIMALS} decimals")
    for name, value in losses.items():
        if value is not None and abs(value) > LARGEST_LOSS:
            raise Refusal(f"{name} is {value}, which is beyond {LARGEST_LOSS:g}")


def _row(line: list[str], ranges: list[tuple[str, float, float]]) -> MetricsRow:
    if len(line) != len(FIXED_COLUMNS) + len(ranges):
        raise Refusal("a row has another number of cells than the header")
    round_text, epoch_text, split, images, learning_rate, loss, *scores = line
    if split not in (*SPLITS, *ALONE.values()) or not re.fullmatch(COUNT_TEXT, images):
        raise Refusal(f"the row of split {split[:20]!r} has a wrong split or count")
    round_no, epoch = whole(round_text, digits=5), whole(epoch_text, digits=5)
    rate = _number(learning_rate)
    if rate is None:
        raise Refusal("a learning rate is missing")
    values = {name: _score(name, cell, *bounds) for (name, *bounds), cell in zip(ranges, scores, strict=True)}
    return MetricsRow(round_no, epoch, split, images, rate, _number(loss), values)


def _cells(row: MetricsRow, names: list[str]) -> list[str]:
    fixed = [str(row.round_no), str(row.epoch), row.split, row.images, decimal_text(row.learning_rate)]
    return [*fixed, _cell(row.loss), *(_cell(row.scores[name]) for name in names)]


def _cell(value: float | None) -> str:
    return "" if value is None else decimal_text(value)


def _score(column: str, cell: str, lowest: float, highest: float) -> float | None:
    value = _number(cell)
    if value is not None and not lowest - _ROUNDING <= value <= highest + _ROUNDING:
        raise Refusal(f"{column} is {cell}, which is not in its range")
    if value is not None and _is_count(column) and not value.is_integer():
        raise Refusal(f"{column} is {cell}, which is no number of images")
    return value


def _range(column: str) -> tuple[float, float]:
    if column.startswith("kappa") or _DIFFERENCES.fullmatch(column):
        return -1, 1
    if column == EPSILON:
        return 0, math.inf
    if _is_count(column):
        return 1 if column == MICRO_BATCH else 0, LARGEST_COUNT
    return (0, 1) if re.fullmatch(_SHARES, column) else (-math.inf, math.inf)


def _number(cell: str) -> float | None:
    return finite(cell) if cell else None
