"""Surveys where somebody does not agree, or cheats: daemons take turns over folders of this disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from PIL import Image

from aggregator.configuration import read_configuration as aggregator_configuration
from aggregator.rotation import rotate
from aggregator.setup import initialise
from aggregator.site import open_ledger
from aggregator.survey import Asked, ask, collect
from aggregator.survey_report import report_text
from shared.audit.cli import main as audit
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, TransientError
from shared.exchange.handovers import name_key, publish
from shared.exchange.names import MIRROR, sheet_path
from shared.exchange.records.surveys import SignedSheet
from shared.exchange.signing import SigningKey, open_signed
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from site_client import surveys
from site_client.commitment import divide_anew
from site_client.configuration import Policy, open_folder, read_configuration
from site_client.daemon import Daemon
from site_client.division import kept
from site_client.rotation import read_ledger
from site_client.setup import join, read_invite
from site_client.store import is_restored
from tests.federation.in_turns import as_before
from tests.federation.running import Setting

TASK, CLASSES = "image_classification", ["healthy", "ill"]
SITES = ("north", "south")


class Surveyed(Setting):
    """Two hospitals, each with 24 photographs of two classes, and more where a test adds them."""

    def begin(self, **policy: object) -> None:
        urls = {name: f"file://{self.folder(name)}" for name in SITES}
        for name in SITES:
            self.folder(name).mkdir(parents=True)
        initialise(self.aggregator, "retina", urls, "nobody")
        for name in SITES:
            self.add(name, range(24))
            invite = read_invite(self.aggregator / "invites" / f"{name}.json")
            join(
                self.site(name),
                invite,
                data={TASK: str(self.root / "data" / name)},
                url=urls[name],
                user="",
                password="",
            )
            own = Policy.model_validate({"statistics": "auto", "minimum_count": 5} | policy)
            self.change(self.site(name) / "site.yaml", policy=own.model_dump())

    def begin_and_answer(self, further: range = range(0)) -> None:
        """Begin, with further photographs of north's, and have both answer a first survey."""
        self.begin()
        self.add("north", further)
        self.step()
        self.ask()
        self.step()

    def add(self, name: str, numbers: range, kind: str | None = None) -> None:
        """Add photographs of a class, or of both by turns."""
        for number in numbers:
            path = self.root / "data" / name / (kind or CLASSES[number % 2]) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 48), (number, 90, 20)).save(path)

    def answer(self, name: str, task: str = TASK, classes: Sequence[str] = CLASSES) -> SignedSheet:
        """Have a site asked, and its people say yes; return the answer."""
        ask(self.aggregator, aggregator_configuration(self.aggregator), task, classes)
        self.step(name)
        if (waits := read_ledger(self.site(name)).newest_survey) and not self.sheet(name, waits).exists():
            surveys.decide(self.site(name), surveys.name_of(waits), "yes", "")
            self.step(name)
        answer = self.collect()[name].answer
        assert answer is not None
        return answer

    def step(self, *names: str) -> None:
        """Let the daemons of these sites, or of all, do what they can."""
        for name in names or SITES:
            work = self.site(name)
            configuration = read_configuration(work)
            with as_before():
                Daemon(work, configuration, open_folder(work, configuration), stop=threading.Event()).step()

    def ask(self) -> dict[str, Asked]:
        found = ask(self.aggregator, aggregator_configuration(self.aggregator), TASK, CLASSES)
        return {each.site: each for each in found}

    def collect(self) -> dict[str, Asked]:
        return {each.site: each for each in collect(self.aggregator, aggregator_configuration(self.aggregator))}

    def sheet(self, name: str, number: int = 1) -> Path:
        return self.folder(name) / f"sheets/{number:04d}.json"


@pytest.fixture
def federation(tmp_path: Path) -> Surveyed:
    return Surveyed(tmp_path)


def test_sites_that_have_not_joined_are_named_and_the_others_asked(federation: Surveyed) -> None:
    federation.begin()
    federation.step("north")
    asked = federation.ask()
    assert asked["north"].trouble is None
    assert "has not joined yet" in (asked["south"].trouble or "")
    federation.step("north")
    sheet = federation.collect()["north"].answer
    assert sheet is not None
    assert sheet.sheet is not None
    assert sheet.sheet.classes == {"healthy": "12", "ill": "12", "other": "0"}
    assert verify(LocalFolder(federation.folder("north"))).findings == []


def test_a_policy_of_never_declines_and_says_so(federation: Surveyed) -> None:
    federation.begin(statistics="never")
    federation.step()
    federation.ask()
    federation.step()
    answer = federation.collect()["north"].answer
    assert answer is not None
    assert (answer.agrees, answer.sheet, answer.reason) == (False, None, "the hospital's policy said no")
    assert "declined: the hospital's policy said no" in report_text([*federation.collect().values()])
    assert not (federation.site("north") / "division.json").exists()


def test_a_second_sheet_of_a_task_is_a_persons_matter(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    for _ in range(2):
        federation.ask()
        federation.step()
    assert federation.sheet("north").exists()
    assert not federation.sheet("north", 2).exists()
    assert "a later survey" not in surveys.describe(federation.site("north"), "surveys/0002")
    surveys.decide(federation.site("north"), "surveys/0002", "yes", "")
    surveys.decide(federation.site("south"), "surveys/0002", "no", "")
    federation.step()
    found = federation.collect()
    assert [found[name].answer.agrees for name in SITES if found[name].answer] == [True, False]


def test_too_few_images_or_unreadable_folders_make_no_sheet_and_name_no_file(federation: Surveyed) -> None:
    federation.begin(statistics_minimum_count=20)
    (federation.root / "data" / "south" / "ill" / "Jane Doe.txt.png").write_bytes(b"no image")
    federation.step()
    federation.ask()
    federation.step()
    for name in SITES:
        answer = federation.collect()[name].answer
        assert answer is not None
        assert answer.reason == "its images could not be looked through; its own log says why"
        assert "Doe" not in federation.sheet(name).read_text()


def test_many_images_of_few_patients_make_no_sheet(federation: Surveyed, caplog: pytest.LogCaptureFixture) -> None:
    federation.begin()
    federation.change(federation.site("north") / "site.yaml", groups={TASK: ".$"})  # ten patients, 24 images
    federation.step()
    federation.ask()
    federation.step()
    answers = {name: asked.answer for name, asked in federation.collect().items()}
    assert {name: answer.agrees for name, answer in answers.items() if answer} == {"north": False, "south": True}
    assert "a sheet needs images of 20 patients or other groups that can be read" in caplog.text


def test_false_sheets_are_refused_with_a_sentence_and_stop_nothing(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    federation.ask()
    federation.step("south")
    body, _ = open_signed(federation.sheet("south").read_bytes())
    for false in (
        federation.sheet("south").read_bytes(),  # another site's
        SigningKey(b"\x07" * 32).sign({**body, "site": "north"}),  # by nobody's key
        SigningKey.at(federation.site("north") / "signing.key").sign({**body, "site": "north"}),  # of another survey
        b"x" * (2 << 20),  # huge
        b"",
    ):
        write_file(federation.sheet("north"), false)
        found = federation.collect()
        assert found["north"].answer is None
        assert "sheets/0001.json" in (found["north"].trouble or "")
        assert found["south"].answer is not None
        assert "| images " in report_text([*found.values()])
    federation.step("north")  # lives, and leaves what it did not sign
    assert any("sheets/0001.json" in each.file for each in verify(LocalFolder(federation.folder("north"))).findings)


def test_a_false_survey_is_left_alone(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    federation.ask()
    survey = (federation.folder("south") / "surveys/0001.json").read_bytes()
    write_file(federation.folder("north") / "surveys/0001.json", survey)
    federation.step("north")
    assert not federation.sheet("north").exists()
    assert read_ledger(federation.site("north")).newest_survey == 0


def test_a_site_that_lost_its_disk_takes_its_answer_back(federation: Surveyed) -> None:
    federation.begin_and_answer()
    sent = federation.sheet("north").read_bytes()
    for folder in ("mirror", "surveys"):
        (federation.site("north") / folder).rename(federation.root / folder)
    federation.step("north")
    federation.step("north")
    assert federation.sheet("north").read_bytes() == sent
    assert surveys.answer(read_ledger(federation.site("north")), 1) is not None


def lose_disk(federation: Surveyed, backup: Sequence[str]) -> None:
    """Begin north's work directory anew with some of its files."""
    work, lost = federation.site("north"), federation.root / "lost"
    work.rename(lost)
    work.mkdir(mode=0o700)
    for name in backup:
        (lost / name).rename(work / name)


def test_after_a_lost_disk_a_person_decides_about_a_sheet_that_was_removed_from_the_folder(
    federation: Surveyed,
) -> None:
    """Two sheets about images of which one was lost meanwhile would tell of that one."""
    federation.begin_and_answer(further=range(24, 60))
    lose_disk(federation, ["site.yaml", "signing.key", "encryption.key", "password", "division.json", "budget.json"])
    federation.sheet("north").unlink()
    next((federation.root / "data" / "north" / "ill").iterdir()).unlink()
    for _ in range(2):
        federation.step("north")
    assert not federation.sheet("north").exists()
    work = federation.site("north")
    assert surveys.asks_a_person(work, read_configuration(work).policy, read_ledger(work)) == "surveys/0001"
    assert "a sheet that left before may have been removed from the folder" in surveys.describe(work, "surveys/0001")


def test_after_a_lost_disk_images_are_not_divided_anew_unasked(federation: Surveyed) -> None:
    """Blocks that were dealt for a sheet count as those of a run do."""
    federation.begin_and_answer()
    lose_disk(federation, ["site.yaml", "signing.key", "encryption.key", "password"])
    federation.step("north")
    federation.ask()
    federation.step("north")
    assert not federation.sheet("north", 2).exists()  # nor is it declined for good
    work = federation.site("north")
    with pytest.raises(ActionRequiredError, match="as they were when this site lost its disk: put the newest of both"):
        kept(work, [])
    divide_anew(work, read_ledger(work), read_configuration(work))
    assert not kept(work, []).division.blocks


def test_an_answer_that_the_folder_lost_is_sent_again_at_the_next_start(federation: Surveyed) -> None:
    federation.begin_and_answer()
    sent = federation.sheet("north").read_bytes()
    federation.sheet("north").unlink()
    federation.step("north")
    assert federation.sheet("north").read_bytes() == sent


def test_a_survey_after_the_aggregators_key_was_changed_holds_with_every_folder_together(federation: Surveyed) -> None:
    federation.begin_and_answer()
    key = rotate(federation.aggregator).key
    shutil.copytree(federation.folder("south"), federation.root / "before" / "south")
    federation.ask()
    name_key(federation.site("north"), key)
    federation.step("north")
    folders = [federation.folder("north"), federation.root / "before" / "south"]  # which shows no other key yet
    result = CliRunner().invoke(audit, ["verify", *map(str, folders)])
    assert result.exit_code == 0, result.output


def test_two_heirs_of_one_key_are_two_federations(federation: Surveyed) -> None:
    """Whoever stole the aggregator's first key hands over to one of their own."""
    federation.begin_and_answer()
    shutil.copytree(federation.aggregator, stolen := federation.root / "stolen")
    shutil.copytree(federation.folder("south"), federation.root / "before" / "south")
    for work, site in ((federation.aggregator, "north"), (stolen, "south")):
        rotate(work)
        ledger = open_ledger(work / "sites" / site)
        assert ledger is not None
        publish(ledger.own, LocalFolder(federation.folder(site)), ledger.root)
    north, south, before = federation.folder("north"), federation.folder("south"), federation.root / "before" / "south"
    for folders, is_one in (([north, before], True), ([south], True), ([north, south], False)):
        result = CliRunner().invoke(audit, ["verify", *map(str, folders)])
        assert ("are of several federations" not in result.output, result.exit_code) == (is_one, 0 if is_one else 2)


def test_what_is_planted_where_surveys_lie_holds_up_nothing(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    folder = federation.folder("north")
    for planted in ("surveys", "surveys/0001.json/x", "surveys/0001.json", "sheets/0001.json", "sheets"):
        place = folder / planted
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, b"x" * (2 << 20))
        federation.step("north")  # raises nothing
        (place.unlink if place.is_file() else place.rmdir)()
        for name in ("surveys", "sheets"):
            shutil.rmtree(folder / name, ignore_errors=True)
    federation.ask()
    (folder / "sheets").write_bytes(b"a file where the answers' folder is to be")
    federation.step("north")
    (folder / "sheets").unlink()
    federation.step("north")
    assert federation.collect()["north"].answer is not None


def test_an_older_survey_or_sheet_in_place_of_a_newer_one_is_noticed(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    assert federation.answer("north").agrees
    federation.ask()
    second = federation.folder("north") / "surveys/0002.json"
    as_signed = second.read_bytes()
    write_file(second, (federation.folder("north") / "surveys/0001.json").read_bytes())
    federation.step("north")
    assert read_ledger(federation.site("north")).newest_survey == 1
    write_file(second, as_signed)
    write_file(federation.sheet("north", 2), federation.sheet("north").read_bytes())
    found = federation.collect()["north"]
    assert found.answer is None and "sheets/0002.json: is number 1, which belongs elsewhere" in (found.trouble or "")
    assert "sheets/0002.json" in {finding.file for finding in verify(LocalFolder(federation.folder("north"))).findings}


def test_a_survey_that_was_removed_is_put_back_when_the_next_is_asked(federation: Surveyed) -> None:
    federation.begin(statistics="never")
    federation.step()
    federation.ask()
    (federation.folder("north") / "surveys/0001.json").unlink()
    federation.ask()
    federation.step("north")
    federation.step("north")
    assert federation.sheet("north", 2).exists()


def test_an_audit_finds_that_a_survey_is_missing_also_by_its_answer(federation: Surveyed) -> None:
    federation.begin(statistics="never")
    federation.step("north")
    federation.ask()
    federation.step("north")
    federation.ask()
    (federation.folder("north") / "surveys/0001.json").unlink()
    findings = verify(LocalFolder(federation.folder("north"))).findings
    assert {(finding.file, finding.what) for finding in findings} == {
        ("surveys/0001.json", "is missing, and a later survey is there"),
        ("sheets/0001.json", "answers a survey that is missing or does not hold"),
    }


def test_an_answer_that_came_before_the_next_survey_is_kept(federation: Surveyed) -> None:
    federation.begin(statistics="never")
    federation.step("north")
    federation.ask()
    federation.step("north")
    federation.ask()
    kept = federation.aggregator / "sites" / "north" / "mirror" / "sheets" / "0001.json"
    assert kept.read_bytes() == federation.sheet("north").read_bytes()


def test_sheets_of_a_growing_site_tell_of_no_few_images(federation: Surveyed) -> None:
    federation.begin()
    federation.step()
    first = federation.answer("north").sheet
    federation.add("north", range(24, 29), "ill")  # a block of minimum_count, and fewer than a sheet may tell of
    assert not federation.answer("north").agrees
    federation.add("north", range(29, 44), "healthy")
    later = federation.answer("north").sheet
    assert first is not None and later is not None
    assert (first.images, later.images) == ("24", "44")
    assert (first.classes, later.classes) == (
        {"healthy": "12", "ill": "12", "other": "0"},
        {"healthy": None, "ill": None, "other": None},  # 5 of the 20 new ones are ill
    )
    others = federation.answer("north", classes=["ill"]).sheet
    assert others is not None and others.classes == {"ill": None, "other": None}
    assert "surveys/0001, surveys/0003 told of some of the same" in surveys.describe(
        federation.site("north"), "surveys/0004"
    )


def test_the_same_images_under_another_task_are_a_persons_matter(federation: Surveyed) -> None:
    federation.begin(minimum_count=5, statistics_minimum_count=1)
    data = {TASK: str(federation.root / "data/north"), "fundus_disease": str(federation.root / "data/north")}
    federation.change(federation.site("north") / "site.yaml", data=data)
    federation.add("north", range(24, 26), "rare")
    federation.step()
    sheet = federation.answer("north").sheet
    assert sheet is not None and sheet.classes == {"healthy": None, "ill": None, "other": None}  # minimum_count holds
    ask(federation.aggregator, aggregator_configuration(federation.aggregator), "fundus_disease", ["rare"])
    federation.step("north")
    assert not federation.sheet("north", 2).exists()


@pytest.mark.parametrize("trouble", ["none", "a read that fails once", "a newer survey"])
def test_a_work_directory_put_back_from_before_its_no_to_a_survey_takes_it_back(
    federation: Surveyed, trouble: str
) -> None:
    federation.begin(statistics="ask")
    federation.step()
    federation.ask()
    federation.step("north")  # which waits for a person
    work, old = federation.site("north"), federation.root / "old"
    shutil.copytree(work, old)
    surveys.decide(work, "surveys/0001", "no", "")
    federation.step("north")
    no = federation.sheet("north").read_bytes()
    shutil.rmtree(work)
    old.rename(work)
    surveys.decide(work, "surveys/0001", "yes", "")
    failures = [TransientError("gone for a moment")] if trouble == "a read that fails once" else []

    def read(folder: LocalFolder, path: str, *, max_bytes: int) -> bytes:
        if path == sheet_path(1) and failures:
            raise failures.pop()
        return whole(folder, path, max_bytes=max_bytes)

    if trouble == "a newer survey":
        federation.change(work / "site.yaml", policy={"statistics": "auto", "minimum_count": 5})
        federation.ask()
    whole = LocalFolder.read
    with patch.object(LocalFolder, "read", read):
        federation.step("north")
        federation.step("north")
    assert (work / MIRROR / sheet_path(1)).read_bytes() == no == federation.sheet("north").read_bytes()
    assert is_restored(work) and not failures
    assert not federation.sheet("north", 2).exists()  # without a person's yes
