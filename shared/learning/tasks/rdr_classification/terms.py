"""What a run may say about rdr_classification; see ``../terms.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from shared.learning.tasks.terms import AS_SCANS_VARY, FrozenOptions, Terms
from shared.learning.younger import Now


class RdrOptions(FrozenOptions):
    """What a run may choose about this task."""

    image_size: int = Field(default=512, ge=32, le=1024)
    head: Annotated[Literal["released", "layers"], Now("released")] = "layers"
    """``released``: a layer of 16 at each position, and one over all positions, as in the published code; ``layers``:
    those of ``hidden``, on the features' mean over all positions.
    """
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
    usual_augmentation = AS_SCANS_VARY
    augmentation_now: ClassVar[Mapping[str, object]] = {"translation": (-0.05, 0.05)}
    truths = ("severities", "referable_from")
