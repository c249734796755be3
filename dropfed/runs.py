"""A run of an aggregator's work directory, and the report's figures of any run."""

from __future__ import annotations

from pathlib import Path

from aggregator.configuration import MADE_BY, is_aggregator
from aggregator.launched import find_run, runs_here
from aggregator.report.figures import Figure
from aggregator.report.site_figures import (
    curves,
    selective,
    thetas_and_weights,
    tolerance,
    uncertainty_of_predictions,
)
from aggregator.report.timeline import timeline
from aggregator.run_view import RunView, view_run
from aggregator.store import run_in_turn
from dropfed.paths import path_of
from shared.errors import ConfigurationError


def read_run(work: Path | str, run: str | None = None) -> RunView:
    """Return a run as an aggregator's work directory shows it now; nothing is written, sent or fetched.

    Args:
        work: the work directory.
        run: its name; None: the run whose turn it is, or was last.

    Raises:
        ConfigurationError: there is no such directory, or no such run in it.
        DropfedError: what is kept of the run is damaged.
    """
    work = path_of(work, "work")
    if not is_aggregator(work):
        raise ConfigurationError([f"{work}: is no aggregator's work directory; give one that {MADE_BY} made"])
    if run is None:
        here, in_turn = runs_here(work), run_in_turn(work)
        if in_turn is None:
            raise ConfigurationError([f"{work}: {here}; launch one, or name another work directory"])
        run = in_turn.run
    return view_run(work, find_run(work, run))


def figures(view: RunView) -> dict[str, Figure]:
    """Return the report's figures of what sites reported and of what was decided, by name; a notebook shows each.

    Those of one aggregate are of the chosen one, or of the last one that sites have received.
    """
    last = max((each.received_aggregate for each in view.rounds), default=0)
    aggregate = last if view.chosen_round is None else view.chosen_round
    drawn = [
        *curves(view),
        selective(view, aggregate, "test"),
        uncertainty_of_predictions(view, aggregate, "test"),
        tolerance(view),
        *thetas_and_weights(view),
        timeline(view),
    ]
    return {figure.name: figure for figure in drawn}
