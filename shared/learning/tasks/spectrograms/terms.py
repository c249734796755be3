"""What a run may say about spectrograms; see ``../terms.py``."""

from __future__ import annotations

from pydantic import Field, model_validator

from shared.learning.models.options import EncoderName, Weights, tells_images_apart
from shared.learning.tasks.terms import Labels, SignalOptions, SignalTerms

_FEWEST_FREQUENCIES = 4


class SpectrogramOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=("normal", "abnormal"), min_length=2, max_length=20)
    encoder: EncoderName = "resnet18"
    """As of ``DrOptions``."""
    weights: Weights = "random"
    """What the encoder's training begins from."""
    segment_seconds: float = Field(default=5.0, ge=0.1, le=600)
    """How long each piece of a recording is."""
    frame_seconds: float = Field(default=0.064, ge=0.001, le=10)
    """How long each of the frames is whose frequencies are told apart."""
    highest_hz: float = Field(default=1000.0, ge=1, le=100_000)
    """The highest frequency that is looked at; files need twice as many samples a second."""
    image_size: int = Field(default=128, ge=32, le=1024)
    """Side in pixels of each picture."""

    @property
    def tells_images_apart(self) -> bool:
        return tells_images_apart(self.encoder, "all")

    @model_validator(mode="after")
    def _frames_fit(self) -> SpectrogramOptions:
        if 2 * self.frame_seconds > self.segment_seconds:
            raise ValueError("frame_seconds must be at most half of segment_seconds")
        if self.highest_hz * self.frame_seconds < _FEWEST_FREQUENCIES:
            raise ValueError(f"highest_hz times frame_seconds must be at least {_FEWEST_FREQUENCIES}")
        return self


class Spectrograms(SignalTerms[SpectrogramOptions]):
    """See ``task.py``."""

    name = "spectrograms"
    form = SpectrogramOptions
    input_name = "segment"
    truths = ("labels", "segment_seconds", "highest_hz")
