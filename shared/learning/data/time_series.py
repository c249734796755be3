"""Multichannel time series in CSV files, cut into windows.

A file has a header, a column ``time`` in seconds, and a column for each channel; other columns are not read. One row is
one moment, at a steady rate that is the run's: nothing is interpolated, because what was made up would look measured.
"""

from __future__ import annotations

import csv
import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.errors import DataError
from shared.escaping import escape
from shared.learning.data import TIME
from shared.learning.data.images import short_name
from shared.learning.data.recordings import Held
from shared.learning.data.tables import shown

_RATE_TOLERANCE = 0.01  # of the rate over the whole recording
_STEP_TOLERANCE = 0.5  # of a single step, whose time may be rounded
_HEADER_BYTES = 65536
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}


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
    values = _columns(path, columns, refs)
    _require_rate(path, values[:, 0], refs, rate_hz)
    return values[:, 1:]


def held_by(path: Path) -> Held:
    """Return what one file holds, whatever a run names of it; a channel has a finite number in each row.

    Raises:
        DataError: it cannot be read, has no steady time, or no channel.
    """
    refs = _refs(path, [TIME])
    time = _columns(path, [TIME], refs)[:, 0]
    rate_hz = _steady_rate(path, time, refs)
    header, *_ = _headers(path)
    names = [name for name in header if name not in ("", TIME) and header.count(name) == 1]
    rows = (cells for _, cells in _lines(path, [header.index(name) for name in names]))
    values = np.fromiter((_number(cell) for cells in rows for cell in cells), np.float64)
    by_name = zip(names, values.reshape(-1, max(len(names), 1)).T, strict=False)
    channels = tuple(name for name, cells in by_name if np.isfinite(cells).all())
    if not channels:
        raise DataError(
            [f"{short_name(path)}: has no column beside {TIME} with a number in each row; export it again."]
        )
    return Held(channels, rate_hz, len(time) / rate_hz, hashlib.sha256(values.tobytes()).digest())


def _columns(path: Path, columns: Sequence[str], refs: Sequence[int]) -> NDArray[np.float64]:
    """Return some columns: (T, columns).

    Raises:
        DataError: the file cannot be read, or a cell is no finite number.
    """
    try:
        return _numbers(path, refs)
    except (OSError, ValueError) as error:
        _require_numbers(path, columns, refs)
        raise DataError(
            [f"{short_name(path)}: cannot be read as rows of numbers ({escape(str(error))}); export it again."]
        ) from error


def _headers(path: Path) -> list[list[str]]:
    """Return the columns' names as they are with a comma between them, and with each of the other separators."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(_HEADER_BYTES)
            return [_names(line, mark) for mark in (",", *_OTHER_SEPARATORS)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError([f"{short_name(path)}: cannot be read ({error}); save it as CSV in UTF-8."]) from error


def _refs(path: Path, columns: Sequence[str]) -> list[int]:
    """Return where the columns are, by the header."""
    header, *others = _headers(path)
    wrong = [name for name in columns if header.count(name) != 1]
    for called, names in zip(_OTHER_SEPARATORS.values(), others, strict=True):
        if wrong and set(columns) <= set(names):
            remedy = "save it with commas there, and with points in its numbers"
            raise DataError([f"{short_name(path)}: has {called} between its columns; {remedy}."])
    if wrong:
        raise DataError(
            [f"{short_name(path)}: needs one column each called {escape(', '.join(wrong))}; correct its header."]
        )
    return [header.index(name) for name in columns]


def _names(line: str, separator: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


def _numbers(path: Path, refs: Sequence[int]) -> NDArray[np.float64]:
    """Return the cells of some columns, row by row, without empty lines.

    Raises:
        OSError: the file cannot be read.
        ValueError: one is no finite number.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file without rows is told of later
        values = np.loadtxt(_text(path), delimiter=",", skiprows=1, usecols=refs, ndmin=2, comments=None, quotechar='"')
    if not np.isfinite(values).all():
        raise ValueError("not every number is finite")
    return values


def _lines(path: Path, refs: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Yield of each row that ``_numbers`` reads on which line it stands, and its cells; empty where there is none.

    It ends where the file cannot be read: that is told by whoever asks.
    """
    with suppress(OSError, UnicodeDecodeError, csv.Error):
        reader = csv.reader(_text(path))
        next(reader, None)
        for cells in reader:
            if cells:
                yield reader.line_num, [cells[ref].strip() if ref < len(cells) else "" for ref in refs]


def _text(path: Path) -> Iterator[str]:
    """Yield each line, fit to be read as one row: where a quotation mark stays open, other marks stand for all."""
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            yield line.replace('"', "\u201d") if '"' in line and _stays_open(line) else line


def _stays_open(line: str) -> bool:
    """Return whether a cell would go on in the next line."""
    with suppress(csv.Error):  # a cell without end
        reader = csv.reader([line, ""])
        next(reader)
        return reader.line_num > 1
    return True


def _require_numbers(path: Path, columns: Sequence[str], refs: Sequence[int]) -> None:
    """Name the first cell of a file that is no finite number."""
    for line, cells in _lines(path, refs):
        for column, cell in zip(columns, cells, strict=True):
            if not math.isfinite(_number(cell)):
                what = f"{escape(column)} is {shown(cell) if cell else 'empty'}"
                should = "seconds should be; write them there"
                if column != TIME:
                    should = "a finite number should be; fill such gaps in, or cut the recording there into two"
                raise DataError([f"{short_name(path)}, line {line}: {what} where {should}."])


def _number(cell: str) -> float:
    """Return the number in a cell; NaN where there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _steady_rate(path: Path, time: NDArray[np.float64], refs: Sequence[int]) -> float:
    """Return how many rows a second a recording has.

    Raises:
        DataError: it has a gap, or too few rows.
    """
    _require_rows(path, time)
    steps = np.diff(time)
    usual, mean = float(np.median(steps)), float(steps.mean())
    if mean <= 0 or (np.abs(steps / mean - 1) > _STEP_TOLERANCE).any():
        raise _uneven(path, steps, int(np.abs(steps - usual).argmax()), usual, refs)
    return 1 / mean


def _require_rows(path: Path, time: NDArray[np.float64]) -> None:
    if len(time) < 2:
        raise DataError([f"{short_name(path)}: has fewer than two rows; leave the recording out."])


def _require_rate(path: Path, time: NDArray[np.float64], refs: Sequence[int], rate_hz: float) -> None:
    _require_rows(path, time)
    steps = np.diff(time)
    usual = float(np.median(steps)) * rate_hz  # 1 where the rate is the run's
    if usual > 0 and max(abs(usual - 1), abs(1 / usual - 1)) > _STEP_TOLERANCE:
        raise _of_another_rate(path, rate_hz / usual, rate_hz)
    uneven = np.flatnonzero(np.abs(steps * rate_hz - 1) > _STEP_TOLERANCE)
    if len(uneven):
        raise _uneven(path, steps, int(uneven[0]), 1 / rate_hz, refs)
    rate = (len(time) - 1) / float(time[-1] - time[0])
    if abs(rate / rate_hz - 1) > _RATE_TOLERANCE:
        raise _of_another_rate(path, rate, rate_hz)


def _uneven(path: Path, steps: NDArray[np.float64], step: int, due: float, refs: Sequence[int]) -> DataError:
    row = step + 1  # which begins too soon or too late
    line, _ = next(islice(_lines(path, refs), row, None), (row + 2, []))
    goes_on = f"the time goes on by {steps[step]:g} s where {due:g} s were due"
    remedy = "if it is rounded, write more digits of it; else cut the recording there into two"
    return DataError([f"{short_name(path)}, line {line}: {goes_on}; {remedy}."])


def _of_another_rate(path: Path, rate: float, rate_hz: float) -> DataError:
    has = f"has {rate:g} rows a second by its column {TIME}, which must be in seconds, and the run wants {rate_hz:g}"
    return DataError([f"{short_name(path)}: {has}; correct that column, or resample the recording."])
