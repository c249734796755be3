"""How much each site's model counted, and its θ: means over rounds, then over seeds and folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from aggregator.report.tables import Table
from shared.learning.data.splits import Folds
from shared.learning.methods import open_method
from studies.analysis import spread
from studies.matrix import Cell
from studies.results import result_of

_CAPTIONS = {
    "weights": "Weight of each site's model in the aggregate: mean over training rounds, ± standard deviation over "
    "seeds and folds; 0 where a model was left out or its site was not asked.",
    "thetas": "θ, the uncertainty from which on a site takes the model's answers for wrong: likewise, over the rounds "
    "in which the site sent it.",
}
_NOT_ASKED = {"weights": 0.0, "thetas": None}
"""What a round that did not ask a site adds to its mean; None: it is none of the rounds."""


def weighing(home: Path, cells: Sequence[Cell]) -> list[Table]:
    """Return a table of weights, and one of θ, of the arms in which models were weighed; none where none were."""
    return [table for what in _CAPTIONS if (table := _table(what, home, cells)).rows]


def _table(what: str, home: Path, cells: Sequence[Cell]) -> Table:
    found: dict[str, dict[tuple[int, Folds | None], list[Mapping[str, float]]]] = {}
    for cell in cells:
        run = cell.configuration.run
        if open_method(run.method, run.method_options).reference:  # which weighs nothing
            continue
        if (result := result_of(home, cell)) is not None and any((by_round := result[what]).values()):
            repeats = found.setdefault(cell.arm, {})
            repeats.setdefault((run.seed, cell.turn), []).append(_means(by_round, run.sites, _NOT_ASKED[what]))
    sites = sorted({site for of_arm in found.values() for runs in of_arm.values() for means in runs for site in means})
    body = [
        [arm, *(spread([fmean(of) for runs in of_arm.values() if (of := _known(runs, site))]) for site in sites)]
        for arm, of_arm in found.items()
    ]
    return Table(what, _CAPTIONS[what], ("arm", *sites), body if len(sites) > 1 else [])


def _means(
    by_round: Mapping[str, Mapping[str, float]], sites: Sequence[str], not_asked: float | None
) -> dict[str, float]:
    told = {site: _known(by_round.values(), site, not_asked) for site in sites}
    return {site: fmean(of_site) for site, of_site in told.items() if of_site}


def _known(parts: Iterable[Mapping[str, float]], site: str, not_asked: float | None = None) -> list[float]:
    """Return what each part says of a site, or ``not_asked`` unless that is None."""
    return [told for part in parts if (told := part.get(site, not_asked)) is not None]
