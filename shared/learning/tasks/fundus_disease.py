"""Diseases in colour fundus photographs, by any set of labels.

Source: DataWeightedFed (Jiang et al. 2025): normal, glaucoma and cataract of ODIR; photographs cropped to the retina,
contrast evened out channel by channel, 224 pixels; VGG-19 with ImageNet's weights, frozen; behind it two layers of
4,096 with ReLU and dropout 0.5; Adam at 1e-3, batches of 16. There the features are the published network's 7×7
positions; here their mean over all positions (``models/encoders.py``), which keeps what travels at 76 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, field_validator

from shared.exchange.reading import check_record
from shared.learning.data.graded_images import GRADED_EXTENSIONS, GRADED_FORMATS, GradedImage
from shared.learning.data.images import list_images, unlabelled_units
from shared.learning.data.labelled_photographs import labelled_units, read_labelled, read_retina
from shared.learning.data.units import Unit
from shared.learning.tasks.contract import Collection, valid_labels
from shared.learning.tasks.frozen_classification import FrozenClassification, FrozenOptions


class FundusOptions(FrozenOptions):
    """What a run may choose about this task."""

    hidden: tuple[int, ...] = Field(default=(4096, 4096), max_length=4)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    labels: tuple[str, ...] = Field(default=("normal", "glaucoma", "cataract"), min_length=2, max_length=20)
    """What the classes are called, the same at every site."""

    @property
    def classes(self) -> int:
        return len(self.labels)

    @field_validator("labels")
    @classmethod
    def _labels_are_names(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return valid_labels(labels)


class FundusDisease(FrozenClassification[FundusOptions, GradedImage]):
    """The task ``fundus_disease``; see ``contract.Task`` for what each method promises."""

    name = "fundus_disease"

    def options(self, raw: Mapping[str, object]) -> FundusOptions:
        return check_record(raw, FundusOptions, "task_options")

    def units(self, root: Path) -> list[Unit]:
        return labelled_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, GRADED_EXTENSIONS, GRADED_FORMATS)

    def open_images(self, root: Path, options: FundusOptions) -> Collection[GradedImage]:
        return Collection(read_labelled(root, options.labels, options.image_size), options.labels)

    def open_unlabelled(self, path: Path, options: FundusOptions) -> Sequence[GradedImage]:
        files = list_images(path, GRADED_EXTENSIONS, GRADED_FORMATS)
        return [GradedImage(file.stem, read_retina(file, options.image_size), 0) for file in files]
