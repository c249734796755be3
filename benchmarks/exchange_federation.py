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

import numpy as np
import yaml

from aggregator.configuration import FILE as AGGREGATOR_FILE
from aggregator.setup import initialise
from aggregator.store import RunStore
from benchmarks.exchange_servers import Served
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, Place
from shared.exchange.records import RunConfiguration, Sharing, TensorList, TensorShape
from shared.exchange.weights import Array, write_tensors
from shared.folder.durable import link_file, write_file
from site_client.configuration import FILE as SITE_FILE
from site_client.configuration import Policy
from site_client.setup import join, read_invite

RUN = "exchange"
TENSORS = 4
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

    def site(self, name: str) -> Path:
        """One site's work directory."""
        return self.sites / name

    def requests(self, end: str) -> Path:
        """Where an end writes down its requests."""
        return self.root / f"requests-{end}.txt"

    def clear(self, *, keep: str) -> None:
        """Remove the weights of all rounds but the answers that lie at the aggregator of round ``keep``."""
        for place in (self.folders, self.sites, self.aggregator / "sites"):
            for path in place.glob("*/**/rounds/*/*/*.safetensors"):
                if path.parent.parent.name != keep or place != self.aggregator / "sites":
                    path.unlink()


def tensor_list(size: int) -> TensorList:
    """Four tensors of ``size`` bytes together."""
    rows = size // 4 // TENSORS // 1000
    shape = TensorShape(dtype="F32", shape=[rows, 1000])
    return TensorList(tensors={f"layer{number}.weight": shape for number in range(1, TENSORS + 1)})


def write_model(path: Path, size: int) -> None:
    """A model file of about ``size`` bytes of random numbers, which nothing can compress much."""
    random = np.random.default_rng(size)
    tensors = tensor_list(size)

    def tensor(name: str) -> Array:
        return random.standard_normal(tensors.tensors[name].shape, dtype=np.float32)

    write_tensors(path, tensors, tensor)


def set_up(home: Home, served: Served, sites: Sequence[str], model: Path, *, rounds: int, poll_seconds: float) -> None:
    """What the PI and each hospital's IT do by hand; the run begins with ``model``."""
    work = home.aggregator
    initialise(work, "retina", {site: served.url_of(site) for site in sites}, served.user)
    _change(work / AGGREGATOR_FILE, poll_seconds=poll_seconds)
    for site in sites:
        write_file(work / "passwords" / site, served.password.encode(), private=True)
        invite = read_invite(work / "invites" / f"{site}.json")
        join(home.site(site), invite, data={"octa_segmentation": "."}, url=None, password=served.password)
        policy = Policy(consent="auto").model_dump()
        _change(home.site(site) / SITE_FILE, user=served.user, poll_seconds=poll_seconds, policy=policy)
    run = RunConfiguration(
        run=RUN, task="octa_segmentation", method="mean", sites=list(sites), rounds=rounds, quorum=len(sites)
    )
    store = RunStore(work, RUN)
    store.begin(run, Sharing(tensors=tensor_list(model.stat().st_size).tensors, start={}, personal=[]))
    link_file(model, store.aggregate_path(0))


def _change(path: Path, **settings: object) -> None:
    values = yaml.safe_load(path.read_bytes())
    write_file(path, yaml.safe_dump(values | settings, sort_keys=False).encode())


@contextmanager
def running(home: Home, end: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One end of ``exchange_ends`` as a process, ended with the block."""
    command = [sys.executable, "-m", "benchmarks.exchange_ends", end, str(home.root), *arguments]
    with (home.root / f"output-{end}.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def exchange(home: Home, rounds: int) -> None:
    """Let all daemons run until so many rounds were exchanged.

    Raises:
        SystemExit: an end failed, or it takes half an hour.
    """
    with running(home, "sites") as sites, running(home, AGGREGATOR, str(rounds)) as aggregator:
        deadline = time.monotonic() + WAIT_S
        while aggregator.poll() is None and sites.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        if aggregator.poll() != 0:
            raise SystemExit(f"the exchange failed: see {home.root}/output-*.txt")


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


@dataclass(frozen=True)
class Round:
    """When what happened in one round, in seconds since the aggregator began to seal it.

    Attributes:
        requests: of both ends, from this beginning to the next round's.
    """

    seconds: float
    sealed: dict[str, float]
    published: dict[str, float]
    noticed: dict[str, float]
    received: dict[str, float]
    answer_sealed: dict[str, float]
    answer_published: dict[str, float]
    answer_noticed: dict[str, float]
    accepted: dict[str, float]
    requests: list[Request]


def read_round(home: Home, sites: Sequence[str], number: int, requests: Sequence[Request]) -> Round:
    """What the daemons' own files and requests say about a round."""
    began = _opened(home, number) or 0.0
    until = _opened(home, number + 1) or float("inf")
    down, up = Place("round", RUN, number), Place("update", RUN, number)
    within = [request for request in requests if began <= request.began < until]

    def since(path: Path) -> float:
        # A rename changes ctime: it is when the message was complete, not when its first byte was written.
        return path.stat().st_ctime - began

    def publishing(end: str, site: str, place: Place) -> float:
        return max(
            request.ended - began
            for request in within
            if (request.end, request.site) == (end, site) and request.method in ("MOVE", "PUT")
            if request.path.startswith(place.manifest)
        )

    def noticing(end: str, site: str, place: Place) -> float:
        return min(
            request.ended - began
            for request in within
            if (request.end, request.site, request.method) == (end, site, "GET")
            if request.path == place.manifest and request.status == 200
        )

    mirrors = {site: home.aggregator / "sites" / site / "mirror" for site in sites}
    accepted = {site: since(mirrors[site] / up.manifest) for site in sites}
    return Round(
        seconds=max(accepted.values()),
        sealed={site: since(mirrors[site] / down.manifest) for site in sites},
        published={site: publishing(AGGREGATOR, site, down) for site in sites},
        noticed={site: noticing(site, site, down) for site in sites},
        received={site: since(home.site(site) / "mirror" / down.manifest) for site in sites},
        answer_sealed={site: since(home.site(site) / "mirror" / up.manifest) for site in sites},
        answer_published={site: publishing(site, site, up) for site in sites},
        answer_noticed={site: noticing(AGGREGATOR, site, up) for site in sites},
        accepted=accepted,
        requests=within,
    )


def _opened(home: Home, number: int) -> float | None:
    """When a round was opened: the aggregator seals it next."""
    path = home.aggregator / "runs" / RUN / "rounds" / f"{number:04d}" / "opened.json"
    return path.stat().st_ctime if path.exists() else None


def read_requests(home: Home, served: Served, sites: Sequence[str]) -> list[Request]:
    """Every request of both ends, in order of time."""
    addresses = {re.sub(r"/$", "", served.url_of(site)): site for site in sites}
    found = []
    for end in (AGGREGATOR, *sites):
        for line in home.requests(end).read_text().splitlines():
            began, ended, method, status, url = line.split(" ", 4)
            address, site = next((known for known in addresses.items() if f"{url}/".startswith(f"{known[0]}/")))
            path = url.removeprefix(address).lstrip("/")
            found.append(Request(end, site, float(began), float(ended), method, int(status), path))
    return sorted(found, key=lambda request: request.began)


def what(request: Request) -> str:
    """What a request is for, as the table of requests names it."""
    if request.path.startswith(names.STATUS):
        return f"{request.method} {names.STATUS}"
    place = re.sub(r"^runs/[^/]*/rounds/\d+/", "", request.path) or "the folder"
    place = re.sub(rf"^{names.RUNS}/[^/]+/", "", place)
    missing = ", not there yet" if request.status == 404 and request.method == "GET" else ""
    return f"{request.method} {place}{missing}"


def tally(rounds: Sequence[Round], sites: int) -> dict[str, dict[str, float]]:
    """Requests per round and site, by end and by what they are for."""
    counts: dict[str, Counter[str]] = {"aggregator": Counter(), "site": Counter()}
    for played in rounds:
        for request in played.requests:
            counts["aggregator" if request.end == AGGREGATOR else "site"][what(request)] += 1
    share = len(rounds) * sites
    return {end: {kind: count / share for kind, count in sorted(found.items())} for end, found in counts.items()}
