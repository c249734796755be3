"""A small federation of real processes over a real WebDAV server, for tests.

The net is tiny and the images are few, but nothing is stubbed: the daemons are those a user starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from aggregator.setup import initialise
from deploy.local import synthetic_fundus, synthetic_octa
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_file, write_file
from shared.learning.seeds import no_secret
from site_client.configuration import Policy
from site_client.division import place
from site_client.setup import join, read_invite
from tests.canary import password_of, told_below
from tests.drawn import draw_once
from tests.federation.forked import Forked
from tests.folder.logins import AGGREGATOR, Login, Logins
from tests.ports import free_port

RUN = "test-run"
TASK = "octa_segmentation"
TINY = {"image_size": 32, "widths": [4, 8]}
GRADES = (4, 6, 5)
POLICY = Policy(
    consent="auto", minimum_count=1, minimum_training_images=1, max_delta=0.01, total_delta=0.01, total_epsilon=1000.0
)
"""Of sites with few images, which are public: a hospital has a run train on more, promise more and tell less."""
WAIT_S = 600.0


def run_configuration(**changes: object) -> RunConfiguration:
    settings: dict[str, object] = {
        "run": RUN,
        "task": TASK,
        "method": "mean",
        "sites": ["north", "south"],
        "rounds": 1,
        "seed": 7,
        "batch_size": 4,
        "tolerance": 0.01,
        "quorum": 2,
        "task_options": TINY,
        "augmentation": {"copies": 1},
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
    }
    return RunConfiguration.model_validate(settings | changes)


def staging_run(**changes: object) -> RunConfiguration:
    """Staging by FedUAA with a small encoder: a head stays at each site, and sites grade by different scales."""
    settings: dict[str, object] = {
        "task": "dr_staging",
        "method": "feduaa",
        "rounds": 2,
        "task_options": {"encoder": "small", "weights": "random", "image_size": 32, "optimizer": "adam"},
        "learning_rate": {"initial": 0.003, "factor": 1.0, "period": 1},
        "augmentation": {},
    }
    return run_configuration(**(settings | changes))


def write_data(task: str, root: Path, number: int, images: int, seed: int) -> None:
    """Write a site's data folder: synthetic, of a style of its own."""
    draw_once(f"{task}-{number}-{images}-{seed}", lambda folder: _draw(task, folder, number, images, seed), root)


def _draw(task: str, root: Path, number: int, images: int, seed: int) -> None:
    if task == TASK:
        style = synthetic_octa.STYLES[number % len(synthetic_octa.STYLES)]
        synthetic_octa.write_site(root, style=style, images=images, size=32, seed=seed)
    else:
        fundus = synthetic_fundus.STYLES[number % len(synthetic_fundus.STYLES)]
        grades = GRADES[number % len(GRADES)]
        synthetic_fundus.write_graded_site(root, style=fundus, images=images, size=32, seed=seed, grades=grades)


Process = Forked | subprocess.Popen[bytes]


@dataclass
class Setting:
    """Work directories of one federation below ``root``, made as people make them.

    Args:
        data: ready data folders, ``heldout`` and one for each site; None: they are made below ``root``.
        policy: of every site.
    """

    root: Path
    run: RunConfiguration = field(default_factory=run_configuration)
    images: int = 20
    data: Path | None = None
    policy: Policy = POLICY

    @property
    def aggregator(self) -> Path:
        return self.root / "aggregator"

    def site(self, name: str) -> Path:
        return self.root / "sites" / name

    def folder(self, name: str) -> Path:
        return self.root / "folders" / name

    def data_of(self, name: str) -> Path:
        return (self.data or self.root / "data") / name

    def set_up(self, logins: Logins, *, poll_seconds: float = 0.3, policy: Policy | None = None) -> None:
        """Set up the aggregator and join every site."""
        data = self.data or self.root / "data"
        if self.data is None:
            make_data(self.run, data, self.images)
        initialise(self.aggregator, "retina", {site: logins.aggregator[site].url for site in self.run.sites}, "unknown")
        accesses = {
            site: {
                "url": login.url,
                "user": login.user,
                "password_file": f"passwords/{site}",
                "ca_file": str(login.ca_file) if login.ca_file else None,
            }
            for site, login in logins.aggregator.items()
        }
        self.change(
            self.aggregator / "aggregator.yaml",
            sites=accesses,
            heldout={self.run.task: str(data / "heldout")},
            poll_seconds=poll_seconds,
        )
        write_file(self.aggregator / "RUN.yaml", dump_yaml(self.run))
        for site in self.run.sites:
            password = logins.aggregator[site].password.encode()
            write_file(self.aggregator / "passwords" / site, password, private=True)
            login = logins.sites[site]
            invite = read_invite(self.aggregator / "invites" / f"{site}.json")
            own = {self.run.task: str(data / site)}
            join(
                self.site(site),
                invite,
                data=own,
                url=login.url,
                user=login.user,
                password=login.password,
                ca_file=login.ca_file,
            )
            self.change(
                self.site(site) / "site.yaml", poll_seconds=poll_seconds, policy=(policy or self.policy).model_dump()
            )
            place(self.site(site), no_secret(self.run.seed, site))

    def change(self, path: Path, **settings: object) -> None:
        values = yaml.safe_load(path.read_bytes())
        write_file(path, yaml.safe_dump(values | settings, sort_keys=False).encode())

    def has_final(self, site: str) -> bool:
        """Whether the final model lies ready for use at the site."""
        return (self.site(site) / "final" / self.run.run / "card.yaml").exists()

    def final_sha256(self) -> str:
        return hash_file(self.aggregator / "runs" / RUN / "final" / "model.safetensors")[1]


def make_data(run: RunConfiguration, root: Path, images: int) -> None:
    """Write the held-out set and each site's images."""
    write_data(run.task, root / "heldout", 0, 4 if run.task == TASK else 20, seed=99)
    for number, site in enumerate(run.sites):
        write_data(run.task, root / site, number, images, seed=number)


def own_logins(sites: Sequence[str], url: str) -> Logins:
    """Who may enter the embedded server at ``url``."""
    return Logins(
        {site: Login(f"{url}/{site}", site, password_of(site)) for site in sites},
        {site: Login(f"{url}/{site}", AGGREGATOR, password_of(AGGREGATOR)) for site in sites},
    )


def fresh(command: Sequence[str], output: Path) -> Process:
    """Run ``python -m COMMAND`` as a user does, its output appended to a file."""
    with output.open("ab") as file:
        environment = os.environ | {"PYTHONHASHSEED": "random"}
        return subprocess.Popen(
            [sys.executable, "-m", *command], stdout=file, stderr=subprocess.STDOUT, env=environment
        )


@dataclass
class Federation(Setting):
    """One federation of real processes; leaving its block ends every process it started.

    Without ``logins``, who may enter a server that runs already, it has an embedded server of its own.

    Args:
        runner: a module of ours, with its arguments, that runs the daemons' modules in some way of its own.
        fresh: whoever is started has an interpreter of its own from the start, with its own random order of sets.
    """

    logins: Logins | None = None
    runner: tuple[str, ...] = ()
    fresh: bool = False
    processes: list[Process] = field(default_factory=list)
    server: Forked | None = None
    port: int = 0

    def __enter__(self) -> Federation:
        if self.logins is None:
            self.start_server()
        self.set_up(self.logins or own_logins(self.run.sites, f"http://127.0.0.1:{self.port}"))
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.kill_server()
        if error is None:
            assert told_below(self.root) == []

    # --- the server ----------------------------------------------------------------------------------------

    def start_server(self) -> None:
        self.port = self.port or free_port()
        settings = {
            "root": str(self.root / "folders"),
            "host": "127.0.0.1",
            "port": self.port,
            "aggregator_password": password_of(AGGREGATOR),
            "sites": {site: password_of(site) for site in self.run.sites},
        }
        path = self.root / "server.json"
        write_file(path, json.dumps(settings).encode(), private=True)
        said = self.root / "server.txt"
        said.write_bytes(b"")
        self.server = Forked(["deploy.local.webdav_server", str(path)], said)
        self.wait_until(lambda: "http://" in said.read_text(), "the server")

    def kill_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    # --- processes -----------------------------------------------------------------------------------------

    def start(self, module: str, *arguments: str, work: Path, dying: Path | None = None) -> Process:
        """Start a command; with ``dying``, one that kills itself once at each seam not yet listed in that file."""
        runner = ("tests.federation.dying", str(dying)) if dying is not None else self.runner
        command = [*runner, module, *arguments, "--work", str(work)]
        process = (fresh if self.fresh else Forked)(command, work / "output.txt")
        self.processes.append(process)
        return process

    def start_aggregator(self, dying: Path | None = None) -> Process:
        """It ends with 0 whatever the run came to: most runs here are too short to learn anything."""
        run = str(self.aggregator / "RUN.yaml")
        return self.start("aggregator.cli", "launch", run, "--accept-any", work=self.aggregator, dying=dying)

    def start_site(self, name: str, *options: str, dying: Path | None = None) -> Process:
        return self.start("site_client.cli", "run", *options, work=self.site(name), dying=dying)

    def run_to_the_end(self) -> None:
        """Start everything undisturbed and wait for the end of the run."""
        for site in self.run.sites:
            self.start_site(site)
        aggregator = self.start_aggregator()
        assert aggregator.wait(WAIT_S) == 0, self.output(self.aggregator)
        self.wait_for_finals()

    def wait_for_finals(self) -> None:
        """Wait until every site has the final model."""
        self.wait_until(lambda: all(self.has_final(site) for site in self.run.sites), "the final model at every site")

    def wait_until(self, condition: object, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.output(self.aggregator)}"
            time.sleep(0.05)

    def stop_all(self) -> None:
        """End every daemon cleanly, as an operator does."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(WAIT_S)

    def output(self, work: Path) -> str:
        path = work / "output.txt"
        return path.read_text()[-4000:] if path.exists() else ""
