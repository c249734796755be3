"""Referable diabetic retinopathy from OCTA scans of three channels.

Source: Lo et al. 2021. VGG-19 with ImageNet's weights, frozen; behind it the released code's layers, which learn, and
travel (``models/positioned_head.py``). Five severities are two classes: referable from the third on. Images of the
rarer class are drawn until there are as many, training is by Adam. Channels lie between 0 and 1, as published, without
ImageNet's mean and deviation. Each scan is varied by pixel dropout, contrast, rotation, translation and flips; by how
much it is translated the paper does not say, and 5 % is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from shared.learning.data.images import list_images, read_image, unlabelled_units
from shared.learning.data.scans import Scan, read_scans, read_ungraded, scan_units, three_channels
from shared.learning.data.units import Unit
from shared.learning.drawing import drawn_by
from shared.learning.models import AS_READ
from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import learning
from shared.learning.models.positioned_head import PositionedHead, positions_of
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Collection
from shared.learning.tasks.frozen_classification import FrozenClassification
from shared.learning.tasks.rdr_classification import terms
from shared.learning.tasks.rdr_classification.terms import RdrOptions


class RdrClassification(terms.RdrClassification, FrozenClassification[RdrOptions, Scan]):
    """The task ``rdr_classification``; see ``contract.Task`` for what each method promises."""

    levels = AS_READ
    channels = ("superficial", "deep", "the greater of both structural projections")
    made = "each of a scan's pictures is scaled, and each channel lies between its own least and greatest level"

    def build_model(self, options: RdrOptions, classes: int, seed: int) -> nn.Module:
        if options.head == "layers":
            return super().build_model(options, classes, seed)
        positions = positions_of(options.encoder, options.image_size, self.levels)
        with drawn_by(seed_for(seed, "model")):
            encoder = build_encoder(options.encoder, options.image_size, self.levels)
            network = PositionedHead(encoder, len(options.class_names), positions)
            return learning(network, options.train, options.weights)

    def units(self, root: Path) -> list[Unit]:
        return scan_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path)

    def open_images(self, root: Path, options: RdrOptions) -> Collection[Scan]:
        scans = read_scans(root, options.severities, options.referable_from, options.image_size)
        return Collection(scans, options.class_names)

    def open_listed(self, path: Path, options: RdrOptions, problems: list[str]) -> Sequence[Scan]:
        return read_ungraded(path, options.image_size, problems)

    def open_unlabelled(self, path: Path, options: RdrOptions) -> Sequence[Scan]:
        """Read each file as one picture, which stands in all channels: enough for out-of-distribution images."""
        return [
            Scan(file.stem, three_channels([read_image(file)] * 4, options.image_size), 0, 0)
            for file in list_images(path)
        ]
