"""What a cross-validation's models say together: soft votes of the inner folds, with a cut from validation images."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aggregator.report.tables import Table
from shared.errors import DataError
from shared.learning.metrics import ranking
from studies.analysis import spread
from studies.configuration import POOLED
from studies.matrix import Cell
from studies.results import PREDICTIONS, folder_of, result_of


def read_predictions(path: Path) -> pd.DataFrame | None:
    """Return a table that a cell wrote: for each image its class, severity and probabilities; None if there is none.

    Raises:
        DataError: it is damaged.
    """
    if not path.exists():
        return None
    kinds: dict[Hashable, Any] = dict.fromkeys(("image", "severity"), str)
    try:
        found = pd.read_csv(path, dtype=kinds, keep_default_na=False)
        probabilities = found.filter(like="probability_").astype(float)
        is_whole = np.allclose(probabilities.sum(axis=1), 1, atol=1e-6) and found["class"].astype(float).notna().all()
    except (ValueError, KeyError):
        is_whole = False
    if not is_whole:
        remedy = f"remove {path.parents[2]}, and `dropfed-study run` plays that cell anew"
        raise DataError([f"{path}: is damaged; {remedy}"])
    return found


def youden_cut(predicted: pd.DataFrame) -> float:
    """Return the highest cut on the probability of class 1 at which sensitivity + specificity is greatest."""
    found = ranking(predicted["probability_1"].to_numpy(), predicted["class"].to_numpy() == 1)
    if not found.positives[-1] or not found.negatives[-1]:
        return 0.5
    return float(found.scores[int(np.argmax(found.scaled_youden()))])


@dataclass(frozen=True)
class Voted:
    """The models of one outer fold's inner turns, voting softly: their probabilities are averaged, and their cuts."""

    arm: str
    seed: int
    outer: int | None
    model_of: str
    tested_on: str
    predicted: pd.DataFrame
    cut: float

    @property
    def kind(self) -> str:
        """``internal`` or ``external``."""
        return "internal" if self.model_of in (self.tested_on, POOLED) else "external"


def votes(home: Path, cells: Sequence[Cell]) -> Iterator[Voted]:
    """Yield every ensemble of two classes whose members are finished, with all that they said about images; without a
    cross-validation each votes alone.
    """
    groups: dict[tuple[str, str | None, int, int | None], list[Cell]] = defaultdict(list)
    for cell in cells:
        configuration, outer = cell.configuration, cell.turn.outer if cell.turn else None
        groups[cell.arm, configuration.left_out, configuration.run.seed, outer].append(cell)
    for (arm, _, seed, outer), members in groups.items():
        if any(result_of(home, member) is None for member in members):
            continue
        first = folder_of(home, members[0]) / PREDICTIONS
        for path in sorted(first.glob("*/*.test.csv")):
            model_of, tested_on = path.parent.name, path.name.removesuffix(".test.csv")
            folders = [folder_of(home, member) / PREDICTIONS / model_of for member in members]
            together = _together(_all_of([folder / f"{tested_on}.test.csv" for folder in folders]))
            validated = _all_of([folder / f"{model_of}.validation.csv" for folder in folders])
            if not validated or together is None or len(together.filter(like="probability_").columns) != 2:
                continue
            cut = math.fsum(map(youden_cut, validated)) / len(validated)
            yield Voted(arm, seed, outer, model_of, tested_on, together, cut)


def ensemble(found: Sequence[Voted], names_of_severities: Sequence[str] = ()) -> Table:
    """Return the scores of soft votes, and the share that is right of each severity."""
    severities = in_order({name for each in found for name in each.predicted["severity"] if name})
    names = ("accuracy", "balanced accuracy", "AUROC", "AUPRC", "F1", "sensitivity", "specificity")
    scored = pd.DataFrame([{"arm": each.arm, "kind": each.kind, **_vote_scores(each)} for each in found])
    scored = scored.reindex(columns=["arm", "kind", *names, *severities])
    body = [
        [str(arm), str(kind), *(spread(rows[name]) for name in (*names, *severities))]
        for (arm, kind), rows in scored.groupby(["arm", "kind"], sort=False)
    ]
    caption = "Cut where sensitivity + specificity is greatest on validation images (Youden): mean ± standard deviation"
    if any(each.outer is not None for each in found):
        caption = f"Inner folds vote softly. {caption} over sites, outer folds and seeds."
    else:
        caption += " over sites and seeds."
    caption += " F1, sensitivity and specificity are of class 1."
    if severities:
        caption += " Of each severity: the share that is right."
    heads = [name_of_severity(each, names_of_severities) for each in severities]
    return Table("ensemble", caption, ("arm", "tested on", *names, *heads), body)


def _vote_scores(voted: Voted) -> dict[str, float | None]:
    said, truth = voted.predicted["probability_1"].to_numpy(), voted.predicted["class"].to_numpy() == 1
    says = said >= voted.cut
    right = says == truth
    found: dict[str, float | None] = {"accuracy": right.mean()}
    if truth.any() and not truth.all():
        sensitivity, specificity = says[truth].mean(), (~says[~truth]).mean()
        found |= {"sensitivity": sensitivity, "specificity": specificity}
        found["balanced accuracy"] = (sensitivity + specificity) / 2
        curve = ranking(said, truth)
        found |= {"AUROC": curve.auroc(), "AUPRC": curve.average_precision()}
    if truth.any() or says.any():
        found["F1"] = 2 * (says & truth).sum() / (says.sum() + truth.sum())
    by_severity = pd.Series(right).groupby(voted.predicted["severity"]).mean()
    return found | {str(severity): share for severity, share in by_severity.items()}


def _all_of(paths: Sequence[Path]) -> list[pd.DataFrame]:
    """Return the tables of all members; none where somebody removed one, for the others are another ensemble."""
    found = [read_predictions(path) for path in paths]
    there = [each for each in found if each is not None]
    return there if len(there) == len(paths) else []


def _together(found: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the mean of several models' probabilities of class 1 of the same images."""
    if not found or any(not each["image"].equals(found[0]["image"]) for each in found):
        return None
    return found[0].assign(probability_1=np.mean([each["probability_1"] for each in found], axis=0))


def in_order(severities: Iterable[str]) -> list[str]:
    """Return the severities from the slightest upwards."""
    return sorted(severities, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))


def name_of_severity(text: str, names: Sequence[str]) -> str:
    """Return what people call a severity that a table of predictions numbers from 0."""
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else f"severity {text}"
