"""Measures of shapes, which a run of masks may name under ``scores`` beside its task's own.

Each is of one image: (H, W, K) probabilities, in [0, 1], and (H, W) classes, of which 0 is the background.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, distance_transform_edt

from shared.learning.metrics import dice

Region = NDArray[np.bool_]

_PERCENTILE = 95
_DISC, _CUP = 1, 2


def hausdorff_95(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float | None:
    """Return the Hausdorff distance of the masks' borders without the farthest 5 %, in pixels, >= 0.

    Of the two directions the greater counts, as in MONAI; over classes the mean. None where some class of the truth is
    not predicted, or the truth has none.

    Args:
        probabilities: (H, W, K) in [0, 1]; the greatest is the predicted class.
        truth: (H, W) classes, 0 <= class < K; 0 is the background.
    """
    predicted = probabilities.argmax(axis=-1)
    classes = np.unique(truth[truth > 0])
    distances = [_of_borders(predicted == each, truth == each) for each in classes]
    known = [distance for distance in distances if distance is not None]
    return fmean(known) if known and len(known) == len(distances) else None


def nested_dice(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Return the Dice of masks that lie in each other, in [0, 1]: class k's region has all that are numbered higher.

    The mean over classes; of a region that neither has, 1.0.

    Args:
        probabilities: (H, W, K) in [0, 1]; the greatest is the predicted class.
        truth: (H, W) classes, 0 <= class < K; 0 is the background.
    """
    predicted = probabilities.argmax(axis=-1)
    return fmean(dice(predicted >= each, truth >= each) for each in range(1, probabilities.shape[-1]))


def cup_to_disc_error(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float | None:
    """Return by how much the vertical cup-to-disc ratio is missed, in [0, 1].

    Class 1 is the disc around the cup, class 2 the cup. None where either has no disc.

    Args:
        probabilities: (H, W, K) in [0, 1]; the greatest is the predicted class.
        truth: (H, W) classes, 0 <= class < K; 0 is the background.
    """
    ratios = [_vertical_ratio(mask) for mask in (probabilities.argmax(axis=-1), truth)]
    said, true = ratios
    return None if said is None or true is None else abs(said - true)


def _vertical_ratio(mask: NDArray[np.integer]) -> float | None:
    disc, cup = _height(mask >= _DISC), _height(mask == _CUP)
    return cup / disc if disc else None


def _height(region: Region) -> int:
    """Return how many rows a region spans."""
    rows = np.flatnonzero(region.any(axis=1))
    return int(rows[-1] - rows[0] + 1) if len(rows) else 0


def _of_borders(one: Region, other: Region) -> float | None:
    if not one.any() or not other.any():
        return None
    borders = [region & ~binary_erosion(region) for region in (one, other)]
    distances = [distance_transform_edt(~border) for border in borders]
    return max(
        float(np.percentile(distances[1][borders[0]], _PERCENTILE)),
        float(np.percentile(distances[0][borders[1]], _PERCENTILE)),
    )
