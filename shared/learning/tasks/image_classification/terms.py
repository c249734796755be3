"""What a run may say about image_classification; see ``../terms.py``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from shared.learning.data import MOST_LABELS
from shared.learning.models.options import EncoderName, Train, words_or_block
from shared.learning.tasks.terms import FLIPPED_AND_TURNED, FrozenOptions, Labels, Terms

LabelsOrOwn = Annotated[
    Annotated[Labels, Field(min_length=2, max_length=MOST_LABELS), Tag("[block]")]
    | Annotated[Literal["own"], Tag("[words]")],
    Discriminator(words_or_block),
]


class ImageOptions(FrozenOptions):
    """What a run may choose about this task."""

    encoder: EncoderName = "resnet18"
    train: Train = "all"
    hidden: tuple[int, ...] = Field(default=(), max_length=4)
    labels: LabelsOrOwn = ("negative", "positive")
    """What the classes are called, the same at every site; ``own``: each site has those that its images have, and keeps
    its head.
    """

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return None if isinstance(self.labels, str) else self.labels

    @model_validator(mode="after")
    def _something_travels(self) -> ImageOptions:
        if self.labels == "own" and self.train == "head":
            raise ValueError(
                "labels: own keeps each head at its site, and with train: head nothing would travel; take train: all"
            )
        return self


class ImageClassification(Terms[ImageOptions]):
    """See ``task.py``."""

    name = "image_classification"
    form = ImageOptions
    usual_augmentation = FLIPPED_AND_TURNED
