"""What no code expected ends no daemon: whose message, folder or action it comes with is in trouble, or at fault."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shared.folder.stopping
from aggregator.daemon import Daemon as Aggregator
from aggregator.folder_sync import FolderSync
from aggregator.model_work import Here
from aggregator.setup import initialise
from aggregator.site import read_invite
from aggregator.store import RunStore
from shared.audit.verify import verify
from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import SigningKey
from shared.folder.contract import Entry
from shared.folder.local import LocalFolder
from shared.learning.aggregation import Aggregation
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups
from shared.learning.round_engine import RoundEngine
from shared.trouble import LONGEST_BACKOFF_S, Trouble, UnexpectedError
from site_client.configuration import open_folder, read_configuration
from site_client.daemon import Daemon
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file
from tests.federation.running import WAIT_S, run_configuration
from tests.folder.raw_server import RawServer
from tests.played import RUN, TENSORS, Played, daemon_of, ended_run


class Broken(LocalFolder):
    """A folder in which a mistake of ours lies at one path."""

    at = "nowhere"

    def _pass(self, path: str) -> None:
        if path == self.at:
            raise ZeroDivisionError("nobody expected it")

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self._pass(path)
        return super().read(path, max_bytes=max_bytes)

    def list(self, path: str) -> list[Entry]:
        self._pass(path)
        return super().list(path)

    def hash(self, path: str) -> tuple[int, str]:
        self._pass(path)
        return super().hash(path)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def joined(home: Path, url: str = "http://127.0.0.1/north/") -> None:
    """An aggregator's work directory below ``home``, and that of its site."""
    initialise(home / "aggregator", "retina", {"north": url}, AGGREGATOR)
    invite = read_invite_file(home / "aggregator" / "invites" / "north.json")
    join(home / "north", invite, data={}, url=None, password="secret-word")


# --- the aggregator ---------------------------------------------------------------------------------------------


def test_a_folder_sync_worker_outlives_what_nobody_expected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    joined(tmp_path)
    drop, work = tmp_path / "drop", tmp_path / "aggregator"
    drop.mkdir()
    folder = Broken(drop)
    folder.create(names.SITE_CARD, (tmp_path / "north" / "mirror" / names.SITE_CARD).read_bytes())
    folder.at = names.SITE_CARD
    site = FolderSync(
        work / "sites" / "north",
        folder,
        invite=read_invite(work, "north"),
        key=SigningKey.at(work / "signing.key"),
        encryption_key=None,
        stop=threading.Event(),
        longest_interval_s=0.001,
        on_news=lambda: None,
    )
    for _ in range(3):
        assert not site.work()
    told = (work / "sites" / "north" / "trouble.txt").read_text()
    assert "an error that nobody expected, ZeroDivisionError (nobody expected it)" in told
    assert "once names and paths are taken out" in told
    assert site.is_in_trouble
    assert caplog.text.count("Traceback") == 1
    folder.at = "nowhere"
    assert site.work()
    assert not site.is_in_trouble and site.channel is not None


def test_a_folder_sync_worker_outlives_a_disk_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for is looked up on that disk too, before it waits for the next turn."""
    run = Played(tmp_path)
    run.offer_and_consent()
    site, work, vain = run.folder_sync, run.folder_sync.work, []

    def work_and_count() -> bool:
        happened = work()
        vain.extend([happened] if site.is_in_trouble else [])
        return happened

    monkeypatch.setattr(site, "work", work_and_count)
    site.attend(MessageRef("update", RUN, 1))
    site.start()
    quarantine = tmp_path / "aggregator" / "sites" / "north" / "quarantine"
    quarantine.mkdir(exist_ok=True)
    quarantine.rename(tmp_path / "quarantine")
    quarantine.touch()
    wait_until(lambda: len(vain) > 2 or not site._thread.is_alive())
    quarantine.unlink()
    (tmp_path / "quarantine").rename(quarantine)
    wait_until(lambda: not site.is_in_trouble)
    looked = site.request_look()
    wait_until(lambda: site.looked >= looked)
    run.stop.set()
    site.join()


def test_pauses_grow_with_what_nobody_expected_and_with_nothing_else() -> None:
    trouble = Trouble(logging.getLogger("test"), "north", "goes on.")
    trouble.begins(ActionRequiredError("the folder is full"))
    assert trouble.backoff_s(2.0) == 2.0
    backoffs = []
    for _ in range(12):
        trouble.begins(UnexpectedError(ZeroDivisionError()))
        backoffs.append(trouble.backoff_s(2.0))
    assert backoffs[:4] == [4.0, 8.0, 16.0, 32.0] and backoffs[-1] == LONGEST_BACKOFF_S
    assert trouble.backoff_s(900.0) == 900.0
    trouble.ends()
    assert trouble.backoff_s(2.0) == 2.0


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is set, the disk with the aggregator's files takes nothing."""
    is_full, open_file = threading.Event(), os.open

    def open_or_refuse(path: Any, flags: int, *rest: int) -> int:
        if is_full.is_set() and flags & os.O_CREAT and Path(path).is_relative_to(tmp_path / "aggregator"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return open_file(path, flags, *rest)

    monkeypatch.setattr("shared.folder.durable.os.open", open_or_refuse)
    yield is_full
    is_full.clear()


def test_a_folder_sync_worker_outlives_a_full_disk_on_which_it_cannot_even_note_that(
    tmp_path: Path, full_disk: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    joined(tmp_path)
    drop, work, stop = tmp_path / "drop", tmp_path / "aggregator", threading.Event()
    drop.mkdir()
    LocalFolder(drop).create(names.SITE_CARD, (tmp_path / "north" / "mirror" / names.SITE_CARD).read_bytes())
    site = FolderSync(
        work / "sites" / "north",
        LocalFolder(drop),
        invite=read_invite(work, "north"),
        key=SigningKey.at(work / "signing.key"),
        encryption_key=None,
        stop=stop,
        longest_interval_s=0.01,
        on_news=lambda: None,
    )
    full_disk.set()
    site.start()
    told = "is full: free some space there. The work goes on without what would be noted there."
    wait_until(lambda: told in caplog.text or not site._thread.is_alive())
    assert site._thread.is_alive()
    full_disk.clear()
    wait_until(lambda: site.channel is not None and not site.is_in_trouble)
    stop.set()
    site.join()


def test_an_aggregator_outlives_a_full_disk_while_it_waits(
    tmp_path: Path, full_disk: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.daemon.WAITING_SAVED_EVERY_S", 0.0)
    run = Played(tmp_path)
    store = RunStore(tmp_path / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    run.offer()
    daemon = daemon_of(run, store)
    daemon._waiting.restart(0)
    full_disk.set()
    for _ in range(3):
        daemon._news.set()
        daemon._facts()
    daemon._waiting.restart(0)
    assert caplog.text.count("The work goes on without what would be noted there.") == 1
    full_disk.clear()
    daemon._facts()
    assert (store.home / "waited.json").exists()


def test_an_aggregator_outlives_facts_that_the_disk_does_not_give(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.daemon.DISK_TROUBLE_PAUSE_S", 0.0)
    monkeypatch.setattr("aggregator.daemon.LONGEST_WAIT_S", 0.0)
    run = Played(tmp_path)
    store = Restless(tmp_path / "aggregator", RUN)
    store.mistake = OSError(errno.EIO, os.strerror(errno.EIO))
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    run.offer()
    daemon = daemon_of(run, store)
    for _ in range(3):
        assert daemon._goes_on()
    assert caplog.text.count("cannot be read or written now: Input/output error") == 1


class Restless(RunStore):
    """A store that raises what nobody expected the first times it is asked whether the run is paused."""

    mistakes = 2
    mistake: Exception = ZeroDivisionError("nobody expected it")

    @property
    def paused(self) -> bool:
        if self.mistakes:
            self.mistakes -= 1
            raise self.mistake
        return super().paused


class Unscored:
    """What no model can be scored with."""

    def score(self, *_: object) -> float:
        raise ZeroDivisionError("of this model")


def test_a_model_that_cannot_be_scored_is_omitted_with_the_reason_and_the_daemon_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised before an answer is looked at, and is nobody's fault, is waited out."""
    monkeypatch.setattr("aggregator.daemon.LONGEST_WAIT_S", 0.01)
    run = Played(tmp_path)
    store = Restless(tmp_path / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    store.aggregate_path(0).parent.mkdir(parents=True, exist_ok=True)
    store.aggregate_path(0).write_bytes(run.model(0.5).read_bytes())
    run.offer_and_consent(rounds=1)
    store.ask(1, ("north",), ("north",))
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, trains=True), "round")
    unscored: Any = Unscored()
    method = open_method("mean", {})
    daemon = Aggregator(
        store,
        [run.folder_sync],
        work=Here(RoundEngine(store, method, Aggregation(store, method, Groups())), unscored),
        in_turn=False,
        score_name="dice_mean",
        stop=run.stop,
        news=threading.Event(),
    )
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    verdict = MessageRef("verdict", RUN, 1)
    wait_until(lambda: run.aggregator.ledger.message(verdict) is not None or not thread.is_alive())
    assert thread.is_alive()
    run.stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    told = (store.verdicts(1) or {})["north"]
    assert (told.status, told.weight) == ("omitted", None)
    assert "could not be looked at: ZeroDivisionError (of this model)" in told.reason
    assert "an error that nobody expected, ZeroDivisionError (nobody expected it)" in caplog.text
    assert caplog.text.count("Traceback") == 2


# --- a site -----------------------------------------------------------------------------------------------------


def test_a_sites_daemon_outlives_what_nobody_expected_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joined(tmp_path)
    (tmp_path / "drop").mkdir()
    folder, stop = Broken(tmp_path / "drop"), threading.Event()
    folder.at = names.FEDERATION
    (tmp_path / "drop" / folder.at).write_bytes(b"{}")
    configuration = read_configuration(tmp_path / "north").model_copy(update={"poll_seconds": 0.01})
    daemon = Daemon(tmp_path / "north", configuration, folder, stop=stop)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    said = tmp_path / "drop" / names.STATUS
    wait_until(lambda: not thread.is_alive() or (said.exists() and b'"phase":"trouble"' in said.read_bytes()))
    assert thread.is_alive()
    assert "an error that nobody expected, ZeroDivisionError (nobody expected it)" in caplog.text
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_sites_daemon_outlives_a_disk_that_cannot_be_read_while_it_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its heartbeat is made of files too."""
    caplog.set_level("INFO", "site_client")
    joined(tmp_path)
    (tmp_path / "drop").mkdir()
    stop, is_broken, read_bytes = threading.Event(), threading.Event(), Path.read_bytes
    card = tmp_path / "north" / names.MIRROR / names.SITE_CARD

    def read_or_fail(path: Path) -> bytes:
        if is_broken.is_set() and path == card:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_or_fail)
    monkeypatch.setattr("site_client.heartbeat.NOTED_EVERY_S", 0.0)
    configuration = read_configuration(tmp_path / "north").model_copy(update={"poll_seconds": 0.01})
    daemon = Daemon(tmp_path / "north", configuration, LocalFolder(tmp_path / "drop"), stop=stop)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    wait_until((tmp_path / "drop" / names.SITE_CARD).exists)
    is_broken.set()
    wait_until(lambda: "cannot be read or written now" in caplog.text or not thread.is_alive())
    is_broken.clear()
    written = (tmp_path / "north" / "status.json").read_bytes()
    wait_until(lambda: (tmp_path / "north" / "status.json").read_bytes() != written or not thread.is_alive())
    assert thread.is_alive()
    is_broken.set()
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive() and "stopped; the next start goes on from here" in caplog.messages


def test_a_daemon_that_is_stopped_does_not_wait_for_an_answer_that_drips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock in ("GRACE_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(shared.folder.stopping, clock, 0.02)
    is_asked = threading.Event()

    def drip(client: Any, _: bytes) -> None:
        is_asked.set()
        while True:  # for hours, and never too slowly for an answer that goes on
            client.sendall(b"x")
            time.sleep(0.01)

    server = RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", drip)
    joined(tmp_path, server.url)
    configuration, stop = read_configuration(tmp_path / "north"), threading.Event()
    daemon = Daemon(tmp_path / "north", configuration, open_folder(tmp_path / "north", configuration), stop=stop)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    assert is_asked.wait(WAIT_S)
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    server.close()


# --- an audit ---------------------------------------------------------------------------------------------------

UPDATE = MessageRef("update", RUN, 1)


@pytest.mark.parametrize(
    "path",
    [UPDATE.manifest, f"{UPDATE.path}/{names.METRICS}", f"{UPDATE.path}/{names.SITE_MODEL}", UPDATE.path, names.STATUS],
)
def test_what_nobody_expected_is_a_finding_of_the_audit(path: str, tmp_path: Path) -> None:
    what = "could not be looked at: ZeroDivisionError (nobody expected it)"
    ended_run(tmp_path)
    folder = Broken(tmp_path / "drop")
    before = verify(folder).findings
    folder.at = path
    found = {finding.file for finding in verify(folder).findings if what in finding.what}
    assert found == {path} and not [finding for finding in before if what in finding.what]
