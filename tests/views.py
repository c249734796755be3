"""Views of runs that were never played: what a test says of rounds and sites, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aggregator.run_view import Part, Round, Row, RunView
from tests.federation.running import run_configuration


def view_of_rounds(rounds: Sequence[Mapping[str, Part]], **settings: object) -> RunView:
    """A run that goes on, with these sites in each round."""
    sites = sorted({site for parts in rounds for site in parts})
    configuration = run_configuration(**({"sites": sites, "quorum": 1, "round_deadline_hours": 1.0} | settings))
    listed = [Round(number, True, number - 1, parts, {}) for number, parts in enumerate(rounds, 1)]
    return RunView(
        configuration=configuration,
        outcome=None,
        aborted=None,
        score="dice_mean",
        card=None,
        sites={},
        rounds=listed,
        bytes={},
    )


def row(images: str = "10", loss: float | None = 1.0, **scores: float | None) -> Row:
    """What a site told of one split."""
    return Row(images, loss, scores)
