"""A hospital's limits are kept."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DropfedError, Stopped, TransientError
from shared.folder import meter as meter_module
from shared.folder.meter import Direction, Meter, Transfer, read_transfer
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from site_client import limits
from site_client.limits import require_transfer_hours, seconds_until
from tests.folder.faulty import FaultyServer

CLOCK = st.times().map(lambda time: f"{time:%H:%M}")
NOW = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2030, 1, 1))


class FakeTime:
    """A clock that only sleeping moves; what time files are of, it does not decide."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(begin=CLOCK, end=CLOCK, now=NOW)
def test_hours_begin_when_they_are_said_to(begin: str, end: str, now: datetime) -> None:
    hours = f"{begin}-{end}"
    wait_s = seconds_until(hours, now)
    assert 0 <= wait_s <= 24 * 3600
    then = now + timedelta(seconds=wait_s)
    assert seconds_until(hours, then) == 0 or begin == end
    if wait_s:
        assert f"{then:%H:%M}" == begin
        assert seconds_until(f"{end}-{begin}", now) == 0  # it is within what the hours leave out


@pytest.mark.parametrize(
    ("hours", "clock", "wait_h"),
    [
        (None, "12:00", 0),
        ("18:00-07:00", "12:00", 6),
        ("18:00-07:00", "18:00", 0),
        ("18:00-07:00", "06:59", 0),
        ("18:00-07:00", "07:00", 11),
        ("08:00-17:00", "20:00", 12),
    ],
)
def test_some_hours(hours: str | None, clock: str, wait_h: int) -> None:
    assert seconds_until(hours, datetime.fromisoformat(f"2026-03-01 {clock}")) == wait_h * 3600


def test_large_files_rest_outside_their_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        limits, "datetime", SimpleNamespace(now=lambda: datetime(2026, 3, 1, 12), combine=datetime.combine)
    )
    require_transfer_hours("11:00-13:00")
    require_transfer_hours(None)
    with pytest.raises(TransientError, match="18:00-07:00") as caught:
        require_transfer_hours("18:00-07:00")
    assert caught.value.retry_after_s == 6 * 3600


@pytest.mark.parametrize(("direction", "rate"), [("up", 1e6), ("down", 0.5e6)])
def test_the_bandwidth_is_kept(
    direction: Direction, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeTime()
    monkeypatch.setattr(meter_module, "time", clock)
    content = bytes(5 << 20)
    (tmp_path / "source").write_bytes(content)
    with FaultyServer() as server:
        server.files["big"] = content
        folder = WebDavFolder(server.url, "north", "secret-word", meter=Meter(limits={direction: rate}))
        folder.upload("up", tmp_path / "source")
        folder.download("big", tmp_path / "target", size=len(content))
    assert clock.now == pytest.approx(len(content) / rate)


def test_a_wait_for_the_limit_ends_when_the_file_is_not_wanted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(meter_module, "time", clock)

    def permit(_direction: Direction) -> None:
        if clock.now > 2:
            raise Stopped("put off")

    meter = Meter(limits={"down": 6250.0}, permit=permit)
    with pytest.raises(Stopped), meter.transfer("runs/r/model", "down", 10 << 20) as moved:
        moved(1 << 18)  # 42 seconds
    assert clock.now <= 2 + meter_module.PIECE_S


def test_what_is_on_its_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(meter_module, "time", clock)
    told = tmp_path / "transfer.json"
    with Meter(told).transfer("runs/r/model", "up", 10 << 20, moved=2 << 20) as moved:
        clock.sleep(2)
        moved(4 << 20)
        transfer = read_transfer(told)
        assert transfer is not None
        assert (transfer.path, transfer.direction) == ("runs/r/model", "up")
        assert (transfer.size, transfer.moved) == (10 << 20, 6 << 20)
        assert transfer.bytes_per_second == 2 << 20
        assert transfer.seconds_left == 2.0
    assert read_transfer(told) is None


def test_a_transfer_that_was_cut_off_is_not_told_for_ever(tmp_path: Path) -> None:
    told, left = tmp_path / "transfer.json", Transfer("runs/r/model", "up", 10, 5, 1, 5.0)
    for minutes, is_shown in ((1, True), (20, False)):
        told.write_text(json.dumps(asdict(left)))
        os.utime(told, (time.time() - 60 * minutes,) * 2)
        assert (read_transfer(told) == left) == is_shown
    Meter(told)  # of the process that goes on
    assert not told.exists()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_transfer_that_is_not_wanted_any_more_is_broken_off_without_trouble(
    direction: Direction, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = os.urandom(5 << 20)
    (tmp_path / "source").write_bytes(content)
    asked: list[Direction] = []
    told: list[DropfedError | None] = []

    def permit(moves: Direction) -> None:
        asked.append(moves)
        if len(asked) == 3:
            raise Stopped("put off")

    with FaultyServer() as server:
        server.files["down"] = content
        inner = WebDavFolder(server.url, "north", "secret-word", meter=Meter(permit=permit))
        folder = RetryingFolder(inner, name="the folder", stop=threading.Event(), on_trouble=told.append)

        def move() -> None:
            if direction == "up":
                folder.upload("up", tmp_path / "source")
            else:
                folder.download("down", tmp_path / "target", size=len(content))

        with pytest.raises(Stopped):
            move()
        assert asked == [direction] * 3
        move()
        moved = server.files["up"] if direction == "up" else (tmp_path / "target").read_bytes()
    assert moved == content
    assert told == [] and caplog.text == ""


def test_what_a_site_gives_is_told_in_one_line() -> None:
    given = limits.Limits(training_hours="18:00-07:00", nice=5)
    assert limits.describe(given, 1, 0) == "1 thread, trains 18:00-07:00, nice 5"
    assert limits.describe(limits.Limits(), 4, 2) == "4 threads, 2 workers"
    assert limits.describe(limits.Limits(), 4, 0, 2) == "2 processes of 4 threads"
