"""How much a frozen network's features tell: a linear probe.

Where part of a model stays at its site, the aggregator has no whole model to score. It asks instead what a linear
classifier can read from the shared part's features of images that the aggregator holds itself.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shared.learning.reliability import draw_targets
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Collection, Network, Task
from shared.learning.training import device_of, measure_statistics

_FOLDS = 5


def probe_score(task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int) -> float:
    """Return the cross-validated balanced accuracy, in [0, 1], of a linear classifier on the model's features.

    The features are standardised; the classifier is a logistic regression with scikit-learn's default penalty.
    Balanced, because features that tell nothing reach 1/K then, and not the share of the most frequent class.
    BatchNorms get the statistics of these images first.

    Args:
        model: a ``Network``; of a segmentation, some pixels of each image are drawn. An image is never divided between
            folds, nor a group of images.
        images: labelled.
        seed: decides folds and pixels.

    Raises:
        ValueError: fewer than two images, or groups, of some class, or of all.
    """
    from sklearn.metrics import balanced_accuracy_score  # noqa: PLC0415

    answered = _cross_validated(task, model, images, seed, "predict")
    return 0.0 if answered is None else float(balanced_accuracy_score(*answered))  # one that diverged tells nothing


def probe_probabilities(
    task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return what the classifier of ``probe_score`` says of each image, or drawn pixel, that it does not know yet.

    Returns:
        (N,) classes as they are, and (N, K) probabilities of all classes of the images; None if the model has diverged.

    Raises:
        ValueError: as for ``probe_score``.
    """
    answered = _cross_validated(task, model, images, seed, "predict_proba")
    if answered is None:
        return None
    truth, of_present = answered
    probabilities = np.zeros((len(truth), len(images.classes)))
    probabilities[:, np.unique(truth)] = of_present
    return truth, probabilities


def _cross_validated(
    task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int, answer: str
) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
    """Return the classes, and the probe's answers of one kind in their order; None where features are not finite."""
    # Imported when needed: an aggregator whose runs share whole models does without.
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.model_selection import LeaveOneGroupOut, StratifiedGroupKFold, cross_val_predict  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    features, labels, groups = _features(task, model, images, seed)
    fewest = min(len(np.unique(groups[labels == label])) for label in np.unique(labels))
    if fewest < 2 or len(np.unique(labels)) < 2:
        raise ValueError(
            "a linear probe needs two classes or more, and two images or more of each, or recordings of two people"
        )
    if not np.isfinite(features).all():
        return None
    chance = seed_for(seed, "probe folds") % 2**32
    by_class = StratifiedGroupKFold(n_splits=min(_FOLDS, fewest), shuffle=True, random_state=chance)
    folds = list(by_class.split(features, labels, groups))
    if images.groups and any(len(np.unique(labels[train])) < len(np.unique(labels)) for train, _ in folds):
        # All recordings of a class were put into one fold. With one person left out at a time each class is learnt.
        folds = list(LeaveOneGroupOut().split(features, labels, groups))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return labels, cross_val_predict(classifier, features, labels, groups=groups, cv=folds, method=answer)


def _features(
    task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (N, D) features, (N,) labels and (N,) the image, or group, each is of, by its number."""
    measure_statistics(task, model, images.samples)
    model.eval()
    features, labels, groups = [], [], []
    numbers: dict[str, int] = {}
    for batch in task.batches(images.samples):
        inputs, targets = task.collate(batch)
        with torch.no_grad():
            seen = cast(Network, model).features(inputs.to(device_of(model))).cpu()  # (B, D, ...)
        for sample, of_image, truth in zip(batch, seen, targets, strict=True):
            drawn = draw_targets(truth.reshape(-1).numpy(), seed_for(seed, "probe", sample.id))
            seen_at = of_image.movedim(0, -1).reshape(-1, of_image.shape[0])  # (places, D)
            if truth.ndim == 0:  # one label for all places, as of a scan
                seen_at = seen_at.mean(0, keepdim=True)
            features.append(seen_at[drawn].double().numpy())
            labels.append(truth.reshape(-1)[drawn].numpy())
            groups.append(np.full(len(drawn), numbers.setdefault(images.group_of(sample), len(numbers))))
    return np.concatenate(features), np.concatenate(labels), np.concatenate(groups)
