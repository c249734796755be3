"""Windows of multichannel time series, as of sensors that people wear.

Source: Zhang et al., FedEE: activities of PAMAP2, a 1-D CNN of three layers (``models/signal_encoder.py``), Adam. The
defaults name 9 of PAMAP2's channels, the acceleration at hand, chest and ankle, and its twelve activities of the common
protocol; which channels and windows the paper took is not described here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shared.errors import DataError
from shared.learning.data.images import short_name
from shared.learning.data.recordings import Held
from shared.learning.data.time_series import Window, cut_windows, held_by, read_time_series
from shared.learning.drawing import drawn_by
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.signal_encoder import build_signal_encoder
from shared.learning.seeds import seed_for
from shared.learning.tasks.inputs import Input, listed
from shared.learning.tasks.signal_classification import SignalClassification
from shared.learning.tasks.time_series import terms
from shared.learning.tasks.time_series.terms import TimeSeriesOptions


class TimeSeries(terms.TimeSeries, SignalClassification[TimeSeriesOptions, Window]):
    """The task ``time_series``; see ``contract.Task`` for what each method promises."""

    extension = ".csv"

    def build_model(self, options: TimeSeriesOptions, classes: int, seed: int) -> nn.Module:
        with drawn_by(seed_for(seed, "model")):
            return GradingNetwork(build_signal_encoder(len(options.channels)), len(options.labels), "linear")

    def input_shape(self, options: TimeSeriesOptions) -> tuple[int, ...]:
        return len(options.channels), options.window

    def describe_input(self, options: TimeSeriesOptions) -> Input:
        less = "the recording's own mean" if options.mean is None else listed(options.mean)
        over = "the recording's own deviation" if options.std is None else listed(options.std)
        constant = ", and 0 if it never changes" if options.constant_channels == "zero" else ""
        made = f"{options.window} rows, {options.rate_hz:g} a second; each channel less {less}, over {over}{constant}"
        return Input(options.channels, made)

    def excerpts(self, path: Path, options: TimeSeriesOptions) -> list[NDArray[np.float32]]:
        values = read_time_series(path, options.channels, options.rate_hz)
        if len(values) < options.window:
            raise DataError(
                [f"{short_name(path)}: has {len(values)} rows, a window {options.window}; leave the recording out."]
            )
        constant_is_zero = options.constant_channels == "zero"
        return cut_windows(
            values, options.window, options.stride, options.mean, options.std, constant_is_zero=constant_is_zero
        )

    def held(self, path: Path) -> Held:
        return held_by(path)

    def sample(self, name: str, excerpt: NDArray[np.float32], label: int) -> Window:
        return Window(name, excerpt, label)

    def collate(self, samples: Sequence[Window]) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(np.stack([sample.image for sample in samples]))  # (B, C, W)
        return values, torch.tensor([sample.grade for sample in samples])
