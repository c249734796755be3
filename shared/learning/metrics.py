"""Scores of one image, and their mean and spread over images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.bool_] | NDArray[np.integer]


def accuracy(predicted: Labels, truth: Labels) -> float:
    """The share of pixels with the right class, in [0, 1].

    Args:
        predicted: (H, W), or any shape, of classes.
        truth: the same shape.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    _same_shape(predicted, truth)
    return float(np.mean(predicted == truth))


def dice(predicted: Labels, truth: Labels) -> float:
    """The Dice coefficient of the foreground, 2·|A∩B| / (|A| + |B|), in [0, 1].

    Foreground is every value but 0. Where neither has any, they agree: 1.0.

    Args:
        predicted: (H, W), or any shape, of classes.
        truth: the same shape.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    _same_shape(predicted, truth)
    first, second = predicted != 0, truth != 0
    total = int(first.sum()) + int(second.sum())
    return 1.0 if total == 0 else 2.0 * int((first & second).sum()) / total


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the population standard deviation (divided by n, so 0.0 for one value).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to average")
    numbers = np.asarray(values, dtype=np.float64)
    return float(numbers.mean()), float(numbers.std())


def _same_shape(predicted: Labels, truth: Labels) -> None:
    if predicted.shape != truth.shape or predicted.size == 0:
        raise ValueError(f"expected two masks of one shape, got {predicted.shape} and {truth.shape}")
