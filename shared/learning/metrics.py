"""Scores of one image's pixels, of graded images, and their mean and spread over images.

A class that no image has is absent: it enters no mean over classes, neither as 0 nor as 1, but specificity's, which is
over the images of the others. All come from counts and sorted scores: scikit-learn's numbers, without its 90 MiB of
memory, and of a few images in a thirtieth of its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.bool_] | NDArray[np.integer]
Floats = NDArray[np.floating]
Counts = NDArray[np.int64]
PixelScores = dict[str, float | None]

CALIBRATION_BINS = 15
DROPPED_PERCENTS = (10, 20, 30, 40, 50, 60, 70, 80, 90)
"""How many of the most uncertain predictions selective accuracy leaves out; with none left out it is the accuracy."""

REFERRAL_GOALS = (90, 95)
"""Per cent of the predictions that are not referred to a person that shall be right."""

OF_CLASS = "accuracy_of_"
"""What the names of the scores of single classes begin with."""

MEANS_OVER_CLASSES = frozenset(
    ("balanced_accuracy", "sensitivity", "specificity", "f1", "dice", "iou", "auroc", "auroc_logits", "auprc")
)
"""The scores of graded images in which each class counts alike, however few its images are."""

OF_CHOSEN = frozenset(
    (
        *("misdiagnosis_auroc", "uncertainty_right", "uncertainty_wrong"),
        *(f"selective_accuracy_{percent}" for percent in DROPPED_PERCENTS),
        *(f"referral_share_{percent}" for percent in REFERRAL_GOALS),
    )
)
"""The scores of graded images over some that the model chooses, by what it answers or is sure of."""

ACCURACY, MACRO_DICE = "accuracy", "macro_dice"
"""What a segmentation's tolerance may be compared with: of each image's pixels, the mean over images."""

_ROUNDING = 1e-6
"""How far a probability may lie outside [0, 1] and be clipped; more is an error of the caller."""


@dataclass(frozen=True)
class Score:
    """A score and how many images it is over: over too few, a site does not report it. A plug-in's score is reported
    only if it is over all images of its set, for which a plug-in gives their number.

    Args:
        value: None where the score is undefined.
        images: only those the value depends on, such as the images of one grade; 1 where two sets that differ by whole
            blocks can differ in one of these alone.
    """

    value: float | None
    images: int


@dataclass(frozen=True)
class Ranking:
    """How many positives and negatives have at least a given score, for each distinct score from the highest down.

    Args:
        scores: (D,) distinct, falling.
        positives: (D,) int64, never falling; the last counts all.
        negatives: (D,) int64, never falling; the last counts all.
    """

    scores: Floats
    positives: Counts
    negatives: Counts

    def scaled_youden(self) -> Counts:
        """Return (D,) Youden's J, sensitivity + specificity − 1, at each score, times both counts.

        In whole numbers: equals stay equal, which two rounded shares need not, and ``argmax`` takes the highest score.
        """
        scaled: Counts = self.positives * self.negatives[-1] - self.negatives * self.positives[-1]
        return scaled

    def auroc(self) -> float | None:
        """Return P(a positive scores above a negative), a tie counting one half, in [0, 1]; None without either."""
        pairs = int(self.positives[-1]) * int(self.negatives[-1])
        if pairs == 0:
            return None
        widths = np.diff(self.negatives, prepend=0)
        heights = self.positives + np.concatenate(([0], self.positives[:-1]))  # twice the trapezoid's mean height
        return int((widths * heights).sum()) / (2 * pairs)

    def average_precision(self) -> float | None:
        """Return Σ (recall_i − recall_{i−1}) · precision_i over the thresholds, in [0, 1]; None without a positive."""
        if self.positives[-1] == 0:
            return None
        found = np.diff(self.positives, prepend=0)
        precision = self.positives / (self.positives + self.negatives)
        return float((found * precision).sum() / self.positives[-1])


def ranking(scores: Floats, positive: NDArray[np.bool_]) -> Ranking:
    """Sort scores once for everything that only their order decides.

    Args:
        scores: (N,) with N >= 1, finite.
        positive: (N,).
    """
    order = np.argsort(scores)[::-1]
    falling = scores[order]
    last = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(falling) - 1)  # (D,) end of each run of ties
    positives = np.cumsum(positive[order], dtype=np.int64)[last]
    return Ranking(falling[last], positives, last + 1 - positives)


def accuracy(predicted: Labels, truth: Labels) -> float:
    """Return the share of pixels with the right class, in [0, 1].

    Args:
        predicted: (H, W), or any shape, of classes.
        truth: the same shape.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    _same_shape(predicted, truth)
    return float(np.mean(predicted == truth))


def dice(predicted: Labels, truth: Labels) -> float:
    """Return the Dice coefficient of the foreground, 2·|A∩B| / (|A| + |B|), in [0, 1].

    Foreground is every value but 0. Where neither has any, they agree: 1.0.

    Args:
        predicted: (H, W), or any shape, of classes.
        truth: the same shape.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    _same_shape(predicted, truth)
    first, second = predicted != 0, truth != 0
    total = int(first.sum()) + int(second.sum())
    return 1.0 if total == 0 else 2.0 * int((first & second).sum()) / total


def mean_dice(predicted: Labels, truth: Labels, classes: int) -> float:
    """Return the mean Dice coefficient over the classes without background, in [0, 1]: ``dice`` of ``pixel_scores``.

    Args:
        predicted: (H, W), or any shape, of classes; one that neither has counts 1.0.
        truth: the same shape.
        classes: how many there are, background too; at least 2.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    return fmean(dice(predicted == each, truth == each) for each in range(1, classes))


def macro_dice(predicted: Labels, truth: Labels, classes: int) -> float:
    """Return the mean Dice coefficient over the classes, background too, in [0, 1]: the macro F1 of the pixels.

    Of two classes, an answer that is all background comes to just below 0.5, however few pixels the foreground has.

    Args:
        predicted: (H, W), or any shape, of classes; one that neither has counts 1.0.
        truth: the same shape.
        classes: how many there are.

    Raises:
        ValueError: the shapes differ or there is no pixel.
    """
    return sum(dice(predicted == each, truth == each) for each in range(classes)) / classes


def calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error, Σ_bins (n_bin / N) · |accuracy − mean confidence|, in [0, 1].

    Source: Guo et al. 2017, On calibration of modern neural networks, Eq. 3; 15 bins (i/15, (i+1)/15].

    Args:
        confidence: (N,) the probability of the predicted class, in [0, 1].
        right: (N,) whether the prediction was right.

    Raises:
        ValueError: the shapes differ or there is nothing to score.
    """
    if confidence.shape != right.shape or right.size == 0:
        raise ValueError(f"expected as many confidences as marks, got {confidence.shape} and {right.shape}")
    of_bin = calibration_bins(confidence)
    gaps = np.bincount(of_bin, weights=confidence - right)  # (bins,) n_bin · (mean confidence − accuracy)
    return float(np.abs(gaps).sum() / right.size)


def calibration_bins(confidence: Floats) -> NDArray[np.int64]:
    """Return in which bin of ``calibration_error`` each confidence lies, from 0: (N,) in [0, 1] -> (N,)."""
    return np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, None)


def grading_scores(
    truth: NDArray[np.integer],
    probabilities: Floats,
    uncertainty: Floats,
    logit_probabilities: Floats | None = None,
) -> dict[str, Score]:
    """Return the scores of N graded images.

    ``accuracy``, ``kappa`` (quadratic weights) and ``calibration_error`` over all images. Means over classes, each
    against the rest: ``balanced_accuracy``, ``sensitivity``, ``f1``, ``dice`` (the same as F1), ``iou`` and ``auprc``
    over the classes that images have; ``specificity`` over those that some image has not; ``auroc`` over those for
    which both hold. ``accuracy_of_k`` for each class k. ``misdiagnosis_auroc``, ``selective_accuracy_p``,
    ``uncertainty_right`` and ``uncertainty_wrong`` say what the uncertainty is worth (Zhang et al., FedEE).

    Args:
        truth: (N,) classes, 0 <= class < K.
        probabilities: (N, K) in [0, 1]; the greatest is the predicted class.
        uncertainty: (N,) in [0, 1].
        logit_probabilities: (N, K), softmax of the logits, for ``auroc_logits``; without them its value is None.

    Raises:
        ValueError: a shape or a value is another, or there is no image.
    """
    probabilities, uncertainty = _checked(truth, probabilities, uncertainty)
    if logit_probabilities is not None:
        logit_probabilities = _checked_shares(logit_probabilities, probabilities.shape)
    images, classes = probabilities.shape
    predicted = probabilities.argmax(axis=1)  # (N, K) -> (N,)
    right = predicted == truth
    confusion = confusion_matrix(truth, predicted, classes)
    hits, actual, guessed = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)  # (K,) each
    present, with_rest = actual > 0, actual < images

    def mean_share(parts: Counts, wholes: Counts, of: NDArray[np.bool_] = present) -> float | None:
        return _mean(parts[of] / wholes[of])

    recall, f1 = mean_share(hits, actual), mean_share(2 * hits, actual + guessed)
    values: dict[str, float | None] = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": recall,
        "f1": f1,
        "auroc": _mean_auroc(truth, probabilities),
        "auroc_logits": None if logit_probabilities is None else _mean_auroc(truth, logit_probabilities),
        "auprc": _mean(ranking(probabilities[:, k], truth == k).average_precision() for k in range(classes)),
        "sensitivity": recall,
        "specificity": mean_share(images - actual - guessed + hits, images - actual, with_rest),
        "kappa": _quadratic_kappa(confusion),
        "dice": f1,
        "iou": mean_share(hits, actual + guessed - hits),
        "calibration_error": calibration_error(probabilities.max(axis=1), right),
    }
    scores = {name: Score(value, images) for name, value in values.items()}
    for k in range(classes):
        scores[f"{OF_CLASS}{k}"] = _mean_of(right, truth == k)
    return scores | _uncertainty_scores(right, uncertainty)


def grading_auroc(truth: NDArray[np.integer], probabilities: Floats) -> float | None:
    """Return the ``auroc`` of ``grading_scores`` alone, in [0, 1]; None if it is not defined.

    Args:
        truth: (N,) classes, 0 <= class < K.
        probabilities: (N, K) in [0, 1].

    Raises:
        ValueError: a probability is none.
    """
    return _mean_auroc(truth, _checked_shares(probabilities, probabilities.shape))


def _mean_auroc(truth: NDArray[np.integer], columns: Floats) -> float | None:
    """Return the mean over the classes, each by its column of (N, K), for which it is defined."""
    return _mean(ranking(columns[:, k], truth == k).auroc() for k in range(columns.shape[1]))


def confusion_matrix(truth: NDArray[np.integer], predicted: NDArray[np.integer], classes: int) -> Counts:
    """Return how many of each class were taken for each.

    Args:
        truth: (N,) classes, 0 <= class < K.
        predicted: (N,) classes as predicted.
        classes: K.

    Returns:
        (K, K) by the truth, then by the prediction.
    """
    pairs = np.ravel_multi_index((truth, predicted), (classes, classes))
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def pixel_scores(truth: NDArray[np.integer], probabilities: Floats, uncertainty: Floats) -> dict[str, float | None]:
    """Return the scores of one image's P pixels; None where one is undefined.

    ``balanced_accuracy`` is the mean recall of the classes that pixels have. ``dice``, ``iou``, ``sensitivity``,
    ``specificity``, ``auroc`` and ``auprc`` are of the foreground against the rest; where several classes are no
    background, the mean over those for which they are defined. ``dice`` and ``iou`` of a class that neither the truth
    nor the prediction has are 1.0. The other names are those of ``grading_scores``.

    Args:
        truth: (P,) classes, 0 <= class < K; 0 is the background.
        probabilities: (P, K) in [0, 1]; the greatest is the predicted class, of equals the first.
        uncertainty: (P,) in [0, 1].

    Raises:
        ValueError: a shape or a value is another, or there is no pixel.
    """
    probabilities, uncertainty = _checked(truth, probabilities, uncertainty)
    predicted, confidence = _greatest(probabilities)
    right = predicted == truth
    classes = range(probabilities.shape[1])
    of_each = [_against_rest(truth == k, predicted == k, probabilities[:, k]) for k in classes[1:]]
    scores = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": _mean(_mean_of(right, truth == k).value for k in classes),
        **{name: _mean(scores[name] for scores in of_each) for name in of_each[0]},
        "calibration_error": calibration_error(confidence, right),
    }
    return scores | {name: score.value for name, score in _uncertainty_scores(right, uncertainty).items()}


def _greatest(probabilities: Floats) -> tuple[NDArray[np.integer], Floats]:
    """Return each pixel's class of greatest probability, (P,), and that probability: (P, K)."""
    if probabilities.shape[1] == 2:  # forty times as quick
        background, foreground = probabilities[:, 0], probabilities[:, 1]
        return (foreground > background).astype(np.int64), np.maximum(background, foreground)
    predicted = probabilities.argmax(axis=1)
    return predicted, np.take_along_axis(probabilities, predicted[:, None], axis=1)[:, 0]


def _against_rest(truth: NDArray[np.bool_], predicted: NDArray[np.bool_], probability: Floats) -> PixelScores:
    """Return the scores of one class of pixels against all others: (P,) each."""
    overlap, by_probability = dice(predicted, truth), ranking(probability, truth)
    right = predicted == truth
    return {
        "dice": overlap,
        "iou": overlap / (2 - overlap),
        "sensitivity": _mean_of(right, truth).value,
        "specificity": _mean_of(right, ~truth).value,
        "auroc": by_probability.auroc(),
        "auprc": by_probability.average_precision(),
    }


def ood_auroc(inside: Floats, outside: Floats) -> Score:
    """Return P(an out-of-distribution image is more uncertain than one of the site's own) (FedEE); a tie is one half.

    Args:
        inside: (N,) uncertainty of the site's own test images, in [0, 1].
        outside: (M,) of images from elsewhere, in [0, 1].

    Returns:
        A value in [0, 1], None without images of either kind; over the fewer of the two.

    Raises:
        ValueError: a shape or a value is another.
    """
    inside, outside = _checked_shares(inside, (inside.size,)), _checked_shares(outside, (outside.size,))
    fewest = min(inside.size, outside.size)
    if fewest == 0:
        return Score(None, 0)
    is_ood = np.arange(inside.size + outside.size) >= inside.size
    return Score(ranking(np.concatenate((inside, outside)), is_ood).auroc(), fewest)


def left_by_referral(by_uncertainty: Ranking) -> tuple[Counts, Counts]:
    """Return what is left as more and more of the most uncertain predictions are referred; ties go together.

    Args:
        by_uncertainty: ranked by uncertainty; the wrong predictions are its positives.

    Returns:
        How many are kept, and how many of these are right: (D + 1,) each, from all predictions down to none.
    """
    right, wrong = np.append(0, by_uncertainty.negatives), np.append(0, by_uncertainty.positives)
    kept_right = right[-1] - right
    return kept_right + wrong[-1] - wrong, kept_right


def mean_over_sites(values: Sequence[float], images: Sequence[int], eta: float) -> float:
    """Return Σ η^(ln n_k) · λ_k / Σ η^(ln n_k) over sites k (Zhang et al., FedEE).

    Args:
        values: λ_k of each site.
        images: n_k >= 1 of each site.
        eta: η from 1, where every site counts alike, to e, where each counts by its images.

    Raises:
        ValueError: there is no site, not a number of images for each, or a number or η is outside its range.
    """
    if not values or len(values) != len(images) or min(images) < 1 or not 1 <= eta <= math.e:
        raise ValueError(f"cannot average {len(values)} values over {list(images)} images with eta {eta}")
    weights = np.power(eta, np.log(images))
    return float(weights / weights.sum() @ np.asarray(values))


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the population standard deviation (divided by n, so 0.0 for one value).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to average")
    numbers = np.asarray(values, dtype=np.float64)
    return float(numbers.mean()), float(numbers.std())


def _uncertainty_scores(right: NDArray[np.bool_], uncertainty: Floats) -> dict[str, Score]:
    """Return what the uncertainty says of which predictions are wrong (Zhang et al., FedEE).

    ``misdiagnosis_auroc`` is undefined, not 1.0, where all are right or all are wrong. ``selective_accuracy_p`` keeps
    u <= quantile(u, 1 − p %), linearly interpolated; ties stay. ``referral_share_p`` is the smallest share of the most
    uncertain that leaves p % or more of the others right; ties go together, and where nothing short of all would do, it
    is undefined.
    """
    number = len(right)
    by_uncertainty = ranking(uncertainty, ~right)
    kept, kept_right = left_by_referral(by_uncertainty)
    dropped = number - kept
    # Over one, it would be that one's rank.
    fewest = min(int(by_uncertainty.positives[-1]), int(by_uncertainty.negatives[-1]))
    scores = {"misdiagnosis_auroc": Score(by_uncertainty.auroc(), fewest)}
    for percent in DROPPED_PERCENTS:
        # The quantile lies at or above its lower neighbour and below the next: all up to the neighbour are kept. Its
        # place is a whole number, so no rounding of 1 − p decides.
        above = number - 1 - (number - 1) * (100 - percent) // 100
        ties = int(np.searchsorted(dropped, above, side="right")) - 1
        # Two of these differ by a tenth of the images: over few, the difference would tell what those were.
        value = int(kept_right[ties]) / int(kept[ties])
        scores[f"selective_accuracy_{percent}"] = Score(value, min(int(kept[ties]), number // 10))
    for percent in REFERRAL_GOALS:
        reaching = np.flatnonzero(100 * kept_right[:-1] >= percent * kept[:-1])  # without the last, where none is kept
        scores[f"referral_share_{percent}"] = Score(None, 0)
        if reaching.size:
            referred, left = int(dropped[reaching[0]]), int(kept[reaching[0]])
            # It tells how many of the referred are wrong. To refer nobody tells no more than the accuracy does.
            images = min(referred, left, fewest) if referred else number
            scores[f"referral_share_{percent}"] = Score(referred / number, images)
    scores["uncertainty_right"] = _mean_of(uncertainty, right)
    scores["uncertainty_wrong"] = _mean_of(uncertainty, ~right)
    return scores


def _quadratic_kappa(confusion: Counts) -> float | None:
    """Return 1 − Σ d²·observed / Σ d²·expected by chance over pairs of grades, d apart (Cohen 1968).

    None where chance alone would never disagree: all are of one grade, and said to be.

    Args:
        confusion: (K, K) by the truth, then by the prediction.
    """
    grades = np.arange(len(confusion))
    apart = np.subtract.outer(grades, grades) ** 2
    by_chance = (apart * np.outer(confusion.sum(axis=1), confusion.sum(axis=0))).sum() / confusion.sum()
    return float(1 - (apart * confusion).sum() / by_chance) if by_chance else None


def _mean_of(values: Floats | NDArray[np.bool_], chosen: NDArray[np.bool_]) -> Score:
    """Return the mean of the chosen values, over as many."""
    number = int(np.count_nonzero(chosen))
    if not number:
        return Score(None, 0)
    if values.dtype == np.bool_:  # counted, not gathered: the same number, sooner
        return Score(int(np.count_nonzero(np.logical_and(values, chosen))) / number, number)
    return Score(float(values[chosen].mean()), number)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those values that are defined; None if none is."""
    listed = [value for value in values if value is not None]
    return float(np.mean(listed)) if listed else None


def _checked(truth: NDArray[np.integer], probabilities: Floats, uncertainty: Floats) -> tuple[Floats, Floats]:
    """Check truth, probabilities and uncertainty; return the last two in float64."""
    if probabilities.ndim != 2 or truth.shape != probabilities.shape[:1] or truth.size == 0:
        raise ValueError(f"expected (N,) classes and (N, K) probabilities, got {truth.shape} and {probabilities.shape}")
    if truth.min() < 0 or truth.max() >= probabilities.shape[1]:
        raise ValueError(f"a class is outside 0 to {probabilities.shape[1] - 1}")
    return _checked_shares(probabilities, probabilities.shape), _checked_shares(uncertainty, truth.shape)


def _checked_shares(shares: Floats, shape: tuple[int, ...]) -> Floats:
    if shares.shape != shape:
        raise ValueError(f"expected numbers of shape {shape}, got {shares.shape}")
    if not np.all((shares >= -_ROUNDING) & (shares <= 1 + _ROUNDING)):  # also false for NaN
        raise ValueError("a probability or an uncertainty is not a number in [0, 1]")
    return np.clip(shares.astype(np.float64, copy=False), 0, 1)


def _same_shape(predicted: Labels, truth: Labels) -> None:
    if predicted.shape != truth.shape or predicted.size == 0:
        raise ValueError(f"expected two masks of one shape, got {predicted.shape} and {truth.shape}")
