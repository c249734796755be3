"""What a run may say about external; see ``../terms.py``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.doors.tensor_file import MOST_DIMENSIONS, MOST_NUMBERS
from shared.exchange.records.values import TensorName
from shared.learning.tasks.terms import AS_THEY_ARE, EXTERNAL, Labels, Options, Terms

Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_NUMBERS)], ...], Field(max_length=MOST_DIMENSIONS)]
"""A tensor's."""


class ExternalOptions(Options):
    """What a run may choose about this task."""

    tensors: Annotated[dict[TensorName, Shape], Field(max_length=10_000)] = {}
    """The shape of each tensor of the network, by its name."""
    labels: Labels | None = None
    """What the classes are called, where the files have some."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.labels


class External(Terms[ExternalOptions]):
    """See ``task.py``."""

    name = EXTERNAL
    selection_score = "score"
    form = ExternalOptions
    usual_augmentation = AS_THEY_ARE
