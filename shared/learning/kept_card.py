"""What is written beside a model that a site keeps, ready for use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from shared.exchange.names import Name
from shared.exchange.records.run import Plugin, Privacy, Range, RunConfiguration
from shared.exchange.records.values import Count, Record, ScoreColumn

CARD = "card.yaml"


class KeptCard(Record):
    """``card.yaml``: everything needed to use the model beside it.

    Args:
        classes: the site's names of classes, from class 0 upwards; none where only sites have such.
        chosen_round: whose aggregate this is; None: it is not reported.
        personal_round: the round after which the site's own parts were kept; 0: they were never trained here; None: it
            has none.
        theta: the uncertainty from which on a prediction should not be trusted.
        theta_status: ``measured``, or why it could not be and is 0.5.
        plugins: the wheels that its run needed.
        scores: the columns that its run listed, with what they may hold; of a site's program there are none.
    """

    run: Name
    task: Name
    task_options: dict[str, Any]
    method: Name
    method_options: dict[str, Any]
    privacy: Privacy | None = None
    rounds: Count
    classes: list[str]
    chosen_round: Count | None
    personal_round: Count | None
    theta: Annotated[float, Field(gt=0, le=1)]
    theta_status: str
    plugins: list[Plugin] = []
    scores: dict[ScoreColumn, Range] = {}

    @classmethod
    def of_run(cls, run: RunConfiguration, **rest: Any) -> KeptCard:
        """Return the card of a run's model; ``rest``: what the run does not say."""
        return cls(
            run=run.run,
            task=run.task,
            task_options=run.task_options,
            method=run.method,
            method_options=run.method_options,
            privacy=run.privacy,
            rounds=run.rounds,
            plugins=run.plugins,
            scores={} if run.trainer else run.scores,
            **rest,
        )
