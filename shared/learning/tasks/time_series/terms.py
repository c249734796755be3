"""What a run may say about time_series; see ``../terms.py``."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from shared.learning.data import TIME
from shared.learning.models import FEWEST_MOMENTS
from shared.learning.tasks.terms import Labels, SignalOptions, SignalTerms
from shared.learning.younger import Now

_CHANNELS = tuple(f"{place}_acceleration_{axis}" for place in ("hand", "chest", "ankle") for axis in "xyz")
_ACTIVITIES = (
    *("lying", "sitting", "standing", "walking", "running", "cycling", "nordic walking", "ascending stairs"),
    *("descending stairs", "vacuum cleaning", "ironing", "rope jumping"),
)


class TimeSeriesOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=_ACTIVITIES, min_length=2, max_length=20)
    channels: tuple[str, ...] = Field(default=_CHANNELS, min_length=1, max_length=256)
    """The columns that are read of each file, the same at every site."""
    rate_hz: float = Field(default=100.0, gt=0, le=100_000)
    """Rows a second, of every file."""
    window: int = Field(default=512, ge=FEWEST_MOMENTS, le=1_000_000)
    """Rows that the network sees at a time."""
    stride: int = Field(default=256, ge=1, le=1_000_000)
    """Rows from the beginning of one window to that of the next."""
    mean: tuple[float, ...] | None = None
    """Taken off each channel, in its own unit; None: each recording's own mean."""
    std: tuple[float, ...] | None = None
    """What each channel is divided by; None: each recording's own deviation."""
    constant_channels: Annotated[Literal["zero", "by_rounding"], Now("zero")] = "by_rounding"
    """What a channel becomes that never changes in a recording, by its own mean and deviation: 0; or 0, 1 or -1, as its
    mean was rounded.
    """

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
        if self.std is not None and not all(0 < each < math.inf for each in self.std):
            raise ValueError("std must be greater than 0")
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise ValueError("mean must be numbers")
        return self


class TimeSeries(SignalTerms[TimeSeriesOptions]):
    """See ``task.py``."""

    name = "time_series"
    form = TimeSeriesOptions
    input_name = "window"
    truths = ("labels", "channels", "rate_hz", "window", "stride")
