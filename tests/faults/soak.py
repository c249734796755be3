"""Federations in storms of faults, with daemons and the server killed at random, until time is up.

    python -m tests.faults.soak --minutes 60          # as `make soak` does
    python -m tests.faults.soak --clouds 200          # so many schedules on a cloud whose locks leak
    python -m tests.faults.soak --seed 17             # the storm of a schedule again
    python -m tests.faults.soak --seed 17 --cloud     # the same on a cloud whose locks leak
    python -m tests.faults.soak --seed 17 --kills     # the same over real processes, with kills

Federations in this process, in storms alone, take turns; beside them others run as real processes, which are killed
and started again. Each must end as if nothing had happened: see ``checks``. Writes benchmarks/results/soak.json, or
clouds.json there.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random, SystemRandom

from benchmarks.record import record
from tests.faults.kills import slaughter
from tests.faults.runs import Outcome, run_in, undisturbed
from tests.faults.storm import random_weather

COMMAND = "python -m tests.faults.soak"
TOLD_EVERY_S = 60.0


class Tally:
    """What happened so far, in all lanes."""

    def __init__(self) -> None:
        self.federations: Counter[str] = Counter()
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def add(self, kind: str, outcome: Outcome, kills: Counter[str], replay: str, root: Path) -> None:
        """Count a federation; one that failed is told, and kept below ``root``."""
        with self._lock:
            self.federations[kind] += 1
            self.requests += outcome.requests
            self.faults += outcome.faults
            self.kills += kills
            if outcome.problems:
                self.failures.append(replay)
                (root / "journal.txt").write_text(outcome.journal)
                print(f"FAILED; see {root}, and again: {replay}", *outcome.problems, sep="\n  ", flush=True)
            else:
                shutil.rmtree(root)

    def summary(self) -> str:
        """One line."""
        with self._lock:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.federations.items())
            faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common())
            kills = ", ".join(f"{count} {victim}" for victim, count in self.kills.most_common())
            return (
                f"{self.federations.total()} federations ({kinds}), {self.requests} requests, "
                f"{self.faults.total()} faults ({faults}), {self.kills.total()} kills ({kills}), "
                f"{len(self.failures)} failures"
            )


def one_in_storm(seed: int, tally: Tally) -> None:
    """A federation in this process."""
    root = Path(tempfile.mkdtemp(prefix=f"dropfed-storm-{seed}-"))
    tally.add("in storms", run_in(random_weather(seed), root), Counter(), f"{COMMAND} --seed {seed}", root)


def one_on_cloud(seed: int, tally: Tally) -> None:
    """A federation in this process, on a cloud whose locks leak."""
    root = Path(tempfile.mkdtemp(prefix=f"dropfed-cloud-{seed}-"))
    outcome = run_in(random_weather(seed, is_cloud=True), root)
    tally.add("on clouds", outcome, Counter(), f"{COMMAND} --seed {seed} --cloud", root)


def one_with_kills(seed: int, tally: Tally) -> None:
    """A federation of real processes."""
    root = Path(tempfile.mkdtemp(prefix=f"dropfed-kills-{seed}-"))
    outcome, kills = slaughter(seed, root, undisturbed())
    tally.add("with kills", outcome, kills, f"{COMMAND} --seed {seed} --kills", root)


def soak(minutes: float, first_seed: int) -> Tally:
    """Let federations run in two lanes until time is up."""
    until = time.monotonic() + 60 * minutes
    tally = Tally()
    undisturbed()

    def lane(name: str, run: Callable[[int, Tally], None]) -> None:
        seeds = Random(f"{name} {first_seed}")
        try:
            while time.monotonic() < until and not over.is_set():
                run(seeds.randrange(10**9), tally)
        except BaseException:  # a mistake of the soak itself, or Ctrl-C
            over.set()
            raise

    def tell() -> None:
        while not over.wait(TOLD_EVERY_S):
            print(tally.summary(), flush=True)

    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        killing = pool.submit(lane, "kills", one_with_kills)
        pool.submit(tell)
        try:
            lane("storms", lambda seed, tally: (one_on_cloud if seed % 2 else one_in_storm)(seed, tally))
            killing.result()
        finally:
            over.set()
    return tally


def main() -> int:
    """Soak, or replay one seed; return 0 if all went well."""
    options = argparse.ArgumentParser(prog=COMMAND)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--first-seed", type=int, default=SystemRandom().randrange(10**9), help="makes all others")
    options.add_argument("--clouds", type=int, metavar="N", help="the schedules 0 to N - 1 on clouds whose locks leak")
    options.add_argument("--seed", type=int, help="one federation, of this seed")
    options.add_argument("--cloud", action="store_true", help="with --seed: on a cloud whose locks leak")
    options.add_argument("--kills", action="store_true", help="with --seed: of real processes, with kills")
    chosen = options.parse_args()
    if chosen.seed is None and (chosen.cloud or chosen.kills):
        options.error("--cloud and --kills go with --seed")
    if chosen.seed is not None:
        tally = Tally()
        one = one_with_kills if chosen.kills else one_on_cloud if chosen.cloud else one_in_storm
        one(chosen.seed, tally)
        print(tally.summary())
        return 1 if tally.failures else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started, as Ctrl-C does
    if chosen.clouds is not None:
        tally = Tally()
        for seed in range(chosen.clouds):
            one_on_cloud(seed, tally)
        return _recorded("clouds", f"{COMMAND} --clouds {chosen.clouds}", tally, {})
    print(f"{chosen.minutes:g} minutes from seed {chosen.first_seed}", flush=True)
    tally = soak(chosen.minutes, chosen.first_seed)
    command = f"{COMMAND} --minutes {chosen.minutes:g} --first-seed {chosen.first_seed}"
    return _recorded("soak", command, tally, {"minutes": chosen.minutes, "first_seed": chosen.first_seed})


def _recorded(name: str, command: str, tally: Tally, settings: dict[str, float]) -> int:
    """Say and write down what happened; return the exit code."""
    print(tally.summary())
    figures = {
        "federations": dict(tally.federations),
        "requests": tally.requests,
        "faults": dict(tally.faults.most_common()),
        "kills": dict(tally.kills.most_common()),
        "failures": tally.failures,
    }
    print(record(name, command, settings | figures))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
