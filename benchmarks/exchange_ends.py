"""The two ends of the exchange benchmark: the project's own daemons, of which only the learning is left out.

    python -m benchmarks.exchange_ends aggregator HOME ROUNDS
    python -m benchmarks.exchange_ends sites HOME

HOME is laid out as in ``exchange_federation``. Each site is a process of its own. A site sends back what it received;
the aggregator takes any model that came whole. Everything else (couriers, channels, folders, polling, heartbeats,
checks, combining) is what runs in a hospital.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import requests
from requests.adapters import HTTPAdapter

import site_client.daemon
from aggregator.configuration import open_folder, read_configuration
from aggregator.daemon import Daemon
from aggregator.setup import KEY_FILE
from aggregator.site import Site, read_invite
from aggregator.store import RunStore
from aggregator.tolerance import HeldOutSet
from benchmarks.exchange_federation import RUN, Home
from shared.exchange import names
from shared.exchange.records import RoundConfiguration
from shared.exchange.signing import SigningKey
from shared.exchange.tables import MetricsRow, write_metrics
from shared.folder.durable import link_file
from shared.learning.methods import method_named
from shared.learning.tasks.contract import Dataset
from shared.logs import log_to
from site_client import configuration as site_configuration
from site_client.train import Files, OnProgress, Trainer

SCORES: dict[str, float | None] = {"dice_mean": 0.5, "dice_std": 0.0}


class Echo(Trainer):
    """Answers with what it received."""

    def check_offer(self) -> None:
        """Any tensors will do."""

    def open_dataset(self, seed: int) -> Dataset:
        """As many images as may be told."""
        return Dataset(train=range(10), validation=range(10), test=range(10), classes=("any",))  # type: ignore[arg-type]

    def work(
        self, dataset: Dataset, configuration: RoundConfiguration, files: Files, on_progress: OnProgress
    ) -> dict[str, bytes]:
        """Link the received model to where the trained one goes."""
        if configuration.epochs:
            link_file(files.received, files.trained)
        rows = [MetricsRow(configuration.round, 0, "validation", "10", 0.1, 0.5, SCORES)]
        return {names.METRICS: write_metrics(rows)}


class AnyModel(HeldOutSet):
    """Stands where the held-out set stands. When a round's last answer was accepted it clears the disk.

    Every model scores 1. The daemon asks for the last score of a round after the round's exchange has ended, and
    nothing of the next has begun: then the weights that nobody needs any more are removed, so that 16 copies of a
    model and not 64 lie on the disk, and what the disk has not written yet is written, so that no round pays for the
    one before.
    """

    def __init__(self, home: Home, sites: int, rounds: int, stop: threading.Event) -> None:
        self._home = home
        self._sites = sites
        self._left = sites * rounds
        self._stop = stop

    def score(self, file: Path, shown_as: str) -> float:
        """1 for every model."""
        self._left -= 1
        if self._left % self._sites == 0:
            self._home.clear(keep=file.parent.parent.name)
            os.sync()
        if self._left == 0:
            self._stop.set()
        return 1.0


def aggregate(home: Home, rounds: int) -> None:
    """Run the aggregator's daemon until so many rounds were exchanged."""
    work, stop, news = home.aggregator, threading.Event(), threading.Event()
    log_to(work / "log.txt")
    record_requests(home.requests(names.AGGREGATOR))
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    configuration = read_configuration(work)
    key = SigningKey.at(work / KEY_FILE)
    sites = [
        Site(
            work / "sites" / name,
            open_folder(work, access),
            invite=read_invite(work, name),
            key=key,
            stop=stop,
            longest_pause_s=configuration.poll_seconds,
            on_news=news.set,
        )
        for name, access in sorted(configuration.sites.items())
    ]
    daemon = Daemon(
        RunStore(work, RUN),
        sites,
        heldout=AnyModel(home, len(sites), rounds, stop),
        method=method_named("mean"),
        score_name="dice_mean",
        stop=stop,
        news=news,
    )
    daemon.run()


def play_sites(home: Home) -> None:
    """Run every site's daemon, each in a process forked from this one, until told to end."""
    site_client.daemon.Trainer = Echo  # type: ignore[misc]
    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=_play, args=(home, path.name)) for path in sorted(home.sites.iterdir())]
    for process in processes:
        process.start()

    def end(_number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    for process in processes:
        process.join()


def _play(home: Home, name: str) -> None:
    work, stop = home.site(name), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    log_to(work / "log.txt")
    record_requests(home.requests(name))
    configuration = site_configuration.read_configuration(work)
    folder = site_configuration.open_folder(work, configuration)
    site_client.daemon.Daemon(work, configuration, folder, stop=stop).run()


def record_requests(path: Path) -> None:
    """Write a line for each request this process makes from now on: begin and end (s), method, status, address."""
    send = HTTPAdapter.send
    lines = path.open("a", buffering=1)

    def recorded(
        self: HTTPAdapter, request: requests.PreparedRequest, *arguments: object, **options: object
    ) -> requests.Response:
        began, status = time.time(), 0
        try:
            response = send(self, request, *arguments, **options)  # type: ignore[arg-type]
            status = response.status_code
            return response
        finally:
            lines.write(f"{began:.6f} {time.time():.6f} {request.method} {status} {request.url}\n")

    HTTPAdapter.send = recorded  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    """Play one end."""
    home = Home(Path(arguments[1]))
    if arguments[0] == "aggregator":
        aggregate(home, int(arguments[2]))
    else:
        play_sites(home)


if __name__ == "__main__":
    main(sys.argv[1:])
