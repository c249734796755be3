"""How much each site's model counted, and its θ: means over rounds, then over seeds and folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from aggregator.report.tables import Table
from shared.learning.methods import REFERENCES
from studies.analysis import spread
from studies.matrix import Cell
from studies.results import result_of

_CAPTIONS = {
    "weights": "Weight of each site's model in the aggregate: mean over training rounds, ± standard deviation over "
    "seeds and folds; 0 where a model was left out.",
    "thetas": "θ, the uncertainty from which on a site takes the model's answers for wrong: likewise.",
}


def weighing(home: Path, cells: Sequence[Cell]) -> list[Table]:
    """Return a table of weights, and one of θ, of the arms in which models were weighed; none where none were."""
    return [table for what in _CAPTIONS if (table := _table(what, home, cells)).rows]


def _table(what: str, home: Path, cells: Sequence[Cell]) -> Table:
    found: dict[str, list[Mapping[str, float]]] = {}
    for cell in cells:
        if cell.configuration.run.method in REFERENCES:  # which weigh nothing
            continue
        if (result := result_of(home, cell)) is not None and (means := _means(result[what])):
            found.setdefault(cell.arm, []).append(means)
    sites = sorted({site for of_arm in found.values() for means in of_arm for site in means})
    body = [
        [arm, *(spread([means[site] for means in of_arm if site in means]) for site in sites)]
        for arm, of_arm in found.items()
    ]
    return Table(what, _CAPTIONS[what], ("arm", *sites), body if len(sites) > 1 else [])


def _means(by_round: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    sites = {site for of_round in by_round.values() for site in of_round}
    return {site: fmean(of_round[site] for of_round in by_round.values() if site in of_round) for site in sites}
