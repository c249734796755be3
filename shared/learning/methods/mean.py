"""The plain mean of Lo et al. 2021: every accepted site counts the same.

    w ← (1/|S|) Σ_{k in S} x_k        S: sites whose score on the held-out set exceeds the tolerance

All parameters and BatchNorm's running statistics travel, but for a task's local part.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from shared.learning.methods.contract import Contribution, MethodOptions
from shared.learning.objectives import Objective

name = "mean"
sends_reliability = False
Options = MethodOptions


def stays(module: nn.Module) -> bool:
    """Nothing stays."""
    return False


def objective(options: MethodOptions, round_no: int, rounds: int) -> Objective:
    """Cross-entropy, or what the run chooses."""
    return options.chosen_objective(round_no, rounds)


def weights(accepted: Mapping[str, Contribution]) -> dict[str, float]:
    """1/|S| for each of the accepted sites S."""
    return {site: 1 / len(accepted) for site in accepted}
