"""A lock that ownCloud forgot ends, where nobody prolongs it. Only time is faked: hours pass at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import DropfedError, LeftAloneError, NotFoundError, Stopped
from shared.folder.contract import Folder
from shared.folder.forbearing import ForbearingFolder
from shared.folder.listed import ListedFolder
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_locks import CLEAN_UP_EVERY_S, LIFE_S, LockTable

NAME = "runs/r/offer/manifest.json"
LOCKED = f"aggregator/north/{NAME}"
HOUR_S = 3600.0


class Clock(threading.Event):
    """The clock, and the stop signal: waiting only moves the clock. Who waits for longer than some hours is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.hours = 1000.0, 6

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        return self.now_s > self.hours * HOUR_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("tenacity", "shared.folder.forbearing", "shared.folder.retrying"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


@pytest.fixture
def cloud(tmp_path: Path, clock: Clock) -> Iterator[OwnCloud]:
    locks = LockTable(lambda: clock.now_s)
    locks.cleans_up_hourly = True
    with OwnCloud(tmp_path / "homes", {"aggregator": "secret", "north": "secret"}, locks=locks) as cloud:
        cloud.share("aggregator", "north", "north", "retina")
        yield cloud


def at_aggregator(cloud: OwnCloud) -> WebDavFolder:
    return WebDavFolder(f"{cloud.url}/remote.php/dav/files/aggregator/north", "aggregator", "secret")


def at_site(cloud: OwnCloud) -> WebDavFolder:
    return WebDavFolder(f"{cloud.url}/remote.php/dav/files/north/retina", "north", "secret")


def waiting(folder: Folder, clock: Clock, told: Callable[[DropfedError | None], None] = lambda _: None) -> Folder:
    return RetryingFolder(folder, name="north", stop=clock, on_trouble=told)


def leave_a_lock(cloud: OwnCloud) -> None:
    """As a daemon of an earlier version did that polled for a message when the server was stopped."""
    cloud.locks.leak_next()
    with pytest.raises(NotFoundError):
        at_site(cloud).read(NAME, max_bytes=9)
    assert cloud.locks.standing() == [LOCKED]


@pytest.mark.parametrize("hours", [3, pytest.param(6, marks=pytest.mark.long)])
def test_who_just_tries_again_prolongs_it_for_ever(hours: int, cloud: OwnCloud, clock: Clock) -> None:
    """Longer than who leaves the name alone needs to write it; see below."""
    clock.hours = hours
    leave_a_lock(cloud)
    with pytest.raises(Stopped):
        waiting(at_aggregator(cloud), clock).create(NAME, b"offer")
    assert clock.now_s > hours * HOUR_S
    assert cloud.locks.standing() == [LOCKED]


@pytest.mark.parametrize("minutes_past_the_clean_up", [0, 1, 29, 49, 59])
def test_who_leaves_the_name_alone_writes_it_within_two_and_a_half_hours(
    cloud: OwnCloud, clock: Clock, minutes_past_the_clean_up: int
) -> None:
    leave_a_lock(cloud)
    clock.now_s += 60.0 * minutes_past_the_clean_up
    began_s, told = clock.now_s, list[DropfedError | None]()
    waiting(ForbearingFolder(at_aggregator(cloud)), clock, told.append).create(NAME, b"offer")
    assert cloud.locks.standing() == []
    assert at_site(cloud).read(NAME, max_bytes=9) == b"offer"
    assert LIFE_S < clock.now_s - began_s < 600 + LIFE_S + CLEAN_UP_EVERY_S + 600
    locked, left_alone, over = told
    assert "500" in str(locked)
    assert isinstance(left_alone, LeftAloneError)
    assert str(left_alone).startswith(
        f"{NAME} stays locked on its server though nobody uses it; it is left alone until"
    )
    assert over is None


def test_who_looks_by_listing_leaves_no_lock_and_no_line_in_the_servers_log(
    cloud: OwnCloud, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = ListedFolder(waiting(at_site(cloud), clock))
    for _ in range(20):
        cloud.locks.leak_next()
        site.look_anew()
        with pytest.raises(NotFoundError):
            site.read(NAME, max_bytes=9)
    at_aggregator(cloud).create(NAME, b"offer")
    site.look_anew()
    assert (cloud.locks.standing(), cloud.locks.warnings) == ([], 0)
    assert site.read(NAME, max_bytes=9) == b"offer"
    assert not caplog.records


def test_a_lock_on_an_unfinished_file_keeps_nobody_waiting(cloud: OwnCloud, clock: Clock) -> None:
    """As the server leaves one that is killed while it takes the file."""
    cloud.locks.leak(f"{LOCKED}.new")
    began_s, told = clock.now_s, list[DropfedError | None]()
    folder = waiting(ForbearingFolder(at_aggregator(cloud)), clock, told.append)
    folder.create(NAME, b"offer")
    folder.overwrite(NAME, b"another")  # as a heartbeat is: does not ask for the locked name again
    assert at_site(cloud).read(NAME, max_bytes=9) == b"another"
    assert (told, cloud.locks.standing()) == ([], [f"{LOCKED}.new"])
    assert clock.now_s - began_s < 2.0
