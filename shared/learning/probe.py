"""How much a frozen network's features tell: a linear probe.

Where part of a model stays at its site, the aggregator has no whole model to score. It asks instead what a linear
classifier can read from the shared part's features of images that the aggregator holds itself.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import nn

from shared.learning.reliability import draw_targets
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Collection, Network, Task
from shared.learning.training import device_of, measure_statistics

_FOLDS = 5


def probe_score(task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int) -> float:
    """The balanced accuracy, in [0, 1], of a linear classifier on the model's features, cross-validated over images.

    The features are standardised; the classifier is a logistic regression with scikit-learn's default penalty.
    Balanced, because features that tell nothing reach 1/K then, and not the share of the most frequent class.
    BatchNorms get the statistics of these images first.

    Args:
        model: a ``Network``; of a segmentation, some pixels of each image are drawn, and an image is never divided.
        images: labelled.
        seed: decides folds and pixels.

    Raises:
        ValueError: fewer than two images of some class, or of all.
    """
    # Imported when needed: an aggregator whose runs share whole models does without.
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.metrics import balanced_accuracy_score  # noqa: PLC0415
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    features, labels, image_of = _features(task, model, images, seed)
    fewest = min(len(np.unique(image_of[labels == label])) for label in np.unique(labels))
    if fewest < 2 or len(np.unique(labels)) < 2:
        raise ValueError("a linear probe needs two classes or more, and two images or more of each")
    folds = StratifiedGroupKFold(
        n_splits=min(_FOLDS, fewest), shuffle=True, random_state=seed_for(seed, "probe folds") % 2**32
    )
    if not np.isfinite(features).all():
        return 0.0  # a network that has diverged tells nothing
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    predicted = cross_val_predict(classifier, features, labels, groups=image_of, cv=folds)
    return float(balanced_accuracy_score(labels, predicted))


def _features(
    task: Task[Any, Any], model: nn.Module, images: Collection[Any], seed: int
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    """(N, D) features, (N,) labels and (N,) the image each is of, by its number."""
    measure_statistics(task, model, images.samples)
    model.eval()
    features, labels, image_of = [], [], []
    number = 0
    for batch in task.batches(images.samples):
        inputs, targets = task.collate(batch)
        with torch.no_grad():
            seen = cast(Network, model).features(inputs.to(device_of(model))).cpu()  # (B, D, ...)
        for sample, of_image, truth in zip(batch, seen, targets, strict=True):
            drawn = draw_targets(truth.reshape(-1).numpy(), seed_for(seed, "probe", sample.id))
            features.append(of_image.movedim(0, -1).reshape(-1, of_image.shape[0])[drawn].double().numpy())
            labels.append(truth.reshape(-1)[drawn].numpy())
            image_of.append(np.full(len(drawn), number))
            number += 1
    return np.concatenate(features), np.concatenate(labels), np.concatenate(image_of)
