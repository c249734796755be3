"""Which tensors travel in a run, and their shapes: ``tensors.yaml``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from shared.doors.tensor_file import MOST_DIMENSIONS, MOST_NUMBERS, count_of
from shared.exchange.forms import text_like
from shared.exchange.names import TENSORS, Kind
from shared.exchange.records.values import IF_SAID, Payload, Record, TensorName

MOST_IN_ALL = 1 << 32
"""Numbers in all tensors of a run."""


class TensorShape(Record):
    """One shared tensor: dtype as safetensors names it, and shape."""

    dtype: Literal["F32"]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=MOST_NUMBERS)]], Field(max_length=MOST_DIMENSIONS)]

    @field_validator("shape")
    @classmethod
    def _fits(cls, shape: list[int]) -> list[int]:
        if count_of(shape) > MOST_NUMBERS:
            raise ValueError(f"has more than {MOST_NUMBERS} numbers")
        return shape


class TensorList(Record):
    """Exactly which tensors a file holds, by name; a file with anything else is refused."""

    tensors: dict[TensorName, TensorShape]


Groups = dict[Annotated[str, text_like(r"[a-z][a-z0-9_]{0,31}", "a lower-case word")], dict[TensorName, TensorShape]]
"""Tensors by group and name. A group travels as ``state-GROUP.safetensors``."""


class Sharing(Payload):
    """``tensors.yaml``: what of a model travels and what stays, and what a method has travel besides.

    Args:
        tensors: travel every round, both ways.
        buffers: those of ``tensors`` that no gradient moves: BatchNorm's statistics.
        start: come once, with the offer, so that all sites begin alike; from then on they stay at each site.
        frozen: those of ``start`` that never change, and so are the same everywhere.
        from_file: those of ``frozen`` that do not come: each site takes them from its own copy of published weights.
            Left out of a run without.
        personal: names of tensors that never leave a site; each begins with its own, whose shapes may be its own too.
        to_site: come with every round.
        measured: leave with every answer: what was measured with the received model.
        trained: leave with every answer to a round that trains.
        with_final: come with the chosen model.
    """

    FILE: ClassVar[str] = TENSORS

    tensors: dict[TensorName, TensorShape]
    buffers: list[TensorName] = []
    start: dict[TensorName, TensorShape]
    frozen: list[TensorName] = []
    from_file: Annotated[list[TensorName], IF_SAID] = []
    personal: list[TensorName]
    to_site: Groups = {}
    measured: Groups = {}
    trained: Groups = {}
    with_final: Groups = {}

    @model_validator(mode="after")
    def _fits(self) -> Sharing:
        besides = (self.to_site, self.measured, self.trained, self.with_final)
        parts = [self.tensors, self.start, *(listed for groups in besides for listed in groups.values())]
        if sum(count_of(tensor.shape) for part in parts for tensor in part.values()) > MOST_IN_ALL:
            raise ValueError(f"tensors: have more than {MOST_IN_ALL} numbers in all")
        return self

    def groups(self, kind: Kind, *, trains: bool = True) -> Groups:
        """Return the groups that a message of a kind brings, in a round that trains or in the closing one."""
        if kind == "update":
            return self.measured | (self.trained if trains else {})
        return {"round": self.to_site, "final": self.with_final}.get(kind, {})

    @property
    def parameters(self) -> TensorList:
        """Those of ``tensors`` that training moves."""
        return TensorList(tensors={name: shape for name, shape in self.tensors.items() if name not in self.buffers})

    @property
    def shared(self) -> TensorList:
        """What a model file of a round holds."""
        return TensorList(tensors=self.tensors)

    @property
    def beginning(self) -> TensorList:
        """What each site begins with, beside the model of the first round."""
        return TensorList(tensors=self.start)

    @property
    def offered(self) -> TensorList:
        """What of it the offer's ``start.safetensors`` holds; there is none where this is empty."""
        own = set(self.from_file)
        return TensorList(tensors={name: shape for name, shape in self.start.items() if name not in own})

    @property
    def has_whole_model(self) -> bool:
        """Whether a model file of a round is, with what is frozen, a whole model: nothing changes but what travels."""
        return self.start.keys() == set(self.frozen) and not self.personal
