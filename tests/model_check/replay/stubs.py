"""In place of what is not walked: time, training and scoring. All else is what hospitals and aggregator run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from shared.exchange import names
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.weights import entry_of, write_tensors
from site_client.disclosure import Counts
from site_client.train import Files, Worked
from tests.played import TENSORS


class Clock:
    """The aggregator daemon's time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        """As ``time.monotonic``."""
        return self._now_s

    time = monotonic

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


class Unscored:
    """In place of held-out images, where the run has no tolerance: no model is scored."""

    def score(self, file: Path, shown_as: str) -> None:
        """As for any."""


class _Trainer:
    """In place of training: every answer holds the same small model."""

    def __init__(self, run: RunConfiguration, sharing: Sharing) -> None:
        self.run, self.sharing = run, sharing

    def open_dataset(self, members: object) -> Any:
        """No images are read."""
        return SimpleNamespace(train=range(12), validation=range(10), test=range(10), repeats={})

    def work(
        self, dataset: object, configuration: RoundConfiguration, files: Files, on_progress: object, **_: object
    ) -> Worked:
        """As for any."""
        scores: dict[str, float | None] = {"dice_mean": 0.5, "dice_std": 0.1}
        row = MetricsRow(configuration.round, 0, "validation", "10", configuration.learning_rate, 0.5, scores)
        trained = None
        if configuration.epochs:
            write_tensors(files.trained, TENSORS, lambda name: np.full(TENSORS.tensors[name].shape, 0.25, np.float32))
            trained = entry_of(files.trained)
        return Worked(images=12, tables={names.METRICS: write_metrics([row])}, trained=trained, sent={})


@contextmanager
def without_training(clock: Clock) -> Iterator[None]:
    """Have sites train by a stub, on images that nobody reads, and the aggregator's daemon live by a clock."""
    stubs: dict[str, Callable[..., object]] = {
        "round_work.trainer_at": lambda work, site, run, listed: _Trainer(run, listed),
        "consents.check_offer": lambda site, run, offered: None,
        "consents.commit": lambda work, ledger, site, run, required, *, count: Counts(12, 10, 10, repeats=1),
        "round_work.committed": lambda work, channel, site, run: {},
        "round_work.unkept_final": lambda work, channel, left_alone: None,
    }
    with ExitStack() as block:
        for name, stub in stubs.items():
            block.enter_context(patch(f"site_client.{name}", stub))
        block.enter_context(patch("aggregator.daemon.time", clock))
        yield
