"""The WebDAV servers of the exchange benchmark, each a process of its own on a free loopback port."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from shared.exchange.names import AGGREGATOR
from shared.folder.durable import write_file
from tests.folder.installed import RECIPES, running_installed

PASSWORD = "exchange-benchmark"  # noqa: S105  (of a server that lives for minutes, on loopback)
INSTALLED = ("apache", "nginx")


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        aggregator: user and password that may enter every site's folder.
        sites: each site's own.
        folders: where the sites' folders lie on the server's disk.
    """

    address: str
    aggregator: tuple[str, str]
    sites: dict[str, tuple[str, str]]
    folders: Path

    def url_of(self, site: str) -> str:
        """Return the address of a site's folder."""
        return f"{self.address}/{site}/"


class Server(Protocol):
    """Starts a server whose files lie below a home, with a folder for each site."""

    def __call__(self, home: Path, sites: Sequence[str]) -> AbstractContextManager[Served]:
        """Run the server until the block ends."""


@contextmanager
def embedded(home: Path, sites: Sequence[str]) -> Iterator[Served]:
    """Run the project's own server."""
    settings = {
        "root": str(home / "data"),
        "host": "127.0.0.1",
        "port": 0,
        "aggregator_password": PASSWORD,
        "sites": dict.fromkeys(sites, PASSWORD),
    }
    write_file(home / "server.json", json.dumps(settings).encode(), private=True)
    command = [sys.executable, "-m", "deploy.local.webdav_server", str(home / "server.json")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith("http://"):
            raise SystemExit("the embedded server did not start")
        logins = {site: (site, PASSWORD) for site in sites}
        yield Served(line.strip().rstrip("/"), (AGGREGATOR, PASSWORD), logins, home / "data")
    finally:
        process.terminate()
        process.wait()


@contextmanager
def installed(name: str, home: Path, sites: Sequence[str]) -> Iterator[Served]:
    """Run a server of the system's, as the tests run it; all the sites' folders lie in the folder of its first user."""
    home.mkdir()
    with running_installed(RECIPES[name], home) as logins:
        user, site_login = next(iter(logins.sites.items()))
        folders, aggregator = home / "data" / user, logins.aggregator[user]
        for site in sites:
            (folders / site).mkdir()
            shutil.chown(folders / site, folders.owner(), folders.group())
        by_site = dict.fromkeys(sites, (site_login.user, site_login.password))
        yield Served(aggregator.url, (aggregator.user, aggregator.password), by_site, folders)


def known() -> dict[str, Server]:
    """Return the servers that are there."""
    found: dict[str, Server] = {"embedded": embedded}
    for name in INSTALLED:
        if all(Path(file).exists() for file in RECIPES[name].needs):
            found[name] = partial(installed, name)
    return found
