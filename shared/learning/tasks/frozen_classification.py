"""What the tasks have in common that classify by an encoder, frozen by default, and a head that travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar, cast

from torch import nn

from shared.learning.data.sets import Members
from shared.learning.drawing import drawn_by
from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import learning
from shared.learning.models.layered_head import LayeredHead
from shared.learning.models.weights import load_weights
from shared.learning.seeds import seed_for
from shared.learning.tasks.classification import Classification, ImageT, balancing
from shared.learning.tasks.contract import Collection, Dataset, divided, trainable
from shared.learning.tasks.terms import FrozenOptions

FrozenOptionsT = TypeVar("FrozenOptionsT", bound=FrozenOptions)


class FrozenClassification(Classification, Generic[FrozenOptionsT, ImageT]):
    """A part of ``contract.Task``: the model, and the division of images that a task has read."""

    head_is_local = False

    def open_images(self, root: Path, options: FrozenOptionsT) -> Collection[ImageT]:
        """See ``contract.Task``."""
        raise NotImplementedError

    def open_dataset(self, root: Path, options: FrozenOptionsT, members: Members) -> Dataset[ImageT]:
        dataset = trainable(divided(self.open_images(root, options), members))
        is_whole = options.balance and not options.draws_to_balance
        return replace(dataset, repeats=balancing(dataset.train)) if is_whole else dataset

    def build_model(self, options: FrozenOptionsT, classes: int, seed: int) -> nn.Module:
        with drawn_by(seed_for(seed, "model")):
            encoder = build_encoder(options.encoder, options.image_size, self.levels)
            named = options.class_names
            classes, is_own = len(named) if named else classes, named is None
            network = LayeredHead(encoder, classes, options.hidden, options.dropout, is_own=is_own)
            return learning(network, options.train, options.weights)

    def input_shape(self, options: FrozenOptionsT) -> tuple[int, ...]:
        return 3, options.image_size, options.image_size

    def load_initial_weights(self, model: nn.Module, options: FrozenOptionsT, folders: Sequence[Path]) -> str | None:
        return load_weights(cast(LayeredHead, model).encoder, options.encoder, options.weights, folders)
