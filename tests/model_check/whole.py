"""The model with every step that the daemons take."""

from __future__ import annotations

from tests.model_check import director, folder_sync, hospital, reduced
from tests.model_check.rules import Rules
from tests.model_check.state import Director, Folder


def folder_steps(folder: Folder, rules: Rules) -> list[tuple[str, bool, Folder]]:
    """All that may happen in one folder without the aggregator's decisions; each is a step of the reduced model."""
    found = [(f"site {name}", accident, after) for name, accident, after in hospital.steps(folder, rules)]
    found += [(f"folder-sync {name}", accident, after) for name, accident, after in folder_sync.steps(folder, rules)]
    steps = [step for step in found if step[2] != folder]
    if rules.looks_may_miss:
        for *_, after in steps:
            reduced.check_folder_step(folder, after, rules)
    return steps


def results(run: Director, views: tuple[director.View, director.View], rules: Rules) -> list[director.Result]:
    """All that may happen at the aggregator; each is a step of the reduced model."""
    found = director.results(run, views, rules)
    if rules.looks_may_miss:
        for result in found:
            reduced.check_result(run, views, result, rules)
    return found


placed = director.placed
