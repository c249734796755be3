"""What of a hospital's counts, scores and uncertainties may leave it: nothing that is about too few images, nor about
part of a block of its division; and every number rounded, for whoever makes the model chooses what it measures.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.exchange.records.answers import Quantiles, Reliability
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.values import FEWER_THAN, most
from shared.exchange.tables import (
    ALONE,
    DECIMALS,
    EPSILON,
    IMAGES_OF,
    LARGEST_LOSS,
    MICRO_BATCH,
    SPLITS,
    MetricsRow,
    RowSplit,
    Split,
    difference_of,
    error_of,
    in_order,
    is_error,
    write_metrics,
)
from shared.learning.data.splits import block_of
from shared.learning.metrics import MEANS_OVER_CLASSES, OF_CHOSEN, OF_CLASS, Score, ranking
from shared.learning.objectives import LOSS
from shared.learning.reliability import MeasuredUncertainty
from shared.learning.tasks.contract import Dataset, Evaluation, Sample
from shared.learning.uncertainty import youden_threshold
from site_client.configuration import Policy

FEWEST_GROUPS = 3
"""In each block of a set of which standard errors leave."""


def count_text(images: int, policy: Policy) -> str:
    """Return a number of images as it may leave the hospital."""
    return str(images) if images >= policy.minimum_count else f"{FEWER_THAN}{max(policy.minimum_count, 2)}"


def told_images(images: int, policy: Policy) -> int:
    """Return as how many images counts what ``count_text`` says, at both ends."""
    return most(count_text(images, policy))


@dataclass(frozen=True)
class Counts:
    """How many images each set of a run has, and how often one is trained on in an epoch at most."""

    train: int
    validation: int
    test: int
    repeats: int

    @classmethod
    def of(cls, dataset: Dataset) -> Counts:
        """Count a site's images."""
        repeats = max(dataset.repeats.values(), default=1)
        return cls(len(dataset.train), len(dataset.validation), len(dataset.test), repeats)


def split_counts(counts: Counts, policy: Policy) -> dict[Split, str]:
    """Return how many images each split has, as it may leave the hospital."""
    return {split: count_text(getattr(counts, split), policy) for split in SPLITS}


class ScoreTable:
    """The rows of ``metrics.csv``; scores over few images stay here, and so does what is about part of a block.

    Args:
        own: the run's own columns: nobody here knows what they are about, so they leave over whole sets alone, and with
            few digits.
        weighs_classes: whether training does. As where it takes some images more often, two runs would tell of those
            that count more, and so training tells no score then.
    """

    def __init__(
        self,
        configuration: RoundConfiguration,
        policy: Policy,
        dataset: Dataset,
        own: Collection[str] = (),
        *,
        weighs_classes: bool = False,
    ) -> None:
        self._configuration = configuration
        self._policy = policy
        self._own = own
        is_public = policy.minimum_count == 1  # then a part of a block may be told of, too
        self._kept_back: dict[Split, frozenset[str]] = {
            split: frozenset() if is_public else withheld(getattr(dataset, split), dataset.blocks) for split in SPLITS
        }
        self._without_errors = [
            split for split in SPLITS if not (is_public or may_tell_errors(getattr(dataset, split), dataset, policy))
        ]
        self._silent = frozenset[Split]({"train"}) if not is_public and (weighs_classes or dataset.repeats) else ()
        self._rows: list[MetricsRow] = []

    def add(
        self,
        epoch: int,
        split: Split,
        evaluation: Evaluation,
        *,
        alone: bool = False,
        micro_batch: int | None = None,
    ) -> None:
        """Add a row.

        Args:
            alone: whether it is of the model that the site trains by itself.
            micro_batch: the most images that training answered at once, if it divided batches; that is about no image.
        """
        # A score is over no more images than the set has, whatever else a plug-in counts.
        of_set = {name: replace(of, images=min(of.images, evaluation.images)) for name, of in evaluation.scores.items()}
        evaluation = replace(evaluation, scores={name: self._told(name, of) for name, of in of_set.items()})
        losses = {name: score for name, score in evaluation.scores.items() if name.startswith(f"{LOSS}_")}
        of_all = evaluation.images
        partial = {name for name, score in evaluation.scores.items() if name in self._own and score.images < of_all}
        scores = {
            name: None if name in partial else self._shown(score)
            for name, score in evaluation.scores.items()
            if name not in losses
        }
        told = {name: None if self._is_kept_back(name, split) else value for name, value in scores.items()}
        told |= self._told_classes(evaluation, told)
        told |= {name: self._shown(_cut(score)) for name, score in losses.items()}
        loss = self._shown(_cut(Score(evaluation.loss, evaluation.images)))
        if split in self._silent:
            loss, told = None, dict.fromkeys(told)
        if micro_batch is not None:
            told[MICRO_BATCH] = float(micro_batch)
        self._rows.append(self._row(epoch, ALONE[split] if alone else split, evaluation.images, loss, told))

    def _is_kept_back(self, name: str, split: Split) -> bool:
        return name in self._kept_back[split] or (split in self._without_errors and is_error(name))

    def _told_classes(self, evaluation: Evaluation, told: Mapping[str, float | None]) -> dict[str, None]:
        """Return the counts of classes to be withheld too: all, where the others are of too few images and would follow
        from these and the whole.
        """
        counts = [name for name in told if name.startswith(IMAGES_OF)]
        rest = sum(evaluation.scores[name].images for name in counts if told[name] is None)
        return dict.fromkeys(counts) if 0 < rest < self._policy.minimum_count else {}

    def _row(
        self, epoch: int, split: RowSplit, images: int, loss: float | None, scores: dict[str, float | None]
    ) -> MetricsRow:
        return MetricsRow(
            round_no=self._configuration.round,
            epoch=epoch,
            split=split,
            images=count_text(images, self._policy),
            learning_rate=self._configuration.learning_rate,
            loss=loss,
            scores=scores,
        )

    def spent(self, epsilon: float, images: int) -> None:
        """Report in the last row the rounded-up ε that the site has spent of its images' privacy; it is about no image.

        A round that is not scored has no row yet: then one is of so many training images, as its consent, and tells no
        score of them.
        """
        if not self._rows:
            self._rows.append(self._row(self._configuration.epochs, "train", images, None, {}))
        last = self._rows.pop()
        told = math.ceil(epsilon * 10**DECIMALS) / 10**DECIMALS
        self._rows.append(replace(last, scores=last.scores | {EPSILON: told}))

    def content(self) -> bytes:
        names = {name for row in self._rows for name in row.scores}
        return write_metrics(
            [replace(row, scores={name: row.scores.get(name) for name in names}) for row in in_order(self._rows)]
        )

    def _told(self, name: str, score: Score) -> Score:
        """Return a score; one of the run's own, which may be of any size, with no more digits than one from 0 to 1."""
        if name not in self._own or score.value is None:
            return score
        return replace(score, value=float(f"{score.value:.{DECIMALS}g}"))

    def _shown(self, score: Score) -> float | None:
        """Return a score as it may leave; one over few images, or that is not finite, is absent."""
        if score.value is None or score.images < self._policy.minimum_count or not math.isfinite(score.value):
            return None
        return round(score.value, DECIMALS) + 0.0  # never -0.0


def _cut(loss: Score) -> Score:
    value = loss.value
    return loss if value is None else replace(loss, value=max(-LARGEST_LOSS, min(LARGEST_LOSS, value)))


def withheld(samples: Sequence[Sample], blocks: Mapping[str, int]) -> frozenset[str]:
    """Return the scores of a set that are about parts of blocks, which are withheld.

    They are: scores over images that the model chooses; the recalls, and the images, of classes that a block has beside
    others; and with them all means over classes, which would still tell the recalls.
    """
    of_block: dict[int | str, set[int]] = defaultdict(set)
    for sample in samples:
        if (grade := getattr(sample, "grade", None)) is not None:
            of_block[block_of(sample.id, blocks)].add(grade)
    torn = {grade for grades in of_block.values() if len(grades) > 1 for grade in grades}
    if not torn:
        return OF_CHOSEN
    of_torn = {f"{begin}{grade}" for begin in (OF_CLASS, IMAGES_OF) for grade in torn}
    differences = {difference_of(mean) for mean in MEANS_OVER_CLASSES}
    of_means = MEANS_OVER_CLASSES | differences
    return OF_CHOSEN | of_means | {error_of(mean) for mean in of_means} | of_torn


def may_tell_errors(samples: Sequence[Sample], dataset: Dataset, policy: Policy) -> bool:
    """Return whether the standard errors of scores over a set are about enough patients or other groups.

    A mean and its error are two equations. Two patients' means follow from them, of a set or of a block by which two
    sets differ; three do not.
    """
    of_block: dict[int | str, set[str]] = defaultdict(set)
    for sample in samples:
        of_block[block_of(sample.id, dataset.blocks)].add(dataset.group_of(sample))
    groups = [len(of_one) for of_one in of_block.values()]
    return sum(groups) >= policy.minimum_count and min(groups, default=0) >= FEWEST_GROUPS


def reliability(found: MeasuredUncertainty, policy: Policy) -> Reliability:
    """Return what of a site's θ and its uncertainties may leave.

    θ and its status always do: they are the method. All else is reported only over as many images as the policy wants:
    how many were wrong only if as many were wrong and right, and quantiles only if as many images are in each tenth.
    Its AUROC ranks images that the model chooses, so it is reported of public images alone.
    """
    threshold = youden_threshold(found.uncertainty, found.wrong)
    auroc = ranking(found.uncertainty, found.wrong).auroc()
    fewest = min(threshold.wrong, threshold.predictions - threshold.wrong)
    may_show = found.images >= policy.minimum_count
    may_divide = may_show and fewest >= policy.minimum_count
    quantiles = None
    if found.images >= 10 * policy.minimum_count:
        shares = np.quantile(found.uncertainty, (0.1, 0.25, 0.5, 0.75, 0.9)).round(2).tolist()
        quantiles = Quantiles(**dict(zip(Quantiles.model_fields, shares, strict=True)))
    return Reliability(
        theta=max(round(threshold.theta, DECIMALS), 10**-DECIMALS),
        status=threshold.status,
        n=count_text(threshold.predictions if may_show else 0, policy),
        n_wrong=str(threshold.wrong) if may_divide else None,
        auroc=round(auroc, DECIMALS) if policy.minimum_count == 1 and auroc is not None else None,
        quantiles=quantiles,
    )
