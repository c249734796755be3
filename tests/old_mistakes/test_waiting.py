"""How the two ends wait: with a pause, for no longer than a round may last, and logged in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aggregator.daemon import _Waiting
from aggregator.folder_sync import FolderSync
from aggregator.rounds import CloseRound, decide
from aggregator.site import read_invite
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.signing import SigningKey
from shared.folder.contract import Entry
from shared.folder.local import LocalFolder
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from shared.polling import SHORTEST_INTERVAL_S
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from tests.canary import password_of
from tests.exchange.test_channel import FILES, OFFER, channel
from tests.folder.faulty import FaultyServer, says
from tests.folder.test_retrying import FakeTime
from tests.played import RUN, Played
from tests.test_rounds_aggregator import ANSWERED, DEADLINE_S, IN_ROUND, run

HOUR_S = 3600.0
POLL_S = 30.0


class Hour(FakeTime):
    """A stop signal that is given after an hour, which only waiting makes pass."""

    requests = 0  # since the last wait
    all_requests = 0

    def __init__(self) -> None:
        super().__init__()
        self._waiter = threading.current_thread()

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is not self._waiter:  # who only looks whether to cut a connection
            return threading.Event.wait(self, timeout)
        assert timeout, "a pause that is none"
        self.requests = 0
        super().wait(timeout)
        if self.now_s >= 1000.0 + HOUR_S:
            self.set()
        return self.is_set()


class Wake(threading.Event):
    """What a folder-sync worker waits for; nobody ever wakes it."""

    def __init__(self, hour: Hour) -> None:
        super().__init__()
        self._hour = hour

    def wait(self, timeout: float | None = None) -> bool:
        self._hour.wait(timeout)
        return False


class Watched(LocalFolder):
    """A folder that does not bear to be asked again and again without a pause."""

    def __init__(self, root: Path, hour: Hour) -> None:
        super().__init__(root)
        self._hour = hour

    def _count(self) -> None:
        self._hour.requests += 1
        self._hour.all_requests += 1
        assert self._hour.requests < 20, "one look after another without a pause"

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self._count()
        return super().read(path, max_bytes=max_bytes)

    def list(self, path: str) -> list[Entry]:
        self._count()
        return super().list(path)


def run_site(played: Played, home: Path, hour: Hour) -> None:
    """A site that has agreed, and waits for a first round."""
    played.offer_and_consent()
    work = home / "north"
    Daemon(work, read_configuration(work), Watched(played.drop, hour), stop=hour).run()


def run_folder_sync(played: Played, home: Path, hour: Hour) -> None:
    """The aggregator's folder-sync worker, which waits for a consent."""
    work = home / "aggregator"
    folder_sync = FolderSync(
        work / "sites" / "north",
        Watched(played.drop, hour),
        invite=read_invite(work, "north"),
        key=SigningKey.at(work / "signing.key"),
        encryption_key=None,
        stop=hour,
        longest_interval_s=POLL_S,
        on_news=lambda: None,
    )
    folder_sync._wake = Wake(hour)
    folder_sync.attend(MessageRef("consent", RUN))
    folder_sync._run()
    assert not folder_sync.is_in_trouble


@pytest.mark.parametrize("waiter", [run_site, run_folder_sync])
def test_endless_loops_without_a_pause(
    waiter: Callable[[Played, Path, Hour], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting loop asked the server without end; here a pause follows each look, so an hour has a few hundred."""
    hour = Hour()
    monkeypatch.setattr("shared.polling.time", SimpleNamespace(monotonic=lambda: hour.now_s))
    waiter(Played(tmp_path), tmp_path, hour)
    assert min(hour.waits) >= SHORTEST_INTERVAL_S and max(hour.waits) == POLL_S
    assert 0 < hour.all_requests < 1000


def test_a_limit_per_file_that_adds_up_to_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each awaited file had a time limit of its own, one after another; here one deadline holds for the whole round."""
    for silent in (1, 3, 30):
        sites = [ANSWERED, *(replace(IN_ROUND, name=f"site-{number}") for number in range(silent))]
        assert decide(run(*sites, round_no=1, waited_s=DEADLINE_S - 1)) == []
        assert decide(run(*sites, round_no=1, waited_s=DEADLINE_S)) == [CloseRound(1)]
    now_s = 0.0
    monkeypatch.setattr("aggregator.daemon.time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: now_s))
    store = RunStore(tmp_path, "r")
    for _ in range(24):  # nor does it begin anew when the aggregator is started again, as here every hour
        waiting = _Waiting(store)
        waiting.seconds(1, passes=True)
        now_s += HOUR_S
        waiting.seconds(1, passes=True)
    assert _Waiting(store).seconds(1, passes=True) == 24 * HOUR_S


def test_a_login_only_at_the_start(faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had logged in once relied on it for the whole run; here each request logs in, and a refusal is waited out."""
    clock = FakeTime()
    monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    server = WebDavFolder(faulty.url, AGGREGATOR, password_of(AGGREGATOR))
    folder = RetryingFolder(server, name="north", stop=clock)
    faulty.fail("PUT", *[says(401)] * 3)
    faulty.fail("MOVE", *[says(401)] * 2)
    aggregator = channel(tmp_path, AGGREGATOR, folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    assert clock.waits == [60.0] * 5
    assert all(faulty.files[f"{OFFER.path}/{name}"] == content for name, content in FILES.items())
    assert OFFER.manifest in faulty.files
    assert len(faulty.headers) > 10
    assert {headers.get("Authorization") for headers in faulty.headers} == {faulty.headers[0]["Authorization"]}
    assert names.STATUS not in faulty.files
