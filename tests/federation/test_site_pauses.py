"""How often a site looks into its folder."""

from __future__ import annotations

import threading
from pathlib import Path

from aggregator.setup import initialise
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, Place
from shared.exchange.signing import SigningKey
from shared.folder.contract import Entry
from shared.folder.local import LocalFolder
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.setup import join, read_invite
from tests.played import Played


class Clock(threading.Event):
    """A stop event that lets no time pass: it notes how long it was asked to wait, and is set after enough of that."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        if len(self.pauses) == self._waits:
            self.set()
        return self.is_set()


class Counting(LocalFolder):
    """A folder that counts the looks into it."""

    looks = 0

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self.looks += 1
        return super().read(path, max_bytes=max_bytes)

    def list(self, path: str) -> list[Entry]:
        self.looks += 1
        return super().list(path)


DOUBLING = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_a_site_that_waits_to_be_enrolled_looks_ever_more_rarely(tmp_path: Path) -> None:
    (tmp_path / "drop").mkdir()
    initialise(tmp_path / "aggregator", "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    invite = read_invite(tmp_path / "aggregator" / "invites" / "north.json")
    join(tmp_path / "north", invite, data={}, url=None, password=None)
    clock, folder = Clock(len(DOUBLING)), Counting(tmp_path / "drop")
    Daemon(tmp_path / "north", read_configuration(tmp_path / "north"), folder, stop=clock).run()
    assert clock.pauses == DOUBLING
    assert folder.looks <= len(DOUBLING) + 1  # one small request a look, and one at the start


def test_a_site_whose_run_has_ended_looks_ever_more_rarely(played: Played, tmp_path: Path) -> None:
    work = played.drop.parent / "north"
    clock, folder = Clock(len(DOUBLING)), Counting(played.drop)
    Daemon(work, read_configuration(work), folder, stop=clock).run()
    assert clock.pauses == DOUBLING
    assert folder.looks <= len(DOUBLING) + 3  # at the start, at the final message, and after it was seen to
    assert (played.drop / Place("final", "octa-1").manifest).exists()
    assert SigningKey.at(work / "signing.key").public
    assert (work / names.STATUS).exists()
