"""Segments of sounds as pictures of time and frequency, as of hearts.

Source: Zhang et al., FedEE: heart sounds of PhysioNet in segments of five seconds, normal or not, a ResNet-18, Adam.
Its network has one channel; here three equal ones, so that it is the encoder of the other tasks, and ImageNet's weights
fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from shared.exchange.reading import check_record
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.spectrograms import SPREAD, read_spectrograms
from shared.learning.models.encoders import load_imagenet_weights, valid_encoder
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.seeds import seed_for
from shared.learning.tasks.classification import collate_levels
from shared.learning.tasks.signal_classification import SignalClassification, SignalOptions

_FEWEST_FREQUENCIES = 4
_MEAN, _STD = (0.5,) * 3, (0.5 / SPREAD,) * 3  # of the range 0 to 1: so the network sees deviations from the mean


class SpectrogramOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: tuple[str, ...] = Field(default=("normal", "abnormal"), min_length=2, max_length=20)
    encoder: str = "resnet18"
    """One of ``encoders.ENCODERS``."""
    weights: Literal["imagenet", "random"] = "random"
    """What the encoder's training begins from."""
    segment_seconds: float = Field(default=5.0, ge=0.1, le=600)
    """How long each piece of a recording is."""
    frame_seconds: float = Field(default=0.064, ge=0.001, le=10)
    """How long each of the frames is whose frequencies are told apart."""
    highest_hz: float = Field(default=1000.0, ge=1, le=100_000)
    """The highest frequency that is looked at; files need twice as many samples a second."""
    image_size: int = Field(default=128, ge=32, le=1024)
    """Side in pixels of each picture."""

    @field_validator("encoder")
    @classmethod
    def _encoder_is_known(cls, encoder: str) -> str:
        return valid_encoder(encoder)

    @model_validator(mode="after")
    def _frames_fit(self) -> SpectrogramOptions:
        if 2 * self.frame_seconds > self.segment_seconds:
            raise ValueError("frame_seconds must be at most half of segment_seconds")
        if self.highest_hz * self.frame_seconds < _FEWEST_FREQUENCIES:
            raise ValueError(f"highest_hz times frame_seconds must be at least {_FEWEST_FREQUENCIES}")
        return self


class Spectrograms(SignalClassification[SpectrogramOptions, GradedImage]):
    """The task ``spectrograms``; see ``contract.Task`` for what each method promises."""

    name = "spectrograms"
    extension = ".wav"

    def options(self, raw: Mapping[str, object]) -> SpectrogramOptions:
        return check_record(raw, SpectrogramOptions, "task_options")

    def build_model(self, options: SpectrogramOptions, classes: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "model"))
            return GradingNetwork(options.encoder, len(options.labels), "linear")

    def input_shape(self, options: SpectrogramOptions) -> tuple[int, ...]:
        return 3, options.image_size, options.image_size

    def load_initial_weights(
        self, model: nn.Module, options: SpectrogramOptions, folders: Sequence[Path]
    ) -> str | None:
        if options.weights == "random":
            return None
        return load_imagenet_weights(cast(GradingNetwork, model).encoder, options.encoder, folders)

    def excerpts(self, path: Path, options: SpectrogramOptions) -> Sequence[NDArray[np.uint8]]:
        return read_spectrograms(
            path,
            segment_s=options.segment_seconds,
            frame_s=options.frame_seconds,
            highest_hz=options.highest_hz,
            side=options.image_size,
        )

    def sample(self, name: str, excerpt: NDArray[np.uint8], label: int) -> GradedImage:
        return GradedImage(name, excerpt, label)

    def collate(self, samples: Sequence[GradedImage]) -> tuple[Tensor, Tensor]:
        return collate_levels(samples, _MEAN, _STD)
