"""What of a hospital's counts, scores and uncertainties may leave it: nothing that is about too few images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shared.exchange.records import Quantiles, Reliability, RoundConfiguration
from shared.exchange.tables import EPSILON, MetricsRow, Split, write_metrics
from shared.learning.metrics import OF_CLASS, Score, ranking
from shared.learning.reliability import Doubts
from shared.learning.tasks.contract import Dataset, Evaluation
from shared.learning.uncertainty import youden_threshold
from site_client.configuration import Policy


def count_text(images: int, policy: Policy) -> str:
    """A number of images as it may leave the hospital."""
    return str(images) if images >= policy.minimum_count else f"fewer than {policy.minimum_count}"


def split_counts(dataset: Dataset, policy: Policy) -> dict[Split, str]:
    """How many images each split has, as it may leave the hospital."""
    return {
        "train": count_text(len(dataset.train), policy),
        "validation": count_text(len(dataset.validation), policy),
        "test": count_text(len(dataset.test), policy),
    }


class ScoreTable:
    """The rows of ``metrics.csv``; scores over few images stay here."""

    def __init__(self, configuration: RoundConfiguration, policy: Policy) -> None:
        self._configuration = configuration
        self._policy = policy
        self._rows: list[MetricsRow] = []

    def add(self, epoch: int, split: Split, evaluation: Evaluation) -> None:
        loss = Score(evaluation.loss, evaluation.images)
        scores = _with_a_second_class(evaluation.scores, self._policy)
        self._rows.append(
            MetricsRow(
                round_no=self._configuration.round,
                epoch=epoch,
                split=split,
                images=count_text(evaluation.images, self._policy),
                learning_rate=self._configuration.learning_rate,
                loss=_shown(loss, self._policy),
                scores={name: _shown(score, self._policy) for name, score in scores.items()},
            )
        )

    def spent(self, epsilon: float) -> None:
        """Tell in the last row what the site has spent of its images' privacy; that is about no single image."""
        last = self._rows.pop()
        self._rows.append(replace(last, scores=last.scores | {EPSILON: epsilon}))

    def content(self) -> bytes:
        names = {name for row in self._rows for name in row.scores}
        return write_metrics(
            [replace(row, scores={name: row.scores.get(name) for name in names}) for row in self._rows]
        )


def _with_a_second_class(scores: dict[str, Score], policy: Policy) -> dict[str, Score]:
    """Where one class alone has too few images, the next smallest is held back with it.

    Otherwise the mean over classes less the classes that are told would tell the one that is not.
    """
    of_classes = {name: score for name, score in scores.items() if name.startswith(OF_CLASS) and score.images}
    by_size = sorted(of_classes, key=lambda name: of_classes[name].images)
    small = [name for name in by_size if of_classes[name].images < policy.minimum_count]
    return scores | {by_size[1]: Score(None, 0)} if len(small) == 1 and len(by_size) > 1 else scores


def _shown(score: Score, policy: Policy) -> float | None:
    """A score as it may leave; one over few images, or that is not finite, is absent."""
    if score.value is None or score.images < policy.minimum_count or not math.isfinite(score.value):
        return None
    return score.value


def reliability(found: Doubts, policy: Policy) -> Reliability:
    """What of a site's θ and its uncertainties may leave.

    θ and its status always do: they are the method. All else is told only over as many images as the policy wants: how
    many were wrong only if as many were wrong and right, and quantiles only if there are as many images in each tenth.
    """
    threshold = youden_threshold(found.uncertainty, found.wrong)
    fewest = min(threshold.wrong, threshold.predictions - threshold.wrong)
    may_show = found.images >= policy.minimum_count
    may_divide = may_show and fewest >= policy.minimum_count
    quantiles = None
    if found.images >= 10 * policy.minimum_count:
        shares = np.quantile(found.uncertainty, (0.1, 0.25, 0.5, 0.75, 0.9)).round(2).tolist()
        quantiles = Quantiles(**dict(zip(Quantiles.model_fields, shares, strict=True)))
    return Reliability(
        theta=threshold.theta,
        status=threshold.status,
        n=count_text(threshold.predictions if may_show else 0, policy),
        n_wrong=str(threshold.wrong) if may_divide else None,
        auroc=ranking(found.uncertainty, found.wrong).auroc() if may_divide else None,
        quantiles=quantiles,
    )
