"""The weighted mean of accepted models, one tensor of one site in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shared.exchange.encoding import rounded
from shared.exchange.records import Numbers, TensorList
from shared.exchange.weights import Array, read_tensor, write_tensors


def combine(target: Path, tensors: TensorList, models: Mapping[Path, float], numbers: Numbers = "float32") -> None:
    """Write Σ weight · model to ``target``, summed in float64 in sorted order of paths, stored as float32.

    Args:
        models: checked tensor files and their weights, which sum to 1.
        numbers: what the run sends: the sum is rounded to them, so that sites receive exactly what is stored.
    """

    def weighted_sum(name: str) -> Array:
        total = np.zeros(tensors.tensors[name].shape, dtype=np.float64)
        for path in sorted(models):
            total += models[path] * read_tensor(path, name).astype(np.float64)
        return rounded(total.astype(np.float32), numbers)

    write_tensors(target, tensors, weighted_sum)
