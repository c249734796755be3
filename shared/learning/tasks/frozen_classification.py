"""What the tasks have in common that classify by a frozen encoder and a head that travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, Literal, TypeVar, cast

import torch
from pydantic import Field, field_validator
from torch import nn

from shared.errors import DataError
from shared.exchange.reading import check_record
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.sets import Members
from shared.learning.models.encoders import WITHOUT_BATCH_NORM, load_imagenet_weights
from shared.learning.models.frozen_features import FrozenFeatures
from shared.learning.seeds import seed_for
from shared.learning.tasks.classification import FLIPPED_AND_TURNED, Classification, ImageT, balancing
from shared.learning.tasks.contract import Collection, Dataset, Options, divided


class FrozenOptions(Options):
    """What a run may choose about such a task."""

    encoder: str = "vgg19"
    """One of ``encoders.WITHOUT_BATCH_NORM``."""
    weights: Literal["imagenet", "random"] = "imagenet"
    """What the encoder holds."""
    hidden: tuple[int, ...] = Field(default=(4096,), max_length=4)
    """Widths of the layers between the encoder and the last one."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """After each of these."""
    image_size: int = Field(default=224, ge=32, le=1024)
    """Side in pixels that every image is scaled to."""
    balance: bool = False
    """Whether images of rarer classes are taken more often in an epoch."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"

    @property
    def balances(self) -> bool:
        return self.balance

    @property
    def classes(self) -> int:
        """K, the same at every site: the head travels."""
        raise NotImplementedError

    @field_validator("encoder")
    @classmethod
    def _encoder_is_known(cls, encoder: str) -> str:
        if encoder not in WITHOUT_BATCH_NORM:
            raise ValueError(f"must be one of {', '.join(WITHOUT_BATCH_NORM)}")
        return encoder

    @field_validator("hidden")
    @classmethod
    def _widths_are_positive(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 16384 for width in hidden):
            raise ValueError("each width must be between 1 and 16384")
        return hidden


FrozenOptionsT = TypeVar("FrozenOptionsT", bound=FrozenOptions)


class FrozenClassification(Classification, Generic[FrozenOptionsT, ImageT]):
    """A part of ``contract.Task``: the model, and the division of images that a task has read."""

    head_is_local = False

    def open_images(self, root: Path, options: FrozenOptionsT) -> Collection[ImageT]:
        """See ``contract.Task``."""
        raise NotImplementedError

    def open_dataset(self, root: Path, options: FrozenOptionsT, members: Members) -> Dataset[ImageT]:
        dataset = divided(self.open_images(root, options), members)
        if len(dataset.train) < 2:
            raise DataError(["the train split has a single image; training needs two or more: add images."])
        return replace(dataset, repeats=balancing(dataset.train)) if options.balance else dataset

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        return check_record({**FLIPPED_AND_TURNED, **raw}, Augmentation, "augmentation")

    def build_model(self, options: FrozenOptionsT, classes: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "model"))
            return FrozenFeatures(options.encoder, options.classes, options.hidden, options.dropout)

    def input_shape(self, options: FrozenOptionsT) -> tuple[int, ...]:
        return 3, options.image_size, options.image_size

    def load_initial_weights(self, model: nn.Module, options: FrozenOptionsT, folders: Sequence[Path]) -> str | None:
        if options.weights == "random":
            return None
        return load_imagenet_weights(cast(FrozenFeatures, model).encoder, options.encoder, folders)
