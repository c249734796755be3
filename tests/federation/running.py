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
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from aggregator.setup import initialise
from shared.exchange.reading import dump_yaml
from shared.exchange.records import RunConfiguration
from shared.folder.durable import hash_file, write_file
from shared.learning.data import synthetic_fundus, synthetic_octa
from site_client.configuration import Policy
from site_client.setup import join, read_invite
from tests.folder.logins import Login, Logins
from tests.ports import free_port

RUN = "test-run"
TASK = "octa_segmentation"
TINY = {"image_size": 32, "widths": [4, 8]}
GRADES = (4, 6, 5)
WAIT_S = 240.0


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
    """A site's data folder: synthetic, of a style of its own."""
    if task == TASK:
        style = synthetic_octa.STYLES[number % len(synthetic_octa.STYLES)]
        synthetic_octa.write_site(root, style=style, images=images, size=32, seed=seed)
    else:
        fundus = synthetic_fundus.STYLES[number % len(synthetic_fundus.STYLES)]
        grades = GRADES[number % len(GRADES)]
        synthetic_fundus.write_graded_site(root, style=fundus, images=images, size=32, seed=seed, grades=grades)


@dataclass
class Federation:
    """One federation below ``root``; leaving its block ends every process it started.

    Without ``logins``, who may enter a server that runs already, it has an embedded server of its own.
    """

    root: Path
    run: RunConfiguration = field(default_factory=run_configuration)
    images: int = 20
    logins: Logins | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    server: subprocess.Popen[str] | None = None
    port: int = 0

    def __enter__(self) -> Federation:
        if self.logins is None:
            self.start_server()
        self._set_up(self.logins or self._own_logins())
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.kill_server()

    # --- the server ----------------------------------------------------------------------------------------

    def start_server(self) -> None:
        self.port = self.port or free_port()
        settings = {
            "root": str(self.root / "folders"),
            "host": "127.0.0.1",
            "port": self.port,
            "aggregator_password": "aggregator-password",
            "sites": {site: f"{site}-password" for site in self.run.sites},
        }
        path = self.root / "server.json"
        write_file(path, json.dumps(settings).encode(), private=True)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.webdav_server", str(path)], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        assert "http://" in self.server.stdout.readline()

    def kill_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server.stdout.close()  # type: ignore[union-attr]
            self.server = None

    def _own_logins(self) -> Logins:
        urls = {site: f"http://127.0.0.1:{self.port}/{site}" for site in self.run.sites}
        return Logins(
            {site: Login(url, site, f"{site}-password") for site, url in urls.items()},
            {site: Login(url, "aggregator", "aggregator-password") for site, url in urls.items()},
        )

    # --- set-up --------------------------------------------------------------------------------------------

    @property
    def aggregator(self) -> Path:
        return self.root / "aggregator"

    def site(self, name: str) -> Path:
        return self.root / "sites" / name

    def folder(self, name: str) -> Path:
        return self.root / "folders" / name

    def _set_up(self, logins: Logins) -> None:
        initialise(self.aggregator, "retina", {site: logins.aggregator[site].url for site in self.run.sites}, "unknown")
        heldout = self.root / "data" / "heldout"
        write_data(self.run.task, heldout, 0, 4 if self.run.task == TASK else 20, seed=99)
        accesses = {
            site: {
                "url": logins.aggregator[site].url,
                "user": logins.aggregator[site].user,
                "password_file": f"passwords/{site}",
                "ca_file": str(ca_file) if (ca_file := logins.aggregator[site].ca_file) else None,
            }
            for site in self.run.sites
        }
        self.change(
            self.aggregator / "aggregator.yaml",
            sites=accesses,
            heldout={self.run.task: str(heldout)},
            poll_seconds=0.3,
        )
        write_file(self.aggregator / "RUN.yaml", dump_yaml(self.run))
        for number, site in enumerate(self.run.sites):
            password = logins.aggregator[site].password.encode()
            write_file(self.aggregator / "passwords" / site, password, private=True)
            login = logins.sites[site]
            data = self.root / "data" / site
            write_data(self.run.task, data, number, self.images, seed=number)
            invite = read_invite(self.aggregator / "invites" / f"{site}.json")
            join(
                self.site(site),
                invite,
                data={self.run.task: str(data)},
                url=login.url,
                user=login.user,
                password=login.password,
                ca_file=login.ca_file,
            )
            policy = Policy(consent="auto").model_dump()
            self.change(self.site(site) / "site.yaml", poll_seconds=0.3, policy=policy)

    def change(self, path: Path, **settings: object) -> None:
        values = yaml.safe_load(path.read_bytes())
        write_file(path, yaml.safe_dump(values | settings, sort_keys=False).encode())

    # --- processes -----------------------------------------------------------------------------------------

    def start(self, module: str, *arguments: str, work: Path, dying: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a command; with ``dying``, one that kills itself once at each seam not yet listed in that file."""
        command = [sys.executable, "-m", module]
        if dying is not None:
            command = [sys.executable, "-m", "tests.federation.dying", str(dying), module]
        with (work / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [*command, *arguments, "--work", str(work)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONHASHSEED": "random"},
            )
        self.processes.append(process)
        return process

    def start_aggregator(self, dying: Path | None = None) -> subprocess.Popen[bytes]:
        run = str(self.aggregator / "RUN.yaml")
        return self.start("aggregator.cli", "launch", run, work=self.aggregator, dying=dying)

    def start_site(self, name: str, *options: str, dying: Path | None = None) -> subprocess.Popen[bytes]:
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

    def has_final(self, site: str) -> bool:
        """Whether the final model lies ready for use at the site."""
        return (self.site(site) / "final" / RUN / "card.yaml").exists()

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

    def final_sha256(self) -> str:
        return hash_file(self.aggregator / "runs" / RUN / "final" / "model.safetensors")[1]

    def output(self, work: Path) -> str:
        path = work / "output.txt"
        return path.read_text()[-4000:] if path.exists() else ""
