"""A federation that only exchanges: its files and its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aggregator.configuration import FILE as AGGREGATOR_FILE
from aggregator.setup import initialise
from benchmarks.exchange_servers import Served
from shared.exchange.names import AGGREGATOR
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import write_file
from site_client.configuration import FILE as SITE_FILE
from site_client.configuration import Policy
from site_client.setup import join, read_invite
from studies.federation import change_settings

RUN = "exchange"
WAIT_S = 1800.0


@dataclass(frozen=True)
class Home:
    """Where everything of one federation lies."""

    root: Path

    @property
    def folders(self) -> Path:
        """The drop folders on the server's disk."""
        return self.root / "folders"

    @property
    def aggregator(self) -> Path:
        """The aggregator's work directory."""
        return self.root / "aggregator"

    @property
    def sites(self) -> Path:
        """The sites' work directories, one below each name."""
        return self.root / "sites"

    @property
    def heldout(self) -> Path:
        """Images for the aggregator's tolerance check, where there are any."""
        return self.root / "heldout"

    def site(self, name: str) -> Path:
        """Return one site's work directory."""
        return self.sites / name

    @property
    def resting(self) -> Path:
        """The file that is there while the aggregator rests between two rounds."""
        return self.root / "resting"

    @property
    def halts(self) -> Path:
        """The file with how long the daemons have been halted, in seconds."""
        return self.root / "halts"

    def halted_s(self) -> float:
        """Return how long the daemons have been halted, in seconds."""
        return float(self.halts.read_text()) if self.halts.exists() else 0.0

    def requests(self, end: str) -> Path:
        """Return the file into which an end writes its requests."""
        return self.root / f"requests-{end}.txt"

    def accepted(self, end: str) -> Path:
        """Return the file into which an end writes when it accepted a round's messages."""
        return self.root / f"accepted-{end}.txt"

    def checked(self, site: str) -> Path:
        """Return the file into which a site writes when it had checked the model of each round."""
        return self.root / f"checked-{site}.txt"

    @property
    def run_yaml(self) -> Path:
        """What the aggregator launches."""
        return self.aggregator / "RUN.yaml"

    def clear(self, *, keep: str) -> None:
        """Remove the weights of all rounds, but the answers to round ``keep`` that lie at the aggregator."""
        for place in (self.folders, self.sites, self.aggregator / "sites"):
            for path in place.glob("*/**/rounds/*/*/*.safetensors"):
                if path.parent.parent.name != keep or place != self.aggregator / "sites":
                    path.unlink()


def set_up(
    home: Home,
    served: Served,
    run: RunConfiguration,
    *,
    poll_seconds: float,
    consent: Literal["auto", "ask"] = "auto",
) -> None:
    """Do what the PI and each hospital's IT do by hand."""
    home.folders.symlink_to(served.folders)
    work = home.aggregator
    user, password = served.aggregator
    initialise(work, "retina", {site: served.url_of(site) for site in run.sites}, user)
    change_settings(work / AGGREGATOR_FILE, heldout={run.task: str(home.heldout)}, poll_seconds=poll_seconds)
    write_file(home.run_yaml, dump_yaml(run))
    for site in run.sites:
        write_file(work / "passwords" / site, password.encode(), private=True)
        invite = read_invite(work / "invites" / f"{site}.json")
        site_user, site_password = served.sites[site]
        join(home.site(site), invite, data={run.task: "."}, url=None, password=site_password)
        policy = Policy(consent=consent, max_rounds=9998).model_dump()
        change_settings(home.site(site) / SITE_FILE, user=site_user, poll_seconds=poll_seconds, policy=policy)


@contextmanager
def running(home: Home, end: str, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module as a process, which ends with the block."""
    with (home.root / f"output-{end}.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT, process_group=0
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def halted(home: Home, processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Halt processes, and what they have forked, inside the block; that time does not count as waited."""
    began = time.monotonic()
    for process in processes:
        os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        write_file(home.halts, str(home.halted_s() + time.monotonic() - began).encode(), durable=False)
        for process in processes:
            os.killpg(process.pid, signal.SIGCONT)


class Federation:
    """All daemons at work.

    Attributes:
        aggregator, sites: the two processes; each site is forked from the latter.
    """

    def __init__(self, home: Home, aggregator: subprocess.Popen[bytes], sites: subprocess.Popen[bytes]) -> None:
        self._home = home
        self.aggregator = aggregator
        self.sites = sites

    def looks(self, seconds: float = WAIT_S) -> Iterator[None]:
        """Yield now and then, for as long as the aggregator's daemon runs.

        Raises:
            SystemExit: a daemon failed, or it takes longer.
        """
        deadline = time.monotonic() + seconds
        while self.aggregator.poll() is None:
            if self.sites.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(_failure(self._home))
            yield
            time.sleep(0.1)
        if self.aggregator.returncode != 0:
            raise SystemExit(_failure(self._home))


def end_all_when_ended() -> None:
    """Have SIGTERM end this program as Ctrl-C does: the daemons and the server that it has started end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextmanager
def federation(home: Home, aggregator: Sequence[str]) -> Iterator[Federation]:
    """Run all daemons, which end with the block.

    Args:
        aggregator: the module and its arguments.
    """
    play_sites = ["benchmarks.exchange_ends", "sites", str(home.root)]
    with running(home, "sites", play_sites) as sites, running(home, AGGREGATOR, aggregator) as main:
        yield Federation(home, main, sites)


def _failure(home: Home) -> str:
    ends = [(home.root / f"output-{end}.txt").read_text(errors="replace")[-3000:] for end in (AGGREGATOR, "sites")]
    return "the exchange failed:\n" + "\n".join(ends)


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the kernel's own record of a process's peak resident memory, which misses nothing between two looks."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else 0.0  # none: it has just ended


def exchange(home: Home, rounds: int, between: Callable[[], None]) -> float:
    """Let all daemons run until so many rounds were exchanged; returns the aggregator's peak memory in MB.

    Args:
        between: called after each round, while no daemon does anything.
    """
    peak = 0.0
    play = ["benchmarks.exchange_ends", AGGREGATOR, str(home.root), str(rounds), "rests"]
    with federation(home, play) as daemons:
        for _ in daemons.looks():
            peak = max(peak, peak_mb(daemons.aggregator))
            if home.resting.exists():
                with halted(home, [daemons.aggregator, daemons.sites]):
                    between()
                home.resting.unlink()
    return peak
