"""What a replay tells: one step for each thing that was computed again, or could not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from shared.escaping import escape

Outcome = Literal["same", "differs", "not replayable"]


@dataclass(frozen=True)
class Step:
    """One thing that was computed again, or could not be.

    Args:
        round: 0 for what is of no round.
        detail: what came out, what differs, or why it is not replayable.
    """

    round: int
    what: str
    outcome: Outcome
    detail: str = ""


def lacking(round_no: int, what: str, why: str) -> Step:
    """Return the step of what cannot be computed from the folders."""
    return Step(round_no, what, "not replayable", f"because {why}")


def counts(steps: Iterable[Step]) -> dict[str, int]:
    """Return how many steps had which outcome."""
    found = Counter(step.outcome for step in steps)
    return {outcome: found[outcome] for outcome in get_args(Outcome)}


def lines(steps: list[Step]) -> Iterator[str]:
    """Yield one line per step, and one that sums up."""
    for step in steps:
        where = f"round {step.round}, {step.what}" if step.round else step.what
        yield escape(f"{step.outcome:14}  {where}: {step.detail}")
    yield ", ".join(f"{count} {outcome}" for outcome, count in counts(steps).items())
