"""A federation that only exchanges: its files, its processes, and when what happened in it, read from both."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from aggregator.configuration import FILE as AGGREGATOR_FILE
from aggregator.setup import initialise
from benchmarks.exchange_servers import Served
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, Place
from shared.exchange.reading import dump_yaml
from shared.exchange.records import RunConfiguration
from shared.folder.durable import write_file
from site_client.configuration import FILE as SITE_FILE
from site_client.configuration import Policy
from site_client.setup import join, read_invite

RUN = "exchange"
WAIT_S = 1800.0


@dataclass(frozen=True)
class Home:
    """Where everything of one federation lies."""

    root: Path

    @property
    def folders(self) -> Path:
        """The drop folders on the server's disk."""
        return self.root / "folders"

    @property
    def aggregator(self) -> Path:
        """The aggregator's work directory."""
        return self.root / "aggregator"

    @property
    def sites(self) -> Path:
        """The sites' work directories, one below each name."""
        return self.root / "sites"

    @property
    def heldout(self) -> Path:
        """Images for the aggregator's tolerance check, where there are any."""
        return self.root / "heldout"

    def site(self, name: str) -> Path:
        """One site's work directory."""
        return self.sites / name

    def requests(self, end: str) -> Path:
        """Where an end writes down its requests."""
        return self.root / f"requests-{end}.txt"

    @property
    def run_yaml(self) -> Path:
        """What the aggregator launches."""
        return self.aggregator / "RUN.yaml"

    def clear(self, *, keep: str) -> None:
        """Remove the weights of all rounds, but the answers to round ``keep`` that lie at the aggregator."""
        for place in (self.folders, self.sites, self.aggregator / "sites"):
            for path in place.glob("*/**/rounds/*/*/*.safetensors"):
                if path.parent.parent.name != keep or place != self.aggregator / "sites":
                    path.unlink()


def set_up(home: Home, served: Served, run: RunConfiguration, *, poll_seconds: float) -> None:
    """What the PI and each hospital's IT do by hand."""
    home.folders.symlink_to(served.folders)
    work = home.aggregator
    user, password = served.aggregator
    initialise(work, "retina", {site: served.url_of(site) for site in run.sites}, user)
    _change(work / AGGREGATOR_FILE, heldout={run.task: str(home.heldout)}, poll_seconds=poll_seconds)
    write_file(home.run_yaml, dump_yaml(run))
    for site in run.sites:
        write_file(work / "passwords" / site, password.encode(), private=True)
        invite = read_invite(work / "invites" / f"{site}.json")
        site_user, site_password = served.sites[site]
        join(home.site(site), invite, data={run.task: "."}, url=None, password=site_password)
        policy = Policy(consent="auto", max_rounds=9998).model_dump()
        _change(home.site(site) / SITE_FILE, user=site_user, poll_seconds=poll_seconds, policy=policy)


def _change(path: Path, **settings: object) -> None:
    values = yaml.safe_load(path.read_bytes())
    write_file(path, yaml.safe_dump(values | settings, sort_keys=False).encode())


@contextmanager
def running(home: Home, end: str, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module as a process, ended with the block."""
    with (home.root / f"output-{end}.txt").open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def federation(home: Home, aggregator: Sequence[str]) -> Iterator[Iterator[subprocess.Popen[bytes]]]:
    """All daemons; looks at them now and then, for as long as the aggregator's runs.

    Args:
        aggregator: the module and its arguments.

    Raises:
        SystemExit: a daemon failed, or it takes half an hour.
    """

    def looks() -> Iterator[subprocess.Popen[bytes]]:
        deadline = time.monotonic() + WAIT_S
        while main.poll() is None:
            if sites.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(_failure(home))
            yield main
            time.sleep(0.1)
        if main.returncode != 0:
            raise SystemExit(_failure(home))

    play_sites = ["benchmarks.exchange_ends", "sites", str(home.root)]
    with running(home, "sites", play_sites) as sites, running(home, AGGREGATOR, aggregator) as main:
        yield looks()


def _failure(home: Home) -> str:
    ends = [(home.root / f"output-{end}.txt").read_text(errors="replace")[-3000:] for end in (AGGREGATOR, "sites")]
    return "the exchange failed:\n" + "\n".join(ends)


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """The kernel's own record of a running process's peak resident memory: nothing is missed between two looks."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else 0.0  # none: it has just ended


def exchange(home: Home, rounds: int) -> float:
    """Let all daemons run until so many rounds were exchanged; returns the aggregator's peak memory in MB."""
    with federation(home, ["benchmarks.exchange_ends", AGGREGATOR, str(home.root), str(rounds)]) as looks:
        return max(peak_mb(aggregator) for aggregator in looks)


@dataclass(frozen=True)
class Request:
    """One request as an end saw it: times in seconds since 1970, to the answer's headers."""

    end: str
    site: str
    began: float
    ended: float
    method: str
    status: int
    path: str


STEPS = (
    "seal",
    "publish",
    "wait to be noticed",
    "fetch",
    "check and seal the answer",
    "publish back",
    "wait to be noticed again",
    "fetch back",
)


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    Attributes:
        seconds: from when the aggregator begins to seal the round until it has accepted the last answer.
        steps: by site, when each of ``STEPS`` had ended, in seconds from the same beginning.
        requests: of both ends: those that name the round, and others from this beginning to the next round's.
    """

    seconds: float
    steps: dict[str, tuple[float, ...]]
    requests: list[Request]


def read_round(home: Home, sites: Sequence[str], number: int, requests: Sequence[Request]) -> Round:
    """What the daemons' own files and requests say about a round."""
    began, until = _opened(home, number) or 0.0, _opened(home, number + 1) or float("inf")
    folder = f"{names.RUNS}/{RUN}/rounds/"

    def is_of_round(request: Request) -> bool:
        if request.path.startswith(folder):
            return request.path.startswith(f"{folder}{number:04d}")
        return began <= request.began < until

    own = [request for request in requests if is_of_round(request)]
    steps = {site: tuple(moment - began for moment in _moments(home, site, number, own)) for site in sites}
    return Round(max(ends[-1] for ends in steps.values()), steps, own)


def _moments(home: Home, site: str, number: int, requests: Sequence[Request]) -> Iterator[float]:
    """When each step of a site's round had ended, in seconds since 1970."""
    down, up = Place("round", RUN, number), Place("update", RUN, number)
    mirrors = {AGGREGATOR: home.aggregator / "sites" / site / "mirror", site: home.site(site) / "mirror"}
    for place, sender, reader in ((down, AGGREGATOR, site), (up, site, AGGREGATOR)):
        mine = [request for request in requests if request.site == site and request.path.startswith(place.manifest)]
        # A rename changes ctime: a manifest's says when its message was complete.
        yield (mirrors[sender] / place.manifest).stat().st_ctime
        yield max(request.ended for request in mine if request.end == sender and request.method in ("PUT", "MOVE"))
        yield min(
            request.ended for request in mine if (request.end, request.method, request.status) == (reader, "GET", 200)
        )
        yield (mirrors[reader] / place.manifest).stat().st_ctime


def _opened(home: Home, number: int) -> float | None:
    """When a round was opened: the aggregator seals it next."""
    path = home.aggregator / "runs" / RUN / "rounds" / f"{number:04d}" / "opened.json"
    return path.stat().st_ctime if path.exists() else None


def read_requests(home: Home, served: Served, sites: Sequence[str]) -> list[Request]:
    """Every request of both ends, in order of time."""
    found = []
    for end in (AGGREGATOR, *sites):
        for line in home.requests(end).read_text().splitlines():
            began, ended, method, status, url = line.split(" ", 4)
            site, _, path = f"{url}/".removeprefix(f"{served.address}/").partition("/")
            found.append(Request(end, site, float(began), float(ended), method, int(status), path.rstrip("/")))
    return sorted(found, key=lambda request: request.began)


def tally(rounds: Sequence[Round], sites: int) -> dict[str, dict[str, float]]:
    """Requests per round and site, by end and by method and path; paths in the round's folder are without it."""
    counts: dict[str, Counter[str]] = {AGGREGATOR: Counter(), "site": Counter()}
    for played in rounds:
        for request in played.requests:
            counts[AGGREGATOR if request.end == AGGREGATOR else "site"][_kind(request)] += 1
    share = len(rounds) * sites
    return {end: {kind: count / share for kind, count in sorted(found.items())} for end, found in counts.items()}


def _kind(request: Request) -> str:
    round_folder = re.fullmatch(rf"{names.RUNS}/{RUN}/rounds/\d+", request.path)
    path = "round folder" if round_folder else re.sub(rf"^{names.RUNS}/{RUN}/(rounds/\d+/)?", "", request.path)
    path = "run folder" if path == f"{names.RUNS}/{RUN}" else path
    is_early = request.method == "GET" and request.status == 404
    return f"{request.method} {path or 'drop folder'}{', not there yet' if is_early else ''}"
