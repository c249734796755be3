"""Go many random walks, on all cores, print what they came to, and write benchmarks/results/model-check-replay.json.

python -m tests.model_check.replay --walks 1000            # as `make model-check` does
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass

from benchmarks.record import record
from tests.model_check.replay.walk import Walk, walked
from tests.model_check.state import SITES

COMMAND = "python -m tests.model_check.replay --walks"
_TELL_EVERY = 50


def main() -> None:
    """Go so many walks; the first that finds daemons and model to differ ends it, with all its steps."""
    parser = argparse.ArgumentParser(description="Play random walks through the model on the daemons' own objects.")
    parser.add_argument("--walks", type=int, default=20)
    wanted = parser.parse_args().walks
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    walks: list[_Ended] = []
    with multiprocessing.Pool() as pool:
        for walk in pool.imap(_ended, range(wanted)):
            walks.append(walk)
            if len(walks) % _TELL_EVERY == 0:
                print(f"  {len(walks):,} walks in {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
    figures = _figures(walks) | {"seconds": round(time.monotonic() - began, 1)}
    print(
        f"{figures['walks']:,} walks of {figures['steps']:,} steps, {figures['to_the_end']:,} to the end; "
        f"{figures['seconds']:,} s"
    )
    record("model-check-replay", f"{COMMAND} {wanted}", figures)


@dataclass(frozen=True)
class _Ended:
    """What is counted of a walk."""

    kinds: list[str]
    newest: str
    has_ended: bool
    left_out: int


def _ended(seed: int) -> _Ended:
    walk = walked(seed)
    return _Ended([_kind(name) for name in walk.told], _reached(walk), walk.has_ended, walk.left_out)


def _figures(walks: list[_Ended]) -> dict[str, object]:
    lengths = [len(walk.kinds) for walk in walks]
    newest = Counter(walk.newest for walk in walks)
    kinds = Counter(kind for walk in walks for kind in walk.kinds)
    return {
        "walks": len(walks),
        "steps": sum(lengths),
        "mean_steps": round(statistics.mean(lengths), 1),
        "median_steps": statistics.median(lengths),
        "to_the_end": sum(walk.has_ended for walk in walks),
        "newest_round": dict(sorted(newest.items())),
        "steps_left_out": sum(walk.left_out for walk in walks),
        "steps_by_kind": dict(sorted(kinds.items())),
    }


def _reached(walk: Walk) -> str:
    """The newest round that was opened."""
    run = walk.state.director
    return "the closing one" if run.round_no > walk.rules.rounds else str(run.round_no)


def _kind(name: str) -> str:
    """A step without the site and the round that it is of."""
    words = (word for word in name.split() if not word.isdigit())
    return " ".join("SITE" if word.strip(":") in SITES else word for word in words)


if __name__ == "__main__":
    main()
