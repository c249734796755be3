"""The weighted mean of accepted models: in memory are one tensor, and a part of one of one site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shared.exchange.encoding import rounded
from shared.exchange.records import FileEntry, Numbers, TensorList
from shared.exchange.weights import Array, count_of, read_part, write_tensors

PART = 1 << 20  # numbers summed at a time


def combine(target: Path, tensors: TensorList, models: Mapping[Path, float], numbers: Numbers = "float32") -> FileEntry:
    """Write Σ weight · model to ``target``, summed in float64 in sorted order of paths, stored as float32.

    Args:
        models: checked tensor files and their weights, which sum to 1.
        numbers: what the run sends: the sum is rounded to them, so that sites receive exactly what is stored.

    Returns:
        What a manifest says of the file.
    """

    def weighted_sum(name: str) -> Array:
        shape = tensors.tensors[name].shape
        total = np.empty(count_of(shape), dtype=np.float32)
        for start in range(0, len(total), PART):
            count = min(PART, len(total) - start)
            part = np.zeros(count, dtype=np.float64)
            for path in sorted(models):
                part += models[path] * read_part(path, name, start, count).astype(np.float64)
            total[start : start + count] = part
        return rounded(total.reshape(shape), numbers)

    return write_tensors(target, tensors, weighted_sum)
