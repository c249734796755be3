"""Multichannel time series in CSV files, cut into windows.

A file has a header, a column ``time`` in seconds, and a column for each channel; other columns are not read. One row is
one moment, at a steady rate that is the run's: nothing is interpolated, because what was made up would look measured.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.errors import DataError
from shared.escaping import escape
from shared.learning.data import TIME
from shared.learning.data.images import short_name

_RATE_TOLERANCE = 0.01  # of the rate over the whole recording
_STEP_TOLERANCE = 0.5  # of a single step, whose time may be rounded
_HEADER_BYTES = 65536


@dataclass(frozen=True)
class Window:
    """A stretch of a time series, and its recording's class.

    Args:
        id: ``RECORDING/0001``, counted from 1.
        image: (C, W) float32, each channel with its mean taken off and divided by its deviation.
        grade: the class, in [0, K).
    """

    id: str
    image: NDArray[np.float32]
    grade: int


def cut_windows(
    values: NDArray[np.float64],
    window: int,
    stride: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    constant_is_zero: bool = True,
) -> list[NDArray[np.float32]]:
    """Return the windows of one recording; what is left over at its end is dropped.

    Args:
        values: (T, C), T >= ``window``.
        window: W, moments in each.
        stride: moments from one's beginning to the next one's.
        mean, std: of each channel in its own unit; None: those of this recording.
        constant_is_zero: False: what rounding leaves of a channel that never changes is divided by its own size, so
            that the channel may be 1 or -1 throughout.

    Returns:
        Each (C, W), without a copy of its own.
    """
    constant = constant_is_zero & (values.min(axis=0) == values.max(axis=0))  # (C,)
    taken_off = np.where(constant, values[0], values.mean(axis=0)) if mean is None else np.array(mean)
    deviation = np.where(constant, 0, values.std(axis=0)) if std is None else np.array(std)
    scaled = ((values - taken_off) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    return [scaled[start : start + window].T for start in range(0, len(scaled) - window + 1, stride)]


def read_time_series(path: Path, channels: Sequence[str], rate_hz: float) -> NDArray[np.float64]:
    """Return the channels of one file: (T, C).

    Raises:
        DataError: it cannot be read, lacks a channel, holds something that is no number, or has another rate or a gap.
    """
    columns = [TIME, *channels]
    refs = _refs(path, columns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a file without rows is told of below
            values = np.loadtxt(
                path, delimiter=",", skiprows=1, usecols=refs, ndmin=2, encoding="utf-8-sig", comments=None
            )
    except (OSError, ValueError) as error:
        raise DataError(
            [f"{short_name(path)}: cannot be read as rows of numbers ({escape(str(error))}); export it again."]
        ) from error
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            [
                f"{short_name(path)}, line {row + 2}: {escape(columns[column])} is not a finite number; fill such "
                "gaps in, or cut the recording there into two."
            ]
        )
    _require_rate(path, values[:, 0], rate_hz)
    return values[:, 1:]


def _refs(path: Path, columns: Sequence[str]) -> list[int]:
    """Return where the columns are, by the header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = [name.strip() for name in next(csv.reader([file.readline(_HEADER_BYTES)]), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError([f"{short_name(path)}: cannot be read ({error}); save it as CSV in UTF-8."]) from error
    wrong = [name for name in columns if header.count(name) != 1]
    if wrong:
        raise DataError(
            [f"{short_name(path)}: needs one column each called {escape(', '.join(wrong))}; correct its header."]
        )
    return [header.index(name) for name in columns]


def _require_rate(path: Path, time: NDArray[np.float64], rate_hz: float) -> None:
    if len(time) < 2:
        raise DataError([f"{short_name(path)}: has fewer than two rows; leave the recording out."])
    steps = np.diff(time)
    if (measured := float(np.median(steps))) > 0 and abs(1 / (measured * rate_hz) - 1) > _STEP_TOLERANCE:
        raise DataError(
            [f"{short_name(path)}: has {1 / measured:g} rows a second, the run wants {rate_hz:g}; resample it."]
        )
    uneven = np.flatnonzero(np.abs(steps * rate_hz - 1) > _STEP_TOLERANCE)
    if len(uneven):
        step = steps[uneven[0]]
        raise DataError(
            [
                f"{short_name(path)}, line {uneven[0] + 3}: the time goes on by {step:g} s where {1 / rate_hz:g} s "
                "were due; cut the recording there into two."
            ]
        )
    rate = (len(time) - 1) / float(time[-1] - time[0])
    if abs(rate / rate_hz - 1) > _RATE_TOLERANCE:
        raise DataError([f"{short_name(path)}: has {rate:g} rows a second, the run wants {rate_hz:g}; resample it."])
