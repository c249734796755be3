"""What a run may say about dr_staging; see ``../terms.py``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from shared.learning.models.options import EncoderName, Train, Weights, tells_images_apart
from shared.learning.tasks.terms import FLIPPED_AND_TURNED, Options, Terms


class DrOptions(Options):
    """What a run may choose about this task."""

    encoder: EncoderName = "resnet50"
    """``small``, a classifier of torchvision by its name, or ``timm:`` and a timm model's."""
    weights: Weights = "imagenet"
    """What the encoder's training begins from."""
    train: Train = "all"
    """What learns."""
    head: Literal["released", "linear"] = "released"
    """``released``: two layers with BatchNorm, as in the published code; ``linear``: one, as in the paper."""
    image_size: int = Field(default=256, ge=32, le=1024)
    """Side in pixels that every photograph is scaled to."""
    normalise: bool = True
    """Whether the network sees photographs less ImageNet's mean, over its deviation, as its weights want it; the
    released code has them between 0 and 1.
    """

    @property
    def tells_images_apart(self) -> bool:
        return tells_images_apart(self.encoder, self.train)

    @field_validator("train")
    @classmethod
    def _something_travels(cls, train: Train) -> Train:
        if train == "head":
            raise ValueError(
                "must be all, or {lora: {rank: R}}; grades differ from site to site, so each head stays there, and "
                "with head nothing would travel"
            )
        return train


class DrStaging(Terms[DrOptions]):
    """See ``task.py``."""

    name = "dr_staging"
    form = DrOptions
    usual_augmentation = FLIPPED_AND_TURNED
