"""Referable diabetic retinopathy from OCTA scans of three channels.

Source: Lo et al. 2021. VGG-19 with ImageNet's weights, frozen; behind it two layers that learn, and travel. Five
severities are two classes: referable from the third on. Rarer classes are taken more often, training is by Adam.
Channels lie between 0 and 1, as published, without ImageNet's mean and deviation. The network stands on the features'
mean over all positions; how the released code passes from the features to its two layers is not told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, model_validator

from shared.exchange.reading import check_record
from shared.learning.data.images import list_images, read_image, unlabelled_units
from shared.learning.data.scans import Scan, read_scans, scan_units, three_channels
from shared.learning.data.units import Unit
from shared.learning.tasks.contract import Collection
from shared.learning.tasks.frozen_classification import FrozenClassification, FrozenOptions

_CLASSES = ("not referable", "referable")


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
    def classes(self) -> int:
        return len(_CLASSES)

    @model_validator(mode="after")
    def _both_classes_exist(self) -> RdrOptions:
        if self.referable_from >= len(self.severities):
            raise ValueError(f"referable_from must be below the {len(self.severities)} severities")
        if len({name.lower() for name in self.severities}) < len(self.severities):
            raise ValueError("severities: one is named twice; name each once")
        return self


class RdrClassification(FrozenClassification[RdrOptions, Scan]):
    """The task ``rdr_classification``; see ``contract.Task`` for what each method promises."""

    name = "rdr_classification"
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def options(self, raw: Mapping[str, object]) -> RdrOptions:
        return check_record(raw, RdrOptions, "task_options")

    def units(self, root: Path) -> list[Unit]:
        return scan_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path)

    def open_images(self, root: Path, options: RdrOptions) -> Collection[Scan]:
        return Collection(read_scans(root, options.severities, options.referable_from, options.image_size), _CLASSES)

    def open_unlabelled(self, path: Path, options: RdrOptions) -> Sequence[Scan]:
        """Each file is one picture, which stands in all channels: enough for images out of the task's distribution."""
        return [
            Scan(file.stem, three_channels([read_image(file)] * 4, options.image_size), 0, 0)
            for file in list_images(path)
        ]
