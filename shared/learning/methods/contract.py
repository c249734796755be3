"""What a federated method is: both halves of one algorithm in one file.

A method's file answers five questions, in this order:

    stays              which modules of the model stay at a site; all others are shared
    sends_reliability  what else travels: ``reliability.yaml``, or nothing
    Options            what a run may choose, among it
    objective          what a site's training makes small
    weights            how the aggregator combines the accepted models: its weighted mean
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from shared.learning.losses import annealing
from shared.learning.objectives import CrossEntropy, Evidential, Objective


class MethodOptions(BaseModel):
    """What a run may choose about every method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Literal["cross_entropy", "evidential"] = "cross_entropy"
    temperature: Annotated[float, Field(ge=0.001, le=10)] = 0.05
    """τ of the evidential objective."""
    anneal_rounds: Annotated[int | None, Field(ge=1)] = None
    """Rounds until the weight λ of the evidential objective's KL term reaches 1; None: all rounds of the run."""
    theta_from: Literal["train", "validation"] = "train"
    """The split that a site measures its θ on."""

    def chosen_objective(self, round_no: int, rounds: int) -> Objective:
        """The objective of a round (1-based) of a run of so many rounds."""
        if self.objective == "cross_entropy":
            return CrossEntropy()
        kl_weight = annealing(round_no - 1, self.anneal_rounds or rounds)
        return Evidential(temperature=self.temperature, kl_weight=kl_weight)


@dataclass(frozen=True)
class Contribution:
    """What the aggregator knows of one accepted answer beside its tensors.

    Args:
        images: the site's training images.
        theta: the site's θ in (0, 1], where the method has it sent.
    """

    images: int
    theta: float | None = None


class Method(Protocol):
    """One federated algorithm, both halves."""

    name: str
    sends_reliability: bool

    @property
    def Options(self) -> type[MethodOptions]:  # noqa: N802  (a class in the method's file)
        """Site and aggregator: what a run may choose."""
        ...

    def stays(self, module: nn.Module) -> bool:
        """Site and aggregator: whether a module's own parameters and buffers stay at each site."""
        ...

    def objective(self, options: MethodOptions, round_no: int, rounds: int) -> Objective:
        """Site: the local objective of a round (1-based) of a run of so many rounds."""
        ...

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        """Aggregator: each accepted site's weight in the aggregate, in [0, 1], summing to 1."""
        ...
