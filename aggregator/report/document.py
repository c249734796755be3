"""The report for scripts: one document of all that can be compared between runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aggregator.report.heldout import Model
from aggregator.run_view import RunView
from shared.exchange.records.verdicts import FinalCard
from shared.learning.outcome import chosen_text


def document(view: RunView, model: Model | str) -> dict[str, Any]:
    """Return everything about one run as plain values.

    Args:
        model: what it costs, or why that is not known.
    """
    found = asdict(view)
    return {
        "run": view.run,
        "outcome": found["outcome"],
        "is_over": view.is_over,
        "aborted": view.aborted,
        "score": view.score,
        "chosen": _chosen(view.card) if view.card else None,
        "configuration": view.configuration.model_dump(mode="json"),
        "sites": found["sites"],
        "rounds": found["rounds"],
        "gains": found["gains"],
        "test_images": found["test_images"],
        "cost": {
            "model": asdict(model) if isinstance(model, Model) else None,
            "why_no_model": None if isinstance(model, Model) else model,
            "bytes": found["bytes"],
        },
    }


def _chosen(card: FinalCard) -> dict[str, Any]:
    return {
        "aggregate": card.chosen_round,
        "model": chosen_text(card),
        "score": card.score_name,
        "validation": {number: float(mean) for number, mean in card.validation.items()},
        "took_part": card.took_part,
        "reason": card.reason,
    }
