"""What each site is told to do in a round: learning rate, epochs, seeds, split, augmentation."""

from __future__ import annotations

from shared.exchange.records import RoundConfiguration, RunConfiguration, Seeds
from shared.learning.schedules import cyclic_learning_rate
from shared.learning.seeds import seed_for, split_seed


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
