"""What a run may say about image_classification; see ``../terms.py``."""

from __future__ import annotations

from pydantic import Field

from shared.learning.models.options import EncoderName, Train
from shared.learning.tasks.terms import FLIPPED_AND_TURNED, FrozenOptions, Labels, Terms


class ImageOptions(FrozenOptions):
    """What a run may choose about this task."""

    encoder: EncoderName = "resnet18"
    train: Train = "all"
    hidden: tuple[int, ...] = Field(default=(), max_length=4)
    labels: Labels = Field(default=("negative", "positive"), min_length=2, max_length=100)
    """What the classes are called, the same at every site."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


class ImageClassification(Terms[ImageOptions]):
    """See ``task.py``."""

    name = "image_classification"
    form = ImageOptions
    usual_augmentation = FLIPPED_AND_TURNED
