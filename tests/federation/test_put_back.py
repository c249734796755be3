"""What is put back from a backup, or is there twice: the folder of a site, or one of the two work directories."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from aggregator.folder_sync import FolderSync
from aggregator.rotation import rotate as rotate_aggregators
from aggregator.setup import encryption_key
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.channel import Channel
from shared.exchange.encryption import EncryptionKey
from shared.exchange.handovers import name_key
from shared.exchange.names import (
    ABORT,
    AGGREGATOR,
    CARD,
    CONSENT,
    FINAL_MODEL,
    MANIFEST,
    METRICS,
    SITE_MODEL,
    STATUS,
    WITHDRAWAL,
    MessageRef,
)
from shared.exchange.outbox import LOOKS_BACK_EVERY_S
from shared.exchange.records.answers import Consent
from shared.exchange.records.messages import Head
from shared.exchange.records.wire import Encrypt, FileEntry
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.trust import Peer
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from site_client import store
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.division import BUDGET, DIVISION
from site_client.heartbeat import Heartbeat, last_status
from site_client.rotation import rotate
from site_client.store import is_restored
from tests.federation.hospital import Hospital
from tests.federation.running import RUN as TRAINED
from tests.federation.running import TASK, WAIT_S, Federation, run_configuration, write_data
from tests.federation.test_crashes import DIED
from tests.played import RUN, Played, daemon_of, ended_run, work_later

UPDATE, VERDICT = MessageRef("update", RUN, 1), MessageRef("verdict", RUN, 1)


def anew(run: Played, side: str) -> Channel:
    """Return the way into the folder that a process has which was started again."""
    home = run.drop.parent / ("north" if side == "north" else "aggregator/sites/north")
    keys = run.drop.parent / side
    peer = Peer("retina", "north", AGGREGATOR, run.aggregator_key)
    if side == AGGREGATOR:
        peer = Peer("retina", "north", "north", SigningKey.at(run.drop.parent / "north" / "signing.key").public)
    return Channel(
        home,
        LocalFolder(run.drop),
        me=side,
        key=SigningKey.at(keys / "signing.key"),
        peer=peer,
        encryption_key=EncryptionKey.at(keys / "encryption.key"),
    )


@pytest.mark.parametrize(("side", "lost"), [("north", UPDATE), (AGGREGATOR, VERDICT)])
@pytest.mark.parametrize("keep", ["all", "last 1"])
def test_the_next_start_fills_a_hole_in_the_folder(tmp_path: Path, side: str, lost: MessageRef, keep: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(keep=keep, rounds=1)
    run.round(1, True)
    run.round(2, False)
    run.finish()
    for channel in (anew(run, "north"), anew(run, AGGREGATOR)):
        channel.outbox.publish()
        channel.outbox.prune(RUN)
    assert (run.drop / UPDATE.path / SITE_MODEL).exists() == (keep == "all")
    whole = {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()}
    assert not verify(LocalFolder(run.drop)).findings
    shutil.rmtree(run.drop / lost.path)
    assert verify(LocalFolder(run.drop)).findings
    anew(run, side).outbox.publish()
    assert {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()} == whole


@pytest.mark.parametrize("encrypt", ["none", "weights"])
def test_what_is_not_there_any_more_while_an_answer_is_awaited_is_sent_again(tmp_path: Path, encrypt: Encrypt) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(encrypt=encrypt)
    asked = MessageRef("round", RUN, 1)
    outbox = run.aggregator.outbox
    run.send("round", 1, run.to_site(1), "consent")
    content = {path: path.read_bytes() for path in (run.drop / asked.path).iterdir()}
    assert not outbox.look_back() and not outbox.has_unpublished
    shutil.rmtree(run.drop / asked.path)
    assert not outbox.look_back()  # not yet
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + LOOKS_BACK_EVERY_S)
    with patch("shared.exchange.outbox.time", later):
        assert outbox.look_back() and outbox.has_unpublished
    if encrypt == "none":
        outbox.publish()
        assert {path: path.read_bytes() for path in (run.drop / asked.path).iterdir()} == content
    else:  # a ciphertext is made once
        with pytest.raises(ActionRequiredError, match="was lost from the folder, and is not kept here"):
            outbox.publish()


def test_a_work_directory_older_than_its_answers_takes_them_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run, work, old = Played(tmp_path), tmp_path / "north", tmp_path / "old"
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    shutil.copytree(work, old)
    run.send("update", 1, run.from_site(1, True), "round")
    shutil.rmtree(work)
    old.rename(work)
    site = Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())
    site._enrolment.publish_card()
    update = site._ledger.message(UPDATE)
    assert update is not None and update == run.site.ledger.message(UPDATE)
    assert is_restored(work) and "this work directory is older than what this site has signed" in caplog.text
    caplog.clear()
    Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())._enrolment.publish_card()
    assert not caplog.records


def test_what_is_taken_back_is_taken_in_the_order_in_which_it_was_signed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the disk is cut, what is here is a beginning of the chain."""
    run, consent = Played(tmp_path), MessageRef("consent", RUN)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, True), "round")
    for ref in (consent, UPDATE):
        shutil.rmtree(tmp_path / "north" / "mirror" / ref.path)
    caplog.clear()  # where another test has logging tell more, the exchange before is told too
    anew(run, "north").inbox.adopt([UPDATE, consent])
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"north: took {ref.path} back from the folder" for ref in (consent, UPDATE)]


def test_until_a_named_key_was_handed_over_to_nothing_is_the_aggregators(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    ref = run.sign_and_publish("round", 1, run.to_site(1))
    manifest = (run.drop / ref.manifest).read_bytes()
    assert run.site.inbox.is_signed(ref, manifest)
    name_key(tmp_path / "north", SigningKey(b"\x09" * 32).public)
    assert not run.site.inbox.is_signed(ref, manifest)


def test_a_stray_in_an_answers_place_does_not_keep_a_site_from_starting(tmp_path: Path) -> None:
    run, work = Played(tmp_path), tmp_path / "north"
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    (run.drop / UPDATE.path).mkdir(parents=True)
    (run.drop / UPDATE.manifest).write_bytes(b"{}")
    site = Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())
    site._enrolment.publish_card()
    assert site._enrolment.has_published and not is_restored(work)


def test_two_copies_of_a_work_directory_are_told_from_a_stray(tmp_path: Path) -> None:
    run, twin = Played(tmp_path), tmp_path / "twin"
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    shutil.copytree(tmp_path / "north", twin)
    peer = Peer("retina", "north", AGGREGATOR, run.aggregator_key)
    key = SigningKey.at(twin / "signing.key")
    other = Channel(twin, LocalFolder(run.drop), me="north", key=key, peer=peer, encryption_key=None)
    asked = other.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    files = run.from_site(1, True)
    run.send("update", 1, files, "round")
    with patch("shared.exchange.outbox.now_text", lambda: "2026-01-01T00:00:00Z"):
        other.outbox.sign(UPDATE, files, in_reply_to=asked.digest)
    with pytest.raises(ActionRequiredError, match="tells of message 2, and that is not from"):
        other.outbox.publish()


def test_a_site_that_lost_what_the_aggregator_counts_trains_no_further_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells its people, whose withdrawal has the others go on without it."""
    monkeypatch.setenv("DIES_AT", f"mirror/{MessageRef('verdict', TRAINED, 1).manifest}")
    run = run_configuration(method="scaffold", rounds=2, quorum=1, tolerance=None)
    with Federation(tmp_path, run) as federation:
        home, lost, folder = federation.site("north"), tmp_path / "lost", federation.folder("north")
        aggregator, north = federation.start_aggregator(), federation.start_site("north", dying=tmp_path / "seams")
        federation.start_site("south")
        assert north.wait(WAIT_S) == DIED, federation.output(home)
        home.rename(lost)
        home.mkdir(mode=0o700)
        for name in ("site.yaml", "signing.key", "encryption.key", "password", DIVISION, BUDGET):
            shutil.copy2(lost / name, home / name)
        federation.start_site("north")

        def trouble() -> str:
            status = last_status(home)
            return (status and status.trouble) or ""

        federation.wait_until(lambda: trouble() or 2 in _answered(folder), "what is told, or a wrong answer")
        assert "what scaffold has this site remember was lost after round 1, and the aggregator still" in trouble()
        assert federation.start("site_client.cli", "withdraw", TRAINED, "--yes", work=home).wait(WAIT_S) == 0
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_until(lambda: federation.has_final("south"), "the final model")
        assert not trouble()
        federation.stop_all()
        answered = {site: _answered(federation.folder(site)) for site in run.sites}
        assert answered == {"north": [1], "south": [1, 2, 3]}
        assert not any(verify(LocalFolder(federation.folder(site))).findings for site in run.sites)


def _answered(folder: Path) -> list[int]:
    """The rounds that a site has answered."""
    return [no for no in range(1, 4) if (folder / MessageRef("update", TRAINED, no).manifest).exists()]


def test_what_an_old_work_directory_has_of_earlier_rounds_does_not_count(tmp_path: Path) -> None:
    run, work = Played(tmp_path), tmp_path / "north"
    run.offer_and_consent(rounds=3)

    def lost(before: int) -> int | None:
        return store.lost_round(work, run.site.ledger, RUN, before=before)

    assert lost(1) is None  # nothing was counted yet
    run.round(1, True)
    assert lost(2) == 1
    kept = store.personal_path(work, RUN, 1)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"")
    assert lost(2) is None
    run.round(2, True)
    assert store.newest_accepted(work, run.site.ledger, RUN, before=3) == kept and lost(3) == 2


def test_a_lost_disk_comes_back_where_two_runs_were_answered_in_turns(tmp_path: Path) -> None:
    """Its messages are taken back run by run, and so not in the order in which they were signed."""
    write_data(TASK, tmp_path / "images", 0, 20, seed=1)
    hospital = Hospital(tmp_path, tmp_path / "images")
    run = hospital.offer(run_configuration(run="octa-1", sites=["north"], quorum=1))
    hospital.live()
    hospital.offer(run_configuration(run="octa-2", sites=["north"], quorum=1), early=True)
    hospital.live()
    assert hospital.hears("octa-1") and hospital.hears("octa-2")
    hospital.send_round(run, 1)
    hospital.live()
    signed = hospital.daemon._ledger.own_messages()
    assert [message.ref.run for message in signed] == ["octa-1", "octa-2", "octa-1"]
    shutil.rmtree(hospital.work / "mirror")
    hospital.live()
    assert hospital.daemon._ledger.own_messages() == signed


# --- two copies of a work directory, or one that is older than what was sent ----------------------------------------


def test_a_model_of_a_lost_life_counts_for_none_of_the_same_size(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    files = run.from_site(1, True)
    other = run.model(0.75)
    (run.drop / UPDATE.path).mkdir(parents=True)
    shutil.copyfile(other, run.drop / UPDATE.path / SITE_MODEL)  # of an answer whose manifest never came
    run.send("update", 1, files, "round")
    sent = (run.drop / UPDATE.path / SITE_MODEL).read_bytes()
    assert sent == Path(str(files[SITE_MODEL])).read_bytes() and len(sent) == other.stat().st_size


def copy_of(run: Played, name: str) -> Channel:
    """Return the way into the folder of a copy of the site's work directory, made now."""
    shutil.copytree(run.drop.parent / "north", run.drop.parent / name)
    peer = Peer("retina", "north", AGGREGATOR, run.aggregator_key)
    home = run.drop.parent / name
    key, secret = SigningKey.at(home / "signing.key"), EncryptionKey.at(home / "encryption.key")
    return Channel(home, LocalFolder(run.drop), me="north", key=key, peer=peer, encryption_key=secret)


def divided(run: Played, name: str) -> Channel:
    """Have a site withdraw, and a copy of it sign an answer under the same number; return the copy's way."""
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    twin = copy_of(run, name)
    run.send("withdrawal", 0, {WITHDRAWAL: canonical({"run": RUN, "reason": "we leave"})}, "offer")
    asked = twin.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    twin.outbox.sign(UPDATE, run.from_site(1, True), in_reply_to=asked.digest)
    return twin


def consent_of(agrees: bool) -> dict[str, bytes | Path]:
    images = {"train": "12", "validation": "10"} if agrees else {}
    said = Consent(run=RUN, agrees=agrees, reason="a person said so", images=images)
    return {CONSENT: canonical(said.model_dump())}


@pytest.mark.parametrize("has_heartbeat", [True, False])
def test_a_second_answer_changes_nothing_of_the_first(tmp_path: Path, has_heartbeat: bool) -> None:
    run, consent = Played(tmp_path), MessageRef("consent", RUN)
    run.offer()
    twin = copy_of(run, "twin")
    run.send("consent", 0, consent_of(False), "offer")
    if not has_heartbeat:
        (run.drop / STATUS).unlink()
    before = {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()}
    offer = twin.ledger.message(MessageRef("offer", RUN))
    assert offer is not None
    twin.outbox.sign(consent, consent_of(True), in_reply_to=offer.digest)
    told = (
        "status.json in the folder, signed with our key, tells" if has_heartbeat else "is in the folder already, signed"
    )
    with pytest.raises(ActionRequiredError, match=f"{told}.*another copy of the directory is at work"):
        twin.outbox.publish()
    assert {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()} == before


def test_a_copy_sends_no_model_once_the_other_has_withdrawn(tmp_path: Path) -> None:
    run = Played(tmp_path)
    twin = divided(run, "twin")
    with pytest.raises(ActionRequiredError, match="tells of message 2, and that is not from this work directory"):
        twin.outbox.publish()
    assert not (run.drop / UPDATE.path).exists()


def test_a_copy_hides_nothing_that_the_other_tells(tmp_path: Path) -> None:
    run, work = Played(tmp_path), tmp_path / "twin"
    run.offer_and_consent()
    twin = copy_of(run, "twin")
    (run.drop / STATUS).unlink()  # so that none is listed when it begins
    beating = Heartbeat(work, read_configuration(work), LocalFolder(run.drop), SigningKey.at(work / "signing.key"))
    beating.beat("training", twin, now=True)
    assert (run.drop / STATUS).exists()
    run.send("withdrawal", 0, {WITHDRAWAL: canonical({"run": RUN, "reason": "we leave"})}, "offer")
    before = (run.drop / STATUS).read_bytes()
    beating.beat("sending", twin, now=True)
    assert (run.drop / STATUS).read_bytes() == before


def test_what_another_copy_signed_under_a_number_that_is_used_here_is_not_taken_back(tmp_path: Path) -> None:
    run = Played(tmp_path)
    twin = divided(run, "twin")
    with pytest.raises(ActionRequiredError, match="as message 2, and is not from this work directory"):
        twin.inbox.adopt([MessageRef("withdrawal", RUN)])
    assert twin.ledger.message(MessageRef("withdrawal", RUN)) is None


@pytest.mark.parametrize("name", [SITE_MODEL, METRICS, MANIFEST])
@pytest.mark.parametrize("start", ["while it waits", "anew"])
def test_a_file_that_the_folder_has_lost_is_sent_again(tmp_path: Path, name: str, start: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, True), "round")
    path = run.drop / UPDATE.path / name
    content = path.read_bytes()
    path.unlink()
    outbox = run.site.outbox if start == "while it waits" else anew(run, "north").outbox
    if start == "while it waits":
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + LOOKS_BACK_EVERY_S)
        with patch("shared.exchange.outbox.time", later):
            assert outbox.look_back()
    outbox.publish()
    assert path.read_bytes() == content


def test_models_that_people_have_deleted_once_a_run_is_over_are_not_sent_again_if_they_were_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.round(1, True)
    run.round(2, False)
    run.finish()
    for model in run.drop.rglob("*.safetensors"):
        model.unlink()
    caplog.clear()
    for side in (AGGREGATOR, "north"):
        anew(run, side).outbox.publish()
    final = MessageRef("final", RUN)  # which no answer has told to be read
    assert [*run.drop.rglob("*.safetensors")] == [run.drop / final.path / FINAL_MODEL]
    assert [record.getMessage() for record in caplog.records] == [
        f"north: published {final.path} again, which was lost"
    ]
    run.run = "octa-2"
    run.offer_and_consent(run="octa-2")
    (run.drop / final.path / FINAL_MODEL).unlink()
    anew(run, AGGREGATOR).outbox.publish()
    assert not [*run.drop.rglob("*.safetensors")]


def test_of_a_run_that_is_over_and_encrypted_nothing_is_sent_by_halves(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1, encrypt="weights")
    run.round(1, True)
    run.round(2, False)
    run.finish()
    lost, run.run = MessageRef("round", RUN, 1), "octa-2"
    run.offer_and_consent(run="octa-2")
    shutil.rmtree(run.drop / "runs" / RUN)
    anew(run, AGGREGATOR).outbox.publish()
    assert (run.drop / VERDICT.manifest).exists() and not (run.drop / lost.path).exists()


def test_a_lost_disk_raises_no_alarm_about_models_that_the_runs_rule_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, work = Played(tmp_path), tmp_path / "north"
    run.offer_and_consent(keep="last 1")
    for number in (1, 2):
        run.round(number, True)
    for channel in (run.site, run.aggregator):
        channel.outbox.prune(RUN)
    assert not (run.drop / UPDATE.path / SITE_MODEL).exists()
    shutil.rmtree(work / "mirror")
    caplog.clear()
    Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event(), give_up_after_s=0).step()
    assert "restored from the folder" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_damaged_card_of_an_earlier_run_keeps_nothing_from_being_sent(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(keep="best", rounds=2)
    for number, trains in ((1, True), (2, True), (3, False)):
        run.round(number, trains)
    run.finish()
    site = anew(run, "north")
    site.outbox.publish()
    site.outbox.prune(RUN)
    card = tmp_path / "north" / "mirror" / MessageRef("final", RUN).path / CARD
    card.write_bytes(card.read_bytes()[:-3])
    again = anew(run, "north")
    again.outbox.publish()
    assert not again.outbox.has_unpublished


def test_a_hole_in_a_run_that_goes_on_beside_a_newer_one_is_filled(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.round(1, True)
    run.run = "octa-2"
    run.offer_and_consent(run="octa-2")
    whole = {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()}
    (run.drop / UPDATE.path / SITE_MODEL).unlink()
    shutil.rmtree(run.drop / VERDICT.path)
    for side in (AGGREGATOR, "north"):
        anew(run, side).outbox.publish()
    assert {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()} == whole


def test_a_message_in_the_middle_that_the_other_side_lacks_is_sent_again(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.round(1, True)
    run.sign_and_publish("round", 2, run.to_site(2))
    whole = {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()}
    shutil.rmtree(run.drop / VERDICT.path)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + LOOKS_BACK_EVERY_S)
    with patch("shared.exchange.outbox.time", later):
        assert run.aggregator.outbox.look_back()
    run.aggregator.outbox.publish()
    assert {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()} == whole


def test_an_earlier_run_that_the_folder_has_lost_is_sent_again_at_the_next_start(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.round(1, True)
    run.round(2, False)
    run.finish()
    first, run.run = run.drop / "runs" / RUN, "octa-2"
    run.offer_and_consent(run="octa-2")
    whole = {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()}
    shutil.rmtree(first)
    for side in (AGGREGATOR, "north"):
        anew(run, side).outbox.publish()
    assert {path: path.read_bytes() for path in run.drop.rglob("*") if path.is_file()} == whole


def test_of_two_messages_of_one_number_a_lost_disk_takes_back_one(tmp_path: Path) -> None:
    run, withdrawal = Played(tmp_path), MessageRef("withdrawal", RUN)
    divided(run, "twin")
    shutil.copytree(tmp_path / "twin" / "mirror" / UPDATE.path, run.drop / UPDATE.path)
    shutil.rmtree(tmp_path / "north" / "mirror")
    lost = anew(run, "north")
    with pytest.raises(ActionRequiredError, match="signed with our key as message 2, and is not from this work"):
        lost.inbox.adopt([MessageRef("consent", RUN), UPDATE, withdrawal])
    assert len(lost.ledger.own_messages()) == 2


@pytest.mark.parametrize("forged", [STATUS, "heads", WITHDRAWAL])
def test_who_has_a_key_that_was_handed_over_stops_nobody(tmp_path: Path, forged: str) -> None:
    run, work, withdrawal = Played(tmp_path), tmp_path / "north", MessageRef("withdrawal", RUN)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    status, stolen = last_status(work), SigningKey.at(work / "signing.key")
    assert status is not None
    rotate(work)
    site = anew(run, "north")
    site.outbox.publish_keys()
    for _ in range(3):
        work_later(run.folder_sync)
    other = status.model_copy(update={"own_head": Head(seq=1, digest="ab" * 32)})
    if forged == "heads":
        other = status.model_copy(update={"aggregator_head": Head(seq=99, digest="ab" * 32)})
    if forged != WITHDRAWAL:
        (run.drop / STATUS).write_bytes(stolen.sign(other.model_dump()))
    else:
        said = canonical({"run": RUN, "reason": "somebody else says so"})
        file = FileEntry(size=len(said), sha256=digest_of(said))
        first = site.ledger.own_messages()[0].manifest
        other_first = first.model_copy(update={"kind": "withdrawal", "files": {WITHDRAWAL: file}})
        write_file(run.drop / withdrawal.path / WITHDRAWAL, said)
        write_file(run.drop / withdrawal.manifest, stolen.sign(other_first.model_dump()))
    daemon = Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event(), give_up_after_s=0)
    daemon._enrolment.publish_card()
    daemon._heartbeat.beat("waiting", daemon._channel, now=True)
    told = Peer("retina", "north", "north", stolen.public).open_status  # by the stolen key alone
    with pytest.raises(RejectedError):
        told((run.drop / STATUS).read_bytes())
    assert not (work / "mirror" / withdrawal.path).exists()
    work_later(run.folder_sync)
    assert not run.trouble.exists()
    asked = site.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    site.outbox.sign(UPDATE, run.from_site(1, True), in_reply_to=asked.digest)
    site.outbox.publish()
    assert (run.drop / UPDATE.manifest).exists()


def test_who_sees_another_copy_at_work_signs_nothing_and_goes_on_once_started_anew(tmp_path: Path) -> None:
    run, work = Played(tmp_path), tmp_path / "twin"
    run.offer_and_consent()
    copy_of(run, "twin")

    def started() -> Daemon:
        daemon = Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())
        daemon._heartbeat.begin(daemon._channel)
        daemon._enrolment.publish_card()
        daemon._heartbeat.beat("waiting", daemon._channel, now=True)
        return daemon

    twin = started()
    run.send("withdrawal", 0, {WITHDRAWAL: canonical({"run": RUN, "reason": "we leave"})}, "offer")
    twin._heartbeat.beat("waiting", twin._channel, now=True)
    with pytest.raises(ActionRequiredError, match="tells of message 2, and that is not from this work directory"):
        twin.step()
    assert twin._ledger.own_head.seq == 1
    again = started()  # once the other has ended
    assert again._ledger.own_head == run.site.ledger.own_head and again.step() in (True, False)


@pytest.mark.parametrize("side", ["north", AGGREGATOR])
def test_a_key_that_an_old_copy_hands_over_does_not_reach_the_folder(tmp_path: Path, side: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    kept = put_back_together(run, side)
    run.round(1, True)
    renew(kept)
    if side == "north":
        rotate(tmp_path / "north")
        with pytest.raises(ActionRequiredError, match="tells of message 2, and that is not from this work directory"):
            anew(run, "north").outbox.publish_keys()
    else:
        rotate_aggregators(tmp_path / "aggregator")
        sync = folder_sync_of(run)
        assert not sync.work() and sync.cannot_publish
        assert "north says that it has our message number 3" in run.trouble.read_text()
    assert not [*run.drop.glob("*keys/*")]


def put_back_together(run: Played, *names: str) -> dict[str, Path]:
    """Keep copies of these directories below ``home``, to be put back by ``renew``."""
    home = run.drop.parent
    for name in names:
        shutil.copytree(home / name, home / "backup" / name)
    return {name: home / name for name in names}


def renew(kept: dict[str, Path]) -> None:
    for name, path in kept.items():
        shutil.rmtree(path)
        shutil.copytree(path.parent / "backup" / name, path)


def folder_sync_of(run: Played) -> FolderSync:
    """Return the aggregator's end as a new process begins it."""
    work = run.drop.parent / "aggregator"
    return FolderSync(
        work / "sites" / "north",
        LocalFolder(run.drop),
        invite=None,
        key=SigningKey.at(work / "signing.key"),
        encryption_key=encryption_key(work),
        stop=threading.Event(),
        longest_interval_s=0.01,
        on_news=lambda: None,
    )


def test_an_aggregator_put_back_with_the_folder_refuses_no_answer_to_what_it_does_not_know(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    kept = put_back_together(run, "aggregator", "drop")
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, True), "round")
    renew(kept)
    old = folder_sync_of(run)
    assert old.work() and not run.trouble.exists()  # the heartbeat was put back, too
    asked = old.channel
    assert asked is not None
    consent = asked.ledger.message(MessageRef("consent", RUN))
    assert consent is not None
    with patch("shared.exchange.outbox.now_text", lambda: "2026-01-01T00:00:00Z"):
        asked.outbox.sign(MessageRef("round", RUN, 1), run.to_site(1), in_reply_to=consent.digest)
    old.attend(UPDATE)
    assert work_later(old) and not run.trouble.exists()
    run.site.outbox._published = None  # as after its next start
    run.site.outbox.publish()
    run.beat()
    assert not work_later(old)
    assert f"north says that it has our message number 2, which is not in {old._home}" in run.trouble.read_text()
    (run.drop / STATUS).unlink()  # which tells nothing else
    assert not work_later(old) and run.trouble.exists()
    asked.outbox.sign(MessageRef("abort", RUN), {ABORT: canonical({"run": RUN, "reason": "stop"})}, in_reply_to=None)
    assert not work_later(old) and not (run.drop / MessageRef("abort", RUN).path).exists()
    assert asked.ledger.refusal(UPDATE) is None


def test_a_site_put_back_with_the_folder_that_says_yes_after_its_no_is_told_of(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer()
    kept = put_back_together(run, "north", "drop")
    run.send("consent", 0, consent_of(False), "offer")
    renew(kept)
    old = anew(run, "north")
    offer = old.ledger.message(MessageRef("offer", RUN))
    assert offer is not None
    old.outbox.sign(MessageRef("consent", RUN), consent_of(True), in_reply_to=offer.digest)
    old.outbox.publish()
    run.heartbeat.beat("waiting", old, now=True)
    for _ in range(2):  # for as long as it says so
        assert not work_later(run.folder_sync)
        assert (
            "north says that its message number 1 is another than the one that it sent before"
            in run.trouble.read_text()
        )
    ref = run.sign_and_publish("abort", 0, {ABORT: canonical({"run": RUN, "reason": "the PI stopped it"})})
    assert (run.drop / ref.manifest).exists() and not run.folder_sync.cannot_publish  # its end is told nevertheless


def test_a_site_whose_heartbeat_tells_of_another_history_holds_up_no_run_that_waits(tmp_path: Path) -> None:
    run, store = ended_run(tmp_path)
    sync = run.folder_sync
    sync.work()
    assert sync.channel is not None and not sync.channel.outbox.has_unpublished
    status = last_status(tmp_path / "north")
    assert status is not None
    other = status.model_copy(update={"aggregator_head": Head(seq=99, digest="ab" * 32)})
    key = SigningKey.at(tmp_path / "north" / "signing.key")
    (run.drop / STATUS).write_bytes(key.sign(other.model_dump()))
    assert not work_later(sync) and run.trouble.exists()
    sync.channel.outbox._published -= 1  # as if the end had been signed just now
    assert not sync.work() and sync.cannot_publish
    assert daemon_of(run, store, others_wait=lambda: True)._is_over()
    (run.drop / STATUS).write_bytes(key.sign(status.model_dump()))
    assert work_later(sync) and not sync.cannot_publish and not run.trouble.exists()
