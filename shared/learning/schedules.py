"""What a round asks of a site, as a function of the run that was agreed to: nothing else may be asked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from shared.exchange.records.run import Cosine, LearningRate, Line, RoundConfiguration, RunConfiguration
from shared.learning.seeds import seed_for


def learning_rate(rate: LearningRate, round_index: int) -> float:
    """Return the learning rate of one round r = ``round_index``.

    cycle:    initial · factor^(r mod period), as published for OCTA's vessels: 0.1, 0.01, 0.001, 0.1, ...
    triangle: initial · factor^(period − |r mod 2·period − period|), down and up again
    line:     initial − (initial − final) · (⌊r / hold⌋ · hold mod period) / period; as published for referable
              retinopathy, 3e-4 towards 1e-6 twice over 100 rounds: period 50. The released code's aggregator
              falls once, every second round: period 100, hold 2.
    cosine:   with s = r mod period and w = warm_up, initial · (s + 1) / (w + 1) while s < w, then
              final + (initial − final) · (1 + cos(π · (s − w) / (period − w))) / 2

    Source: Lo et al. 2021, and the code released with it; Loshchilov and Hutter 2017, SGDR, for the cosine. So that it
    is the same number on every machine, a power is the double nearest to it, and the cosine is rounded to nine digits.

    Args:
        round_index: the round, counted from 0.
    """
    if isinstance(rate, Line):
        step = (round_index // rate.hold * rate.hold) % rate.period
        return float(rate.initial - (rate.initial - rate.final) * step / rate.period)
    if isinstance(rate, Cosine):
        return float(f"{_cosine(rate, round_index % rate.period):.9g}")
    falls = round_index % rate.period
    if rate.shape == "triangle":
        falls = rate.period - abs(round_index % (2 * rate.period) - rate.period)
    return rate.initial * float(Fraction(rate.factor) ** falls)


def _cosine(rate: Cosine, step: int) -> float:
    if step < rate.warm_up:
        return rate.initial * (step + 1) / (rate.warm_up + 1)
    share = (step - rate.warm_up) / (rate.period - rate.warm_up)
    return rate.final + (rate.initial - rate.final) * (1 + math.cos(math.pi * share)) / 2


def rounds_of_equal_steps(images: int, sites: int, batch_size: int, pooled_epochs: int, steps_per_round: int) -> int:
    """Return how many rounds let a site take as many steps as a training on all images: ⌊⌊⌊N / K⌋ / B⌋ · E / steps⌋.

    Source: the code released with FedEE (Zhang et al.), with N images at K sites, batches of B and E pooled epochs.

    Args:
        images: training images of all sites, N.
        pooled_epochs: E of the pooled training.
        steps_per_round: of each site.
    """
    return images // sites // batch_size * pooled_epochs // steps_per_round


def order_of_asking(run_seed: int, round_no: int, sites: Iterable[str]) -> list[str]:
    """Return the sites in the order in which one round asks them: each draws a number, the lowest comes first.

    So whoever else there is changes nothing about which of two sites comes before the other.
    """
    return sorted(sites, key=lambda site: (seed_for(run_seed, round_no, site, "selection"), site))


def round_configuration(run: RunConfiguration, round_no: int, site: str) -> RoundConfiguration:
    """Return the configuration of one site's round; the closing round (``run.rounds`` + 1) has no epochs.

    Args:
        round_no: 1-based.
    """
    return RoundConfiguration(
        round=round_no,
        epochs=run.epochs if round_no <= run.rounds else 0,
        learning_rate=learning_rate(run.learning_rate, round_no - 1),
        batch_size=run.batch_size,
        seed=seed_for(run.seed, round_no, site, "training"),
        augmentation=run.augmentation,
    )


def is_scored(run: RunConfiguration, round_no: int) -> bool:
    """Return whether sites score validation and test images in a round (1-based): with ``score_every`` in the first, in
    each that comes so many after one, and in the closing round always.
    """
    every = run.score_every or 1
    return round_no > run.rounds or (round_no - 1) % every == 0


def scored_rounds(run: RunConfiguration) -> int:
    """Return in how many training rounds sites score."""
    return sum(is_scored(run, round_no) for round_no in range(1, run.rounds + 1))
