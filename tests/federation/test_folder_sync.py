"""The folder-sync worker of one site, run by hand."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from aggregator.folder_sync import FolderSync
from aggregator.overview import overview, overview_text
from aggregator.rounds import OfferEarly, SignRound
from aggregator.setup import initialise
from aggregator.site import read_invite
from aggregator.store import RunStore, withdrawal_of
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.readme import KNOWN_TEXTS
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import PROTOCOL
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.trust import Peer
from shared.folder.contract import Folder
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from site_client.facts import may_answer
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file
from tests.faults.hurried import hurried
from tests.federation.running import run_configuration
from tests.federation.test_last_resort import wait_until
from tests.played import RUN, TENSORS, Played, daemon_of, work_later


def folder_sync(work: Path, folder: Folder, stop: threading.Event | None = None) -> FolderSync:
    return FolderSync(
        work / "sites" / "north",
        folder,
        invite=read_invite(work, "north"),
        key=SigningKey.at(work / "signing.key"),
        encryption_key=None,
        stop=stop or threading.Event(),
        longest_interval_s=0.01,
        on_news=lambda: None,
    )


def enrolled(home: Path) -> tuple[Path, Path, FolderSync]:
    """The aggregator's work directory, the folder of a site that has just joined and is enrolled, and its worker."""
    work, drop = home / "aggregator", home / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    join(home / "north", read_invite_file(work / "invites" / "north.json"), data={}, url=None, password=None)
    LocalFolder(drop).create(names.SITE_CARD, (home / "north" / "mirror" / names.SITE_CARD).read_bytes())
    site = folder_sync(work, LocalFolder(drop))
    assert site.work()  # enrols
    return work, drop, site


def test_an_enrolment_that_was_cut_off_goes_on_with_a_card_that_came_since(tmp_path: Path) -> None:
    """A file of IT's own stood in the way; until it was away, the site was set up anew by the same invite."""
    work, drop = tmp_path / "aggregator", tmp_path / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    invite = read_invite_file(work / "invites" / "north.json")
    (drop / names.README).write_text("of the clinic's own")
    cards = []
    for home in (tmp_path / "first", tmp_path / "second"):
        join(home, invite, data={}, url=None, password=None)
        cards.append((home / "mirror" / names.SITE_CARD).read_bytes())
    (drop / names.SITE_CARD).write_bytes(cards[0])
    with hurried():
        site = folder_sync(work, LocalFolder(drop))
        assert not site.work() and site.channel is None
        (drop / names.README).unlink()
        (drop / names.SITE_CARD).write_bytes(cards[1])
        assert site.work() and site.channel is not None
    assert site.channel.ledger.peer.key == SigningKey.at(tmp_path / "second" / "signing.key").public


@pytest.mark.parametrize("which", [0, -1])
def test_an_enrolment_that_an_earlier_version_began_keeps_its_text(which: int, tmp_path: Path) -> None:
    work, drop = tmp_path / "aggregator", tmp_path / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    join(tmp_path / "site", read_invite_file(work / "invites" / "north.json"), data={}, url=None, password=None)
    (drop / names.SITE_CARD).write_bytes((tmp_path / "site" / "mirror" / names.SITE_CARD).read_bytes())
    (drop / names.README).write_bytes(text := KNOWN_TEXTS[PROTOCOL][which])
    with hurried():
        assert folder_sync(work, LocalFolder(drop)).work()
    assert (drop / names.README).read_bytes() == text
    assert [finding.file for finding in verify(LocalFolder(drop)).findings] == [names.STATUS]  # no site was started


def test_a_folder_from_before_the_enrolment_gets_back_what_it_begins_with(tmp_path: Path) -> None:
    work, drop, _ = enrolled(tmp_path)
    begun = {path.name: path.read_bytes() for path in drop.iterdir()}
    assert set(begun) == {names.README, names.FEDERATION, names.SITE_CARD}
    for lost in (names.README, names.FEDERATION):
        (drop / lost).unlink()
    started_again = folder_sync(work, LocalFolder(drop))
    started_again.work()
    assert {path.name: path.read_bytes() for path in drop.iterdir()} == begun
    (drop / names.FEDERATION).write_bytes(b"of somebody else")  # for an auditor to find
    folder_sync(work, LocalFolder(drop)).work()
    assert (drop / names.FEDERATION).read_bytes() == b"of somebody else"


def test_an_accepted_message_is_never_looked_at_again(tmp_path: Path) -> None:
    """The daemon may be busy long after a message came; a worker that keeps looking must not refuse the message."""
    work, drop, site = enrolled(tmp_path)
    assert site.channel is not None
    offered = dump_yaml(run_configuration(run="r", sites=["north"], quorum=1))
    offer = site.channel.outbox.sign(
        MessageRef("offer", "r"), {names.RUN_CONFIGURATION: offered, names.TENSORS: b"y"}, in_reply_to=site.card_digest
    )
    assert site.work()  # publishes

    peer = Peer("retina", "north", AGGREGATOR, SigningKey.at(work / "signing.key").public)
    own_key = SigningKey.at(tmp_path / "north" / "signing.key")
    hospital = Channel(tmp_path / "north", LocalFolder(drop), me="north", key=own_key, peer=peer, encryption_key=None)
    write_file(hospital.ledger.path(MessageRef("offer", "r"), names.RUN_CONFIGURATION), offered)
    ref = MessageRef("consent", "r")
    consent = Consent(run="r", agrees=True, reason="yes", images={"train": "12"})
    hospital.outbox.sign(ref, {names.CONSENT: canonical(consent.model_dump())}, in_reply_to=offer.digest)
    hospital.outbox.publish()

    site.attend(ref)
    assert site.work()  # receives
    accepted = site.channel.ledger.message(ref)
    assert accepted is not None
    for _ in range(5):
        assert not site.work()  # nothing has changed, whatever the daemon is busy with
    assert site.channel.ledger.message(ref) == accepted
    assert site.channel.ledger.refusal(ref) is None
    assert site.channel.ledger.path(ref, names.CONSENT).exists()


@pytest.mark.parametrize("read", [True, False])
def test_nothing_is_sent_from_an_old_copy_of_the_work_directory(tmp_path: Path, read: bool) -> None:
    """The site would refuse it for ever, for its messages are chained: whether it has read the newest or not yet."""
    run, old = Played(tmp_path), tmp_path / "old"
    run.offer_and_consent()
    shutil.copytree(tmp_path / "aggregator", old)
    run.round(1, trains=True)
    if read:
        run.beat()
        shutil.rmtree(run.drop / names.RUNS / RUN / "rounds")  # what the site has read is told by it alone
    else:
        (run.drop / names.STATUS).unlink(missing_ok=True)
    site = folder_sync(old, LocalFolder(run.drop))
    assert site.channel is not None
    ref = MessageRef("offer", "another-run")
    offered = dump_yaml(run_configuration(run="another-run", sites=["north"], quorum=1))
    site.channel.outbox.sign(ref, {names.RUN_CONFIGURATION: offered, names.TENSORS: b"y"}, in_reply_to=site.card_digest)
    assert not site.work()
    told = (old / "sites" / "north" / "trouble.txt").read_text()
    assert ("put back the newest" if read else "end all but the newest") in told
    assert not (run.drop / ref.path).exists()


def test_places_that_somebody_made_in_thousands_are_told_and_looked_at_no_further(
    run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.exchange.outbox.MOST_UNKNOWN", 20)
    for number in range(30):
        (run.drop / names.RUNS / f"planted-{number}" / "rounds" / "0001").mkdir(parents=True)
    (run.drop / names.RUNS / RUN / "rounds" / "old; copy").mkdir()
    site = folder_sync(run.drop.parent / "aggregator", LocalFolder(run.drop))
    assert not site.work() and site.is_in_trouble and site.cannot_publish
    assert "has more than 20 places of messages that were not signed here" in run.trouble.read_text()
    for number in range(15):
        shutil.rmtree(run.drop / names.RUNS / f"planted-{number}")
    assert site.work() and not site.is_in_trouble  # and a folder of another name is left alone


def test_a_run_that_was_declined_counts_as_no_place_that_somebody_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no end, and hundreds of them may be in a folder."""
    monkeypatch.setattr("shared.exchange.outbox.MOST_UNKNOWN", 0)
    run = Played(tmp_path)
    run.offer()
    no = Consent(run=RUN, agrees=False, reason="no", images={})
    run.send("consent", 0, {names.CONSENT: canonical(no.model_dump())}, "offer")
    site = folder_sync(tmp_path / "aggregator", LocalFolder(run.drop))
    for _ in range(2):
        site.work()
    assert not site.is_in_trouble


def ended_and_followed(home: Path, keep: str = "all") -> Played:
    """A run that has ended in its folder, and the next one's offer, which is signed and not there yet."""
    run = Played(home)
    run.offer_and_consent(keep=keep, rounds=1)
    for round_no in (1, 2):
        run.round(round_no, trains=round_no == 1)
    run.finish()
    run.run = "another-run"
    run.aggregator.outbox.sign(MessageRef("offer", run.run), run.to_offer(), in_reply_to=run.card_digest)
    return run


def test_a_damaged_answer_of_a_run_that_is_over_holds_up_no_other(tmp_path: Path) -> None:
    run = ended_and_followed(tmp_path)
    run.aggregator.ledger.path(MessageRef("consent", RUN), names.CONSENT).write_bytes(b"{}")
    site = folder_sync(tmp_path / "aggregator", LocalFolder(run.drop))
    for _ in range(2):
        site.work()
    assert (run.drop / MessageRef("offer", run.run).manifest).exists()


def test_what_a_rule_removes_is_removed_though_the_next_run_was_offered_meanwhile(tmp_path: Path) -> None:
    """As when the folder was out of reach when the run before ended."""
    run = ended_and_followed(tmp_path, keep="best")
    folder = Unwilling(run.drop)
    folder.refuses = True
    held_up = folder_sync(tmp_path / "aggregator", folder)
    number = held_up.request_look()
    for _ in range(4):
        held_up.work()
    assert held_up.looked >= number and not held_up.is_in_trouble  # what cannot be removed holds nothing up
    folder.refuses = False
    site = folder_sync(tmp_path / "aggregator", folder)
    for _ in range(3):
        site.work()
    left = [path for root in (run.drop, site.channel.ledger.root) for path in root.rglob(names.GLOBAL_MODEL)]
    assert left == [] and (run.drop / MessageRef("offer", run.run).manifest).exists()


class Unwilling(LocalFolder):
    """Nothing can be removed while it ``refuses``."""

    refuses = False

    def remove(self, path: str) -> None:
        if self.refuses:
            raise ActionRequiredError("nothing can be removed here")
        super().remove(path)


def test_a_run_is_over_once_its_rule_has_been_followed_in_each_folder_that_can_be_reached(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(keep="last 1")
    for round_no in (1, 2):
        run.round(round_no, trains=True)
    folder, stop = Unwilling(run.drop), threading.Event()
    with hurried():
        site, removed = (
            folder_sync(tmp_path / "aggregator", folder, stop),
            f"{MessageRef('round', RUN, 1).path}/{names.GLOBAL_MODEL}",
        )
    assert site.channel is not None
    site.work()
    assert not site.channel.outbox.has_unpublished
    assert site.has_to_prune
    folder.refuses = True
    site.start()
    wait_until(lambda: site.is_in_trouble)
    assert not site.has_to_prune  # it may never answer again
    assert (run.drop / removed).exists()
    folder.refuses = False
    wait_until(lambda: not (site.is_in_trouble or site.has_to_prune))
    stop.set()
    site.join()
    assert not (run.drop / removed).exists()


def test_trouble_is_told_while_it_lasts_and_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A card that does not know the invite's secret is not accepted; the right one ends the trouble."""
    work, drop = tmp_path / "aggregator", tmp_path / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    invite = read_invite_file(work / "invites" / "north.json")
    for name, secret in (("impostor", "00" * 32), ("north", invite.enrolment_secret)):
        told = invite.model_copy(update={"enrolment_secret": secret})
        join(tmp_path / name, told, data={}, url=None, password=None)
    site = folder_sync(work, LocalFolder(drop))
    trouble = work / "sites" / "north" / "trouble.txt"
    shutil.copyfile(tmp_path / "impostor" / "mirror" / names.SITE_CARD, drop / names.SITE_CARD)
    caplog.set_level(logging.INFO, "aggregator.folder_sync")
    for _ in range(3):
        assert not site.work()
    assert "does not prove knowledge of the invite's secret" in trouble.read_text()
    assert site.channel is None
    shutil.copyfile(tmp_path / "north" / "mirror" / names.SITE_CARD, drop / names.SITE_CARD)
    assert site.work()
    assert site.channel is not None
    assert not trouble.exists()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "invite's secret" in said[0]
    assert said[1:] == ["north is enrolled", "north: the exchange goes on."]


# --- what is not awaited ----------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Played:
    """A site that agreed and was sent a round."""
    run = Played(tmp_path)
    run.offer_and_consent()
    run.sign_and_publish("round", 1, {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: run.model(0.5)})
    assert receive(run.site, MessageRef("round", RUN, 1))
    return run


def receive(reader: Channel, ref: MessageRef) -> bool:
    manifest = reader.inbox.notice(ref)
    assert manifest is not None
    answers = may_answer(reader.ledger, ref, digest_of((reader.ledger.root / names.SITE_CARD).read_bytes()))
    return reader.inbox.fetch(ref, manifest, answers=answers, max_weights_bytes=1 << 20) is not None


def withdraw(run: Played) -> MessageRef:
    content = canonical(Withdrawal(run=RUN, reason="a change of plans").model_dump())
    return run.sign_and_publish("withdrawal", 0, {names.WITHDRAWAL: content})


def say_again(run: Played) -> None:
    """The same heartbeat, but for its time."""
    status = run.drop / names.STATUS
    key = SigningKey.at(run.drop.parent / "north" / "signing.key")
    status.write_bytes(key.sign(json.loads(status.read_bytes())["body"] | {"time": "2026-11-21T09:30:00Z"}))


def work_after_a_while(run: Played) -> bool:
    return work_later(run.folder_sync)


def test_the_heartbeat_tells_where_else_to_look(run: Played) -> None:
    """A withdrawal is not awaited: the folder-sync worker looks for it when the site says that it has sent more than
    has come.
    """
    folder_sync, update = run.folder_sync, MessageRef("update", RUN, 1)
    folder_sync.attend(update)
    run.beat()
    assert not work_after_a_while(run)
    withdrawal = withdraw(run)
    say_again(run)
    assert not work_after_a_while(run)  # the site has said something new, but not that
    run.beat()
    assert not folder_sync.work()  # it is not listened to so soon again
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(withdrawal) is not None
    assert withdrawal_of(run.aggregator.ledger, RUN) == "a change of plans"
    assert not work_after_a_while(run)


def test_a_site_is_not_asked_that_withdrew_after_it_was_decided_to_ask_it(run: Played) -> None:
    store = RunStore(run.drop.parent / "aggregator", RUN)
    store.begin(run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors={}, start={}, personal=[]))
    store.aggregate_path(1).parent.mkdir(parents=True)
    store.aggregate_path(1).write_bytes(run.model(0.5).read_bytes())
    daemon = daemon_of(run, store)
    withdraw(run)
    run.beat()
    assert work_after_a_while(run)
    daemon._act(SignRound("north", 2))
    assert (
        run.aggregator.ledger.message(MessageRef("round", RUN, 2)) is None and not run.aggregator.outbox.has_unpublished
    )


def test_no_site_is_offered_another_run_than_the_one_before(tmp_path: Path) -> None:
    """Not even after a restart with what somebody made of the run's file meanwhile."""
    (run := Played(tmp_path)).offer_and_consent()
    offered = run.aggregator.ledger.configuration(RUN)
    assert offered is not None
    changed = offered.model_copy(update={"seed": offered.seed + 1})
    store, sharing = (
        RunStore(run.drop.parent / "aggregator", RUN),
        run.aggregator.ledger.record(MessageRef("offer", RUN), Sharing),
    )
    store.begin(changed, sharing)
    with pytest.raises(ConfigurationError, match=r"is not what north was offered; put that back from .*/mirror/"):
        daemon_of(run, store)._offer_files(store, changed, sharing)
    (store.home / names.RUN_CONFIGURATION).write_bytes(dump_yaml(offered))
    assert daemon_of(run, store)._offer_files(store, offered, sharing)


@pytest.mark.parametrize("damage", [b"", b"run: [", None])
def test_a_waiting_run_whose_files_were_damaged_is_left_for_its_turn(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends no other run; and nothing of it is signed, whatever its file says now."""
    (run := Played(tmp_path)).offer_and_consent()
    work, sharing = run.drop.parent / "aggregator", Sharing(tensors={}, start={}, personal=[])
    settings: dict[str, Any] = {"sites": ["north"], "quorum": 1}
    store, later = RunStore(work, RUN), RunStore(work, "later")
    store.begin(run_configuration(run=RUN, **settings), sharing)
    later.begin(offered := run_configuration(run="later", encrypt="weights", **settings), sharing)
    daemon = daemon_of(run, store, later)
    daemon._see_who_waits()
    changed = dump_yaml(offered.model_copy(update={"encrypt": "none"}))
    (later.home / names.RUN_CONFIGURATION).write_bytes(changed if damage is None else damage)
    assert daemon._act_or_put_off(OfferEarly("north", "later"))
    assert "later cannot be offered yet, and is tried again when its turn comes: " in caplog.text
    assert not daemon._early_offers()
    assert run.aggregator.ledger.message(MessageRef("offer", "later")) is None


def test_a_site_that_falls_silent_after_it_left_has_left(run: Played) -> None:
    """Switched off before its next heartbeat: the one that is there stands still, and tells nothing later."""
    run.beat()
    assert not work_after_a_while(run)
    withdrawal = withdraw(run)
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(withdrawal) is not None


def test_an_answer_signed_before_the_withdrawal_comes_before_it(run: Played) -> None:
    update = run.sign_and_publish("update", 1, {names.METRICS: b"x", names.SITE_MODEL: run.model(0.25)})
    withdrawal = withdraw(run)
    run.folder_sync.attend(None)  # the round has closed without it
    run.beat()
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(update) is not None and run.aggregator.ledger.message(withdrawal) is not None


def test_a_withdrawal_that_does_not_hold_counts_all_the_same(run: Played) -> None:
    """Whatever is wrong with it, a site that wants to leave is not asked again."""
    run.sign_and_publish("withdrawal", 0, {names.WITHDRAWAL: b"I leave"})
    run.beat()
    assert work_after_a_while(run)
    assert "withdrawal.json: is not canonical JSON" in str(withdrawal_of(run.aggregator.ledger, RUN))


class Restless(LocalFolder):
    """Passes models on with other last bytes each time."""

    times = 0

    def download(self, path: str, target: Path, *, size: int) -> str:
        sha256 = super().download(path, target, size=size)
        if not path.endswith(names.SITE_MODEL):
            return sha256
        self.times += 1
        target.write_bytes(target.read_bytes()[:-4] + self.times.to_bytes(4, "big"))
        return digest_of(target.read_bytes())


def test_an_answer_with_other_bytes_at_each_download_does_not_keep_a_stop_from_coming(run: Played) -> None:
    store = RunStore(run.drop.parent / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    store.ask(1, ("north",), ("north",))
    run.folder_sync.channel.inbox._folder = Restless(run.drop)
    run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    run.folder_sync.attend(MessageRef("update", RUN, 1))
    store.request_stop()
    daemon = daemon_of(run, store)
    assert not daemon._facts().stop_requested
    for _ in range(2):
        work_after_a_while(run)
    assert "nor held against anybody" in run.trouble.read_text()
    assert daemon._facts().stop_requested
    run.folder_sync.channel.inbox._folder = LocalFolder(run.drop)
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(MessageRef("update", RUN, 1)) is not None


def test_a_withdrawal_that_is_taken_away_before_it_is_read_does_not_keep_a_stop_from_coming(run: Played) -> None:
    store = RunStore(run.drop.parent / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    withdrawal = withdraw(run)
    content = run.drop / withdrawal.path / names.WITHDRAWAL
    reason, manifest = content.read_bytes(), (run.drop / withdrawal.manifest).read_bytes()
    content.unlink()
    daemon = daemon_of(run, store)
    store.request_stop()
    assert not daemon._facts().stop_requested
    work_after_a_while(run)  # sees it, and cannot read it
    (run.drop / withdrawal.manifest).unlink()
    work_after_a_while(run)
    assert "is not any more" in run.trouble.read_text()
    assert daemon._facts().stop_requested
    content.write_bytes(reason)
    (run.drop / withdrawal.manifest).write_bytes(manifest)
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(withdrawal) is not None


@pytest.mark.parametrize("what", ["missing", "another", "behind a gap"])
def test_a_signed_withdrawal_that_does_not_hold_does_not_keep_a_stop_from_coming(run: Played, what: str) -> None:
    """Nor does a round go to that site meanwhile."""
    store = RunStore(run.drop.parent / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    if what == "behind a gap":
        update = run.sign_and_publish("update", 1, {names.METRICS: b"x", names.SITE_MODEL: run.model(0.25)})
        kept = run.drop / update.manifest
    else:
        kept = run.drop / MessageRef("withdrawal", RUN).path / names.WITHDRAWAL
    withdrawal = withdraw(run)
    content = kept.read_bytes()
    kept.unlink()
    if what == "another":
        kept.write_bytes(content[:-2] + b" }")
    daemon = daemon_of(run, store)
    store.request_stop()
    assert not daemon._facts().stop_requested
    for _ in range(3):
        work_after_a_while(run)
    assert run.trouble.exists() and run.aggregator.ledger.message(withdrawal) is None
    assert daemon._facts().stop_requested
    assert run.folder_sync.has_unread_withdrawal
    kept.write_bytes(content)
    for _ in range(3):
        work_after_a_while(run)
    assert run.aggregator.ledger.message(withdrawal) is not None


def test_a_false_heartbeat_is_told_once_and_stops_nothing(run: Played, caplog: pytest.LogCaptureFixture) -> None:
    folder_sync, status = run.folder_sync, run.drop / names.STATUS
    kept = run.drop.parent / "aggregator" / "sites" / "north" / names.STATUS
    run.beat()
    work_after_a_while(run)
    good = status.read_bytes()
    assert kept.read_bytes() == good
    body = json.loads(good)["body"]
    for false in (b"", good[:-1], SigningKey(b"\x09" * 32).sign(body | {"phase": "trouble"}), b" " * (2 << 20)):
        status.write_bytes(false)
        assert not work_after_a_while(run)
    assert caplog.text.count("it is not believed") == 1
    assert kept.read_bytes() == good
    assert not (kept.parent / "trouble.txt").exists() and not folder_sync.is_in_trouble
    caplog.set_level(logging.INFO, "aggregator.folder_sync")
    for _ in range(2):
        status.write_bytes(good)
        assert not work_after_a_while(run)
    assert caplog.text.count("the heartbeat holds again") == 1
    status.write_bytes(b"")
    withdrawal = withdraw(run)  # found without a heartbeat that holds
    assert work_after_a_while(run)
    assert run.aggregator.ledger.message(withdrawal) is not None


def test_status_shows_what_the_site_says_of_itself(run: Played) -> None:
    work = run.drop.parent / "aggregator"
    store = RunStore(work, RUN)
    store.begin(run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors={}, start={}, personal=[]))
    run.beat(RejectedError("runs/x/offer/run.yaml", "is not well-formed"))
    work_after_a_while(run)
    said = overview(work).sites["north"].heartbeat
    assert said and (said.phase, said.run, said.round) == ("trouble", RUN, 1)
    assert "says: trouble, run octa-1, round 1, at " in overview_text(overview(work))
    assert "run.yaml: is not well-formed" in overview_text(overview(work))
    withdraw(run)
    run.beat()
    work_after_a_while(run)
    said = overview_text(overview(work))
    assert overview(work).sites["north"].phase == "withdrew: a change of plans"
    assert "says: " not in said  # its heartbeat is of before
    assert "next: fewer sites are left than the quorum, 1: the run is aborted\n" in said
    store.ask(1, ("north",), ("north",))
    said = overview_text(overview(work))
    assert "next: fewer sites are left than the quorum, 1: the best model so far is chosen, and the run ends\n" in said
    assert "a quorum of 1 is enough" not in said


def test_what_comes_after_a_run_has_ended_holds_up_no_later_run(run: Played) -> None:
    """An answer to the last round that nobody waited for any more is taken before the consent to the next run."""
    verdict = {"run": RUN, "round": 1, "site": "north", "status": "late", "score": None, "tolerance": "0.3"}
    content = canonical(verdict | {"theta": None, "weight": None, "reason": "late"})
    run.sign_and_publish("verdict", 1, {names.VERDICT: content}, answers_nothing=True)
    late = run.sign_and_publish("update", 1, {names.METRICS: b"x", names.SITE_MODEL: run.model(0.25)})
    offer = MessageRef("offer", "octa-2")
    offered = dump_yaml(run_configuration(run="octa-2", sites=["north"], quorum=1))
    files: dict[str, bytes | Path] = {names.RUN_CONFIGURATION: offered, names.TENSORS: b"y"}
    run.aggregator.outbox.sign(offer, files, in_reply_to=run.card_digest)
    run.aggregator.outbox.publish()
    for ref, answers in ((MessageRef("verdict", RUN, 1), None), (offer, run.card_digest)):
        manifest = run.site.inbox.notice(ref)
        assert manifest is not None
        assert run.site.inbox.fetch(ref, manifest, answers=(answers,), max_weights_bytes=0) is not None
    consent = MessageRef("consent", "octa-2")
    answered = run.site.ledger.message(offer)
    assert answered is not None
    run.site.outbox.sign(consent, {names.CONSENT: b"{}"}, in_reply_to=answered.digest)
    run.site.outbox.publish()
    run.folder_sync.attend(consent)
    assert run.folder_sync.work()
    assert run.aggregator.ledger.message(late) is not None and run.aggregator.ledger.message(consent) is not None
