"""Windows of multichannel time series, as of sensors that people wear.

Source: Zhang et al., FedEE: activities of PAMAP2, a 1-D CNN of three layers (``models/signal_encoder.py``), Adam. The
defaults name 9 of PAMAP2's channels, the acceleration at hand, chest and ankle, and its twelve activities of the common
protocol; which channels and windows the paper took is not told here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from shared.errors import DataError
from shared.exchange.reading import check_record
from shared.learning.data.images import short_name
from shared.learning.data.time_series import TIME, Window, cut_windows, read_time_series
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.signal_encoder import SHORTEST, build_signal_encoder
from shared.learning.seeds import seed_for
from shared.learning.tasks.signal_classification import SignalClassification, SignalOptions

_CHANNELS = tuple(f"{place}_acceleration_{axis}" for place in ("hand", "chest", "ankle") for axis in "xyz")
_ACTIVITIES = (
    *("lying", "sitting", "standing", "walking", "running", "cycling", "nordic walking", "ascending stairs"),
    *("descending stairs", "vacuum cleaning", "ironing", "rope jumping"),
)


class TimeSeriesOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: tuple[str, ...] = Field(default=_ACTIVITIES, min_length=2, max_length=20)
    channels: tuple[str, ...] = Field(default=_CHANNELS, min_length=1, max_length=256)
    """The columns that are read of each file, the same at every site."""
    rate_hz: float = Field(default=100.0, gt=0, le=100_000)
    """Rows a second, of every file."""
    window: int = Field(default=512, ge=SHORTEST, le=1_000_000)
    """Rows that the network sees at a time."""
    stride: int = Field(default=256, ge=1, le=1_000_000)
    """Rows from the beginning of one window to that of the next."""
    mean: tuple[float, ...] | None = None
    """Taken off each channel, in its own unit; None: each recording's own mean."""
    std: tuple[float, ...] | None = None
    """What each channel is divided by; None: each recording's own deviation."""

    @property
    def overlap(self) -> int:
        return -(-self.window // self.stride)

    @field_validator("channels")
    @classmethod
    def _channels_are_columns(cls, channels: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(channels)) < len(channels) or TIME in channels:
            raise ValueError(f"each must be named once, and none be called {TIME}")
        if not all(name == name.strip() and name.isprintable() and 0 < len(name) <= 60 for name in channels):
            raise ValueError("each must be 1 to 60 characters that can be printed")
        return channels

    @model_validator(mode="after")
    def _statistics_are_of_channels(self) -> TimeSeriesOptions:
        for statistics in (self.mean, self.std):
            if statistics is not None and len(statistics) != len(self.channels):
                raise ValueError(f"mean and std each need {len(self.channels)} numbers, one for each channel, or null")
        if self.std is not None and not all(0 < each < np.inf for each in self.std):
            raise ValueError("std must be greater than 0")
        if self.mean is not None and not np.isfinite(self.mean).all():
            raise ValueError("mean must be numbers")
        return self


class TimeSeries(SignalClassification[TimeSeriesOptions, Window]):
    """The task ``time_series``; see ``contract.Task`` for what each method promises."""

    name = "time_series"
    extension = ".csv"

    def options(self, raw: Mapping[str, object]) -> TimeSeriesOptions:
        return check_record(raw, TimeSeriesOptions, "task_options")

    def build_model(self, options: TimeSeriesOptions, classes: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "model"))
            return GradingNetwork(build_signal_encoder(len(options.channels)), len(options.labels), "linear")

    def input_shape(self, options: TimeSeriesOptions) -> tuple[int, ...]:
        return len(options.channels), options.window

    def excerpts(self, path: Path, options: TimeSeriesOptions) -> list[NDArray[np.float32]]:
        values = read_time_series(path, options.channels, options.rate_hz)
        if len(values) < options.window:
            raise DataError(
                [f"{short_name(path)}: has {len(values)} rows, a window {options.window}; leave the recording out."]
            )
        return cut_windows(values, options.window, options.stride, options.mean, options.std)

    def sample(self, name: str, excerpt: NDArray[np.float32], label: int) -> Window:
        return Window(name, excerpt, label)

    def collate(self, samples: Sequence[Window]) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(np.stack([sample.image for sample in samples]))  # (B, C, W)
        return values, torch.tensor([sample.grade for sample in samples])
