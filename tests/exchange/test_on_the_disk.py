"""A round's models count as soon as they are verified; what follows from them waits until they are on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from threading import Event

import pytest

from aggregator.rounds import Score
from aggregator.store import RunStore
from shared.errors import TransientError
from shared.exchange import mirror, names
from shared.exchange.channel import Channel
from shared.exchange.mirror import Mirror
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.tensors import Sharing
from shared.folder.durable import sync_file
from shared.folder.local import LocalFolder
from shared.learning.run_files import Scored
from tests.exchange.test_channel import CONSENT, FILES, OFFER, channel, receive
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played, daemon_of

ROUND, UPDATE = MessageRef("round", "r", 1), MessageRef("update", "r", 1)
MODEL = bytes(range(100))
ANSWER: dict[str, bytes | Path] = {names.METRICS: b"", names.SITE_MODEL: MODEL}


class Disk:
    """The site's disk, under the manifests of what comes: it takes its time, or is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.may_write = Event()
        monkeypatch.setattr(mirror, "sync_file", self._sync)

    def _sync(self, path: Path) -> None:
        self.may_write.wait(60)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        sync_file(path)


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    """A folder with a published round."""
    (tmp_path / "drop").mkdir()
    folder = LocalFolder(tmp_path / "drop")
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    offer = aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    receive(north, OFFER)
    consent = north.outbox.sign(CONSENT, {names.CONSENT: b"{}"}, in_reply_to=offer.digest)
    north.outbox.publish()
    receive(aggregator, CONSENT, offer.digest)
    files: dict[str, bytes | Path] = {names.ROUND_CONFIGURATION: b"", names.GLOBAL_MODEL: MODEL}
    aggregator.outbox.sign(ROUND, files, in_reply_to=consent.digest)
    aggregator.outbox.publish()
    return folder


def receive_round(north: Channel) -> object:
    consent = north.ledger.message(CONSENT)
    assert consent is not None
    return receive(north, ROUND, consent.digest)


def test_after_a_power_cut_a_model_that_was_not_on_the_disk_is_fetched_anew(
    tmp_path: Path, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, disk = channel(tmp_path, "north", folder), Disk(monkeypatch)
    accepted = receive_round(north)
    assert accepted is not None and north.ledger.message(ROUND) == accepted  # work on it may begin
    shutil.copytree(tmp_path / "north", tmp_path / "after the power cut" / "north")
    disk.may_write.set()
    torn = tmp_path / "after the power cut" / "north" / "mirror" / ROUND.path / names.GLOBAL_MODEL
    torn.write_bytes(bytes(len(MODEL)))
    again = channel(tmp_path / "after the power cut", "north", folder)
    assert again.ledger.message(ROUND) is None
    assert receive_round(again) == accepted
    assert torn.read_bytes() == MODEL
    again.ledger.flush()
    assert channel(tmp_path / "after the power cut", "north", folder).ledger.message(ROUND) == accepted


def test_an_answer_is_signed_once_what_it_answers_is_on_the_disk(
    tmp_path: Path, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, disk = channel(tmp_path, "north", folder), Disk(monkeypatch)
    receive_round(north)
    flush = Mirror.flush

    def waiting(self: Mirror) -> None:
        disk.may_write.set()  # only now that somebody waits for it
        flush(self)

    monkeypatch.setattr(Mirror, "flush", waiting)
    north.outbox.sign(UPDATE, ANSWER, in_reply_to=None)
    written = [north.ledger.path(ref, names.MANIFEST).stat().st_ctime_ns for ref in (ROUND, UPDATE)]
    assert written == sorted(written)


def test_what_the_disk_does_not_take_counts_no_more_and_nothing_that_follows_is_signed(
    tmp_path: Path, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, disk = channel(tmp_path, "north", folder), Disk(monkeypatch)
    disk.is_full = True
    disk.may_write.set()
    accepted = receive_round(north)
    with pytest.raises(OSError, match="No space left"):
        north.outbox.sign(UPDATE, ANSWER, in_reply_to=None)
    assert north.ledger.message(ROUND) is north.ledger.message(UPDATE) is None
    assert not north.ledger.path(UPDATE, names.MANIFEST).exists()
    disk.is_full = False
    assert receive_round(north) == accepted
    north.outbox.sign(UPDATE, ANSWER, in_reply_to=None)


def test_what_comes_after_a_message_that_the_disk_did_not_take_waits_for_it(
    tmp_path: Path, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another thread was told of the disk: else the message would be refused for good, for its number."""
    aggregator, north, disk = (
        channel(tmp_path, AGGREGATOR, folder),
        channel(tmp_path, "north", folder),
        Disk(monkeypatch),
    )
    disk.may_write.set()
    assert receive_round(north)
    offer, asked = (aggregator.ledger.message(ref) for ref in (OFFER, ROUND))
    assert offer is not None and asked is not None
    north.outbox.sign(UPDATE, ANSWER, in_reply_to=asked.digest)
    withdrawal = MessageRef("withdrawal", "r")
    north.outbox.sign(withdrawal, {names.WITHDRAWAL: b"{}"}, in_reply_to=offer.digest)
    north.outbox.publish()
    disk.is_full = True
    assert receive(aggregator, UPDATE, asked.digest)
    flush = Mirror.flush

    def flush_after_another(self: Mirror) -> None:
        with pytest.raises(OSError, match="No space left"):
            flush(self)
        flush(self)

    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "flush", flush_after_another)
        with pytest.raises(TransientError, match="the message of north before it was not written here"):
            receive(aggregator, withdrawal, offer.digest)
    assert aggregator.ledger.message(UPDATE) is aggregator.ledger.message(withdrawal) is None
    disk.is_full = False
    assert receive(aggregator, UPDATE, asked.digest) and receive(aggregator, withdrawal, offer.digest)


@pytest.mark.parametrize("is_told_elsewhere", [False, True])
def test_no_score_is_kept_of_an_answer_that_the_disk_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_told_elsewhere: bool
) -> None:
    """After a crash another answer might lie where that one lay."""
    run, store = Played(tmp_path), RunStore(tmp_path / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    run.send("round", 1, run.to_site(1), "consent")
    update = run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    disk, daemon = Disk(monkeypatch), daemon_of(run, store)
    disk.is_full = True
    run.folder_sync.attend(update)
    assert run.folder_sync.work()
    monkeypatch.setattr(daemon, "_check", lambda *_: Scored(score="0.9", theta=None, epsilon=None, reason=""))
    assert run.aggregator.ledger.message(update) is not None
    disk.may_write.set()
    with pytest.raises(OSError, match="No space left"):
        run.aggregator.ledger.flush() if is_told_elsewhere else daemon._act(Score("north", 1))
    if is_told_elsewhere:
        daemon._act(Score("north", 1))
    assert store.score(1, "north") is run.aggregator.ledger.message(update) is None
    disk.is_full = False
    assert run.folder_sync.work()
    daemon._act(Score("north", 1))
    assert store.score(1, "north") is not None
