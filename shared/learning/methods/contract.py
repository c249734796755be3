"""What a federated method is: what travels, and how the accepted models are combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from shared.exchange.records import TensorList


class Method(Protocol):
    """One federated algorithm, both halves."""

    name: str

    def shared_tensors(self, model: nn.Module) -> TensorList:
        """Site and aggregator: which tensors of the model's state travel, in both directions."""
        ...

    def weights(self, accepted: Sequence[str]) -> dict[str, float]:
        """Aggregator: each accepted site's weight in the aggregate, in [0, 1], summing to 1."""
        ...
