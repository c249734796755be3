"""Explore every model to its end, print how many states there were, and write benchmarks/results/model-check.json.

python -m tests.model_check            # as `make model-check` does

It takes hours. Where it was stopped, the same command goes on with the models that are still to come, on another
machine too, as long as nothing of what is explored has changed.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from benchmarks.figures import MODEL_CHECK, is_current
from benchmarks.record import RESULTS, measured_on, record
from tests.model_check.explorer import Exploration
from tests.model_check.rules import Rules

COMMAND = "python -m tests.model_check"
_NO_ACCIDENTS = dict.fromkeys(
    (
        *("looks_may_miss", "poison", "rotations", "withdrawals", "pauses", "stops"),
        *("deadlines", "crashes", "trouble"),
    ),
    False,
)
MODELS = {
    "one folder, two rounds and the closing one; all accidents": Rules(is_reduced=True, sites=1),
    "one folder, two runs of one round, the second offered meanwhile; each single step, missed looks, deadlines": Rules(
        sites=1,
        rounds=1,
        queue=True,
        declines=False,
        **_NO_ACCIDENTS | {"looks_may_miss": True, "deadlines": True},
    ),
    "two folders, the same two runs; no accidents": Rules(is_reduced=True, rounds=1, queue=True, **_NO_ACCIDENTS),
    "one folder, the same two runs; withdrawals, stops, deadlines": Rules(
        is_reduced=True,
        sites=1,
        rounds=1,
        queue=True,
        declines=False,
        **_NO_ACCIDENTS | {"withdrawals": True, "stops": True, "deadlines": True},
    ),
    "two folders, two rounds and the closing one; late answers count next; withdrawals, crashes, deadlines": Rules(
        is_reduced=True, late_counts_next=True, poison=False, rotations=False, pauses=False, stops=False, trouble=False
    ),
    "one folder, one round and the closing one; each single step of the daemons, all accidents": Rules(
        sites=1, rounds=1
    ),
    "two folders, one round and the closing one; looks miss anything, all accidents, as often as they like": Rules(
        is_reduced=True, rounds=1
    ),
    "the same with a quorum of two": Rules(is_reduced=True, rounds=1, quorum=2),
    "the same with one site asked in each round": Rules(is_reduced=True, rounds=1, sites_per_round=1),
    "two folders, two rounds and the closing one; all accidents but refused messages": Rules(
        is_reduced=True, poison=False
    ),
}
"""The small ones first. What is found is written after each, with those that are still to come."""


def main() -> None:
    """Explore one model after the other; end with 1 if one of them is not as it must be."""
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    figures, most_mb = _explored_before()
    for name, rules in MODELS.items():
        if name in figures:
            continue
        found = Exploration(rules, _tell).run()
        print(
            f"{name}: {found.states:,} states, {found.transitions:,} steps, {found.ends:,} ends, at most "
            f"{found.steps_deep} steps from the beginning; {found.seconds:,.0f} s",
            flush=True,
        )
        if found.counterexample is not None:
            sys.exit(str(found.counterexample))
        figures[name] = {
            "states": found.states,
            "steps": found.transitions,
            "ends": found.ends,
            "steps_deep": found.steps_deep,
            "seconds": round(found.seconds, 1),
            "machine": measured_on()["machine"],
        }
        most_mb = max(most_mb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        to_come = [other for other in MODELS if other not in figures]
        record("model-check", COMMAND, {"models": figures, "not explored": to_come, "memory_mb": most_mb})


def _explored_before() -> tuple[dict[str, Any], int]:
    """Return what models came to before the command was stopped, and the most memory in MB, if they still hold."""
    path = RESULTS / f"{MODEL_CHECK.name}.json"
    recorded = json.loads(path.read_bytes()) if path.exists() else None
    if recorded is None or not recorded["figures"]["not explored"] or not is_current(MODEL_CHECK, recorded["commit"]):
        return {}, 0
    return recorded["figures"]["models"], recorded["figures"]["memory_mb"]


def _tell(known: int, new: int) -> None:
    print(f"  {known:,} states known, {new:,} of them new", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
