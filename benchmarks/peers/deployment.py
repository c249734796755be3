"""What both peers need: an environment of their own, processes that all end, and the figures as one line."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

SITES = 4
ROUNDS = 3  # measured, after one that is not
PATIENCE_S = 1800.0
_PR_SET_CHILD_SUBREAPER = 36


Measure = Callable[[Path, int, Path], Sequence[float]]
"""From a peer's programs, the megabytes of the model and an empty folder: the seconds of each round."""


def run(peer: str, name: str, version: str, requirements: Sequence[str], measure: Measure) -> None:
    """Measure a peer as the command line asks, and print the figures in one line."""
    default = f"build/peers/{peer}"
    parser = ArgumentParser(prog=f"python -m benchmarks.peers.{peer}")
    parser.add_argument("--environment", type=Path, default=Path(default), help=f"made if missing (default {default})")
    parser.add_argument("--megabytes", type=int, default=98, help="size of the model, in 10^6 bytes (default 98)")
    given = parser.parse_args()
    programs = bin_of(given.environment, requirements)
    with tempfile.TemporaryDirectory(prefix=f"{peer}-") as home, ending_all_processes():
        rounded = [round(second, 2) for second in measure(programs, given.megabytes, Path(home))]
    told = {"peer": name, "version": version, "megabytes": given.megabytes, "sites": SITES, "seconds": rounded}
    print(json.dumps(told))


def bin_of(environment: Path, requirements: Sequence[str]) -> Path:
    """Return the programs of a virtual environment, which is made and filled if it is missing."""
    programs = environment.absolute() / "bin"
    made_with = environment / "requirements.txt"
    text = "\n".join(requirements) + "\n"
    if not made_with.exists() or made_with.read_text() != text:
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *requirements], check=True)
        made_with.write_text(text)
    return programs


@contextmanager
def ending_all_processes() -> Iterator[None]:
    """End everything that was started inside the block, also what its starter left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what loses its parent becomes our child
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for _ in range(10):
                children = psutil.Process().children(recursive=True)
                for child in children:
                    try:
                        end(child)
                    except psutil.NoSuchProcess:
                        continue
                if not psutil.wait_procs(children, timeout=3)[1]:
                    break


def start(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that writes to ``log``."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | dict(environment)
        )


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nothing listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
