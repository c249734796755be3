"""What the names of scores mean, for who reads a table of them."""

from __future__ import annotations

from collections.abc import Iterable

from shared.learning.metrics import OF_CLASS

_FAMILIES = {
    OF_CLASS: "K: share right of the images of grade K",
    "selective_accuracy_": "P: share right when the P % most uncertain are left to a person",
    "referral_share_": "P: share of the most uncertain to leave to a person, so that P % of the others are right",
}
"""Scores that differ in the number at their end."""

_MEANINGS = {
    "loss": "what training makes small, in nats",
    "accuracy": "share of right answers",
    "auprc": "area below the curve of precision over recall (1 is best)",
    "auroc": "area below the ROC curve (1 is best, 0.5 is chance)",
    "auroc_logits": "auroc from the softmax of the logits",
    "balanced_accuracy": "mean over the classes of the share that is right",
    "calibration_error": "how far confidence is from the share that is right (0 is best)",
    "dice": "overlap of answer and truth, 2 × both / (answer + truth) (1 is best)",
    "f1": "harmonic mean of precision and recall, mean over the classes (1 is best)",
    "iou": "overlap of answer and truth, both / either (1 is best)",
    "kappa": "agreement beyond chance, with quadratic weights (1 is best, 0 is chance)",
    "misdiagnosis_auroc": "how well u tells wrong answers from right ones (1 is best, 0.5 is chance)",
    "sensitivity": "share found of what is there",
    "specificity": "share rightly left out of what is not there",
    "uncertainty_right": "mean u of the right answers",
    "uncertainty_wrong": "mean u of the wrong answers",
}


def meanings(names: Iterable[str], score: str) -> tuple[str, ...]:
    """Return a line for each score of a table, its main one first; scores that differ in a number alone share one.

    Args:
        names: as the table shows them.
        score: the main one of the task; empty if nobody knows it.
    """
    main = f"{score} is the main score: the best mean over the sites' validation images chooses the model"
    lines = [main] if score else []
    for name in names:
        family = next((each for each in _FAMILIES if name.startswith(each)), None)
        if family is not None:
            lines.append(f"{family}{_FAMILIES[family]}")
        elif name in _MEANINGS:
            lines.append(f"{name}: {_MEANINGS[name]}")
    return tuple(dict.fromkeys(lines))
