"""What a run may say about rdr_classification; see ``../terms.py``."""

from __future__ import annotations

from pydantic import Field, model_validator

from shared.learning.tasks.terms import FLIPPED_AND_TURNED, FrozenOptions, Terms


class RdrOptions(FrozenOptions):
    """What a run may choose about this task."""

    image_size: int = Field(default=512, ge=32, le=1024)
    balance: bool = True
    severities: tuple[str, ...] = Field(
        default=("normal", "mild", "moderate", "severe", "proliferative"), min_length=2, max_length=20
    )
    """Their names, from the slightest upwards."""
    referable_from: int = Field(default=2, ge=1)
    """The first severity that is referable, counted from 0."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return "not referable", "referable"

    @model_validator(mode="after")
    def _both_classes_exist(self) -> RdrOptions:
        if self.referable_from >= len(self.severities):
            raise ValueError(f"referable_from must be below the {len(self.severities)} severities")
        if len({name.lower() for name in self.severities}) < len(self.severities):
            raise ValueError("severities: one is named twice; name each once")
        return self


class RdrClassification(Terms[RdrOptions]):
    """See ``task.py``."""

    name = "rdr_classification"
    form = RdrOptions
    usual_augmentation = FLIPPED_AND_TURNED
