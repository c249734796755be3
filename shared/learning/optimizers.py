"""The optimizer of a run's options, and what it remembers of each parameter, as tensors by name, so that the next round
can go on from it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from shared.exchange.records.tensors import TensorList, TensorShape
from shared.learning.tasks.terms import Options


def new_optimizer(network: nn.Module, options: Options, learning_rate: float) -> torch.optim.Optimizer:
    """Return an optimizer over the network's parameters that remembers nothing yet."""
    if options.optimizer == "sgd":
        return torch.optim.SGD(
            network.parameters(), lr=learning_rate, momentum=options.momentum, weight_decay=options.weight_decay
        )
    kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
    return kind(network.parameters(), lr=learning_rate, weight_decay=options.weight_decay)


def remembered(optimizer: torch.optim.Optimizer, network: nn.Module, frozen: Collection[str] = ()) -> TensorList:
    """Return the tensors ``KIND/PARAMETER`` that an optimizer has after a step, by what it is.

    Args:
        frozen: the parameters that it never moves, and of which it remembers nothing.

    Raises:
        ValueError: it is none of those that a run can have.
    """
    shapes: dict[str, list[int]]
    tensors: dict[str, TensorShape] = {}
    for name, parameter in network.named_parameters():
        if name in frozen:
            continue
        own = list(parameter.shape)
        if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            shapes = {"step": [], "exp_avg": own, "exp_avg_sq": own}
        elif isinstance(optimizer, torch.optim.SGD):
            shapes = {"momentum_buffer": own} if optimizer.param_groups[0]["momentum"] else {}
        else:
            raise ValueError(f"nobody knows what {type(optimizer).__name__} remembers")
        tensors |= {f"{kind}/{name}": TensorShape(dtype="F32", shape=shape) for kind, shape in shapes.items()}
    return TensorList(tensors=tensors)


def read_memory(
    optimizer: torch.optim.Optimizer, network: nn.Module, frozen: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return what an optimizer remembers, by the names and in the shapes of ``remembered``, on the CPU.

    Of a parameter that it has not moved yet it is zeros.

    Args:
        frozen: as for ``remembered``.

    Raises:
        ValueError: it is an optimizer of another kind than Adam, AdamW and SGD.
    """
    memory: dict[str, Tensor] = {}
    parameters = dict(network.named_parameters())
    for key, listed in remembered(optimizer, network, frozen).tensors.items():
        kind, _, name = key.partition("/")
        found = optimizer.state.get(parameters[name], {}).get(kind)
        memory[key] = torch.zeros(listed.shape) if found is None else found.detach().cpu()
    return memory


def restore_memory(optimizer: torch.optim.Optimizer, network: nn.Module, memory: dict[str, Tensor]) -> None:
    """Have a new optimizer go on from what ``read_memory`` returned; zeros are what it begins with anyway."""
    parameters = dict(network.named_parameters())
    for key, tensor in memory.items():
        kind, _, name = key.partition("/")
        parameter = parameters[name]
        optimizer.state[parameter][kind] = tensor if kind == "step" else tensor.to(parameter.device)
