"""Segments of sounds as pictures of time and frequency, as of hearts.

Source: Zhang et al., FedEE: heart sounds of PhysioNet in segments of five seconds, normal or not, a ResNet-18, Adam.
Its network has one channel; here three equal ones, so that it is the encoder of the other tasks, and ImageNet's weights
fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from shared.learning.data.graded_images import GradedImage
from shared.learning.data.recordings import Held
from shared.learning.data.spectrograms import SPREAD, read_spectrograms, read_wave
from shared.learning.drawing import drawn_by
from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.weights import load_weights
from shared.learning.seeds import seed_for
from shared.learning.tasks.classification import collate_levels
from shared.learning.tasks.inputs import Input
from shared.learning.tasks.signal_classification import SignalClassification
from shared.learning.tasks.spectrograms import terms
from shared.learning.tasks.spectrograms.terms import SpectrogramOptions

_LEVELS = (0.5,) * 3, (0.5 / SPREAD,) * 3  # of the range 0 to 1: so the network sees deviations from the mean


class Spectrograms(terms.Spectrograms, SignalClassification[SpectrogramOptions, GradedImage]):
    """The task ``spectrograms``; see ``contract.Task`` for what each method promises."""

    extension = ".wav"

    def build_model(self, options: SpectrogramOptions, classes: int, seed: int) -> nn.Module:
        with drawn_by(seed_for(seed, "model")):
            encoder = build_encoder(options.encoder, options.image_size, _LEVELS)
            return GradingNetwork(encoder, len(options.labels), "linear")

    def input_shape(self, options: SpectrogramOptions) -> tuple[int, ...]:
        return 3, options.image_size, options.image_size

    def describe_input(self, options: SpectrogramOptions) -> Input:
        made = (
            f"{options.segment_seconds:g} s of sound, time to the right and frequency up to {options.highest_hz:g} Hz "
            f"upwards; the logarithm of the power in frames of {options.frame_seconds:g} s every half frame, less the "
            "recording's own mean, over its deviation, cut off at both ends and scaled to the square"
        )
        return Input(("power", "the same", "the same"), made, -SPREAD, SPREAD)

    def load_initial_weights(
        self, model: nn.Module, options: SpectrogramOptions, folders: Sequence[Path]
    ) -> str | None:
        return load_weights(cast(GradingNetwork, model).encoder, options.encoder, options.weights, folders)

    def excerpts(self, path: Path, options: SpectrogramOptions) -> Sequence[NDArray[np.uint8]]:
        return read_spectrograms(
            path,
            segment_s=options.segment_seconds,
            frame_s=options.frame_seconds,
            highest_hz=options.highest_hz,
            side=options.image_size,
        )

    def held(self, path: Path) -> Held:
        sound, rate = read_wave(path)
        return Held((), rate, len(sound) / rate, hashlib.sha256(sound.tobytes()).digest())

    def sample(self, name: str, excerpt: NDArray[np.uint8], label: int) -> GradedImage:
        return GradedImage(name, excerpt, label)

    def collate(self, samples: Sequence[GradedImage]) -> tuple[Tensor, Tensor]:
        return collate_levels(samples, *_LEVELS)
