"""What a cross-validation's models say together: soft votes of the inner folds, with a cut from validation images."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.report.tables import Table
from shared.learning.metrics import ranking
from studies.analysis import Floats, Key, spread
from studies.configuration import POOLED
from studies.matrix import Cell
from studies.results import PREDICTIONS, folder_of, result_of


@dataclass(frozen=True)
class Predicted:
    """What a classification's models say about images, together.

    Args:
        truth: (N,) classes.
        probabilities: (N, K).
        severities: (N,) text, empty where the task has none.
    """

    images: tuple[str, ...]
    truth: NDArray[np.int64]
    probabilities: Floats
    severities: tuple[str, ...]


def read_predictions(path: Path) -> Predicted | None:
    """A table that a cell wrote; None where there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in (rows[0] if rows else {}) if name.startswith("probability_")]
    return Predicted(
        tuple(row["image"] for row in rows),
        np.array([int(row["class"]) for row in rows]),
        np.array([[float(row[name]) for name in columns] for row in rows]),
        tuple(row["severity"] for row in rows),
    )


def youden_cut(predicted: Predicted) -> float:
    """The probability of class 1 from which on sensitivity + specificity is greatest; the highest such, of equals."""
    found = ranking(predicted.probabilities[:, 1], predicted.truth == 1)
    if not found.positives[-1] or not found.negatives[-1]:
        return 0.5
    # In whole numbers: equals stay equal, which two rounded shares need not.
    gain = found.positives * found.negatives[-1] - found.negatives * found.positives[-1]
    return float(found.scores[int(np.argmax(gain))])


@dataclass(frozen=True)
class Voted:
    """The models of one outer fold's inner turns, voting softly: their probabilities are averaged, and their cuts."""

    arm: str
    seed: int
    outer: int | None
    model_of: str
    tested_on: str
    predicted: Predicted
    cut: float


def votes(home: Path, cells: Sequence[Cell]) -> Iterator[Voted]:
    """Every ensemble of two classes whose members are finished, with all that they said about images; without a
    cross-validation each votes alone.
    """
    groups: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.arm, cell.configuration.run.seed, cell.turn.outer if cell.turn else None].append(cell)
    for (arm, seed, outer), members in groups.items():
        if any(result_of(home, member) is None for member in members):
            continue
        first = folder_of(home, members[0]) / PREDICTIONS
        for path in sorted(first.glob("*/*.test.csv")):
            model_of, tested_on = path.parent.name, path.name.removesuffix(".test.csv")
            folders = [folder_of(home, member) / PREDICTIONS / model_of for member in members]
            together = _together(_all_of([folder / f"{tested_on}.test.csv" for folder in folders]))
            validated = _all_of([folder / f"{model_of}.validation.csv" for folder in folders])
            if not validated or together is None or together.probabilities.shape[1] != 2:
                continue
            cut = math.fsum(map(youden_cut, validated)) / len(validated)
            yield Voted(arm, seed, outer, model_of, tested_on, together, cut)


def ensemble(found: Sequence[Voted], names_of_severities: Sequence[str] = ()) -> Table:
    """The scores of soft votes, and the share that is right of each severity."""
    severities = in_order({name for each in found for name in each.predicted.severities if name})
    names = ("accuracy", "balanced accuracy", "AUROC", "AUPRC", "F1", "sensitivity", "specificity")
    scored: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for each in found:
        kind = "internal" if each.model_of in (each.tested_on, POOLED) else "external"
        scored[each.arm, kind].append(_vote_scores(each, severities))
    body = [
        [arm, kind, *(spread([one[name] for one in of_arm if name in one]) for name in (*names, *severities))]
        for (arm, kind), of_arm in scored.items()
    ]
    caption = "Cut where sensitivity + specificity is greatest on validation images (Youden): mean ± standard deviation"
    if any(each.outer is not None for each in found):
        caption = f"Inner folds vote softly. {caption} over sites, outer folds and seeds."
    else:
        caption += " over sites and seeds."
    if severities:
        caption += " Of each severity: the share that is right."
    heads = [name_of_severity(each, names_of_severities) for each in severities]
    return Table("ensemble", caption, ("arm", "tested on", *names, *heads), body)


def _vote_scores(voted: Voted, severities: Sequence[str]) -> dict[str, float]:
    predicted, truth = voted.predicted, voted.predicted.truth == 1
    says = predicted.probabilities[:, 1] >= voted.cut
    right = says == truth
    found = {"accuracy": float(right.mean())}
    curve = ranking(predicted.probabilities[:, 1], truth)
    if truth.any() and not truth.all():
        sensitivity, specificity = float(says[truth].mean()), float((~says[~truth]).mean())
        found |= {"sensitivity": sensitivity, "specificity": specificity}
        found |= {"balanced accuracy": (sensitivity + specificity) / 2}
        areas = {"AUROC": curve.auroc(), "AUPRC": curve.average_precision()}
        found |= {name: area for name, area in areas.items() if area is not None}
    if truth.any() or says.any():
        found["F1"] = float(2 * (says & truth).sum() / (says.sum() + truth.sum()))
    for severity in severities:
        chosen = np.array([name == severity for name in predicted.severities])
        if chosen.any():
            found[severity] = float(right[chosen].mean())
    return found


def _all_of(paths: Sequence[Path]) -> list[Predicted]:
    """The tables of all members; none where somebody removed one, for the others are another ensemble."""
    found = [read_predictions(path) for path in paths]
    there = [each for each in found if each is not None]
    return there if len(there) == len(paths) else []


def _together(found: Sequence[Predicted]) -> Predicted | None:
    """The mean of several models' probabilities of the same images."""
    if not found or any(each.images != found[0].images for each in found):
        return None
    first = found[0]
    mean = np.mean([each.probabilities for each in found], axis=0)
    return Predicted(first.images, first.truth, mean, first.severities)


def in_order(severities: Iterable[str]) -> list[str]:
    """Severities from the slightest upwards."""
    return sorted(severities, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))


def name_of_severity(text: str, names: Sequence[str]) -> str:
    """What people call a severity that a table of predictions numbers from 0."""
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else f"severity {text}"
