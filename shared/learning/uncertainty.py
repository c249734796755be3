"""How far a site's uncertainty can be relied upon: the threshold θ of FedUAA, and the site's weight that follows.

Source: Wang et al. 2023, Federated Uncertainty-Aware Aggregation for fundus diabetic retinopathy staging, Algorithm 1.

    θ = argmax J(θ),  J = TPR − FPR of the rule "u ≥ θ, so the prediction is wrong"
    w = softmax(θ)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.learning.metrics import ranking

FALLBACK_THETA = 0.5  # where none can be measured
"""θ where none can be measured."""
_DIGITS = Context(prec=30)  # of exp(θ), before it is rounded to a double, which has 17


@dataclass(frozen=True)
class Threshold:
    """The uncertainty from which on a prediction is best held to be wrong.

    Args:
        theta: in (0, 1]; an uncertainty that was observed, or 0.5 where the status is not ``measured``.
        status: ``measured``, or why there is no θ: no prediction was wrong, none was right, or no threshold tells them
            apart better than chance.
        youden_j: J at θ in (0, 1] where measured, 0.0 for ``no separation``; None where J is undefined.
        predictions: how many were looked at.
        wrong: how many of them were wrong.
    """

    theta: float
    status: Literal["measured", "all right", "all wrong", "no separation"]
    youden_j: float | None
    predictions: int
    wrong: int


def youden_threshold(uncertainty: NDArray[np.floating], wrong: NDArray[np.bool_]) -> Threshold:
    """Return the θ of one site: where Youden's J is greatest, and the highest such θ.

    Only observed uncertainties are thresholds. The artificial first threshold of an ROC curve, "above everything",
    is infinite in scikit-learn from 1.3 on, and one infinite θ turns every site's weight into NaN.

    Args:
        uncertainty: (N,) in [0, 1].
        wrong: (N,) whether each prediction was wrong.

    Raises:
        ValueError: nothing to look at, shapes that differ, or an uncertainty that is not a number in [0, 1].
    """
    if uncertainty.ndim != 1 or uncertainty.shape != wrong.shape or uncertainty.size == 0:
        raise ValueError(f"expected (N,) uncertainties and as many marks, got {uncertainty.shape} and {wrong.shape}")
    if not np.all((uncertainty >= 0) & (uncertainty <= 1)):  # also false for NaN
        raise ValueError("an uncertainty is not a number in [0, 1]")
    # 1. Without a wrong prediction, or without a right one, there is no J (protocol 8.4).
    predictions, all_wrong = len(wrong), int(np.count_nonzero(wrong))
    all_right = predictions - all_wrong
    if all_wrong == 0:
        return Threshold(FALLBACK_THETA, "all right", None, predictions, all_wrong)
    if all_right == 0:
        return Threshold(FALLBACK_THETA, "all wrong", None, predictions, all_wrong)
    # 2. The greatest J, of equal ones at the highest uncertainty; if it is not above 0, u does not tell them apart.
    by_uncertainty = ranking(uncertainty, wrong)
    scaled_j = by_uncertainty.scaled_youden()
    best = int(np.argmax(scaled_j))
    if scaled_j[best] <= 0:
        return Threshold(FALLBACK_THETA, "no separation", 0.0, predictions, all_wrong)
    # 3. The lowest uncertainty flags everything, where J is 0: so a θ with J > 0 lies above it, and above 0.
    youden_j = int(scaled_j[best]) / (all_right * all_wrong)
    return Threshold(float(by_uncertainty.scores[best]), "measured", youden_j, predictions, all_wrong)


def reliability_weights(thetas: Mapping[str, float | None]) -> dict[str, float]:
    """Return each site's weight, softmax(θ) in float64, without a temperature (Wang et al. 2023, Algorithm 1).

    They sum to 1, and none is more than e times another. Nothing else enters, not even the number of images. On every
    machine they are the same to the last digit (protocol 7.2): what a processor makes of exp need not be.

    Args:
        thetas: each site's θ in [0, 1]; None where a site sent none.

    Raises:
        ValueError: there is no site, or a site has no θ or one that is not a number in [0, 1].
    """
    if not thetas:
        raise ValueError("no sites to weigh")
    powers: dict[str, float] = {}
    for site, theta in thetas.items():
        if theta is None or not 0 <= theta <= 1:  # also for NaN
            raise ValueError(f"site {site}: theta must be a number in [0, 1], got {theta}")
        powers[site] = float(_DIGITS.exp(Decimal(theta)))
    total = math.fsum(powers.values())
    return {site: power / total for site, power in powers.items()}
