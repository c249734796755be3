"""A network of which nothing is known but its tensors: they travel and are combined, and nothing computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class NamedTensors(nn.Module):
    """Tensors of zeros by name, as the state of a module that has these; a ``Network`` without heads.

    Args:
        shapes: by name, as in ``encoder.layer1.weight``.
    """

    classes = 0

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                module = module._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
            # Past the check of names: a tensor may be called as an attribute of a module is.
            module._parameters[last] = nn.Parameter(torch.zeros(tuple(shape)))

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """None."""
        return ()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs unchanged, in their shape."""
        return inputs

    def features(self, inputs: Tensor) -> Tensor:
        """Return the inputs unchanged, in their shape."""
        return inputs
