"""Diseases in colour fundus photographs, by any set of labels.

Source: DataWeightedFed (Jiang et al. 2025): normal, glaucoma and cataract of ODIR; photographs cropped to the retina,
contrast evened out channel by channel, 224 pixels; VGG-19 with ImageNet's weights, frozen; behind it two layers of
4,096 with ReLU and dropout 0.5; Adam at 1e-3, batches of 16. There the features are the published network's 7×7
positions; here their mean over all positions (``models/encoders.py``), which keeps what travels at 76 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.learning.data.graded_images import GRADED_EXTENSIONS, GRADED_FORMATS, GradedImage
from shared.learning.data.images import list_images, unlabelled_units
from shared.learning.data.labelled_photographs import labelled_units, read_labelled, read_retina
from shared.learning.data.units import Unit
from shared.learning.tasks import terms
from shared.learning.tasks.contract import Collection
from shared.learning.tasks.frozen_classification import FrozenClassification
from shared.learning.tasks.terms import FundusOptions


class FundusDisease(terms.FundusDisease, FrozenClassification[FundusOptions, GradedImage]):
    """The task ``fundus_disease``; see ``contract.Task`` for what each method promises."""

    def units(self, root: Path) -> list[Unit]:
        return labelled_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, GRADED_EXTENSIONS, GRADED_FORMATS)

    def open_images(self, root: Path, options: FundusOptions) -> Collection[GradedImage]:
        return Collection(read_labelled(root, options.labels, options.image_size), options.labels)

    def open_unlabelled(self, path: Path, options: FundusOptions) -> Sequence[GradedImage]:
        files = list_images(path, GRADED_EXTENSIONS, GRADED_FORMATS)
        return [GradedImage(file.stem, read_retina(file, options.image_size), 0) for file in files]
