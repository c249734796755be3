"""What one folder cannot show, and several can: each holds by itself, and against the others it does not."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.readme import KNOWN_TEXTS, README_TEXT
from shared.exchange.records.messages import Federation, Handover, Head, SiteCard, Status
from shared.exchange.records.values import now_text
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.records.wire import FileEntry
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.weights import entry_of
from tests.audit.recorded import Recorded
from tests.federation.running import run_configuration

RUN = "octa-1"


def recorded(home: Path, **settings: object) -> Recorded:
    asked: dict[str, object] = {"run": RUN, "sites": ["east", "north"], "quorum": 1, "rounds": 1}
    run = Recorded(home, run_configuration(**asked | settings)).play()
    for site in run.run.sites:
        run.beat(site)
    return run


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("played"))


@pytest.fixture
def folders(played: Recorded, tmp_path: Path) -> Path:
    """A copy of both folders, in which everything holds."""
    shutil.copytree(played.folders, tmp_path / "folders")
    return tmp_path / "folders"


def verified(*folders: Path) -> tuple[int, str, str]:
    """What `verify` exits with and prints."""
    result = CliRunner().invoke(main, ["verify", *map(str, folders)])
    return result.exit_code, result.stdout, result.stderr


def test_a_run_that_was_offered_otherwise_to_one_hospital_is_found(folders: Path, tmp_path: Path) -> None:
    assert verified(folders)[0] == 0
    other = recorded(tmp_path / "other", seed=99)
    shutil.rmtree(folders / "north")
    shutil.copytree(other.folders / "north", folders / "north")
    assert verified(folders / "north")[0] == 0
    offer = MessageRef("offer", RUN).path
    why = "is not what east was sent, and all hospitals of a run are offered the same"
    code, said, _ = verified(folders)
    assert (code, said) == (1, f"{folders}/north/{offer}/{names.RUN_CONFIGURATION}: {why}\n")
    document = json.loads(CliRunner().invoke(main, ["report", "--json", str(folders)]).stdout)
    assert [(each["site"], each["what"]) for each in document["findings"]] == [("north", why)]


def test_two_cards_of_one_final_model_are_found(tmp_path: Path) -> None:
    run, ref = recorded(tmp_path), MessageRef("final", RUN)
    card = run.folders / "north" / ref.path / names.CARD
    changed = FinalCard.model_validate_json(card.read_bytes()).model_copy(update={"reason": "another"})
    card.write_bytes(canonical(changed.model_dump()))
    manifest = run.messages["north", ref].manifest
    files = manifest.files | {names.CARD: entry_of(card)}
    run.sign("north", ref, manifest.model_copy(update={"files": files}))
    run.beat("north")
    assert verified(run.folders / "north")[0] == 0
    code, said, _ = verified(run.folders)
    assert code == 1
    assert said.startswith(f"{card}: is not what east was sent, and all hospitals of a run are told the same")


def without_its_run(folders: Path, run: Recorded, site: str) -> None:
    """Take a whole run out of a folder, back to a heartbeat from before its offer."""
    shutil.rmtree(folders / site / names.RUNS)
    heartbeat = Status.model_validate(json.loads((folders / site / names.STATUS).read_bytes())["body"])
    heads = {"own_head": Head(), "aggregator_head": Head()}
    signed = run.keys[site].sign(heartbeat.model_copy(update=heads).model_dump())
    (folders / site / names.STATUS).write_bytes(signed)


def test_a_whole_run_that_was_taken_out_of_one_folder_is_found(played: Recorded, folders: Path, tmp_path: Path) -> None:
    key, signed = tmp_path / "auditor.key", tmp_path / "closing.json"
    CliRunner().invoke(main, ["make-key", str(key)])
    sign = ["digest", RUN, str(folders), "--sign", str(key), "--output", str(signed)]
    assert CliRunner().invoke(main, sign).exit_code == 0
    without_its_run(folders, played, "north")
    assert verified(folders / "north")[0] == 0
    code, said, _ = verified(folders)
    why = "is missing, as is all else of the run: the final card in the folder of east says that north took part"
    assert (code, said) == (1, f"{folders}/north/{MessageRef('offer', RUN).manifest}: {why}\n")
    checked = CliRunner().invoke(main, ["digest", RUN, str(folders), "--check", str(signed)])
    assert checked.exit_code == 1
    assert checked.stdout.endswith(f"{signed}: it covers north, whose folder has no manifest of the run\n")
    assert "north: is of this run, and its folder has nothing of it: the digest is without it\n" in checked.stderr


def test_a_folder_that_never_had_a_run_is_told_and_is_no_finding(tmp_path: Path) -> None:
    asked = run_configuration(run=RUN, sites=["east", "north"], quorum=1, rounds=1)
    run = Recorded(tmp_path, asked)
    run.send("east", MessageRef("offer", RUN), run.store.offer_files(asked, run.store.sharing()))
    for site in asked.sites:
        run.beat(site)
    code, _, beside = verified(run.folders)
    never = "its folder has nothing of it: it was never offered, or all of it was taken away"
    assert (code, f"north: is of run {RUN}, and {never}\n" in beside) == (0, True)
    document = json.loads(CliRunner().invoke(main, ["report", "--json", str(run.folders)]).stdout)
    assert [(each["not_here"], each["empty"]) for each in document["runs"]] == [([], ["north"])]


ONE, OTHER, THIRD = (SigningKey(bytes([number]) * 32) for number in (101, 102, 103))


def joined(home: Path, site: str, *keys: SigningKey, own: SigningKey | None = None, text: bytes = README_TEXT) -> None:
    """A hospital joins under the first of an aggregator's keys, which hands over to the next, and so on."""
    home.mkdir(parents=True)
    own, who = own or SigningKey(site.encode().ljust(32, b"0")), {"federation": "retina", "site": site}
    card = SiteCard(**who, key=own.public, software="dropfed", enrolment="0" * 64, created=now_text())
    readme = FileEntry(size=len(text), sha256=digest_of(text))
    federation = Federation(
        **who, aggregator_key=keys[0].public, site_key=own.public, created=now_text(), files={names.README: readme}
    )
    status = Status(
        **who, time=now_text(), phase="waiting", run=None, round=0, progress_percent=0, trouble=None,
        own_head=Head(), aggregator_head=Head(),
    )  # fmt: skip
    signed = {names.SITE_CARD: own.sign(card.model_dump()), names.FEDERATION: keys[0].sign(federation.model_dump())}
    signed |= {names.README: text, names.STATUS: own.sign(status.model_dump())}
    for number, (key, new) in enumerate(pairwise(keys), 2):
        handover = Handover(**who, number=number, key=new.public, after=Head(), created=now_text())
        signed[names.handover_path(number, AGGREGATOR)] = key.sign(handover.model_dump())
    for path, content in signed.items():
        (home / path).parent.mkdir(exist_ok=True)
        (home / path).write_bytes(content)


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        (README_TEXT, True),
        (KNOWN_TEXTS[1][0].replace(b"protocol 1", b"protocol 2"), True),
        (b"No patient data.", False),
    ],
    ids=["now", "earlier", "another"],
)
def test_a_folder_holds_with_each_text_that_was_ever_written_there_and_with_no_other(
    tmp_path: Path, text: bytes, is_known: bool
) -> None:
    joined(tmp_path / "north", "north", ONE, text=text)
    code, said, _ = verified(tmp_path)
    assert (code == 0, "is not the text that protocol 2 has there" not in said) == (is_known, is_known)


def test_keys_are_told_in_the_order_in_which_they_handed_over(tmp_path: Path) -> None:
    joined(tmp_path / "east", "east", OTHER, THIRD)
    joined(tmp_path / "north", "north", ONE, OTHER)
    code, said, _ = verified(tmp_path)
    in_order = f"under aggregator key {ONE.public}, then {OTHER.public}, then {THIRD.public} "
    assert (code, in_order in said, "2 hand-overs of a key" in said) == (0, True, True)
    document = json.loads(CliRunner().invoke(main, ["report", "--json", str(tmp_path)]).stdout)
    later = [each["key"] for each in document["later_aggregator_keys"]]
    assert [document["aggregator_key"], *later] == [ONE.public, OTHER.public, THIRD.public]


def test_keys_that_hand_over_in_a_circle_are_not_one_aggregators(tmp_path: Path) -> None:
    joined(tmp_path / "east", "east", OTHER, ONE)
    joined(tmp_path / "north", "north", ONE, OTHER)
    code, _, beside = verified(tmp_path)
    assert (code, "are of several federations" in beside) == (2, True)


def test_one_key_of_two_sides_is_found(tmp_path: Path) -> None:
    for site, own in (("east", OTHER), ("north", OTHER), ("south", THIRD), ("west", ONE)):
        joined(tmp_path / site, site, ONE, own=own)
    code, said, _ = verified(tmp_path)
    what = "shows a key that {} signs with too: whoever has it can sign for both"
    lines = [
        f"{tmp_path}/{site}/{names.SITE_CARD}: {what.format(whose)}"
        for site, whose in (("north", "east"), ("west", "the aggregator"))
    ]
    assert (code, said.splitlines()) == (1, lines)
