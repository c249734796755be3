"""What is no drop folder is told from a forged one, by one sentence that says what to name; none is written into."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.setup import initialise
from shared.audit.cli import main
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.tensors import Sharing
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played


@pytest.fixture(scope="module")
def home(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one finds on a stick: work directories, copies of folders, and more."""
    home = tmp_path_factory.mktemp("stick")
    for name in ("aggregator", "north"):
        shutil.copytree(played.drop.parent / name, home / "daemons" / name)
    shutil.copytree(played.drop, home / "trial" / "folders" / "north")
    initialise(home / "fresh", "retina", {"north": "http://127.0.0.1/north/"}, "aggregator")
    (home / "empty").mkdir()
    (home / "person" / "runs" / "experiment").mkdir(parents=True)
    for name in (names.README, names.STATUS):
        (home / "person" / name).write_bytes(b"{}")
    return home


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), result.output
    return result.stderr


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("empty", "it is empty"),
        ("person", "name the folder with federation.json"),
        ("person/README.txt", "is not a folder"),
        ("daemons/north", "a hospital's work directory; name its drop folder"),
        ("daemons/north/mirror", "a hospital's work directory; name its drop folder"),
        ("daemons", "name {home}/daemons/aggregator"),
        ("daemons/aggregator/sites", "name {home}/daemons/aggregator"),
        ("daemons/aggregator/sites/north", "name {home}/daemons/aggregator"),
        ("daemons/aggregator/sites/north/mirror", "name {home}/daemons/aggregator"),
        ("fresh", "no hospital has joined yet"),
        ("trial", "name {home}/trial/folders"),
        ("trial/folders/north/runs", "name {home}/trial/folders/north"),
        (f"trial/folders/north/runs/{RUN}/rounds/0001/to_site", "name {home}/trial/folders/north"),
    ],
)
def test_another_directory_is_told_from_a_forged_folder(home: Path, place: str, says: str) -> None:
    for command in (["verify"], ["timeline"], ["digest", RUN]):
        sentence = refused(*command, home / place)
        assert sentence.startswith(f"{home / place}: ")
        assert sentence.endswith(f"{says.format(home=home)}\n") or "{home}" not in says
        assert says.format(home=home) in sentence


def test_what_lies_among_folders_and_is_none_is_not_passed_over(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "trial" / "folders", tmp_path / "folders")
    (tmp_path / "folders" / "south").mkdir()
    assert refused("verify", tmp_path / "folders").startswith(f"{tmp_path}/folders/south: lies among drop folders")


@pytest.mark.parametrize("lost", [names.FEDERATION, names.SITE_CARD, names.README, names.STATUS, names.RUNS])
def test_a_folder_that_lost_something_is_still_one(home: Path, tmp_path: Path, lost: str) -> None:
    copy = tmp_path / "north"
    shutil.copytree(home / "trial" / "folders" / "north", copy)
    for name in ("site.yaml", "aggregator.yaml"):
        (copy / name).write_bytes(b"")
    shutil.rmtree(copy / lost) if (copy / lost).is_dir() else (copy / lost).unlink()
    result = CliRunner().invoke(main, ["verify", str(copy)])
    assert result.exit_code == 1
    assert lost == names.RUNS or f"{lost}: is missing" in result.stdout


def test_two_folders_of_one_site_are_not_two_sites(home: Path, tmp_path: Path) -> None:
    north = home / "trial" / "folders" / "north"
    shutil.copytree(north, tmp_path / "south")
    for command in (["verify"], ["timeline"], ["report", "--json"]):
        assert refused(*command, north, tmp_path / "south") == (
            f"{tmp_path}/south: is a second folder of north, as {north} is; name one\n"
        )


def test_folders_under_two_aggregators_keys_do_not_hold_together(home: Path, tmp_path: Path) -> None:
    other = Played(tmp_path)
    other.offer_and_consent()
    north = home / "trial" / "folders" / "north"
    assert "are of several federations" in refused("verify", north, other.drop)
    result = CliRunner().invoke(main, ["verify", str(north), str(other.drop), "--key", other.aggregator_key])
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert result.stdout.startswith(f"{north}/{names.FEDERATION}: is signed by the key ")


@pytest.mark.parametrize("where", ["north/page", "page", "north/runs/page", "link/page"])
def test_nothing_is_written_into_what_is_audited(home: Path, tmp_path: Path, where: str) -> None:
    folders = tmp_path / "folders"
    shutil.copytree(home / "trial" / "folders", folders)
    (tmp_path / "link").symlink_to(folders / "north")
    target = tmp_path / where if where.startswith("link") else folders / where
    CliRunner().invoke(main, ["make-key", str(tmp_path / "auditor.key")])
    for command in (["report", "--html"], ["digest", RUN, "--sign", tmp_path / "auditor.key", "--output"]):
        assert "where an audit changes nothing" in refused(*command, target, folders)
    assert "where an audit changes nothing" in refused("make-key", target)
    assert not target.exists()


def test_nothing_is_written_into_a_folder_that_was_not_named(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "trial" / "folders", folders := tmp_path / "folders")
    shutil.copytree(folders / "north", south := tmp_path / "south")
    CliRunner().invoke(main, ["make-key", str(tmp_path / "auditor.key")])
    for command in (["report", "--html"], ["digest", RUN, "--sign", tmp_path / "auditor.key", "--output"]):
        for target in (south / "page.html", south / "runs" / "page.html"):
            told = f"{target}: lies in {south}, where an audit changes nothing; name a file elsewhere\n"
            assert refused(*command, target, folders / "north") == told
            assert not target.exists()


def test_an_empty_name_is_no_folder() -> None:
    assert refused("verify", "") == "FOLDER: is empty; name a folder\n"


def test_a_page_takes_the_place_of_nothing_but_a_page(home: Path, tmp_path: Path) -> None:
    (kept := tmp_path / "site.yaml").write_text("kept")
    told = refused("report", "--html", kept, home / "trial" / "folders" / "north")
    assert "is there already, and does not end in .html; name another file" in told and kept.read_text() == "kept"


def test_no_folder_is_made_for_what_is_written(home: Path, tmp_path: Path) -> None:
    target, north = tmp_path / "new" / "file", home / "trial" / "folders" / "north"
    CliRunner().invoke(main, ["make-key", str(tmp_path / "auditor.key")])
    for command in (["report", "--html"], ["digest", RUN, "--sign", tmp_path / "auditor.key", "--output"]):
        assert f"there is no folder {target.parent}" in refused(*command, target, north)
    assert f"there is no folder {target.parent}" in refused("make-key", target)
    assert not target.parent.exists()


def test_folders_are_called_by_the_site_of_their_signed_record(home: Path, tmp_path: Path) -> None:
    moved = tmp_path / "south"
    shutil.copytree(home / "trial" / "folders" / "north", moved)
    result = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (0, f"{moved}: holds the folder of north\n")
    assert "not compared with a key of yours: --key" in result.stdout
    document = json.loads(CliRunner().invoke(main, ["report", "--json", str(tmp_path)]).stdout)
    assert document["remarks"] == [f"{moved}: holds the folder of north"]
    lost = MessageRef("verdict", RUN, 1)
    (moved / lost.path / names.VERDICT).unlink()
    broken = tmp_path / "west"
    shutil.copytree(moved, broken)
    (broken / names.FEDERATION).unlink()
    found = CliRunner().invoke(main, ["verify", str(tmp_path)]).stdout.splitlines()
    assert found[0].startswith(f"north (in {moved}): {lost.path}/{names.VERDICT}: is missing")
    assert f"{broken}/{names.FEDERATION}: is missing" in found


def test_a_folder_that_does_not_say_whose_it_is_leaves_the_others_to_be_read(home: Path, tmp_path: Path) -> None:
    for name in ("north", "south"):
        shutil.copytree(home / "trial" / "folders" / "north", tmp_path / "folders" / name)
    (tmp_path / "folders" / "south" / names.FEDERATION).unlink()
    page, left_out = tmp_path / "page.html", f"{tmp_path}/folders/south: is left out: federation.json is missing"
    for command in (["timeline"], ["digest", RUN], ["sent", "north"], ["report", "--html", str(page)]):
        result = CliRunner().invoke(main, [*command, str(tmp_path / "folders")])
        assert left_out in result.stderr, command
        assert result.exit_code == (0 if command[0] == "sent" else 1), command
    told = page.read_text(encoding="utf-8")
    assert told.index(f"{tmp_path}/folders/south: federation.json is missing") < told.index('id="who"')
    (tmp_path / "folders" / "north" / names.FEDERATION).unlink()
    result = CliRunner().invoke(main, ["timeline", str(tmp_path / "folders")])
    assert (result.exit_code, "federation.json: is missing" in result.stderr) == (1, True)


def test_a_site_whose_folder_is_not_here_is_told(tmp_path: Path) -> None:
    run = Played(tmp_path)
    offer = run_configuration(run=RUN, sites=["north", "south"], quorum=1)
    sharing = Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    run.send("offer", 0, {names.RUN_CONFIGURATION: dump_yaml(offer), names.TENSORS: dump_yaml(sharing)}, None)
    result = CliRunner().invoke(main, ["verify", str(run.drop)])
    absent, still_open = f"south: is of run {RUN}, and its folder is not here", f"north: run {RUN} has not ended"
    assert (result.exit_code, absent in result.stderr, still_open in result.stderr) == (0, True, True)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(main, ["report", "--html", str(page), str(run.drop)]).exit_code == 0
    told = page.read_text(encoding="utf-8")
    assert told.index(absent) < told.index('id="who"')
    assert 'class="say good"' not in told


def test_a_file_beside_the_folders_is_not_passed_over(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "trial" / "folders", tmp_path / "folders")
    (tmp_path / "folders" / "patients.csv").write_bytes(b"name\n")
    assert refused("verify", tmp_path / "folders").startswith(f"{tmp_path}/folders/patients.csv: lies among drop")


def test_what_a_desktop_left_beside_the_folders_is_noted_and_within_them_is_a_finding(
    home: Path, tmp_path: Path
) -> None:
    shutil.copytree(home / "trial" / "folders", folders := tmp_path / "folders")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (folders / name).write_bytes(b"x")
    result = CliRunner().invoke(main, ["verify", str(folders)])
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1), result.output
    assert result.stderr.count("was left beside the folders by somebody's desktop; it was not looked into\n") == 3
    assert "lies in" in refused("report", "--html", folders / "page.html", "--", folders)
    (folders / "north" / ".DS_Store").write_bytes(b"x")
    assert CliRunner().invoke(main, ["verify", str(folders)]).exit_code == 1


@pytest.mark.parametrize("command", [["digest"], ["replay"]])
def test_a_run_that_is_not_there_is_told_with_those_that_are(home: Path, command: list[str]) -> None:
    assert f"the runs here are {RUN}" in refused(*command, "nope", home / "trial" / "folders")


def test_only_https_is_an_address() -> None:
    assert refused("verify", "ftp://x/y").startswith("ftp://x/y: only https:// addresses can be read")
