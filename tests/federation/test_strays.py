"""What anybody who can write in a folder may leave where a message belongs: it holds up nothing else, and is never
taken for the message.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.launch import is_told
from shared.errors import AlreadyExistsError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MAX_RECORD_BYTES, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Withdrawal
from shared.exchange.records.run import RunConfiguration
from shared.exchange.signing import SigningKey, canonical
from shared.exchange.trust import Peer
from shared.folder.local import LocalFolder
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.store import Decision, write_decision
from tests.faults.hurried import hurried
from tests.federation.test_folder_sync import folder_sync
from tests.federation.test_last_resort import wait_until
from tests.played import RUN, Played, daemon_of, ended_run, work_later

OFFERED = dump_yaml(RunConfiguration(run="r", task="t", method="mean", sites=["north"], rounds=2))


def a_few_bytes(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")


def nothing_at_all(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")


def too_many_bytes(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(MAX_RECORD_BYTES + 1))


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)


KINDS = (a_few_bytes, nothing_at_all, too_many_bytes, a_folder)


@pytest.fixture
def run(tmp_path: Path) -> Played:
    return Played(tmp_path)


def _site(run: Played) -> Daemon:
    work = run.site.ledger.root.parent
    return Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())


@pytest.mark.parametrize("leave", KINDS[:3])
def test_what_lies_in_a_message_s_place_is_not_that_message_also_after_a_restart(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    key, drop = SigningKey(b"\x01" * 32), tmp_path / "drop"
    drop.mkdir()

    def aggregator() -> Channel:
        peer = Peer("retina", "north", "north", SigningKey(b"\x02" * 32).public)
        return Channel(tmp_path / "home", LocalFolder(drop), me=AGGREGATOR, key=key, peer=peer, encryption_key=None)

    offer = MessageRef("offer", "r")
    leave(drop / offer.manifest)
    sender = aggregator()
    sender.outbox.sign(offer, {names.RUN_CONFIGURATION: OFFERED, names.TENSORS: b"tensors: {}\n"}, in_reply_to=None)
    for _ in range(2):
        with pytest.raises(AlreadyExistsError):
            sender.outbox.publish()
        sender = aggregator()
        assert sender.outbox.has_unpublished
    (drop / offer.manifest).unlink()
    sender.outbox.publish()
    assert not sender.outbox.has_unpublished
    assert (drop / offer.manifest).read_bytes() == sender.ledger.path(offer, names.MANIFEST).read_bytes()


@pytest.mark.parametrize("leave", KINDS)
def test_a_site_answers_and_keeps_its_model_beside_it(
    run: Played, leave: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    stray = MessageRef("offer", "aaa").manifest
    leave(run.drop / stray)
    run.offer()
    site = _site(run)
    write_decision(run.site.ledger.root.parent, RUN, Decision("no"))
    for _ in range(3):
        site.step()
    assert (run.drop / MessageRef("consent", RUN).manifest).exists()
    told = [record.message for record in caplog.records if record.message.startswith(stray)]
    if leave is a_folder:  # a folder is no file: nothing is there
        assert not told
        return
    assert len(told) == 1
    assert site._heartbeat.trouble is not None and stray in site._heartbeat.trouble
    shutil.rmtree((run.drop / stray).parent)
    site.step()
    assert site._heartbeat.trouble is None


@pytest.mark.parametrize("leave", KINDS)
def test_a_withdrawal_is_read_beside_it(run: Played, leave: Callable[[Path], None]) -> None:
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    leave(run.drop / MessageRef("update", RUN, 1).manifest)
    withdrawal = {names.WITHDRAWAL: canonical(Withdrawal(run=RUN, reason="enough").model_dump())}
    run.sign_and_publish("withdrawal", 0, withdrawal)
    run.folder_sync.attend(MessageRef("update", RUN, 1))
    with hurried():
        for _ in range(3):
            work_later(run.folder_sync)
    assert run.aggregator.ledger.message(MessageRef("withdrawal", RUN)) is not None


@pytest.mark.parametrize("leave", KINDS)
def test_in_the_place_of_a_withdrawal_it_is_none(
    run: Played, leave: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Else whoever puts it there keeps a site out of every round."""
    run.offer_and_consent()
    leave(run.drop / MessageRef("withdrawal", RUN).manifest)
    asked = run.folder_sync.request_look()
    with hurried():
        for _ in range(3):
            run.folder_sync.work()
    assert run.folder_sync.looked >= asked and not run.folder_sync.cannot_publish
    assert ("it is not taken, nor held against anybody" in caplog.text) == (leave is not a_folder)


def test_it_is_told_once_and_until_it_is_gone(run: Played, caplog: pytest.LogCaptureFixture) -> None:
    """Also by looks for the awaited message alone, which do not come near it."""
    caplog.set_level(logging.INFO)
    run.offer_and_consent()
    stray = MessageRef("withdrawal", RUN).manifest
    a_few_bytes(run.drop / stray)
    told = run.drop.parent / "aggregator" / "sites" / "north" / "trouble.txt"
    with hurried():
        for look in (run.folder_sync.work, lambda: work_later(run.folder_sync)) * 5:
            look()
        assert stray in told.read_text() and not run.folder_sync.is_in_trouble
        (run.drop / stray).unlink()
        work_later(run.folder_sync)
    assert not told.exists()
    said = [record.message for record in caplog.records if record.name == "aggregator.folder_sync"]
    assert [stray in line for line in said] == [True, False]


def test_a_queue_does_not_wait_for_a_folder_in_which_a_person_has_to_put_something_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, store = ended_run(tmp_path)
    others = False
    final = run.drop / MessageRef("final", RUN).manifest
    final.write_bytes(b"{}")
    with hurried():
        run.folder_sync = folder_sync(tmp_path / "aggregator", LocalFolder(run.drop), run.stop)
        daemon = daemon_of(run, store, others_wait=lambda: others)
        run.folder_sync.work()
        assert run.folder_sync.cannot_publish and run.folder_sync.channel is not None
        assert not daemon._is_over()  # alone, it waits until that is put right
        others = True
        assert not daemon._goes_on()
        run.folder_sync.cannot_publish = False  # as where its worker is cut off at its next try
        assert daemon.outcome is not None and daemon.final_model is not None
        assert f"north is not told that run {RUN} is over" in caplog.text
        assert not is_told(tmp_path / "aggregator", store)
        final.unlink()
        run.folder_sync.work()
    assert is_told(tmp_path / "aggregator", store) and final.read_bytes() != b"{}"


def test_nor_does_it_wait_for_a_folder_that_cannot_be_reached_until_a_person_has_done_something(tmp_path: Path) -> None:
    """Its worker tries for ever, and comes to no end of its own."""
    run, store = ended_run(tmp_path)
    others = False
    away = run.drop.rename(tmp_path / "renamed")
    with hurried():
        run.folder_sync = folder_sync(tmp_path / "aggregator", LocalFolder(run.drop), run.stop)
        daemon = daemon_of(run, store, others_wait=lambda: others)
        run.folder_sync.start()
        wait_until(lambda: run.folder_sync.cannot_publish)
        assert not daemon._is_over()  # alone, it waits until that is put right
        others = True
        assert not daemon._goes_on()
        away.rename(run.drop)
        wait_until(lambda: is_told(tmp_path / "aggregator", store))
        wait_until(lambda: not run.folder_sync.cannot_publish)
        run.stop.set()
        run.folder_sync.join()
