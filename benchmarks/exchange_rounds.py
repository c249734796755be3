"""When what happened in a federation that only exchanged, and who asked the server for what."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_federation import RUN, Home
from benchmarks.exchange_servers import Served
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef


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
    "sign",
    "publish",
    "wait to be noticed",
    "fetch",
    "check",
    "wait for the disk, which training would hide, and sign the answer",
    "publish back",
    "wait to be noticed again",
    "fetch back",
)


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    Attributes:
        seconds: from when the aggregator begins to sign the round until it has accepted the last answer.
        steps: by site, when each of ``STEPS`` had ended, in seconds from the same beginning.
        requests: of both ends: those that name the round, and others from this beginning to the next round's.
    """

    seconds: float
    steps: dict[str, tuple[float, ...]]
    requests: list[Request]


def read_round(home: Home, sites: Sequence[str], number: int, requests: Sequence[Request]) -> Round:
    """Return what the daemons' own files and requests say about a round."""
    began, until = _opened(home, number) or 0.0, _opened(home, number + 1) or float("inf")
    folder = f"{names.RUNS}/{RUN}/rounds/"

    def is_of_round(request: Request) -> bool:
        if request.path.startswith(folder):
            return request.path.startswith(f"{folder}{number:04d}")
        return began <= request.began < until

    own = [request for request in requests if is_of_round(request)]
    accepted = {end: _times(home.accepted(end)) for end in (AGGREGATOR, *sites)}
    steps = {site: tuple(moment - began for moment in _moments(home, site, number, own, accepted)) for site in sites}
    return Round(max(ends[-1] for ends in steps.values()), steps, own)


def _moments(
    home: Home, site: str, number: int, requests: Sequence[Request], accepted: Mapping[str, Mapping[str, float]]
) -> Iterator[float]:
    """Yield when each step of a site's round had ended, in seconds since 1970."""
    down, up = MessageRef("round", RUN, number), MessageRef("update", RUN, number)
    mirrors = {AGGREGATOR: home.aggregator / "sites" / site / names.MIRROR, site: home.site(site) / names.MIRROR}
    for ref, sender, reader in ((down, AGGREGATOR, site), (up, site, AGGREGATOR)):
        mine = [request for request in requests if request.site == site and request.path.startswith(ref.manifest)]
        # A rename changes ctime: a manifest's says when its message was complete.
        yield (mirrors[sender] / ref.manifest).stat().st_ctime
        yield max(request.ended for request in mine if request.end == sender and request.method in ("PUT", "MOVE"))
        yield min(
            request.ended for request in mine if (request.end, request.method, request.status) == (reader, "GET", 200)
        )
        yield accepted[reader][f"{site} {ref.path}"]
        if reader == site:
            yield _times(home.checked(site))[str(number)]


def _times(path: Path) -> dict[str, float]:
    """Return when each thing happened, in seconds since 1970, by its name."""
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
    return {what: float(moment) for moment, what in lines}


def _opened(home: Home, number: int) -> float | None:
    """Return when a round was opened: the aggregator signs it next."""
    path = home.aggregator / "runs" / RUN / "rounds" / f"{number:04d}" / "opened.json"
    return path.stat().st_ctime if path.exists() else None


def read_requests(home: Home, served: Served, sites: Sequence[str]) -> list[Request]:
    """Return every request of both ends, in order of time."""
    found = []
    for end in (AGGREGATOR, *sites):
        for line in home.requests(end).read_text().splitlines():
            began, ended, method, status, url = line.split(" ", 4)
            site, _, path = f"{url}/".removeprefix(f"{served.address}/").partition("/")
            found.append(Request(end, site, float(began), float(ended), method, int(status), path.rstrip("/")))
    return sorted(found, key=lambda request: request.began)


def tally(rounds: Sequence[Round], sites: int) -> dict[str, dict[str, float]]:
    """Return requests per round and site; paths in the round's folder are without it."""
    return rates([request for played in rounds for request in played.requests], len(rounds) * sites)


def rates(requests: Sequence[Request], share: float) -> dict[str, dict[str, float]]:
    """Return requests divided by ``share``, by end and by method and path."""
    counts: dict[str, Counter[str]] = {AGGREGATOR: Counter(), "site": Counter()}
    for request in requests:
        counts[AGGREGATOR if request.end == AGGREGATOR else "site"][_kind(request)] += 1
    return {
        end: {kind: round(count / share, 2) for kind, count in sorted(found.items())} for end, found in counts.items()
    }


def sums(requests: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of all requests of each end."""
    return {end: round(sum(kinds.values()), 1) for end, kinds in requests.items()}


def by_kind(requests: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| end | request | times |", "|---|---|---:|"]
    for end, kinds in requests.items():
        lines += [f"| {end} | {kind} | {times:.2f} |" for kind, times in kinds.items()]
        lines.append(f"| {end} | all | {sum(kinds.values()):.2f} |")
    return lines


def _kind(request: Request) -> str:
    round_folder = re.fullmatch(rf"{names.RUNS}/{RUN}/rounds/\d+", request.path)
    path = "round folder" if round_folder else re.sub(rf"^{names.RUNS}/{RUN}/(rounds/\d+/)?", "", request.path)
    path = "run folder" if path == f"{names.RUNS}/{RUN}" else path
    is_early = request.method == "GET" and request.status == 404
    return f"{request.method} {path or 'drop folder'}{', not there yet' if is_early else ''}"
