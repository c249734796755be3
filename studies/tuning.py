"""One rule for every arm's learning rate: of the study's grid, what did best on validation images in short runs.

So no arm is given a rate that another was not offered. The short runs are of the first seed, and of the first turn of a
cross-validation, and no test images of theirs are looked at. With several seeds or folds this is not true of the
others: where each divides the same images anew, they test on images by which the rate was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from aggregator.report.tables import Table
from shared.errors import ConfigurationError
from shared.learning.tasks import task_named
from studies.analysis import heading
from studies.configuration import StudyConfiguration, Tuning
from studies.matrix import Cell, expand
from studies.results import result_of

_SHARE_OF_ROUNDS = 3


@dataclass(frozen=True)
class Trials:
    """A study's short runs, by arm and learning rate."""

    study: StudyConfiguration
    cells: Mapping[str, Mapping[float, Cell]]

    @property
    def all(self) -> list[Cell]:
        """Every one of them."""
        return [cell for of_arm in self.cells.values() for cell in of_arm.values()]

    def ended(self, home: Path) -> tuple[Trials, list[str]]:
        """Return the trials of the arms all of whose have ended, and the names of the other arms."""
        cells = {
            arm: by_rate
            for arm, by_rate in self.cells.items()
            if all(result_of(home, cell) is not None for cell in by_rate.values())
        }
        arms = {arm: settings for arm, settings in self.study.arms.items() if arm in cells}
        return Trials(self.study.model_copy(update={"arms": arms}), cells), [
            arm for arm in self.cells if arm not in cells
        ]

    def scores(self, home: Path) -> dict[str, dict[float, float]]:
        """Return, by arm and rate, the mean over sites of the score by which rounds are chosen, on validation images;
        undefined ones are left out.
        """
        score = task_named(self.study.task).selection_score
        found: dict[str, dict[float, float]] = {}
        for arm, by_rate in self.cells.items():
            found[arm] = {}
            for rate, cell in by_rate.items():
                rows = (result_of(home, cell) or {"rows": []})["rows"]
                told = [row["scores"].get(score) for row in rows if row["split"] == "validation"]
                if known := [value for value in told if value is not None]:
                    found[arm][rate] = fmean(known)
        return found

    def taken(self, home: Path) -> dict[str, float]:
        """Return, by arm, the rate that did best; of equals the lowest.

        Raises:
            ConfigurationError: some arm's validation images tell nothing.
        """
        scores = self.scores(home)
        if silent := [arm for arm, by_rate in scores.items() if not by_rate]:
            raise ConfigurationError(
                [f"tune: validation images tell nothing of {arm}; make their sets larger" for arm in silent]
            )
        return {arm: max(sorted(by_rate), key=by_rate.__getitem__) for arm, by_rate in scores.items()}

    def table(self, home: Path) -> Table:
        """Return every arm's scores, and the rate that it took."""
        scores, taken = self.scores(home), self.taken(home)
        rates = sorted({rate for by_rate in self.cells.values() for rate in by_rate})
        edges = (rates[0], rates[-1])
        body = [
            [arm, *(scores[arm].get(rate) for rate in rates), f"{taken[arm]:g}", "yes" if taken[arm] in edges else "no"]
            for arm in self.cells
        ]
        score = heading(task_named(self.study.task).selection_score)
        caption = (
            f"{score} on validation images by learning rate, in short runs of the first seed; each arm took the best. "
            "By that score rounds are chosen too, whatever the tables show first. Where it is at the grid's edge, a "
            "rate beyond it might do better."
        )
        if len(self.study.seeds) > 1 or self.study.folds:
            caption += (
                " Where other seeds and folds divide the same images anew, they also test on images by which the rate "
                "was chosen: their scores look a little better than on new images."
            )
        return Table("tuned", caption, ("arm", *(f"{rate:g}" for rate in rates), "taken", "at the edge"), body)


def trials(study: StudyConfiguration, tuning: Tuning, root: Path) -> Trials:
    """Return the short runs that choose a study's learning rates.

    Raises:
        ConfigurationError: see ``expand``.
    """
    if problems := study.problems():
        raise ConfigurationError(problems)
    first = study.model_copy(update={"seeds": study.seeds[:1], "noise": [], "out_of_distribution": None})
    found: dict[str, dict[float, Cell]] = {}
    for rate in tuning.learning_rates:
        whole = with_rates(first, dict.fromkeys(study.arms, rate))
        rounds = {cell.arm: cell.configuration.run.rounds for cell in expand(whole, root)}
        arms = {
            label: {**arm, "rounds": tuning.rounds or math.ceil(rounds[label] / _SHARE_OF_ROUNDS)}
            for label, arm in whole.arms.items()
        }
        for cell in expand(whole.model_copy(update={"arms": arms}), root):
            validating = cell.configuration.model_copy(update={"validation_only": True})
            trial = replace(cell, configuration=validating)
            found.setdefault(cell.arm, {}).setdefault(rate, trial)  # the first turn's
    return Trials(study, found)


def with_rates(study: StudyConfiguration, rates: Mapping[str, float]) -> StudyConfiguration:
    """Return the study with each arm's learning rate; how it goes on from there is the runs'."""
    schedule = study.run.get("learning_rate", {})
    arms = {label: {**arm, "learning_rate": {**schedule, "initial": rates[label]}} for label, arm in study.arms.items()}
    return study.model_copy(update={"arms": arms, "tune": None})
