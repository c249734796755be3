"""Referable diabetic retinopathy from OCTA scans of three channels.

Source: Lo et al. 2021. VGG-19 with ImageNet's weights, frozen; behind it two layers that learn, and travel. Five
severities are two classes: referable from the third on. Rarer classes are taken more often, training is by Adam.
Channels lie between 0 and 1, as published, without ImageNet's mean and deviation. The network stands on the features'
mean over all positions; how the released code passes from the features to its two layers is not told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.learning.data.images import list_images, read_image, unlabelled_units
from shared.learning.data.scans import Scan, read_scans, scan_units, three_channels
from shared.learning.data.units import Unit
from shared.learning.tasks.contract import Collection
from shared.learning.tasks.frozen_classification import FrozenClassification
from shared.learning.tasks.rdr_classification import terms
from shared.learning.tasks.rdr_classification.terms import RdrOptions


class RdrClassification(terms.RdrClassification, FrozenClassification[RdrOptions, Scan]):
    """The task ``rdr_classification``; see ``contract.Task`` for what each method promises."""

    levels = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def units(self, root: Path) -> list[Unit]:
        return scan_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path)

    def open_images(self, root: Path, options: RdrOptions) -> Collection[Scan]:
        scans = read_scans(root, options.severities, options.referable_from, options.image_size)
        return Collection(scans, options.class_names)

    def open_unlabelled(self, path: Path, options: RdrOptions) -> Sequence[Scan]:
        """Each file is one picture, which stands in all channels: enough for images out of the task's distribution."""
        return [
            Scan(file.stem, three_channels([read_image(file)] * 4, options.image_size), 0, 0)
            for file in list_images(path)
        ]
