"""How often both ends ask the server while there is nothing to do: a run waits for the hospitals' consent.

    .venv/bin/python -m benchmarks.exchange_idle

Four sites on the embedded server, at the daemons' default interval, heartbeats included. A daemon looks ever more
rarely while nothing happens; what counts are the requests of one end for one site once it does so no more rarely.
Takes 26 minutes, in which the machine may do other work. Writes benchmarks/results/exchange-idle.json and .md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.exchange_federation import RUN, Federation, Home, end_all_when_ended, federation, set_up
from benchmarks.exchange_rounds import by_kind, rates, read_requests, sums
from benchmarks.exchange_servers import Server, known
from benchmarks.record import RESULTS, record, take_no_arguments
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.run import RunConfiguration

SITES = ("east", "north", "south", "west")
POLL_SECONDS = 30.0  # the daemons' default
SETTLE_S = 360.0  # the longest interval is reached after 300
WATCHED_S = 1200.0
MOST_IDLE = 150  # requests of one end, for one site, in an hour


def idle(server: Server, sites: Sequence[str], poll_seconds: float) -> dict[str, dict[str, float]]:
    """Return the requests per site and hour, heartbeats included, by end and by method and path."""
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
                _wait(daemons, SETTLE_S)
                began = time.time()
                _wait(daemons, WATCHED_S)
                ended = time.time()
            watched = [each for each in read_requests(home, served, sites) if began <= each.began < ended]
    return rates(watched, len(sites) * (ended - began) / 3600)


def _wait(daemons: Federation, seconds: float) -> None:
    until = time.monotonic() + seconds
    for _ in daemons.looks():
        if time.monotonic() >= until:
            return


def markdown(requests: Mapping[str, Mapping[str, float]]) -> str:
    """Return the figures as a table."""
    hourly = sums(requests)
    lines = [
        "# exchange-idle",
        "",
        "`python -m benchmarks.exchange_idle`; machine, date and commit in `exchange-idle.json`.",
        "",
        f"While a run waits for consent, in an hour, polling every {POLL_SECONDS:g} s, at most {MOST_IDLE} for one "
        f"site: aggregator {hourly[AGGREGATOR]:.0f}, site {hourly['site']:.0f}; held: "
        f"{'yes' if max(hourly.values()) <= MOST_IDLE else '**no**'}.",
        "",
        *by_kind(requests),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and record."""
    end_all_when_ended()
    requests = idle(known()["embedded"], SITES, POLL_SECONDS)
    figures = {"longest_poll_s": POLL_SECONDS, "watched_s": WATCHED_S, "requests_per_hour": requests}
    record("exchange-idle", "python -m benchmarks.exchange_idle", figures)
    (RESULTS / "exchange-idle.md").write_text(text := markdown(requests))
    print(text)


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
