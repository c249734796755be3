"""Waiting out trouble. Only time is faked: no test here waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import (
    ActionRequiredError,
    AlreadyExistsError,
    DropfedError,
    LockedError,
    NotFoundError,
    RejectedError,
    Stopped,
    TransientError,
)
from shared.folder.local import LocalFolder
from shared.folder.retrying import LONGEST_RETRY_AFTER_S, ROOT_SEEN_EVERY_S, RetryingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, does_it_and_hangs_up, hangs_up, says


class FakeTime(threading.Event):
    """Both the clock and the stop signal: waiting only moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.waits: list[float] = []
        self.stop_at_wait: int | None = None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now_s += timeout
        if len(self.waits) == self.stop_at_wait:
            self.set()
        return self.is_set()


@dataclass
class Bench:
    """A faulty server behind a folder that retries."""

    server: FaultyServer
    time: FakeTime
    told: list[DropfedError | None] = field(default_factory=list)

    def folder(self, give_up_after_s: float | None = None) -> RetryingFolder:
        inner = WebDavFolder(self.server.url, "north", "secret-word", stall_s=5)
        return RetryingFolder(
            inner, name="north", stop=self.time, on_trouble=self.told.append, give_up_after_s=give_up_after_s
        )

    @property
    def kinds_told(self) -> list[type | None]:
        return [error if error is None else type(error) for error in self.told]


@pytest.fixture
def bench(faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Bench:
    clock = FakeTime()
    monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return Bench(faulty, clock)


def test_passing_failures_are_waited_out_and_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shared.folder.retrying")
    bench.server.files["f"] = b"content"
    bench.server.fail("GET", says(503), hangs_up, says(423), says(429), says(500))
    assert bench.folder().read("f", max_bytes=10) == b"content"
    assert len(bench.time.waits) == 5
    assert bench.kinds_told == [TransientError, None]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert all(record.getMessage().startswith("north: ") for record in caplog.records)


@pytest.mark.parametrize("status", [423, 425])
def test_a_file_that_is_held_for_a_moment_is_no_trouble(
    bench: Bench, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO, "shared.folder.retrying")
    bench.server.files["status.json"] = b"content"
    for times in (1, 3):
        bench.server.fail("GET", *[says(status)] * times)
        assert bench.folder().read("status.json", max_bytes=10) == b"content"
    assert (bench.told, caplog.records) == ([], [])


def test_so_is_a_name_that_cannot_be_written_for_a_moment(bench: Bench) -> None:
    bench.server.fail("MOVE", says(500), says(423))
    bench.folder().create("manifest.json", b"content")
    assert bench.told == []


def test_a_lock_that_lasts_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shared.folder.retrying")
    bench.server.files["status.json"] = b"content"
    bench.server.fail("GET", *[says(423)] * 4)
    assert bench.folder().read("status.json", max_bytes=10) == b"content"
    assert bench.kinds_told == [LockedError, None]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_lock_that_comes_with_another_trouble_and_stays_is_told_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the server is killed while it writes: what is shown must not go on saying that it cannot be reached."""
    caplog.set_level(logging.INFO, "shared.folder.retrying")
    bench.server.fail("PUT", hangs_up, *[says(423)] * 5)
    bench.folder().create("a", b"x")
    assert bench.kinds_told == [TransientError, LockedError, None]
    assert "423" in str(bench.told[1])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_waits_grow_with_full_jitter_up_to_a_minute(bench: Bench) -> None:
    bench.server.fail("PROPFIND", *[says(503)] * 40)
    bench.folder().check()
    bounds = [min(60.0, 2.0**attempt) for attempt in range(40)]
    assert all(0 <= wait <= bound for wait, bound in zip(bench.time.waits, bounds, strict=True))
    late = bench.time.waits[6:]
    assert len(set(late)) == len(late)  # they differ, so that sites do not come back all at once
    assert max(late) > 20 > min(late)  # and are spread; by chance wrong once in a million runs


def test_retry_after_is_obeyed_within_reason(bench: Bench) -> None:
    for asked in ("120", "7", "999999999"):
        bench.server.fail("PROPFIND", says(503, b"", ("Retry-After", asked)))
    bench.folder().check()
    assert [round(wait) for wait in bench.time.waits] == [120, 7, LONGEST_RETRY_AFTER_S]


def test_standing_failures_are_tried_again_slowly_and_each_is_told(bench: Bench) -> None:
    bench.server.fail("PROPFIND", *[says(401)] * 3, *[says(507)] * 2, says(503), says(401))
    folder = bench.folder()
    folder.check()
    assert [wait for wait in bench.time.waits if wait == 60.0] == [60.0] * 6
    assert bench.kinds_told == [ActionRequiredError, ActionRequiredError, TransientError, ActionRequiredError, None]
    assert "password" in str(bench.told[0])
    assert "no room" in str(bench.told[1])
    folder.check()
    assert len(bench.told) == 5  # nothing new


def test_trouble_lasts_across_calls_until_one_is_answered(bench: Bench) -> None:
    bench.server.fail("PROPFIND", says(503), says(503), says(503))
    folder = bench.folder(give_up_after_s=0.0)
    for _ in range(3):
        with pytest.raises(TransientError):
            folder.check()
    assert bench.told == []  # whoever called was told by the error
    bench.server.fail("GET", says(503))
    folder = bench.folder()
    with pytest.raises(NotFoundError):
        folder.read("missing", max_bytes=1)
    assert bench.kinds_told == [TransientError, None]  # "not there" is an answer


def test_each_sentence_is_said_once_until_it_is_over(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shared.folder.retrying")
    folder = bench.folder()
    for _ in range(2):
        bench.server.fail("PROPFIND", says(503), says(401), hangs_up, says(401), says(507), says(503))
        folder.check()
    said = [record.getMessage() for record in caplog.records]
    assert [next(word for word in ("503", "password", "no room", "used again") if word in text) for text in said] == [
        "503",
        "password",
        "no room",
        "used again",
    ] * 2
    assert all(text.endswith(". Trying again until it works.") for text in said if "used again" not in text)
    # Whoever shows the present trouble is told each change of it.
    kinds = [
        TransientError,
        ActionRequiredError,
        TransientError,
        ActionRequiredError,
        ActionRequiredError,
        TransientError,
        None,
    ]
    assert bench.kinds_told == kinds * 2


def test_a_file_is_not_missing_but_its_folder_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that is not shared any more, everything is "not there"; that must not be mistaken for "not yet"."""
    now_s = 0.0
    monkeypatch.setattr("shared.folder.retrying.time", SimpleNamespace(monotonic=lambda: now_s))
    folder = bench.folder()
    for _ in range(5):
        with pytest.raises(NotFoundError):
            folder.read("not-yet", max_bytes=1)
    assert bench.server.count("PROPFIND") == 1  # the folder itself is not looked at every time
    bench.server.fail("PROPFIND", says(404), says(404), says(404))
    with pytest.raises(NotFoundError):
        folder.read("not-yet", max_bytes=1)
    assert bench.told == []
    now_s += ROOT_SEEN_EVERY_S
    with pytest.raises(NotFoundError):
        folder.list("not-yet")
    assert bench.kinds_told == [ActionRequiredError, None]
    assert "still shared" in str(bench.told[0])
    assert bench.time.waits == [60.0, 60.0]


def test_other_errors_pass_at_once(bench: Bench, tmp_path: Path) -> None:
    bench.server.files["f"] = b"12345"
    folder = bench.folder()
    (tmp_path / "source").write_bytes(b"x")
    attempts: list[tuple[type[Exception], Callable[[], object]]] = [
        (NotFoundError, lambda: folder.read("missing", max_bytes=1)),
        (NotFoundError, lambda: folder.list("missing")),
        (RejectedError, lambda: folder.read("f", max_bytes=1)),
        (RejectedError, lambda: folder.download("f", tmp_path / "target", size=4)),
        (AlreadyExistsError, lambda: folder.create("f", b"other")),
        (ValueError, lambda: folder.upload("../f", tmp_path / "source")),
        (ValueError, lambda: folder.overwrite("", b"")),
    ]
    for kind, attempt in attempts:
        with pytest.raises(kind):
            attempt()
    assert bench.time.waits == []
    assert bench.told == []


def test_giving_up(bench: Bench) -> None:
    bench.server.always_fail("PROPFIND", says(503, b"", ("Retry-After", "10")))
    with pytest.raises(TransientError, match="503"):
        bench.folder(give_up_after_s=25.0).check()
    assert sum(bench.time.waits) <= 25.0
    assert len(bench.time.waits) == 2
    bench.time.waits.clear()
    for kind, fault in ((TransientError, says(503)), (ActionRequiredError, says(401))):
        bench.server.always_fail("PROPFIND", fault)
        with pytest.raises(kind):
            bench.folder(give_up_after_s=0.0).check()
    assert bench.time.waits == []


def test_stop_ends_the_wait(bench: Bench) -> None:
    bench.server.always_fail("PROPFIND", says(503))
    bench.time.stop_at_wait = 3
    with pytest.raises(Stopped):
        bench.folder().check()
    assert len(bench.time.waits) == 3
    assert bench.server.count("PROPFIND") == 3
    with pytest.raises(Stopped):  # one attempt is still made, no second
        bench.folder().check()
    bench.server.always_fail("PROPFIND", says(401))
    with pytest.raises(Stopped):
        bench.folder().check()
    bench.server.files["f"] = b"x"
    assert bench.folder().read("f", max_bytes=1) == b"x"


def test_stop_interrupts_a_real_wait(faulty: FaultyServer) -> None:
    """With a real event: an hour's wait ends as soon as somebody wants to stop."""
    faulty.always_fail("PROPFIND", says(503, b"", ("Retry-After", "3600")))
    stop = threading.Event()
    inner = WebDavFolder(faulty.url, "north", "secret-word")
    folder = RetryingFolder(inner, name="north", stop=stop, on_trouble=lambda _: stop.set())
    with pytest.raises(Stopped):
        folder.check()


def test_every_method_is_repeated(bench: Bench, tmp_path: Path) -> None:
    folder = bench.folder()
    (tmp_path / "source").write_bytes(b"payload")
    server = bench.server
    for method in ("GET", "PUT", "MOVE", "MKCOL", "PROPFIND"):
        server.fail(method, says(503), does_it_and_hangs_up, hangs_up)
    folder.upload("a/b/payload", tmp_path / "source")
    for method in ("GET", "PUT", "MOVE"):
        server.fail(method, says(503), does_it_and_hangs_up, hangs_up)
    folder.create("a/b/manifest", b"manifest")
    server.fail("MOVE", says(503), does_it_and_hangs_up)
    folder.overwrite("status", b"status")
    server.fail("PROPFIND", says(503), hangs_up)
    assert [entry.name for entry in folder.list("a/b")] == ["manifest", "payload"]
    server.fail("GET", says(503), hangs_up)
    assert folder.read("a/b/manifest", max_bytes=100) == b"manifest"
    server.fail("GET", says(503), hangs_up)
    folder.download("a/b/payload", tmp_path / "target", size=7)
    server.fail("PROPFIND", says(503), hangs_up)
    folder.check()
    assert server.files == {"a/b/payload": b"payload", "a/b/manifest": b"manifest", "status": b"status"}
    assert (tmp_path / "target").read_bytes() == b"payload"
    assert bench.kinds_told == [TransientError, None] * 7


def test_a_local_folder_that_comes_back(tmp_path: Path) -> None:
    """A stick that is plugged in while we wait."""

    class Plugging(FakeTime):
        def wait(self, timeout: float | None = None) -> bool:
            (tmp_path / "stick").mkdir()
            return super().wait(timeout)

    clock = Plugging()
    folder = RetryingFolder(LocalFolder(tmp_path / "stick"), name="stick", stop=clock)
    folder.create("f", b"x")
    assert clock.waits == [60.0]
    assert folder.read("f", max_bytes=1) == b"x"
