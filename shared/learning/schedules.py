"""Learning rates as functions of the round."""

from __future__ import annotations


def cyclic_learning_rate(round_index: int, *, initial: float = 0.1, factor: float = 0.1, period: int = 3) -> float:
    """The learning rate of one round: initial · factor^(round mod period); by default 0.1, 0.01, 0.001, 0.1, ...

    Source: Lo et al. 2021, segmentation of OCTA.

    Args:
        round_index: the round, counted from 0.
        initial: the first rate of each cycle, > 0.
        factor: what the rate is multiplied by from one round to the next, > 0.
        period: rounds in a cycle, >= 1.

    Raises:
        ValueError: an argument is outside its range.
    """
    if round_index < 0 or initial <= 0 or factor <= 0 or period < 1:
        raise ValueError("cyclic_learning_rate needs round_index >= 0, initial > 0, factor > 0 and period >= 1")
    return float(initial * factor ** (round_index % period))
