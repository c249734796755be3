"""What a round asks of a site, as a function of the run that was agreed to: nothing else may be asked."""

from __future__ import annotations

from collections.abc import Iterable

from shared.exchange.records import RoundConfiguration, RunConfiguration, Seeds
from shared.learning.seeds import seed_for, split_seed


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


def order_of_asking(run_seed: int, round_no: int, sites: Iterable[str]) -> list[str]:
    """Sites in the order in which one round asks them: each draws a number of its own, the lowest comes first.

    So whoever else there is changes nothing about which of two sites comes before the other.
    """
    return sorted(sites, key=lambda site: (seed_for(run_seed, round_no, site, "selection"), site))


def round_configuration(run: RunConfiguration, round_no: int, site: str) -> RoundConfiguration:
    """The configuration of one site's round; the closing round (``run.rounds`` + 1) has no epochs.

    Args:
        round_no: 1-based.
    """
    rate = run.learning_rate
    return RoundConfiguration(
        round=round_no,
        epochs=run.epochs if round_no <= run.rounds else 0,
        learning_rate=cyclic_learning_rate(round_no - 1, initial=rate.initial, factor=rate.factor, period=rate.period),
        batch_size=run.batch_size,
        seeds=Seeds(split=split_seed(run.seed, site), training=seed_for(run.seed, round_no, site, "training")),
        split=run.split,
        augmentation=run.augmentation,
    )
