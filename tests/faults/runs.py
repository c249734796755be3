"""One federation in one storm, in this process: what the schedules' tests and the soak are made of."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shared.exchange.records.run import RunConfiguration
from tests.faults.checks import Result, is_over, problems, result_of
from tests.faults.hurried import POLL_S, hurried
from tests.faults.storm import CALM, Storm, Weather
from tests.federation.in_process import FederationInProcess
from tests.federation.on_cloud import FederationOnCloud
from tests.federation.running import POLICY, Setting, make_data, run_configuration

IMAGES = 8
REPLAY = "python -m tests.faults.soak --seed"


@dataclass(frozen=True)
class Outcome:
    """How a federation got through a storm; ``problems`` is empty if all is well."""

    problems: list[str]
    requests: int
    faults: Counter[str]
    journal: str


def tiny_run() -> RunConfiguration:
    """The smallest run there is: a net of two levels of two channels."""
    return run_configuration(seed=1, rounds=1, task_options={"image_size": 32, "widths": [2, 2]})


def tiny_data() -> Path:
    """Images for it, made once for all federations of this process."""
    return Path(_tiny_data().name)


@lru_cache(maxsize=1)
def _tiny_data() -> tempfile.TemporaryDirectory[str]:
    data = tempfile.TemporaryDirectory(prefix="dropfed-data-")  # removed when the process ends
    make_data(tiny_run(), Path(data.name), IMAGES)
    return data


def set_up(setting: Setting, storm: Storm) -> None:
    """Make the work directories, with each client behind its proxy."""
    policy = POLICY.model_copy(update={"minimum_count": 2})  # of so few images every score counts
    setting.set_up(storm.logins(), poll_seconds=POLL_S, policy=policy)


@lru_cache(maxsize=1)
def undisturbed() -> Result:
    """What the run comes to when nothing goes wrong."""
    with tempfile.TemporaryDirectory(prefix="dropfed-undisturbed-") as root:
        federation, outcome = _run(CALM, Path(root))
        assert not outcome.problems, "\n".join(outcome.problems)
        result = result_of(federation)
        assert result.final == result.aggregates[1], (
            "a run whose training does not show in its final model tests little"
        )
        return result


def run_in(weather: Weather, root: Path) -> Outcome:
    """Run a federation below ``root`` in this weather, and look whether all is well."""
    expected = undisturbed()
    federation, outcome = _run(weather, root)
    if not outcome.problems:
        outcome.problems.extend(problems(federation, expected))
    return outcome


def _run(weather: Weather, root: Path) -> tuple[FederationInProcess, Outcome]:
    found: list[str] = []
    kind = FederationOnCloud if weather.is_cloud else FederationInProcess
    with hurried(), kind(root, tiny_run(), IMAGES, tiny_data()) as federation:
        locks = federation.server.locks if isinstance(federation, FederationOnCloud) else None
        storm = Storm(weather, federation.server.port, federation.run.sites, locks)
        works = [federation.site(site) for site in federation.run.sites]

        def end_the_storm() -> None:
            storm.calm()
            # A client's next request comes after it has said what the last one met.
            before = {site: storm.proxies[site].requests for site in federation.run.sites}
            federation.wait_until(lambda: all(storm.proxies[site].requests > made for site, made in before.items()))
            federation.wait_until(lambda: all(map(is_over, works)))

        try:
            set_up(federation, storm)
            federation.run_to_the_end(before_stop=end_the_storm)
        except Exception as error:
            found.append(f"the run did not end: {type(error).__name__}: {error}")
        finally:
            storm.close()
    return federation, Outcome(found, storm.requests, storm.faults, storm.journal())
