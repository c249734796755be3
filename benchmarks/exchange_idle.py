"""How often both ends ask the server while there is nothing to do: a run waits for the hospitals' consent."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exchange_federation import RUN, Federation, Home, federation, set_up
from benchmarks.exchange_rounds import rates, read_requests
from benchmarks.exchange_servers import Server
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.run import RunConfiguration

SETTLE_S = 180.0  # a daemon looks ever more rarely while nothing happens
WATCHED_S = 900.0
MOST_IDLE = 150  # requests of one end, for one site, in an hour


def idle(
    server: Server, sites: Sequence[str], poll_seconds: float, settle_s: float = SETTLE_S, watched_s: float = WATCHED_S
) -> dict[str, dict[str, float]]:
    """Requests per site and hour, heartbeats included, by end and by method and path."""
    with tempfile.TemporaryDirectory(prefix="dropfed-idle-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        home = Home(root)
        run = RunConfiguration(
            run=RUN,
            task="octa_segmentation",
            method="mean",
            sites=list(sites),
            rounds=1,
            quorum=len(sites),
            task_options={"bytes": 10**6},
        )
        with server(root / "server", sites) as served:
            set_up(home, served, run, poll_seconds=poll_seconds, consent="ask")
            with federation(home, ["benchmarks.exchange_ends", AGGREGATOR, str(root), "1"]) as daemons:
                _wait(daemons, settle_s)
                began = time.time()
                _wait(daemons, watched_s)
                ended = time.time()
            watched = [each for each in read_requests(home, served, sites) if began <= each.began < ended]
    return rates(watched, len(sites) * (ended - began) / 3600)


def _wait(daemons: Federation, seconds: float) -> None:
    until = time.monotonic() + seconds
    for _ in daemons.looks():
        if time.monotonic() >= until:
            return
