"""The WebDAV servers of the exchange benchmark, each a process of its own on a free loopback port."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.exchange.names import AGGREGATOR
from shared.folder.durable import write_file

PASSWORD = "exchange-benchmark"  # noqa: S105  (of servers that live for minutes, on loopback)


@dataclass(frozen=True)
class Served:
    """A running server whose folders one user may enter."""

    address: str
    user: str = AGGREGATOR
    password: str = PASSWORD

    def url_of(self, site: str) -> str:
        """A site's folder."""
        return f"{self.address}/{site}/"


@contextmanager
def embedded(home: Path, folders: Path, sites: Sequence[str]) -> Iterator[Served]:
    """The project's own server."""
    settings = {
        "root": str(folders),
        "host": "127.0.0.1",
        "port": 0,
        "aggregator_password": PASSWORD,
        "sites": dict.fromkeys(sites, PASSWORD),
    }
    path = home / "server.json"
    write_file(path, json.dumps(settings).encode(), private=True)
    command = [sys.executable, "-m", "deploy.local.webdav_server", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith("http://"):
            raise SystemExit("the embedded server did not start")
        yield Served(line.strip().rstrip("/"))
    finally:
        process.terminate()
        process.wait()


SERVERS = {"embedded": embedded}
