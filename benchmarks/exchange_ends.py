"""The two ends of the exchange benchmark: the project's own daemons, of which only the learning is left out.

    python -m benchmarks.exchange_ends aggregator HOME ROUNDS [rests]
    python -m benchmarks.exchange_ends sites HOME

With ``rests`` no round begins before somebody has removed ``Home.resting``, which says that one is over.

HOME is laid out as in ``exchange_federation``. Each site is a process of its own. A site sends back what it received;
the aggregator takes any model that came whole. Everything else (launch, folder-sync workers, channels, folders,
polling, heartbeats, checks, combining) is what runs for a PI and in a hospital.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, TextIO

import requests
import torch
from requests.adapters import HTTPAdapter
from torch import nn

import aggregator.launch
import aggregator.preparation
import shared.learning.aggregation
import shared.learning.measures
import shared.learning.new_runs
import shared.learning.run_checks
import shared.polling
import site_client.consents
import site_client.daemon
import site_client.round_work
import site_client.train
from benchmarks.exchange_federation import Home
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.records.run import BelowLast, RoundConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.wire import FileEntry
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.trust import Message
from shared.folder.durable import link_file
from shared.learning.answers import limit_below
from shared.learning.combine import Combined, Weighed
from shared.learning.data.sets import Members
from shared.learning.methods.contract import Method
from shared.learning.tasks.contract import Collection, Dataset
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation
from shared.learning.tasks.terms import Options
from shared.learning.tolerance import HeldOutSet
from shared.logs import log_to
from shared.stopping import set_by_signals
from site_client.configuration import open_folder, read_configuration
from site_client.disclosure import Counts
from site_client.train import Files, OnProgress, Trainer, Worked

TENSORS = 4
COLUMNS = 1000
SCORES: dict[str, float | None] = {"dice_mean": 0.5, "dice_std": 0.0}


class Size(Options):
    """``task_options`` of a run that learns nothing."""

    bytes: int


class Numbers(nn.ParameterList):
    """A network in form alone: nothing computes with it."""

    classes = 2
    heads = ()

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what came."""
        return inputs


class AnyTask(OctaSegmentation):
    """A task whose model is four tensors of random numbers, as large as the run says, and whose images are none."""

    def options(self, raw: Mapping[str, object]) -> Size:  # type: ignore[override]
        """Return the model's size."""
        return Size.model_validate(raw)

    def build_model(self, options: Size, classes: int, seed: int) -> nn.Module:  # type: ignore[override]
        """Return a model of random numbers that compress poorly."""
        random = torch.Generator().manual_seed(seed)
        rows = options.bytes // 4 // TENSORS // COLUMNS
        layers = [nn.Parameter(torch.randn(rows, COLUMNS, generator=random)) for _ in range(TENSORS)]
        return Numbers(layers)

    def open_images(self, root: Path, options: Size) -> Collection:  # type: ignore[override]
        """Return no images."""
        return Collection((), ("any",))


class AnyModel(HeldOutSet):
    """Stands where the held-out set stands: every model scores 1. After a round's last answer it clears the disk.

    The daemon asks for the last score of a round when the round's exchange has ended, and nothing of the next has
    begun. Then the weights that nobody needs any more are removed, so that the disk never holds more than a few
    rounds, and what the system has not written to the disk yet is written, so that no round pays for the one before.
    """

    def __init__(self, home: Home, sites: int, rounds: int, stop: threading.Event, *, rests: bool) -> None:
        self._rests = rests
        self._home = home
        self._sites = sites
        self._left = sites * rounds
        self._stop = stop

    def score(self, file: Path, shown_as: str) -> float:
        """Return 1 for every model."""
        self._left -= 1
        if self._left % self._sites == 0:
            self._home.clear(keep=file.parent.parent.name)
            os.sync()
            self._rest()
        if self._left == 0:
            self._stop.set()
        return self.score_as_it_is()

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """Return the limit that follows from a score of 1; no round is over by that."""
        return limit_below(1.0, tolerance)

    def score_as_it_is(self) -> float:
        """Return 1."""
        return 1.0

    def _rest(self) -> None:
        """Report that a round is over, and wait until the next may begin."""
        if self._rests:
            self._home.resting.touch()
            while self._home.resting.exists() and not self._stop.is_set():
                time.sleep(0.01)


class Echo(Trainer):
    """Stands where training stands: the answer is what was received.

    Attributes:
        checked: is told when the model of each round was checked, in seconds since 1970.
    """

    checked: ClassVar[TextIO]

    def open_dataset(self, members: Members) -> Dataset:
        """Return as many images as may be reported."""
        return images()

    def work(
        self,
        dataset: Dataset,
        configuration: RoundConfiguration,
        files: Files,
        on_progress: OnProgress,
        *,
        trained_before: int = 0,
    ) -> Worked:
        """Link the received model to where the trained one goes.

        Training hashes a model while it writes it, which is no part of the exchange; here the hash came with it.
        The answer is not signed before what it answers is on the disk; training would have taken longer than that.
        """
        rows = [MetricsRow(configuration.round, 0, "validation", "10", configuration.learning_rate, 0.5, SCORES)]
        tables = {names.METRICS: write_metrics(rows)}
        if not configuration.epochs:
            return Worked(len(dataset.train), tables, None, {})
        link_file(files.received, files.trained)
        self.checked.write(f"{time.time():.6f} {configuration.round}\n")
        while not (path := files.received.with_name(names.MANIFEST)).exists():
            time.sleep(0.001)
        manifest = json.loads(path.read_bytes())
        return Worked(
            len(dataset.train), tables, FileEntry.model_validate(manifest["body"]["files"][names.GLOBAL_MODEL]), {}
        )


def images() -> Dataset:
    """Return the dataset of a site that has no images to divide."""
    return Dataset(range(10), range(10), range(10), ("any",))


def half_of(method: Method, tensors: Mapping[str, TensorList], *, updates: Weighed, **settings: Any) -> Combined:
    """Return half the mean: as in training, no round's model is that of the round before."""
    halves = {site: weight / 2 for site, weight in updates.weights.items()}
    return Combined(method, tensors, updates=replace(updates, weights=halves), **settings)


def put_instead(module: ModuleType, **stand_ins: object) -> None:
    """Put others in the place of what a module has by these names.

    Raises:
        AttributeError: it has no such name any more, and goes by something else.
    """
    for name, stand_in in stand_ins.items():
        getattr(module, name)
        setattr(module, name, stand_in)


def aggregate(home: Home, rounds: int, *, rests: bool) -> None:
    """Run the aggregator's daemon until so many rounds were exchanged."""
    stop = set_by_signals(threading.Event())
    record(home, names.AGGREGATOR)
    sites = len(list(home.sites.iterdir()))
    put_instead(
        aggregator.preparation,
        task_named=lambda _name: AnyTask(),
        HeldOutSet=SimpleNamespace(of_run=lambda *_, **__: AnyModel(home, sites, rounds, stop, rests=rests)),
        _remarks=lambda *_: (),  # on training, of which there is none
    )
    for module in (shared.learning.run_checks, shared.learning.measures, shared.learning.new_runs):
        put_instead(module, task_named=lambda _name: AnyTask())
    put_instead(shared.learning.aggregation, Combined=half_of)
    aggregator.launch.prepare_daemon(home.aggregator, home.run_yaml, stop).run()


def play_sites(home: Home) -> None:
    """Run every site's daemon, each in a process forked from this one, until told to end."""
    put_instead(site_client.train, Trainer=Echo)
    put_instead(
        site_client.consents,
        check_offer=lambda *_: None,
        commit=lambda *_, **__: Counts.of(images()),
        release=lambda *_: None,
    )
    put_instead(site_client.round_work, committed=lambda *_: {}, release=lambda *_: None)
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
    work, stop = home.site(name), set_by_signals(threading.Event())
    log_to(work / "log.txt")
    record(home, name)
    Echo.checked = home.checked(name).open("a", buffering=1)
    configuration = read_configuration(work)
    site_client.daemon.Daemon(work, configuration, open_folder(work, configuration), stop=stop).run()


def record(home: Home, end: str) -> None:
    """Write down what an end does, and have its clock stand still while it is halted."""
    record_requests(home.requests(end))
    record_accepted(home.accepted(end))
    put_instead(shared.polling, time=SimpleNamespace(monotonic=lambda: time.monotonic() - home.halted_s()))


def record_accepted(path: Path) -> None:
    """Write a line for each message that this process accepts and begins to work with: when (s), site, place."""
    accept = Mirror.accept
    lines = path.open("a", buffering=1)

    def recorded(self: Mirror, message: Message, manifest: bytes) -> None:
        accept(self, message, manifest)
        lines.write(f"{time.time():.6f} {message.manifest.site} {message.ref.path}\n")

    Mirror.accept = recorded  # type: ignore[method-assign]


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
        aggregate(home, int(arguments[2]), rests=arguments[3:] == ["rests"])
    else:
        play_sites(home)


if __name__ == "__main__":
    main(sys.argv[1:])
