"""``dropfed-site check`` and ``dropfed-aggregator check``: what they say, and that they leave nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator
from site_client.cli import main as site
from tests.federation.running import Federation
from tests.folder.installed import AbsentError
from tests.folder.logins import SITE
from tests.folder.servers import running

ALL_OF_A_SERVER = [
    "server",
    "MOVE",
    "COPY",
    "Range",
    "chunked upload",
    "conditional PUT",
    "ETags",
    "ETag propagation",
    "checksums",
    "room",
    "clock",
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two sites that have joined; no daemon runs."""
    with Federation(tmp_path_factory.mktemp("federation"), images=8) as federation:
        yield federation


@pytest.fixture
def work(federation: Federation, tmp_path: Path) -> Path:
    """A copy of the aggregator's work directory, to spoil."""
    shutil.copytree(federation.aggregator, tmp_path / "aggregator")
    return tmp_path / "aggregator"


def check(command: Callable[..., object], work: Path) -> Result:
    return CliRunner().invoke(command, ["check", "--work", str(work)], env={"DROPFED_PASSWORD": ""})  # type: ignore[arg-type]


def of_grade(grade: str, result: Result) -> list[str]:
    return [line.removeprefix(f"{grade:8} ") for line in result.output.splitlines() if line.startswith(f"{grade:8} ")]


def test_the_site_is_told_what_its_server_can_do(federation: Federation) -> None:
    result = check(site, federation.site("north"))
    assert result.exit_code == 0, result.output
    subjects = [line[9:].split(":")[0] for line in result.output.splitlines()]
    assert [subject for subject in subjects if subject in ALL_OF_A_SERVER] == ALL_OF_A_SERVER
    assert "chunked upload: no; an upload that is cut begins anew" in of_grade("note", result)
    assert "Range: yes" in of_grade("ok", result)
    assert list(federation.folder("north").iterdir()) == []


def test_the_aggregator_is_told_of_every_site(federation: Federation) -> None:
    result = check(aggregator, federation.aggregator)
    assert result.exit_code == 0, result.output
    for name in ("north", "south"):
        of_site = [line[9:] for line in result.output.splitlines() if line[9:].startswith(f"{name}: ")]
        assert [line.split(": ")[1] for line in of_site][1:-1] == ALL_OF_A_SERVER
        assert list(federation.folder(name).iterdir()) == []
    assert any("8 labelled images" in line or "4 labelled images" in line for line in of_grade("ok", result))
    assert of_grade("warning", result) == [
        f"{name}: the site has not put its card there yet; it does once it runs" for name in ("north", "south")
    ]


def test_the_aggregator_is_told_what_is_wrong(federation: Federation, work: Path, tmp_path: Path) -> None:
    (work / "passwords" / "north").write_text("wrong-password")
    (work / "invites" / "south.json").unlink()
    (tmp_path / "heldout" / "images").mkdir(parents=True)
    federation.change(work / "aggregator.yaml", heldout={"octa_segmentation": str(tmp_path / "heldout")})
    result = check(aggregator, work)
    assert result.exit_code == 1
    assert "wrong-password" not in result.output
    password, invite, *images = of_grade("problem", result)
    assert "north: " in password and "refuses user 'aggregator' or the password" in password
    assert "south: " in invite and "south.json is missing" in invite
    assert images and all(line.startswith("octa_segmentation: ") for line in images)


def test_two_sites_with_one_folder(federation: Federation, work: Path) -> None:
    access = {"user": "aggregator", "password_file": "passwords/north"}
    url = f"http://127.0.0.1:{federation.port}/north"
    sites = {"north": access | {"url": url}, "south": access | {"url": f"{url}/"}}
    federation.change(work / "aggregator.yaml", sites=sites)
    result = check(aggregator, work)
    assert result.exit_code == 2
    path = work / "aggregator.yaml"
    assert result.output == f"{path}: sites: north and south have one folder, {url}; give each its own\n"


def test_a_lost_key_and_a_card_of_somebody_else(federation: Federation, work: Path) -> None:
    (work / "signing.key").unlink()
    card = federation.folder("north") / "site.json"
    shutil.copyfile(federation.site("south") / "mirror" / "site.json", card)
    try:
        result = check(aggregator, work)
    finally:
        card.unlink()
    assert result.exit_code == 1
    problems = of_grade("problem", result)
    assert len(problems) == 3
    assert all("put the right key back" in problem for problem in (problems[0], problems[2]))
    assert "was written for retina/south" in problems[1]
    assert not (work / "signing.key").exists()


def test_join_with_an_authority_and_a_user_of_ones_own(federation: Federation, tmp_path: Path) -> None:
    try:
        with running("nginx-tls") as logins:
            login = logins.sites[SITE]
            (tmp_path / "password").write_text(login.password)
            invite = str(federation.aggregator / "invites" / "north.json")
            options = ["--url", login.url, "--user", login.user, "--password-file", str(tmp_path / "password")]
            trusted, not_trusted = (
                CliRunner().invoke(site, ["join", invite, "--work", str(tmp_path / name), *options, *more])
                for name, more in (("a", ["--ca-file", str(login.ca_file)]), ("b", []))
            )
    except AbsentError as error:
        pytest.skip(str(error))
    assert (trusted.exit_code, not_trusted.exit_code) == (0, 1)
    assert any(line.startswith("server: nginx/") and "https, Basic login" in line for line in of_grade("ok", trusted))
    assert "certificate" in of_grade("problem", not_trusted)[0]
