"""Bad input gives sentences with a remedy, before training starts where it can be known before; never a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator
from aggregator.configuration import read_configuration
from shared.audit.cli import main as audit
from shared.exchange.reading import dump_yaml
from shared.folder.durable import write_file
from shared.settings import read_password
from site_client.cli import main as site
from site_client.overview import overview, overview_text
from tests.federation.running import WAIT_S, Federation, run_configuration


def run(command: object, *arguments: object, password: str | None = None) -> Result:
    environment = {"DROPFED_PASSWORD": password} if password else {}
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], env=environment)  # type: ignore[arg-type]
    assert "Traceback" not in result.output, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("federation"), images=8) as federation:
        yield federation


# --- the PI -----------------------------------------------------------------------------------------------------


def test_every_problem_of_a_run_is_named_at_once(federation: Federation, tmp_path: Path) -> None:
    path = tmp_path / "RUN.yaml"
    path.write_text(
        "run: Bad Name\ntask: octa_segmentation\nsites: []\nrounds: many\nseed: -1\ncolour: blue\n"
        "consent_deadline_hours: 1e306\nround_deadline_hours: 87601\n"
    )
    result = run(aggregator, "launch", path, "--work", federation.aggregator)
    assert result.exit_code == 2
    lines = result.output.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    deadlines = ("consent_deadline_hours", "round_deadline_hours")
    for key in ("run", "method", "sites", "rounds", "seed", "colour", *deadlines):
        assert any(line.startswith(f"{path}: {key}: ") for line in lines), (key, lines)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "heart_segmentation"}, "octa_segmentation"),
        ({"method": "magic"}, "there is no method magic; use one of "),
        ({"task_options": {"widths": [4, 8], "dropuot": 0.1}}, "dropuot"),
        ({"augmentation": {"contrast": [3.0, 0.5]}}, "contrast"),
        ({"split": {"train": 0.9}}, "must add up to 1"),
        ({"task": "heart_segmentation", "method": "magic"}, "there is no method magic"),
        ({"sites": ["north", "atlantis"], "quorum": 1}, "atlantis is not in"),
        ({"combination": {"rule": "median"}}, "median needs 3 answers in each round, and the run has 2 sites"),
    ],
)
def test_a_run_that_cannot_work_is_refused_before_anything_is_offered(
    federation: Federation, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "RUN.yaml"
    path.write_bytes(dump_yaml(run_configuration(**changes)))
    result = run(aggregator, "launch", path, "--work", federation.aggregator)
    assert result.exit_code == 2
    assert sentence in result.output
    assert not list((federation.aggregator / "runs").glob("*/run.yaml"))


def test_held_out_images_are_checked_before_anything_is_offered(federation: Federation, tmp_path: Path) -> None:
    work = tmp_path / "aggregator"
    shutil.copytree(federation.aggregator, work)
    (tmp_path / "heldout" / "images").mkdir(parents=True)
    federation.change(work / "aggregator.yaml", heldout={"octa_segmentation": str(tmp_path / "heldout")})
    result = run(aggregator, "launch", work / "RUN.yaml", "--work", work)
    assert result.exit_code != 0
    assert "images" in result.output
    federation.change(work / "aggregator.yaml", heldout={})
    assert "has no folder for octa_segmentation" in run(aggregator, "launch", work / "RUN.yaml", "--work", work).output


def test_commands_in_an_empty_directory_say_what_to_do(tmp_path: Path) -> None:
    run_yaml = tmp_path / "RUN.yaml"
    run_yaml.write_text("run: x\n")
    none = tmp_path / "none"
    commands = ((aggregator, "launch", run_yaml), (aggregator, "status"), (aggregator, "stop", "x"))
    for command in (*commands, (site, "run"), (site, "status")):
        result = run(*command, "--work", none)
        assert result.exit_code == 2
        assert result.output.startswith(f"{none}: there is no such work directory; ") and result.output.count("\n") == 1
    for command in ((aggregator, "status"), (aggregator, "stop", "x")):
        assert "is no aggregator's work directory" in run(*command, "--work", tmp_path).output
    assert init(tmp_path / "work", "north=https://x/").exit_code == 0
    assert "no run was launched here" in run(aggregator, "status", "--work", tmp_path / "work").output
    none_yet = "there is no run x here; no run was launched"
    assert none_yet in run(aggregator, "stop", "x", "--work", tmp_path / "work").output
    for name in ("check", "status"):
        assert "dropfed-site join" in run(site, name, "--work", tmp_path).output
    assert "is not a folder" in run(audit, "verify", tmp_path / "none").output
    (tmp_path / "empty").mkdir()
    assert "is no drop folder, and holds none: it is empty" in run(audit, "verify", tmp_path / "empty").output


def test_a_command_that_is_told_can_be_copied_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert init(tmp_path, "north=https://x/").exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert f"`dropfed-aggregator launch RUN.yaml --work {tmp_path}`" in run(aggregator, "status").output
    assert f"{tmp_path / 'none'}: there is no such" in run(site, "status", "--work", "none").output


def init(work: Path, *sites: str, site_urls: tuple[str, ...] = (), federation: str = "retina") -> Result:
    options = [word for site in sites for word in ("--site", site)]
    options += [word for url in site_urls for word in ("--site-url", url)]
    return run(aggregator, "init", "--work", work, "--federation", federation, *options)


def test_init_refuses_names_it_cannot_use(tmp_path: Path) -> None:
    result = init(tmp_path / "a", "aggregator=https://x/", federation="Retina")
    assert result.exit_code == 2
    assert {line.split(":")[0] for line in result.output.splitlines()} == {"Retina", "aggregator"}
    told = init(tmp_path / "a", "con=https://x/", "a.=https://y/", "aggregator=https://x/", federation="").output
    for name, why in (
        ("con", "and not a name of Windows's own, such as con or nul"),
        ("a.", "of which the first is a letter or digit and the last no '.'"),
        ("''", "lower-case letters"),
        ("aggregator", "is what the aggregator itself is called; take another name"),
    ):
        assert [why in line for line in told.splitlines() if line.startswith(f"{name}: ")] == [True]
    assert "must be NAME=URL" in init(tmp_path / "a", "north").output
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("sites", "sentence"),
    [
        (["north=http://bob:hunter2@127.0.0.1/north/"], "--site north: url: The folder's address contains a user"),
        (["north=https://bob:hunter2"], "--site north: url: The folder's address is malformed"),
        (["https://bob:hunter2@host/north/"], "--site: must be NAME=URL"),
        (["https://bob:hunter2@host/north/?a=b"], "--site: must be NAME=URL"),
        (["north=north"], "--site north: url: The folder's address is malformed"),
        (["north=http://cloud.example.org/north/"], "in the clear: use https"),
        (["north=https://host/a", "south=https://HOST/a/"], "north and south have one folder, https://host/a;"),
        (["north=https://host/a", "north=https://host/b"], "--site north: is given twice; keep one"),
    ],
)
def test_init_refuses_addresses_it_cannot_use(tmp_path: Path, sites: list[str], sentence: str) -> None:
    result = init(tmp_path / "a", *sites)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "hunter2" not in result.output
    assert not (tmp_path / "a").exists()


def test_settings_with_a_password_in_an_address_are_refused(federation: Federation, tmp_path: Path) -> None:
    work = joined(federation, tmp_path / "site")
    address = "https://bob:hunter2@host/north/"
    federation.change(work / "site.yaml", url=address)
    invite = federation.aggregator / "invites" / "north.json"
    for result in (
        run(site, "run", "--once", "--work", work),
        run(site, "join", invite, "--work", tmp_path / "w", "--url", address, password="x"),
    ):
        assert result.exit_code == 2
        assert "url: The folder's address contains a user or password" in result.output
        assert "hunter2" not in result.output
    assert not (tmp_path / "w").exists()


def test_init_again_adds_a_site_and_changes_nothing_else(tmp_path: Path) -> None:
    work, north, south = tmp_path / "a", "north=https://host/north/", "south=https://host/south/"
    assert init(work, north).exit_code == 0
    path = work / "aggregator.yaml"
    written = path.read_bytes().replace(b"threads: 1", b"threads: 2  # as the PI likes it")
    path.write_bytes(written)
    kept = {file: file.read_bytes() for file in (work / "signing.key", work / "invites" / "north.json")}

    assert "nothing was changed" in init(work, north).output
    assert path.read_bytes() == written

    result = init(work, south)
    assert result.output.splitlines()[:2] == [f"wrote {path}", f"wrote {work / 'invites' / 'south.json'}"]
    assert set(read_configuration(work).sites) == {"north", "south"}
    added = b'  south:\n    url: "https://host/south/"\n    user: aggregator\n    password_file: passwords/south\n'
    assert path.read_bytes().replace(added + b"    ca_file: null\n", b"") == written
    assert {file: file.read_bytes() for file in kept} == kept

    assert init(work, "1e3=https://host/like-a-number/").exit_code == 0
    assert set(read_configuration(work).sites) == {"north", "south", "1e3"}


def test_an_invite_says_where_the_site_reaches_its_folder(tmp_path: Path) -> None:
    work, here, there = tmp_path / "a", "http://127.0.0.1:8080/north/", "https://cloud.example.org/dav/north/"
    result = init(work, f"north={here}", "south=https://10.0.0.5/south", "east=https://hub/e", f"west={there}")
    invites = work / "invites"
    warned = [line.split()[1] for line in result.output.splitlines() if line.startswith("warning: ")]
    assert warned == [str(invites / f"{name}.json") for name in ("north", "south", "east")]

    work = tmp_path / "b"
    result = init(work, f"north={here}", site_urls=(f"north={there}",))
    assert result.exit_code == 0 and "warning" not in result.output
    assert json.loads((work / "invites" / "north.json").read_bytes())["url"] == there
    assert read_configuration(work).sites["north"].url == here
    again = init(work, f"north={here}", site_urls=("north=http://bob:hunter2@h/", "south=https://h/"))
    assert again.exit_code == 2 and "hunter2" not in again.output
    assert f"is for an invite that is made now; change url in {work / 'invites' / 'north.json'}" in again.output
    alone = init(work, "west=https://hub/w", site_urls=(f"north={there}",))
    assert f"is for an invite that is made now; change url in {work / 'invites' / 'north.json'}" in alone.output
    assert "--site-url north: The folder's address contains" in again.output
    assert "--site-url south: is for an invite that is made now; add --site south=URL" in again.output


def test_neither_command_takes_the_others_directory(federation: Federation, tmp_path: Path) -> None:
    site_work, invite = joined(federation, tmp_path / "site"), federation.aggregator / "invites" / "north.json"
    for arguments in (["status"], ["withdraw", "r"], ["join", invite], ["rotate-key"]):
        result = run(site, *arguments, "--work", federation.aggregator, password="x")
        assert result.exit_code == 2
        whose = "is the aggregator's work directory, and this command is for a site's: name that one with --work"
        assert result.output == f"{federation.aggregator}: {whose}\n"
    for arguments in (["status"], ["init", "--federation", "f", "--site", "s=https://h/s"]):
        result = run(aggregator, *arguments, "--work", site_work)
        assert result.exit_code == 2
        assert f"{site_work}: is a site's work directory" in result.output


def test_init_changes_nothing_where_a_file_is_in_the_way(tmp_path: Path) -> None:
    work = tmp_path / "a"
    assert init(work, "north=https://host/north/").exit_code == 0
    written = (work / "aggregator.yaml").read_bytes()
    (work / "passwords").rmdir()
    (work / "passwords").touch()
    assert init(work, "south=https://host/south/").exit_code == 1
    assert (work / "aggregator.yaml").read_bytes() == written


def test_whom_no_survey_reaches_is_told_by_the_exit_code_too(tmp_path: Path) -> None:
    assert init(tmp_path / "a", f"north={tmp_path.as_uri()}").exit_code == 0
    told = run(aggregator, "survey", "octa_segmentation", "--work", tmp_path / "a")
    assert (told.exit_code, told.output.splitlines()[0]) == (
        1,
        "north: the site has not joined yet: its card is not in the folder",
    )
    told = run(aggregator, "survey", "--report", "--work", tmp_path / "a")
    asks = f"ask every site: `dropfed-aggregator survey TASK --work {tmp_path / 'a'}`\n"
    assert told.exit_code == 0 and told.output.endswith(asks)
    told = run(aggregator, "survey", "octa_segmentation", "--json", "--work", tmp_path / "a")
    assert told.exit_code == 2 and "say --report with it" in told.output


def test_an_invite_that_is_missing_is_made_by_init(tmp_path: Path) -> None:
    work, north = tmp_path / "a", "north=https://host/north/"
    assert init(work, north).exit_code == 0
    (invite := work / "invites" / "north.json").unlink()
    told = run(aggregator, "check", "--work", work).output
    makes = f"`dropfed-aggregator init --work {work}` with --federation and --site makes it"
    assert f"problem  north: {invite} is missing: {makes}" in told
    assert "heldout: names no folder yet; write `heldout: {TASK: DIR}`, in place of `heldout: {}`, with " in told
    shutil.copy(work / "signing.key", tmp_path / "kept")
    made = init(work, north)
    assert made.exit_code == 0 and made.output.startswith(f"wrote {invite}\n")


def test_init_again_makes_no_second_key(tmp_path: Path) -> None:
    work, north = tmp_path / "a", "north=https://host/north/"
    assert init(work, north).exit_code == 0
    (work / "signing.key").unlink()
    result = init(work, north, "south=https://host/south/")
    assert result.exit_code == 1
    assert result.output.startswith(f"{work / 'signing.key'} is missing: put this very key back")
    assert not (work / "signing.key").exists()


def test_init_again_leaves_to_a_person_what_it_cannot_do_safely(tmp_path: Path) -> None:
    work, north, south = tmp_path / "a", "north=https://host/north/", "south=https://host/south/"
    assert init(work, north).exit_code == 0
    path = work / "aggregator.yaml"
    moved = init(work, "north=https://host/elsewhere/")
    assert moved.exit_code == 2
    assert f"{path} has another address for it; change it there, under sites: north: url, and in" in moved.output

    written = path.read_bytes().replace(b"sites:", b"sites:  # ours")
    path.write_bytes(written)
    result = init(work, south)
    assert result.exit_code == 2
    entry = "south: {url: https://host/south/, user: aggregator, password_file: passwords/south}"
    assert f"{path}: add under sites: by hand" in result.output and entry in result.output
    assert path.read_bytes() == written
    path.write_bytes(written.replace(b"  # ours", f"  # ours\n  {entry}".encode()))
    assert init(work, south).output.splitlines()[0] == f"wrote {work / 'invites' / 'south.json'}"


# --- the hospital's IT ------------------------------------------------------------------------------------------


def test_join_names_every_problem_of_an_invite(tmp_path: Path) -> None:
    invite = tmp_path / "invite.json"
    assert "cannot be read" in run(site, "join", invite, "--work", tmp_path / "w", password="x").output
    invite.write_text(json.dumps({"federation": "retina", "site": "NORTH", "url": 5}))
    result = run(site, "join", invite, "--work", tmp_path / "w", password="x")
    assert result.exit_code == 2
    for key in ("site", "url", "user", "aggregator_key", "enrolment_secret"):
        assert f"{invite}: {key}: " in result.output
    for line in result.output.splitlines():
        assert line.endswith("; get the file anew from the aggregator's people") and line.count("; ") == 1
    invite.write_text(json.dumps({"enrolment_secret": "cut-off-secr"}))
    shown = run(site, "join", invite, "--work", tmp_path / "w", password="x").output
    assert f"{invite}: enrolment_secret: " in shown
    assert "cut-off-secr" not in shown
    invite.write_text(json.dumps({"password": 31415926}))
    shown = run(site, "join", invite, "--work", tmp_path / "w", password="x").output
    assert f"{invite}: password: " in shown
    assert "31415926" not in shown


def test_join_refuses_two_folders_for_one_task(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    folders = ("--data", "octa_segmentation=/a", "--data", "octa_segmentation=/b")
    result = run(site, "join", invite, "--work", tmp_path / "w", *folders, password="x")
    assert result.exit_code == 2
    assert result.output == "--data octa_segmentation: is given twice; keep one\n"
    assert "there is no such task" in run(site, "join", invite, "--work", tmp_path / "w", "--data", "octa=/a").output
    assert not (tmp_path / "w").exists()


def test_join_with_slashes_too_many_reaches_the_folder(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    write_file(tmp_path / "password", (federation.site("north") / "password").read_bytes() + b"\n", private=True)
    work, options = tmp_path / "w", ("--password-file", tmp_path / "password")
    url = f"http://127.0.0.1:{federation.port}//north//"
    result = run(site, "join", invite, "--work", work, "--url", url, *options)
    assert result.exit_code == 0, result.output
    key = json.loads(invite.read_bytes())["aggregator_key"]
    assert f"pinned the aggregator's key {key[:16]}…" in result.output
    assert {(work / name).stat().st_mode & 0o777 for name in ("password", "signing.key")} == {0o600}


def test_join_asks_for_the_password_and_does_not_show_it(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    url = f"http://127.0.0.1:{federation.port}/north"
    password = (federation.site("north") / "password").read_text()
    arguments = ["join", str(invite), "--work", str(tmp_path / "w"), "--url", url]
    result = CliRunner().invoke(site, arguments, input=f"{password}\n", env={"DROPFED_PASSWORD": ""})
    assert result.exit_code == 0, result.output
    assert "password of north:" in result.output and password not in result.output
    assert (tmp_path / "w" / "password").read_text() == password


def test_join_without_a_terminal_says_how_the_password_is_given(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    url = f"http://127.0.0.1:{federation.port}/north"
    arguments = ["join", str(invite), "--work", str(tmp_path / "w"), "--url", url]
    result = CliRunner().invoke(site, arguments, input="", env={"DROPFED_PASSWORD": ""})
    assert result.exit_code == 2
    assert "without a terminal; give --password-file FILE, or set DROPFED_PASSWORD\n" in result.output
    assert not (tmp_path / "w").exists()


def test_join_keeps_the_password_of_the_environment_for_the_daemon(federation: Federation, tmp_path: Path) -> None:
    invite, work = federation.aggregator / "invites" / "north.json", tmp_path / "w"
    password = (federation.site("north") / "password").read_text()
    url = f"http://127.0.0.1:{federation.port}/north"
    result = run(site, "join", invite, "--work", work, "--url", url, password=password)
    assert f"the password is kept in {work / 'password'}, for its owner alone to read" in result.output
    assert (work / "password").stat().st_mode & 0o777 == 0o600
    assert run(site, "check", "--quick", "--work", work).exit_code == 0


def test_join_refuses_a_folder_of_images_that_is_not_there(federation: Federation, tmp_path: Path) -> None:
    invite, work = federation.aggregator / "invites" / "north.json", tmp_path / "w"
    result = run(site, "join", invite, "--work", work, "--data", f"octa_segmentation={tmp_path}/away", password="x")
    assert result.exit_code == 2
    assert result.output == f"--data octa_segmentation: there is no folder {tmp_path}/away; correct the path\n"
    assert not work.exists()


def test_join_keeps_nothing_where_others_read_or_among_images(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    for name in ("drop", "empty", "images"):
        (tmp_path / name).mkdir(mode=0o755)
    for card in ("federation.json", "site.json"):
        (tmp_path / "drop" / card).write_bytes(b"{}")
    options = ("--url", (tmp_path / "empty").as_uri(), "--data", f"octa_segmentation={tmp_path / 'images'}")
    for place in ("drop", "empty", "images"):
        for work in (tmp_path / place, tmp_path / place / "site"):
            result = run(site, "join", invite, "--work", work, *options, password="x")
            where = f"the drop folder {tmp_path}/drop, where" if place == "drop" else f"{tmp_path / place}, which is no"
            assert result.exit_code == 2 and result.output.startswith(f"{work}: lies in {where} ")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"federation.json", "site.json"}


def test_join_takes_no_text_that_site_yaml_could_not_hold(federation: Federation, tmp_path: Path) -> None:
    invite, work = federation.aggregator / "invites" / "north.json", tmp_path / "w"
    (folder := tmp_path / "images\udcff").mkdir()
    for options, told in (
        (("--data", f"octa_segmentation={folder}"), "join: data.octa_segmentation: must be a path in UTF-8"),
        (("--user", "north\udcff"), "join: user: must be a name in UTF-8"),
    ):
        result = run(site, "join", invite, "--work", work, *options, password="x")
        assert result.exit_code == 2 and result.output.startswith(told) and result.output.count("\n") == 1
    assert not work.exists()


def test_join_again_says_which_settings_it_does_not_take(federation: Federation, tmp_path: Path) -> None:
    work = joined(federation, tmp_path / "site")
    before = (work / "site.yaml").read_bytes()
    invite, data = federation.aggregator / "invites" / "north.json", ("--data", f"octa_segmentation={tmp_path}")
    again = run(site, "join", invite, "--work", work, *data, "--user", "other", password="x").output
    lines = {"data": f'data: {{"octa_segmentation": "{tmp_path}"}}', "user": 'user: "other"'}
    for key, line in lines.items():
        told = (
            f"{work / 'site.yaml'}: {key}: is not what you gave just now, and stays as it was: write `{line}` in place"
        )
        assert told in again
    assert f"{work / 'site.yaml'}: url: is not" not in again
    assert (work / "site.yaml").read_bytes() == before
    (work / "site.yaml").write_text(re.sub(r"(?m)^data:.*(\n  .*)*", lines["data"], before.decode()))
    assert "data: is not" not in run(site, "join", invite, "--work", work, *data, password="x").output


def test_join_asks_for_the_password_of_a_link_without_its_token(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    link = ("--url", "http://127.0.0.1:9/public.php/webdav", "--user", "sEcReTtOkEn")
    arguments = ["join", str(invite), "--work", str(tmp_path / "w"), *link]
    output = CliRunner().invoke(site, arguments, input="typed\n", env={"DROPFED_PASSWORD": ""}).output
    assert "password of …" in output
    assert "sEcReTtOkEn" not in output


def test_a_password_file_that_cannot_be_used_is_a_sentence(federation: Federation, tmp_path: Path) -> None:
    invite = federation.aggregator / "invites" / "north.json"
    write_file(tmp_path / "text", b"\xff\xfe", private=True)
    write_file(tmp_path / "empty", b"\n", private=True)
    write_file(tmp_path / "open", b"for all to read")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "folder").mkdir(mode=0o755)
    for path, sentence in (
        (tmp_path / "text", "does not hold text"),
        (tmp_path / "folder", "is not a file"),
        (tmp_path / "empty", "is empty: put the folder's password there"),
        (tmp_path / "open", f"run `chmod 600 {tmp_path / 'open'}`"),
    ):
        result = run(site, "join", invite, "--work", tmp_path / "w", "--password-file", path)
        assert result.exit_code == 1
        assert sentence in result.output
    assert not (tmp_path / "w").exists()


def test_a_password_file_of_a_windows_editor_holds_what_people_see(tmp_path: Path) -> None:
    write_file(tmp_path / "password", b"\xef\xbb\xbfgeheim\r\n", private=True)
    assert read_password(tmp_path / "password") == "geheim"


def test_the_password_may_be_a_credential_of_systemd(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At joining and at work; it is nowhere in the work directory."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    password = (federation.site("north") / "password").read_text()
    (credentials / "password").write_text(f"{password}\n")
    (credentials / "password").chmod(0o440)  # systemd keeps others out by the folder, and by access lists
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    invite, work = federation.aggregator / "invites" / "north.json", tmp_path / "w"
    result = run(site, "join", invite, "--work", work, "--url", f"http://127.0.0.1:{federation.port}/north")
    assert result.exit_code == 0, result.output
    assert not (work / "password").exists()
    assert run(site, "run", "--once", "--work", work).exit_code == 0
    assert "site north of retina started; it waits for the aggregator, to accept" in (work / "log.txt").read_text()
    for path in federation.folder("north").iterdir():
        path.unlink()  # the card of a key that no other test has
    (credentials / "password").write_text("wrong-password")
    refused = run(site, "check", "--work", work)
    assert "give systemd the right credential `password` and restart the unit" in refused.output
    assert "wrong-password" not in refused.output
    (credentials / "password").unlink()
    assert "is missing and DROPFED_PASSWORD is not set" in run(site, "check", "--work", work).output


class LoginPage(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<html><body>Please log in</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PROPFIND = do_PUT = do_HEAD = do_OPTIONS = _answer  # noqa: N815  (http.server's names)

    def log_message(self, *_: object) -> None:
        pass


def joined(federation: Federation, work: Path) -> Path:
    """A copy of north's work directory, to spoil."""
    shutil.copytree(federation.site("north"), work)
    return work


def test_check_says_what_is_wrong_with_password_server_and_address(federation: Federation, tmp_path: Path) -> None:
    work = joined(federation, tmp_path / "site")
    assert run(site, "check", "--work", work).exit_code == 0
    wrong = run(site, "check", "--work", work, password="wrong-password")
    assert wrong.exit_code == 1
    assert "problem" in wrong.output and "password" in wrong.output
    assert "wrong-password" not in wrong.output

    (work / "password").chmod(0o644)
    assert f"chmod 600 {work / 'password'}" in run(site, "check", "--work", work).output
    (work / "password").chmod(0o600)

    right = (work / "password").read_bytes()
    (work / "password").write_bytes(b"wrong-password")
    assert f"or write the right password into {work / 'password'}." in run(site, "check", "--work", work).output
    assert "set the right password in DROPFED_PASSWORD" in wrong.output
    (work / "password").write_bytes(b"\n")
    assert f"or write the right password into {work / 'password'}." in run(site, "check", "--work", work).output
    (work / "password").unlink()
    missing = run(site, "check", "--work", work).output
    assert f"{work / 'password'} is missing and DROPFED_PASSWORD is not set" in missing
    (work / "password").mkdir(mode=0o700)
    assert f"{work / 'password'} is not a file: correct the path" in run(site, "check", "--work", work).output
    (work / "password").rmdir()
    write_file(work / "password", right, private=True)

    federation.change(work / "site.yaml", url="http://cloud.example.org/dav/")
    assert "https" in run(site, "check", "--work", work).output

    server = ThreadingHTTPServer(("127.0.0.1", 0), LoginPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        federation.change(work / "site.yaml", url=f"http://127.0.0.1:{server.server_port}/dav/")
        assert "WebDAV" in run(site, "check", "--work", work).output
    finally:
        server.shutdown()
        server.server_close()
    federation.change(work / "site.yaml", url=f"http://127.0.0.1:{server.server_port}/dav/")
    assert run(site, "check", "--work", work).exit_code == 1  # nobody listens there now


def test_check_lists_every_problem_of_the_images(federation: Federation, tmp_path: Path) -> None:
    work, data = joined(federation, tmp_path / "site"), tmp_path / "data"
    shutil.copytree(federation.root / "data" / "north", data)
    images = sorted((data / "images").iterdir())
    (data / "masks" / images[0].name).unlink()
    images[1].write_bytes(b"not an image")
    shutil.copyfile(images[2], data / "masks" / "stray.png")
    federation.change(work / "site.yaml", data={"octa_segmentation": str(data)})
    result = run(site, "check", "--work", work)
    assert result.exit_code == 1
    problems = [line for line in result.output.splitlines() if line.startswith("problem")]
    for name in (images[0].name, images[1].name, "stray.png"):
        assert any(name in problem for problem in problems), (name, problems)


def test_settings_name_every_problem_at_once(federation: Federation, tmp_path: Path) -> None:
    work = joined(federation, tmp_path / "site")
    federation.change(work / "site.yaml", threads=0, devise="cpu", policy={"consent": "maybe", "tasc": []})
    result = run(site, "run", "--once", "--work", work)
    assert result.exit_code == 2
    for key in ("threads", "devise", "policy.consent"):
        assert f"site.yaml: {key}: " in result.output
    assert "policy.tasc: is not a known key; remove it or use one of consent, tasks, methods," in result.output


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("limits: {training_hours: 18:00}", "limits.training_hours: must be like 18:00-07:00; put it in quotes"),
        ("limits: {transfer_hours: '7-18'}", "limits.transfer_hours: must be like 18:00-07:00 (found '7-18')"),
        ("device: gpu", "device: must be cpu, cuda, or cuda and a number, as in cuda:0 (found 'gpu')"),
        ("site: North", "site: must be lower-case letters, digits, '-', '_' and '.', at most 64"),
        ("aggregator_key: '12'", "aggregator_key: must be 64 hexadecimal digits, 0-9 and a-f (found '12')"),
        ("data: /data/octa", "data: must hold `name: value` pairs, as in {name: value} (found '/data/octa')"),
        ("data: {OCTA: /a}", "data.OCTA: must be lower-case letters"),
        (r'ca_file: "/a\0b"', r"ca_file: must be a path in UTF-8 without the character NUL (found '/a\x00b')"),
        ("poll_seconds: 1.0e-300", "poll_seconds: must be 0.01 or more (found 1e-300)"),
        (
            "limits: 18:00-07:00",
            "limits: must hold `key: value` pairs (found '18:00-07:00'); its keys are training_hours,",
        ),
    ],
)
def test_settings_are_wanted_in_plain_words(
    federation: Federation, tmp_path: Path, settings: str, sentence: str
) -> None:
    work = joined(federation, tmp_path / "site")
    key = settings.partition(":")[0]
    others = yaml.safe_load((work / "site.yaml").read_bytes())
    others.pop(key, None)
    (work / "site.yaml").write_text(f"{yaml.safe_dump(others)}{settings}\n")
    result = run(site, "check", "--work", work)
    assert result.exit_code == 2
    assert result.output.startswith(f"{work / 'site.yaml'}: {sentence}")
    assert len(result.output.splitlines()) == 1
    assert "pattern" not in result.output


# --- daemons that live on ---------------------------------------------------------------------------------------


def status_of(federation: Federation, name: str) -> dict[str, object]:
    try:
        return dict(json.loads((federation.site(name) / "status.json").read_bytes())["body"])
    except FileNotFoundError:
        return {}


def test_a_missing_mask_holds_the_site_up_until_it_is_there(tmp_path: Path) -> None:
    """The daemon says what is missing, stays alive, and the run goes on once the file is there."""
    with Federation(tmp_path, run_configuration(sites=["north"], quorum=1)) as federation:
        mask = sorted((tmp_path / "data" / "north" / "masks").iterdir())[0]
        mask.rename(tmp_path / mask.name)
        daemon, aggregator_process = federation.start_site("north"), federation.start_aggregator()
        federation.wait_until(lambda: mask.stem in str(status_of(federation, "north").get("trouble")), "the trouble")
        assert daemon.poll() is None
        shared = federation.folder("north") / "status.json"
        federation.wait_until(lambda: b"needs attention" in shared.read_bytes(), "the trouble in the folder")
        assert mask.stem.encode() not in shared.read_bytes()  # a file's name may be a patient's
        (tmp_path / mask.name).rename(mask)
        assert aggregator_process.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.wait_until(lambda: status_of(federation, "north").get("trouble") is None, "the end of the trouble")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    """The site's disk is too small for the model: nothing is lost, and the run goes on once there is room."""
    run = run_configuration(sites=["north"], quorum=1, task_options={"image_size": 32})  # a model of 32 MB
    with Federation(tmp_path, run, runner=("tests.faults.hurried",)) as federation:
        disk = federation.site("north")
        kept = tmp_path / "kept"
        shutil.copytree(disk, kept)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m,mode=700", "tmpfs", disk], check=False)
        if mounted.returncode != 0:
            pytest.skip("this machine does not allow mounting")
        try:
            shutil.copytree(kept, disk, dirs_exist_ok=True)
            daemon, aggregator_process = federation.start_site("north"), federation.start_aggregator()
            federation.wait_until(
                lambda: "is full" in federation.output(disk) and daemon.poll() is None, "the full disk to be told"
            )
            with (disk / "filling").open("wb", buffering=0) as filling, suppress(OSError):
                while filling.write(bytes(4096)):
                    pass
            assert f"trouble: the disk with {disk} is full: free some" in overview_text(overview(disk))
            (disk / "filling").unlink()
            subprocess.run(["mount", "-o", "remount,size=500m", disk], check=True)
            assert aggregator_process.wait(WAIT_S) == 0, federation.output(federation.aggregator)
            federation.wait_for_finals()
            federation.stop_all()
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


def test_the_password_may_come_late(tmp_path: Path) -> None:
    """Daemons with a wrong password tell it and go on trying; what is in the file by then is used without a restart."""
    run = run_configuration(sites=["north"], quorum=1)
    with Federation(tmp_path, run, runner=("tests.faults.hurried",)) as federation:
        files = [federation.site("north") / "password", federation.aggregator / "passwords" / "north"]
        right = [path.read_bytes() for path in files]
        for path in files:
            write_file(path, b"wrong-password", private=True)
        site_process, aggregator_process = federation.start_site("north"), federation.start_aggregator()
        for path, work in zip(files, (federation.site("north"), federation.aggregator), strict=True):
            remedy = f"or write the right password into {path}"
            federation.wait_until(lambda text=remedy, work=work: text in federation.output(work), "the trouble")
            assert "wrong-password" not in federation.output(work)
        assert site_process.poll() is None and aggregator_process.poll() is None
        for path, password in zip(files, right, strict=True):
            write_file(path, password, private=True)
        assert aggregator_process.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()


def test_a_trouble_is_told_once_however_often_it_is_met(tmp_path: Path) -> None:
    with Federation(tmp_path, run_configuration(sites=["north"], quorum=1)) as federation:
        mask = sorted((tmp_path / "data" / "north" / "masks").iterdir())[0]
        mask.rename(tmp_path / mask.name)
        federation.start_site("north")
        federation.start_aggregator()
        north = federation.site("north")
        federation.wait_until(lambda: "has no mask" in federation.output(north), "the trouble")
        time.sleep(3)  # it is met ten times meanwhile
        assert federation.output(north).count("has no mask") == 1
