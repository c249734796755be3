"""Staging of diabetic retinopathy in colour fundus photographs.

Source: FedUAA (Wang et al. 2023). An ImageNet encoder that travels and a head that stays, because sites grade by
different scales: 4 grades here, 5 or 6 there. SGD without momentum or weight decay; each photograph is seen once an
epoch, flipped and turned by up to 30 degrees. The options' defaults are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from torch import nn

from shared.learning.data.graded_images import (
    GRADED_EXTENSIONS,
    GradedImage,
    graded_units,
    read_colour,
    read_graded,
)
from shared.learning.data.images import list_images, unlabelled_units
from shared.learning.data.sets import Members
from shared.learning.data.units import Unit
from shared.learning.drawing import drawn_by
from shared.learning.models import AS_READ
from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import GradingNetwork, learning
from shared.learning.models.weights import load_weights
from shared.learning.models.whole_networks import Renormalise
from shared.learning.seeds import seed_for
from shared.learning.tasks.classification import Classification
from shared.learning.tasks.contract import Collection, Dataset, divided, trainable
from shared.learning.tasks.dr_staging import terms
from shared.learning.tasks.dr_staging.terms import DrOptions


class DrStaging(terms.DrStaging, Classification):
    """The task ``dr_staging``; see ``contract.Task`` for what each method promises."""

    head_is_local = True

    def build_model(self, options: DrOptions, classes: int, seed: int) -> nn.Module:
        with drawn_by(seed_for(seed, "model")):
            encoder = build_encoder(options.encoder, options.image_size, self.levels)
            if not options.normalise:
                encoder.begin_with(Renormalise(self.levels, AS_READ))
            return learning(GradingNetwork(encoder, classes, options.head), options.train, options.weights)

    def input_shape(self, options: DrOptions) -> tuple[int, ...]:
        return 3, options.image_size, options.image_size

    def load_initial_weights(self, model: nn.Module, options: DrOptions, folders: Sequence[Path]) -> str | None:
        return load_weights(cast(GradingNetwork, model).encoder, options.encoder, options.weights, folders)

    def units(self, root: Path) -> list[Unit]:
        return graded_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, GRADED_EXTENSIONS)

    def open_dataset(self, root: Path, options: DrOptions, members: Members) -> Dataset[GradedImage]:
        return trainable(divided(self.open_images(root, options), members))

    def open_images(self, root: Path, options: DrOptions) -> Collection[GradedImage]:
        folder = read_graded(root, options.image_size)
        return Collection(folder.images, folder.grades)

    def open_unlabelled(self, path: Path, options: DrOptions) -> list[GradedImage]:
        files = list_images(path, GRADED_EXTENSIONS)
        return [GradedImage(file.stem, read_colour(file, options.image_size), 0) for file in files]
