"""A site changes its signing key, whatever happens meanwhile; the aggregator follows, and an auditor can tell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.verify import verify
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange import handovers, names
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Handover
from shared.exchange.records.surveys import Survey
from shared.exchange.signing import KEY_FILE, NEW_KEY_FILE, SigningKey, digest_of
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.folder.lock import work_lock
from site_client.cli import main
from site_client.rotation import first_key, own_key, rotate, shown_key, shown_key_by
from tests.federation.hospital import Hospital
from tests.federation.running import TASK, run_configuration, write_data


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("images")
    write_data(TASK, home, 0, images=12, seed=1)
    return home


@pytest.fixture
def hospital(tmp_path: Path, images: Path) -> Hospital:
    """It has sent one message."""
    hospital = Hospital(tmp_path / "home", images)
    answer(hospital, "one")
    return hospital


def answer(hospital: Hospital, run: str) -> None:
    """The aggregator offers a run, the site says yes, the aggregator hears it."""
    hospital.offer(run_configuration(run=run, sites=["north"], quorum=1))
    hospital.live()
    assert hospital.hears(run)


def signer(hospital: Hospital, run: str) -> str:
    """Who signed the site's answer to a run, as it lies in the folder."""
    key: str = json.loads((hospital.drop / MessageRef("consent", run).manifest).read_bytes())["key"]
    return key


def test_the_aggregator_follows_each_new_key_and_the_folder_shows_it(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [own_key(hospital.work).public]
    for run, changes in (("two", 1), ("three", 2)):
        for _ in range(changes):
            rotate(hospital.work)
            keys.append(own_key(hospital.work).public)
        answer(hospital, run)
    assert len(set(keys)) == 4
    assert [signer(hospital, run) for run in ("one", "two", "three")] == [keys[0], keys[1], keys[3]]
    audit = verify(LocalFolder(hospital.drop))
    assert audit.findings == []
    assert audit.handovers == ["keys/0002.json", "keys/0003.json", "keys/0004.json"]
    assert f"from its message 2 on it signs with another key, {keys[1][:16]}" in caplog.text
    assert not (hospital.work / NEW_KEY_FILE).exists()
    assert (hospital.work / KEY_FILE).stat().st_mode & 0o077 == 0
    again = hospital.site
    again._open_channel()  # as a new process
    assert again.channel is not None
    assert again.channel.ledger.peer.newest_key == keys[3]


class Killed(BaseException):
    pass


def dying_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before or after one of the three files takes its place."""
    done = 0

    def dies(write: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            nonlocal done
            if done == step:
                raise Killed
            result = write(*arguments, **options)
            done += 2
            if done == step + 1:
                raise Killed
            return result

        return wrapped

    monkeypatch.setattr(SigningKey, "made_at", dies(SigningKey.made_at))
    monkeypatch.setattr(handovers, "write_file", dies(write_file))
    replace = Path.replace

    def replaced(self: Path, target: Path) -> object:
        return dies(replace)(self, target) if self.name == NEW_KEY_FILE else replace(self, target)

    monkeypatch.setattr(Path, "replace", replaced)


@pytest.mark.parametrize("tries_again", [True, False])
@pytest.mark.parametrize("step", range(6))
def test_killed_at_any_moment_it_goes_on_with_one_key_that_everybody_knows(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, step: int, tries_again: bool
) -> None:
    before = own_key(hospital.work).public
    with monkeypatch.context() as patch:
        dying_at(step, patch)
        with pytest.raises(Killed):
            rotate(hospital.work)
    has_record = (hospital.work / "mirror" / "keys" / "0002.json").exists()
    assert has_record == (step >= 3)
    assert (own_key(hospital.work).public != before) == has_record
    if tries_again and not has_record:
        rotate(hospital.work)
    answer(hospital, "two")
    assert signer(hospital, "two") == own_key(hospital.work).public
    assert (signer(hospital, "two") != before) == (has_record or tries_again)
    assert verify(LocalFolder(hospital.drop)).findings == []


def test_what_was_signed_before_goes_out_under_the_old_key(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> None:
    old = own_key(hospital.work).public
    hospital.offer(run_configuration(run="two", sites=["north"], quorum=1))
    create = hospital.folder.create

    def refuse_manifests(path: str, content: bytes) -> None:
        if path.endswith(names.MANIFEST):
            raise ActionRequiredError("no writing today")
        create(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(hospital.folder, "create", refuse_manifests)
        with pytest.raises(ActionRequiredError, match="no writing today"):
            hospital.live()
    assert hospital.is_signed(MessageRef("consent", "two"))
    rotate(hospital.work)
    hospital.live()
    assert hospital.hears("two")
    assert signer(hospital, "two") == old
    answer(hospital, "three")
    assert signer(hospital, "three") == own_key(hospital.work).public != old
    assert verify(LocalFolder(hospital.drop)).findings == []


def test_a_site_that_lost_its_disk_but_has_its_newest_key_goes_on(hospital: Hospital) -> None:
    rotate(hospital.work)
    answer(hospital, "two")
    for name in ("mirror", "quarantine", "status.json"):
        path = hospital.work / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    answer(hospital, "three")
    assert verify(LocalFolder(hospital.drop)).findings == []


@pytest.mark.parametrize("lost", [True, False])
def test_an_old_key_from_a_backup_is_not_used(hospital: Hospital, lost: bool) -> None:
    old = (hospital.work / KEY_FILE).read_bytes()
    rotate(hospital.work)
    answer(hospital, "two")
    write_file(hospital.work / KEY_FILE, old, private=True)
    if lost:
        shutil.rmtree(hospital.work / "mirror")
    before = sorted(path for path in hospital.drop.rglob("*"))
    with pytest.raises(ActionRequiredError, match="put that very key back from a backup"):
        hospital.live()
    with pytest.raises(ActionRequiredError, match="put that very key back from a backup"):
        rotate(hospital.work)
    assert sorted(path for path in hospital.drop.rglob("*")) == before


def test_what_the_old_key_signs_after_the_hand_over_is_not_taken(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has a copy of the old key and the folder's password; the site itself is not expelled for it."""
    stolen = own_key(hospital.work)
    rotate(hospital.work)
    answer(hospital, "two")
    offer = MessageRef("offer", "three")
    hospital.offer(run_configuration(run="three", sites=["north"], quorum=1))
    real = json.loads((hospital.drop / MessageRef("consent", "two").manifest).read_bytes())["body"]
    head = hospital.channel.ledger.peer_head
    forged = real | {"run": "three", "seq": head.seq + 1, "previous": head.digest}
    asked = hospital.channel.ledger.message(offer)
    assert asked is not None
    content = stolen.sign(forged | {"in_reply_to": asked.digest})
    ref = MessageRef("consent", "three")
    LocalFolder(hospital.drop).create(ref.manifest, content)
    shutil.copy(hospital.drop / MessageRef("consent", "two").path / names.CONSENT, hospital.drop / ref.path)
    assert not hospital.hears("three")
    assert "is signed by another key of north than its message 3: it is not taken, nor held" in caplog.text
    assert not hospital.channel.ledger.is_settled(ref)
    findings = verify(LocalFolder(hospital.drop)).findings
    assert "is signed by another key of north than its message 3" in {finding.what for finding in findings}
    shutil.rmtree(hospital.drop / ref.path)
    hospital.live()
    assert hospital.hears("three")


def test_what_a_copy_of_the_old_key_signs_for_a_number_that_was_used_is_held_against_nobody(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    """It was the site's key when it signed that number: only what was accepted under it tells that this is another."""
    stolen = own_key(hospital.work)
    rotate(hospital.work)
    answer(hospital, "two")
    hospital.offer(run_configuration(run="three", sites=["north"], quorum=1))
    first = json.loads((hospital.drop / MessageRef("consent", "one").manifest).read_bytes())["body"]
    ref = MessageRef("consent", "three")
    LocalFolder(hospital.drop).create(ref.manifest, stolen.sign(first | {"run": "three"}))
    assert not hospital.hears("three")
    assert "is signed by a key that was handed over, and is another than north's message 1: it is not " in caplog.text
    assert not hospital.channel.ledger.is_settled(ref)
    inbox, withdrawal = hospital.channel.inbox, MessageRef("withdrawal", "two")
    leaves = stolen.sign(first | {"kind": "withdrawal", "run": "two", "files": {}})
    assert not inbox.is_signed(withdrawal, leaves)
    real = json.loads((hospital.drop / names.STATUS).read_bytes())["body"]
    of_one = {"own_head": {"seq": 1, "digest": first["files"][names.CONSENT]["sha256"]}}
    with pytest.raises(RejectedError, match="signed by a key of north that was handed over before"):
        inbox.open_status(stolen.sign(real | of_one))
    shutil.rmtree(hospital.drop / ref.path)
    hospital.live()
    assert hospital.hears("three")


def test_the_old_key_replaces_no_message_that_the_hand_over_names(hospital: Hospital) -> None:
    """The aggregator knows of the hand-over before it has read the last message that the old key signed."""
    stolen, ref = own_key(hospital.work), MessageRef("consent", "two")
    hospital.offer(run_configuration(run="two", sites=["north"], quorum=1))
    hospital.live()
    rotate(hospital.work)
    hospital.live()
    assert hospital.channel.inbox.learn_keys()
    real = (path := hospital.drop / ref.manifest).read_bytes()
    path.write_bytes(stolen.sign(json.loads(real)["body"] | {"created": "2026-11-21T09:30:00Z"}))
    assert not hospital.hears("two")
    assert not hospital.channel.ledger.is_settled(ref)
    path.write_bytes(real)
    assert hospital.hears("two")


def test_a_site_that_lost_its_disk_signs_nothing_while_the_folder_keeps_its_last_message_back(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    answer(hospital, "two")
    hospital.live()
    kept, last = hospital.home / "kept", hospital.drop / MessageRef("consent", "two").path
    last.rename(kept)
    for name in ("mirror", "quarantine", "status.json"):
        path = hospital.work / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    hospital.offer(run_configuration(run="three", sites=["north"], quorum=1))
    with pytest.raises(ActionRequiredError, match="has signed message 2, and the last one there is 1"):
        hospital.live()
    with hospital.living():  # which tells of its trouble, and does not do away with what it knows of it
        hospital.wait_until(lambda: caplog.text.count("the last one there is 1") > 0)
        looks = hospital.folder.requests
        hospital.wait_until(lambda: hospital.folder.requests > looks + 5)
    assert not hospital.is_signed(MessageRef("consent", "three"))
    kept.rename(last)
    hospital.live()
    assert hospital.hears("three")
    assert verify(LocalFolder(hospital.drop)).findings == []


@pytest.mark.parametrize("content", [b"{}", SigningKey(b"\x07" * 32).sign({"kind": "handover"})])
def test_nonsense_in_the_place_of_a_hand_over_accuses_nobody_of_having_the_key(
    hospital: Hospital, content: bytes
) -> None:
    LocalFolder(hospital.drop).create("keys/0002.json", content)
    rotate(hospital.work)
    with pytest.raises(
        ActionRequiredError, match=r"is not the hand-over that was made here: it .*: it is not taken, nor"
    ):
        hospital.live()
    (hospital.drop / "keys" / "0002.json").unlink()
    answer(hospital, "two")


def test_a_thief_who_hands_the_key_over_is_seen_by_all(hospital: Hospital, caplog: pytest.LogCaptureFixture) -> None:
    """The thief takes the name over; that cannot be hidden, and the site itself stops at its next start."""
    stolen, thief = own_key(hospital.work), SigningKey(b"\x07" * 32)
    body = Handover(
        federation="retina",
        site="north",
        number=2,
        key=thief.public,
        after=hospital.channel.ledger.peer_head,
        created="2026-11-21T09:30:00Z",
    )
    LocalFolder(hospital.drop).create("keys/0002.json", stolen.sign(body.model_dump()))
    with pytest.raises(ActionRequiredError, match="somebody else has this site's key"):
        hospital.live()
    rotated = hospital.work / "mirror" / "keys" / "0002.json"
    assert json.loads(rotated.read_bytes())["body"]["key"] == thief.public
    rotated.unlink()
    rotate(hospital.work)
    with pytest.raises(ActionRequiredError, match=r"0002\.json in the folder is not the hand-over that was made here"):
        hospital.live()


@pytest.mark.parametrize("content", [b"", b"{}", SigningKey(b"\x07" * 32).sign({"kind": "handover"})])
def test_a_false_record_is_found_and_followed_by_nobody(
    hospital: Hospital, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    before = hospital.channel.ledger.peer
    LocalFolder(hospital.drop).create("keys/0002.json", content)
    assert [finding.file for finding in verify(LocalFolder(hospital.drop)).findings] == ["keys/0002.json"]
    (hospital.drop / names.STATUS).write_bytes(SigningKey(b"\x08" * 32).sign({"kind": "status"}))
    for _ in range(3):
        with pytest.raises(RejectedError):
            hospital.channel.inbox.open_status((hospital.drop / names.STATUS).read_bytes())
    assert hospital.channel.ledger.peer == before
    assert caplog.text.count("it is not followed") == 1


def test_a_gap_and_a_missing_message_are_found(hospital: Hospital) -> None:
    rotate(hospital.work)
    answer(hospital, "two")
    rotate(hospital.work)
    answer(hospital, "three")
    (hospital.drop / "keys" / "0002.json").unlink()
    found = {(finding.file, finding.what) for finding in verify(LocalFolder(hospital.drop)).findings}
    assert ("keys/0003.json", "hands a key over, and the hand-over before it is missing or does not hold") in found
    assert (MessageRef("consent", "two").manifest, "is signed by an unknown key") in found


def test_the_command(hospital: Hospital, tmp_path: Path) -> None:
    arguments = ["rotate-key", "--work", str(hospital.work)]
    with work_lock(hospital.work):
        result = CliRunner().invoke(main, [*arguments, "--yes"])
    assert result.exit_code == 1
    assert (
        "another daemon works in this directory; stop it first: Ctrl-C where it was typed, or `kill` " in result.output
    )
    before = own_key(hospital.work).public
    assert CliRunner().invoke(main, arguments, input="n\n").exit_code != 0
    assert own_key(hospital.work).public == before
    result = CliRunner().invoke(main, [*arguments, "--yes"])
    assert result.exit_code == 0
    now = own_key(hospital.work).public
    assert result.output.startswith(f"north signs with key {now} from its message 2 on, and says so in keys/0002.json")
    assert digest_of((hospital.work / KEY_FILE).read_bytes()) not in result.output


def test_there_is_nothing_to_hand_over_before_the_first_message(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path / "home", images)
    with pytest.raises(ConfigurationError, match="has sent nothing yet"):
        rotate(hospital.work)


def test_no_clock_makes_a_sheet_older_than_its_key(hospital: Hospital) -> None:
    """The aggregator's clock is fast: the site answers its survey, and hands over at once."""
    survey = Survey(federation="retina", site="north", number=1, task=TASK, classes=[], created="2099-01-01T00:00:00Z")
    key = SigningKey.at(hospital.home / "aggregator" / KEY_FILE)
    write_file(hospital.work / "mirror" / names.survey_path(1), key.sign(survey.model_dump(mode="json")))
    assert rotate(hospital.work).created == survey.created


def test_check_knows_the_new_key(hospital: Hospital) -> None:
    assert shown_key(hospital.work) == own_key(hospital.work).public == first_key(hospital.work)
    old = (hospital.work / KEY_FILE).read_bytes()
    rotate(hospital.work)
    assert shown_key(hospital.work) == first_key(hospital.work) != own_key(hospital.work).public
    write_file(hospital.work / KEY_FILE, old, private=True)
    with pytest.raises(ActionRequiredError, match="put that back"):
        shown_key(hospital.work)


def test_check_knows_the_new_key_after_the_disk_was_lost(hospital: Hospital) -> None:
    first, old = first_key(hospital.work), (hospital.work / KEY_FILE).read_bytes()
    rotate(hospital.work)
    answer(hospital, "two")
    shutil.rmtree(hospital.work / "mirror")
    folder = LocalFolder(hospital.drop)
    assert shown_key(hospital.work) != first
    assert shown_key_by(hospital.work, folder, shown_key(hospital.work)) == first
    write_file(hospital.work / KEY_FILE, old, private=True)
    with pytest.raises(ActionRequiredError, match="put that back"):
        shown_key_by(hospital.work, folder, shown_key(hospital.work))


@pytest.mark.parametrize("step", range(7))
def test_a_daemon_killed_while_a_lost_disks_answers_come_back_goes_on_with_them(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: int
) -> None:
    """Else it would take its next number for one that the folder has, and its own chain would fork."""
    answer(hospital, "two")
    for name in ("mirror", "quarantine", "status.json"):
        path = hospital.work / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    written = 0

    def dies(path: Path, content: bytes, **options: bool) -> None:
        nonlocal written
        if written == step:
            raise Killed
        written += 1
        write_file(path, content, **options)

    with monkeypatch.context() as patched:
        for module in ("site_client.enrolment", "shared.exchange.outbox", "shared.exchange.mirror"):
            patched.setattr(f"{module}.write_file", dies)
        with pytest.raises(Killed):
            hospital.live()
    answer(hospital, "three")
    came_back = "this site's card and 2 messages of its in 2 runs (one, two); no file of it is missing; "
    assert f"restored from the folder: {came_back}" in caplog.text
    assert [hospital.is_signed(MessageRef("consent", run)) for run in ("one", "two", "three")] == [True] * 3
    assert verify(LocalFolder(hospital.drop)).findings == []
