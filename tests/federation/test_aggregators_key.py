"""The aggregator changes its signing key: no hospital follows before a person there has named the new one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator_command
from aggregator.rotation import rotate
from aggregator.setup import initialise
from aggregator.site import read_needed_invite
from shared.audit.cli import main as audit_command
from shared.audit.verify import summary, verify
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange import handovers
from shared.exchange.names import AGGREGATOR, MessageRef, handover_path, survey_path
from shared.exchange.records.messages import Handover, Head, SiteCard
from shared.exchange.records.surveys import Survey
from shared.exchange.records.values import now_text
from shared.exchange.signing import NEW_KEY_FILE, SigningKey, enrolment_code
from shared.exchange.trust import Peer
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.folder.local import LocalFolder
from site_client.cli import main as site_command
from site_client.moving import Mover
from tests.federation.hospital import Hospital
from tests.federation.running import TASK, run_configuration, write_data

RECORD = handover_path(2, AGGREGATOR)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("images")
    write_data(TASK, home, 0, images=12, seed=1)
    return home


@pytest.fixture
def hospital(tmp_path: Path, images: Path) -> Hospital:
    """It has answered one offer."""
    hospital = Hospital(tmp_path / "home", images)
    offer(hospital, "one")
    hospital.live()
    assert hospital.hears("one")
    return hospital


def offer(hospital: Hospital, run: str) -> None:
    hospital.offer(run_configuration(run=run, sites=["north"], quorum=1))


def key_of(hospital: Hospital) -> SigningKey:
    return SigningKey.at(hospital.home / "aggregator" / "signing.key")


def rotated(hospital: Hospital) -> str:
    """The aggregator has another key and shows it; return the public one."""
    new = rotate(hospital.home / "aggregator").key
    hospital.site = hospital.launched()
    hospital.site.work()
    return new


def named(hospital: Hospital, key: str) -> Result:
    return CliRunner().invoke(site_command, ["accept-key", key, "--work", str(hospital.work)])


def test_a_hospital_goes_on_once_a_person_there_has_named_the_new_key(hospital: Hospital) -> None:
    before = key_of(hospital).public
    new = rotated(hospital)
    assert key_of(hospital).public == new != before
    offer(hospital, "two")
    with pytest.raises(ActionRequiredError, match=rf"{RECORD}: the aggregator hands over to the key {new}: ask its "):
        hospital.live()
    assert named(hospital, "0" * 63 + "f").exit_code == 2
    with pytest.raises(ActionRequiredError, match=f"accept-key {new}"):
        hospital.live()
    assert not hospital.hears("two")

    told = named(hospital, new)
    assert told.exit_code == 0 and new in told.output
    for _ in range(2):  # the first look learns the key
        hospital.live()
    assert hospital.hears("two")
    assert "is the present one, as far as is known here; no other is waited for" in named(hospital, new).output
    assert "is a key that the aggregator has handed over since: type the newest" in named(hospital, before).output

    audit = verify(LocalFolder(hospital.drop), aggregator_key=before)
    assert audit.findings == [] and audit.handovers == [RECORD] and audit.aggregator_keys == [before, new]
    folder = str(hospital.drop)
    assert f"aggregator key {before}, then {new}" in CliRunner().invoke(audit_command, ["verify", folder]).output
    events = json.loads(CliRunner().invoke(audit_command, ["timeline", folder, "--json"]).output)
    (event,) = [each for each in events if each["kind"] == "handover"]
    assert (event["sender"], event["key"], event["new_key"], event["from_seq"]) == (AGGREGATOR, before, new, 2)
    page = hospital.home / "audit.html"
    assert CliRunner().invoke(audit_command, ["report", folder, "--html", str(page)]).exit_code == 0
    assert before in (text := page.read_text()) and new in text


def test_once_a_key_is_named_nothing_is_taken_before_the_hand_over_to_it(hospital: Hospital) -> None:
    """Else a thief of the present key could go on with it, whatever the hospital was told by telephone."""
    before, other = key_of(hospital).public, SigningKey(bytes([7]) * 32).public
    named(hospital, other)
    offer(hospital, "two")
    asks = f"the key {other} was named here: nothing of the aggregator is taken before the folder shows the hand-over "
    with pytest.raises(ActionRequiredError, match=asks):
        hospital.live()
    assert "no other is waited for" in named(hospital, before).output
    hospital.live()
    assert hospital.hears("two")

    new = rotated(hospital)
    named(hospital, new)
    record = (path := hospital.drop / RECORD).read_bytes()
    path.unlink()  # who can write there keeps it back, and has a copy of the old key
    offer(hospital, "three")
    with pytest.raises(ActionRequiredError, match=f"the key {new} was named here"):
        hospital.live()
    path.write_bytes(record)
    for _ in range(2):
        hospital.live()
    assert hospital.hears("three")


def test_two_new_keys_are_followed_one_after_the_other_by_a_daemon_that_runs(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    first = rotate(hospital.home / "aggregator").key
    second = rotated(hospital)
    offer(hospital, "two")
    with hospital.living():
        for key in (first, second):
            hospital.wait_until(lambda key=key: f"the aggregator hands over to the key {key}: ask its" in caplog.text)
            assert named(hospital, key).exit_code == 0
        hospital.wait_until(lambda: hospital.hears("two"))


def test_the_people_are_told_every_key_that_a_hospital_has_to_name_still(hospital: Hospital) -> None:
    first, second = (told_keys(aggregator_says(hospital, "rotate-key", "--yes")) for _ in range(2))
    assert len(first) == 1 and second == [*first, key_of(hospital).public]
    hospital.site = hospital.launched()
    hospital.site.work()
    offer(hospital, "two")
    for key in second:
        assert named(hospital, key).exit_code == 0
        with suppress(ActionRequiredError):  # the next key is asked for
            hospital.live()
    hospital.live()
    assert hospital.hears("two")
    assert told_keys(aggregator_says(hospital, "rotate-key", "--yes")) == [key_of(hospital).public]


def told_keys(told: Result) -> list[str]:
    assert told.exit_code == 0, told.output
    return re.findall(r"accept-key ([0-9a-f]{64})`", told.output)


def test_a_site_that_lost_its_disk_believes_no_key_that_was_handed_over(hospital: Hospital) -> None:
    new = rotated(hospital)
    named(hospital, new)
    offer(hospital, "two")
    for _ in range(2):
        hospital.live()
    assert hospital.hears("two")
    for name in ("mirror", "quarantine", "status.json", handovers.NAMED_KEY):
        path = hospital.work / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with pytest.raises(ActionRequiredError, match=f"the aggregator hands over to the key {new}: ask its people"):
        hospital.live()
    named(hospital, new)
    offer(hospital, "three")
    for _ in range(2):
        hospital.live()
    assert hospital.hears("three")


def test_a_key_is_compared_with_the_folder_before_it_is_named(hospital: Hospital) -> None:
    stranger = SigningKey(bytes([7]) * 32).public
    assert "not compared with the folder (" in named(hospital, stranger).output  # there is no password
    path = hospital.work / "site.yaml"
    write_file(path, yaml.safe_dump(yaml.safe_load(path.read_bytes()) | {"url": hospital.drop.as_uri()}).encode())
    assert "the folder does not hand over to it yet: the daemon follows once" in named(hospital, stranger).output
    new = rotated(hospital)
    refused = named(hospital, stranger)
    assert refused.exit_code == 1
    assert f"{RECORD} in the folder hands over to the key {new}, not to {stranger}, which" in refused.output
    told = named(hospital, new).output
    assert told == f"the key {new} is named; the folder hands over to it: the daemon follows, and goes on by itself\n"
    assert "which is not taken" in named(hospital, stranger).output
    offer(hospital, "two")
    for _ in range(2):
        hospital.live()
    assert hospital.hears("two")


def test_one_hand_over_in_two_folders_is_counted_once(hospital: Hospital) -> None:
    rotated(hospital)
    audit = verify(LocalFolder(hospital.drop))
    assert audit.handovers == [RECORD]
    told = summary({"north": audit, "south": audit}, is_key_compared=True)
    assert told.startswith("2 folders, ") and ", 1 hand-over of a key, " in told


def test_what_the_old_key_signs_after_the_hand_over_is_not_taken(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    thief = key_of(hospital)
    new = rotated(hospital)
    named(hospital, new)
    offer(hospital, "two")
    hospital.live()
    ledger, ref = hospital.channel.ledger, MessageRef("abort", "two")
    signed = json.loads(ledger.path(MessageRef("offer", "two"), "manifest.json").read_bytes())["body"]
    false = signed | {"kind": "abort", "seq": ledger.own_head.seq + 1, "previous": ledger.own_head.digest}
    write_file(hospital.drop / ref.manifest, thief.sign(false | {"files": {"abort.json": signed["files"]["run.yaml"]}}))
    for _ in range(2):
        hospital.daemon.step()
    assert "is signed by another key of aggregator than its message 4" in caplog.text
    assert hospital.daemon._channel.ledger.message(ref) is None
    asked = {"federation": "retina", "site": "north", "number": 1, "task": TASK, "classes": [], "created": now_text()}
    write_file(hospital.drop / survey_path(1), thief.sign(Survey.model_validate(asked).model_dump(mode="json")))
    (hospital.drop / ref.manifest).unlink()
    hospital.live()
    assert not (hospital.work / "mirror" / survey_path(1)).exists()
    with pytest.raises(ActionRequiredError, match=r"signs with the key .* by now, and another one is here"):
        write_file(
            hospital.home / "aggregator" / "signing.key", thief._key.private_bytes_raw().hex().encode(), private=True
        )
        hospital.launched()


def test_a_strangers_hand_over_is_not_followed(hospital: Hospital, caplog: pytest.LogCaptureFixture) -> None:
    stranger = SigningKey(bytes([7]) * 32)
    named(hospital, stranger.public)
    record = Handover(
        federation="retina", site="north", number=2, key=stranger.public, after=Head(), created=now_text()
    )
    write_file(hospital.drop / RECORD, stranger.sign(record.model_dump()))
    offer(hospital, "two")
    for _ in range(2):
        with pytest.raises(ActionRequiredError, match=f"the key {stranger.public} was named here: nothing of the aggr"):
            hospital.live()
    assert f"{RECORD}: is signed by an unknown key; it is not followed" in caplog.text
    assert not (hospital.work / "mirror" / RECORD).exists()
    assert verify(LocalFolder(hospital.drop)).findings


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(3))
def test_cut_off_at_any_step_the_same_command_goes_on(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before, aggregator = key_of(hospital).public, hospital.home / "aggregator"
    steps = iter(range(3))

    def dying(act: Callable[..., object]) -> Callable[..., object]:
        def acted(*arguments: object, **options: object) -> object:
            if next(steps) == step:
                raise Killed
            return act(*arguments, **options)

        return acted

    with monkeypatch.context() as patch:
        patch.setattr(SigningKey, "made_at", dying(SigningKey.made_at))
        patch.setattr(handovers, "write_file", dying(write_file))
        replace = Path.replace
        patch.setattr(
            Path,
            "replace",
            lambda self, target: (dying(replace) if self.name == NEW_KEY_FILE else replace)(self, target),
        )
        with pytest.raises(Killed):
            rotate(aggregator)
    if step == 2:  # the record is there, the key is not
        with pytest.raises(ActionRequiredError, match="if `dropfed-aggregator rotate-key` was cut off, run it again"):
            hospital.launched()
    told = CliRunner().invoke(aggregator_command, ["rotate-key", "--yes", "--work", str(aggregator)])
    assert told.exit_code == 0, told.output
    new = key_of(hospital).public
    assert new != before and f"accept-key {new}" in told.output and "tell north by telephone" in told.output
    hospital.site = hospital.launched()
    hospital.site.work()
    assert verify(LocalFolder(hospital.drop)).aggregator_keys == [before, new]
    assert not (aggregator / NEW_KEY_FILE).exists()


def test_a_hospital_that_has_not_joined_needs_its_invite_anew(hospital: Hospital) -> None:
    aggregator = hospital.home / "aggregator"
    initialise(aggregator, "retina", {"south": "http://127.0.0.1/south/"}, AGGREGATOR)
    invite = aggregator / "invites" / "south.json"
    before = json.loads(invite.read_bytes())
    rotated = rotate(aggregator)
    assert ([*rotated.unnamed], rotated.invited) == (["north"], ["south"])
    assert json.loads(invite.read_bytes()) == before | {"aggregator_key": rotated.key}
    assert invite.stat().st_mode & 0o077 == 0


def test_a_hospital_that_is_left_out_for_a_while_gets_the_hand_over_too(hospital: Hospital) -> None:
    """It could not come back otherwise: who can sign its hand-over is gone then."""
    aggregator = hospital.home / "aggregator"
    settings = aggregator / "aggregator.yaml"
    before = settings.read_bytes()
    initialise(aggregator, "retina", {"south": "http://127.0.0.1/south/"}, AGGREGATOR)
    written = yaml.safe_load(settings.read_bytes())
    settings.write_text(yaml.safe_dump(written | {"sites": {"south": written["sites"]["south"]}}))
    new = rotate(aggregator)
    assert ([*new.unnamed], new.invited) == (["north"], ["south"])
    settings.write_bytes(before)
    hospital.site = hospital.launched()
    hospital.site.work()
    assert named(hospital, new.key).exit_code == 0
    offer(hospital, "two")
    for _ in range(2):  # the first look learns the key
        hospital.live()
    assert hospital.hears("two")


def test_who_was_left_out_in_an_earlier_hand_over_holds_up_no_later_one(hospital: Hospital, tmp_path: Path) -> None:
    aggregator = hospital.home / "aggregator"
    gone = aggregator / "sites" / "gone"
    shutil.copytree(aggregator / "sites" / "north", tmp_path / "before")
    rotate(aggregator)
    shutil.copytree(tmp_path / "before", gone)
    (aggregator / "sites" / "a copy (1)").mkdir()
    (aggregator / "invites" / "copied.json").write_text("{}")
    result = CliRunner().invoke(aggregator_command, ["rotate-key", "--yes", "--work", str(aggregator)])
    assert result.exit_code == 0 and "gone is left out of aggregator.yaml, and cannot follow this key" in result.output
    shutil.rmtree(aggregator / "sites" / "north")
    gone.rename(aggregator / "sites" / "north")  # of one that takes part, it is in the way
    with pytest.raises(ActionRequiredError, match=r"^north: aggregator signs with the key "):
        rotate(aggregator)


def test_a_key_that_nobody_knows_is_not_handed_over(tmp_path: Path) -> None:
    initialise(tmp_path / "work", "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    with pytest.raises(ConfigurationError, match="no hospital has joined yet"):
        rotate(tmp_path / "work")


def test_an_auditor_sees_a_hand_over_that_was_taken_away(hospital: Hospital) -> None:
    new = rotated(hospital)
    named(hospital, new)
    offer(hospital, "two")
    (hospital.drop / RECORD).unlink()
    found = {finding.file for finding in verify(LocalFolder(hospital.drop)).findings}
    assert MessageRef("offer", "two").manifest in found


def test_a_site_without_a_network_gets_the_hand_over_too(hospital: Hospital, tmp_path: Path) -> None:
    first = key_of(hospital).public
    rotated(hospital)
    offer(hospital, "two")
    for name in ("home-of-mover", "exchange"):
        (tmp_path / name).mkdir()
    here = LocalFolder(tmp_path / "exchange")
    aggregator = Peer("retina", "north", AGGREGATOR, first)
    mover = Mover(tmp_path / "home-of-mover", ListedFolder(LocalFolder(hospital.drop)), here, aggregator)
    assert mover.move()
    for path in (RECORD, MessageRef("offer", "two").manifest):
        assert (tmp_path / "exchange" / path).read_bytes() == (hospital.drop / path).read_bytes()


def aggregator_says(hospital: Hospital, *arguments: str) -> Result:
    aggregator = hospital.home / "aggregator"
    return CliRunner().invoke(aggregator_command, [arguments[0], "--work", str(aggregator), *arguments[1:]])


def test_init_makes_no_second_key_where_a_hospital_has_joined(hospital: Hospital) -> None:
    aggregator = hospital.home / "aggregator"
    shutil.rmtree(aggregator / "invites")
    (aggregator / "signing.key").unlink()
    before = {path: path.read_bytes() for path in aggregator.rglob("*") if path.is_file()}
    options = ("--federation", "retina", "--site", "west=https://host/west/")
    refused = aggregator_says(hospital, "init", *options)
    assert refused.exit_code == 1
    assert refused.output.startswith(f"{aggregator / 'signing.key'} is missing: put this very key back from a backup")
    assert {path: path.read_bytes() for path in aggregator.rglob("*") if path.is_file()} == before


def test_who_has_joined_needs_no_invite_any_more(hospital: Hospital) -> None:
    aggregator = hospital.home / "aggregator"
    settings = aggregator / "aggregator.yaml"
    settings.write_text(settings.read_text().replace("http://127.0.0.1/north/", hospital.drop.as_uri()))
    shutil.rmtree(aggregator / "invites")
    made = aggregator_says(hospital, "init", "--federation", "retina", "--site", "west=https://host/west/")
    assert made.exit_code == 0, made.output
    assert [path.name for path in (aggregator / "invites").iterdir()] == ["west.json"]
    assert read_needed_invite(aggregator, "north") is None and read_needed_invite(aggregator, "west") is not None
    told = aggregator_says(hospital, "check").output
    assert "ok       north: the site's card is there" in told and "problem  north" not in told

    card = hospital.drop / "site.json"
    card.write_bytes(card_of(SigningKey(bytes([7]) * 32), "north"))
    strange = "problem  north: site.json is not the card that the site joined with; see who else can write there"
    assert strange in aggregator_says(hospital, "check").output
    card.write_bytes(card_of(SigningKey(bytes([7]) * 32), "south"))
    elsewhere = (
        "problem  north: site.json: was written for retina/south: this folder is another federation's, or another"
    )
    assert elsewhere in aggregator_says(hospital, "check").output


def card_of(key: SigningKey, site: str) -> bytes:
    secret = {"enrolment": enrolment_code("00" * 32, "retina", site, key.public), "created": now_text()}
    card = SiteCard(federation="retina", site=site, key=key.public, software="a test", **secret)
    return key.sign(card.model_dump())


def test_check_says_that_the_key_is_missing_not_that_the_invite_shows_another(hospital: Hospital) -> None:
    (hospital.home / "aggregator" / "signing.key").unlink()
    told = aggregator_says(hospital, "check").output
    assert f"problem  {hospital.home / 'aggregator' / 'signing.key'} is missing: put this very key back" in told
    assert "another key" not in told
