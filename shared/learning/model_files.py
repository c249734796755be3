"""From a network to a tensor file and back."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from shared.exchange.encoding import rounded
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.wire import FileEntry, Numbers
from shared.exchange.weights import TensorFile, magnitude_of, write_tensors


def save_tensors(model: nn.Module, tensors: TensorList, path: Path) -> FileEntry:
    """Write the listed tensors of the model's state to ``path``, all or nothing; return what a manifest says of it."""
    state = model.state_dict()
    return write_tensors(path, tensors, lambda name: state[name].detach().cpu().numpy())


def load_tensors(model: nn.Module, tensors: TensorList, path: Path) -> None:
    """Copy the listed tensors of a checked file into the model's state; the rest of the state stays."""
    state, file = model.state_dict(), TensorFile(path)
    with torch.no_grad():
        for name in tensors.tensors:
            state[name].copy_(torch.from_numpy(file.tensor(name)))


def round_tensors(model: nn.Module, tensors: TensorList, numbers: Numbers) -> None:
    """Round the listed tensors of the model's state to what a run sends.

    Raises:
        ValueError: naming one that holds a number too great for that.
    """
    state = model.state_dict()
    with torch.no_grad():
        for name in tensors.tensors:
            left = rounded(state[name].detach().cpu().numpy(), numbers)
            if not magnitude_of(left) < math.inf:
                raise ValueError(name)
            state[name].copy_(torch.from_numpy(left))
