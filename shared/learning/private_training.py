"""A private round: epochs as ``training.train_epoch`` trains them, with the steps of ``private_gradients.py``.

What it is worth, and what it is not: ``privacy.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shared.exchange.records.run import Privacy
from shared.learning.batches import even_parts
from shared.learning.compute import Computing
from shared.learning.drawing import drawn_by
from shared.learning.methods.contract import Local, Method
from shared.learning.objectives import Objective, annealed, loss_of_each_image
from shared.learning.privacy import epsilon, mechanism
from shared.learning.private_gradients import PrivateGradients, Secret, sampled_batches
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import SampleT, Task
from shared.learning.training import Epoch, OnBatch, begin_epoch, device_of, take_step, view_of

IMAGES_AT_A_TIME = 8
"""Images whose gradients are held at a time: each takes as much memory as the model."""


class PrivateRound:
    """Trains a ``Network`` without BatchNorm in one round, as long as its ``with`` lasts.

    Args:
        images: the site's training images.
        epochs: of each round.
        rounds: of the whole run.
        secret: of this round.

    Raises:
        ConfigurationError: so few images cannot be private as the run wants it.
    """

    def __init__(
        self,
        privacy: Privacy,
        network: nn.Module,
        *,
        images: int,
        batch_size: int,
        epochs: int,
        rounds: int,
        secret: Secret,
    ) -> None:
        self._delta = privacy.delta
        self._epochs = epochs
        self._mechanism = mechanism(privacy, images=images, batch_size=batch_size, epochs=epochs * rounds)
        self._secret = secret
        self._gradients = PrivateGradients(network, self._mechanism, secret)

    def __enter__(self) -> PrivateRound:
        return self

    def __exit__(self, *_: object) -> None:
        self._gradients.__exit__()

    def epsilon(self, trained_rounds: int) -> float:
        """Return what a site has spent that answered so many rounds with a model."""
        return epsilon([self._mechanism.spent(self._epochs * trained_rounds)], self._delta)

    def train_epoch(
        self,
        task: Task[Any, SampleT],
        method: Method,
        local: Local,
        optimizer: torch.optim.Optimizer,
        samples: Sequence[SampleT],
        *,
        epoch: Epoch,
        objective: Objective,
        on_batch: OnBatch,
        computing: Computing,
    ) -> None:
        """Train one epoch in place. How the network did on its images is not reported.

        An image may be drawn in several steps of an epoch, each time varied anew.

        Raises:
            Whatever ``on_batch`` raises.
        """
        device = device_of(local.network)
        begin_epoch(local, optimizer, epoch)
        batches = sampled_batches(samples, self._mechanism, self._secret.of("epoch", epoch.seed))
        steps_before = epoch.epochs_before * self._mechanism.steps_per_epoch
        at_a_time = min(IMAGES_AT_A_TIME, computing.micro_batch or IMAGES_AT_A_TIME)
        for step, batch in enumerate(batches):
            present = annealed(objective, steps_before + step)
            varied = replace(epoch, seed=seed_for(epoch.seed, "step", step))
            for number, part in enumerate(even_parts(batch, at_a_time) if batch else []):
                inputs, targets = task.collate([view_of(task, sample, epoch.first_view, varied) for sample in part])
                with drawn_by(seed_for(varied.seed, "dropout", number), computing.device), computing.arithmetic():
                    logits, term = method.answer(local, inputs.to(device))
                    logits = logits.float()
                losses = loss_of_each_image(present, logits, targets.to(device))
                self._gradients.add(losses if term is None else losses + term)  # a mean over images: its sum is theirs
            self._gradients.release()
            take_step(method, local, optimizer)
            on_batch(step + 1, self._mechanism.steps_per_epoch)
