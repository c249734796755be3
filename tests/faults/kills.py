"""A federation of real processes in a storm, with daemons and the server killed at random."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.checks import Result, problems
from tests.faults.runs import IMAGES, Outcome, set_up, tiny_data, tiny_run
from tests.faults.storm import Storm, random_weather
from tests.federation.running import WAIT_S, Federation, Process

BETWEEN_KILLS_S = 3.0  # on average
MOST_KILLS = 30  # of one federation, so that each comes to an end
SERVER = "server"
AGGREGATOR = "aggregator"


class StormyFederation(Federation):
    """A federation of real processes, each client behind its proxy."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, tiny_run(), IMAGES, tiny_data(), runner=("tests.faults.hurried",))
        self.kills: Counter[str] = Counter()
        self._seed = seed
        self._chance = Random(f"kills {seed}")
        self._next_kill = self._after_a_while()
        self._starts: dict[str, Callable[[], Process]] = {AGGREGATOR: self.start_aggregator}
        self._starts |= {site: lambda site=site: self.start_site(site) for site in self.run.sites}  # type: ignore[misc]
        self._running: dict[str, Process] = {}

    def __enter__(self) -> StormyFederation:
        self.start_server()
        self.storm = Storm(random_weather(self._seed), self.port, self.run.sites)
        set_up(self, self.storm)
        return self

    def __exit__(self, *error: object) -> None:
        self.storm.close()
        super().__exit__(*error)  # type: ignore[arg-type]

    def run_to_the_end_in_spite_of_kills(self) -> None:
        """Start everything, kill now this and now that, start it again, until every site has the final model.

        Raises:
            AssertionError: a daemon ended by itself, or the end does not come.
        """
        self._running = {name: start() for name, start in self._starts.items()}
        deadline = time.monotonic() + 3 * WAIT_S
        while not self._is_over():
            assert time.monotonic() < deadline, f"waited in vain for the end\n{self.output(self.aggregator)}"
            self._start_again()
            if time.monotonic() >= self._next_kill and self.kills.total() < MOST_KILLS:
                self._kill(self._chance.choice([SERVER, AGGREGATOR, *self.run.sites]))
                self._next_kill = self._after_a_while()
            time.sleep(0.02)
        self.storm.calm()
        self.stop_all()

    def _is_over(self) -> bool:
        return self._running[AGGREGATOR].poll() == 0 and all(map(self.has_final, self.run.sites))

    def _start_again(self) -> None:
        for name, process in self._running.items():
            code = process.poll()
            if code is not None and not (name == AGGREGATOR and code == 0):
                work = self.aggregator if name == AGGREGATOR else self.site(name)
                assert code == -signal.SIGKILL, f"{name} ended with {code}:\n{self.output(work)}"
                self._running[name] = self._starts[name]()

    def _kill(self, victim: str) -> None:
        if victim == SERVER:
            self.kill_server()
            time.sleep(self._chance.uniform(0, 0.5))
            self.start_server()
        elif self._running[victim].poll() is None:
            self._running[victim].kill()
            self._running[victim].wait()
        else:
            return
        self.kills[victim] += 1

    def _after_a_while(self) -> float:
        return time.monotonic() + self._chance.expovariate(1 / BETWEEN_KILLS_S)


def slaughter(seed: int, root: Path, expected: Result) -> tuple[Outcome, Counter[str]]:
    """Run a federation below ``root`` in the storm and with the kills of this seed; also return the kills by victim."""
    federation = StormyFederation(root, seed)
    try:
        with federation:
            federation.run_to_the_end_in_spite_of_kills()
    except Exception as error:
        found = [f"the run did not end: {type(error).__name__}: {error}"]
    else:
        found = problems(federation, expected, killed=True)
    storm = federation.storm
    return Outcome(found, storm.requests, storm.faults, storm.journal()), federation.kills
