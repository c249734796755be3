"""``dropfed-site check`` and ``dropfed-aggregator check``: what they say, and that they leave nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator
from shared.errors import ActionRequiredError
from shared.exchange.names import README
from shared.exchange.reading import dump_yaml
from shared.exchange.records.messages import Federation as Enrolment
from shared.exchange.records.values import now_text
from shared.exchange.records.wire import FileEntry
from shared.exchange.signing import SigningKey
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.learning.tasks import task_names
from site_client.cli import main as site
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from tests import SOME_KEY
from tests.federation.running import Federation, run_configuration
from tests.folder.faulty import FaultyServer
from tests.folder.installed import AbsentError
from tests.folder.logins import SITE
from tests.folder.servers import running
from tests.learning.small_sites import SIGNALS, write_small

ALL_OF_A_SERVER = [
    "server",
    "create",
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
    "DELETE",
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
        f"{name}: the site has not joined yet: its card is not in the folder" for name in ("north", "south")
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
    told = json.loads(CliRunner().invoke(aggregator, ["check", "--work", str(work), "--json"]).output)
    assert told["problems"] == len(of_grade("problem", result))
    assert {"grade": "problem", "text": password} in told["findings"]
    assert "north: " in password and "refuses user 'aggregator' or the password" in password
    assert "south: " in invite and "south.json is missing" in invite
    assert images and all(line.startswith("octa_segmentation: ") for line in images)


def test_held_out_recordings_are_read_as_the_newest_run_reads_them(
    federation: Federation, work: Path, tmp_path: Path
) -> None:
    write_small("time_series", tmp_path / "heldout", images=6, size=96)
    federation.change(work / "aggregator.yaml", heldout={"time_series": str(tmp_path / "heldout")})
    assert of_grade("problem", check(aggregator, work)) == []
    for number, (task, window) in enumerate((("time_series", 64), ("time_series", 97), ("spectrograms", 64))):
        options = SIGNALS[task] | ({"window": window} if task == "time_series" else {})
        run = run_configuration(run=f"run-{number}", task=task, task_options=options, augmentation={})
        write_file(work / "runs" / run.run / "run.yaml", dump_yaml(run))
    problems = of_grade("problem", check(aggregator, work))
    assert problems and all(text.startswith("time_series, as run run-1 reads it: ") for text in problems)


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
    assert len(problems) == 2
    assert problems[0].startswith(f"{work / 'signing.key'} is missing: put this very key back")
    assert "was written for retina/south: this folder is another federation's" in problems[1]
    assert not (work / "signing.key").exists()


def test_the_aggregator_is_told_that_its_invites_are_of_another_federation(federation: Federation, work: Path) -> None:
    federation.change(work / "aggregator.yaml", federation="other")
    result = check(aggregator, work)
    assert result.exit_code == 1
    assert of_grade("problem", result) == [
        f"{name}: its invite is for retina/{name}, aggregator.yaml says other/{name}; correct aggregator.yaml"
        for name in ("north", "south")
    ]


@pytest.fixture
def north(federation: Federation, tmp_path: Path) -> Iterator[Path]:
    """A copy of north's work directory, to spoil; its folder is emptied afterwards."""
    shutil.copytree(federation.site("north"), tmp_path / "north")
    yield tmp_path / "north"
    for path in federation.folder("north").iterdir():
        path.unlink()


def enrol(federation: Federation, work: Path) -> None:
    """Put into north's folder what its daemon and the aggregator's put there."""
    folder = federation.folder("north")
    shutil.copyfile(work / "mirror" / "site.json", folder / "site.json")
    key = SigningKey.at(federation.aggregator / "signing.key")
    record = Enrolment(
        federation="retina",
        site="north",
        aggregator_key=key.public,
        site_key=SigningKey.at(work / "signing.key").public,
        created=now_text(),
        files={README: FileEntry(size=0, sha256="0" * 64)},
    )
    (folder / "federation.json").write_bytes(key.sign(record.model_dump()))


def daemon(federation: Federation, work: Path) -> Daemon:
    folder, stop = LocalFolder(federation.folder("north")), threading.Event()
    return Daemon(work, read_configuration(work), folder, stop=stop, give_up_after_s=0)


@pytest.mark.parametrize("is_enrolled", [False, True])
@pytest.mark.parametrize("content", [None, "", "0" * 64])
def test_a_site_is_told_that_its_key_is_not_the_right_one(
    federation: Federation, north: Path, content: str | None, is_enrolled: bool
) -> None:
    if is_enrolled:
        enrol(federation, north)
        assert of_grade("problem", check(site, north)) == []
    key = north / "signing.key"
    key.unlink()
    if content is not None:
        key.write_text(content)
        key.chmod(0o600)
    result = check(site, north)
    assert result.exit_code == 1
    (problem,) = of_grade("problem", result)
    assert problem.startswith(f"{key} ") and ("put this very key back" in problem or "put the right" in problem)
    if content is None:
        with pytest.raises(ActionRequiredError, match="is missing: put this very key back"):
            daemon(federation, north)
    assert key.exists() == (content is not None)  # neither makes one


def test_nothing_is_asked_for_that_no_listing_has_shown(
    federation: Federation, tmp_path: Path, faulty: FaultyServer
) -> None:
    """On ownCloud such a question locks the name."""
    faulty.folders.add("north")
    write_file(tmp_path / "password", b"secret", private=True)
    invite, work = federation.aggregator / "invites" / "north.json", tmp_path / "joined"
    options = ["--url", f"{faulty.url}/north", "--user", "north", "--password-file", str(tmp_path / "password")]
    joined = CliRunner().invoke(site, ["join", str(invite), "--work", str(work), *options])
    assert joined.exit_code == 0, joined.output
    faulty.files["north/site.json"] = (work / "mirror" / "site.json").read_bytes()
    assert of_grade("ok", check(site, work))
    (work / "mirror" / "site.json").unlink()  # as after a restore
    assert of_grade("ok", check(site, work))
    asked_for = {request for request in faulty.requests if request.endswith(".json")}
    assert asked_for == {"GET north/site.json"}


def test_a_site_that_joined_anew_is_told_that_its_folder_knows_another_key(
    federation: Federation, north: Path, tmp_path: Path
) -> None:
    enrol(federation, north)
    card = federation.folder("north") / "site.json"
    earlier = json.loads(card.read_bytes())["body"] | {"created": "2026-01-01T00:00:00Z"}
    card.write_bytes(SigningKey.at(north / "signing.key").sign(earlier))
    write_file(tmp_path / "password", (north / "password").read_bytes(), private=True)
    invite, password = federation.aggregator / "invites" / "north.json", tmp_path / "password"
    options = ["--url", f"http://127.0.0.1:{federation.port}/north", "--password-file", str(password)]
    work = tmp_path / "anew"
    arguments = ["join", str(invite), "--work", str(work), *options]
    result = CliRunner().invoke(site, arguments)
    assert result.exit_code == 1
    assert "site north of retina takes part already, from another work directory" in result.output
    assert not work.exists(), "nothing is written or pinned"

    spoilt = tmp_path / "invite.json"
    spoilt.write_text(json.dumps(json.loads(invite.read_bytes()) | {"aggregator_key": SOME_KEY}))
    result = CliRunner().invoke(site, [arguments[0], str(spoilt), *arguments[2:]])
    assert result.exit_code == 1
    assert "federation.json: is signed by another key than the aggregator's: do not go on, and tell" in result.output
    assert not work.exists()

    for key, problem in (
        (None, "signing.key is not the key that site.json in the folder shows: if this site takes part"),
        (north / "signing.key", "differs from the card in the folder, although the key is the same: delete it"),
    ):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        if key is None:
            SigningKey.made_at(work / "signing.key")
        else:
            shutil.copy(key, work)
        result = CliRunner().invoke(site, arguments)
        assert result.exit_code == 1
        assert [problem in line for line in of_grade("problem", result)] == [True], result.output
        with pytest.raises(ActionRequiredError, match=f"`dropfed-site check --work {work}` compares the two"):
            daemon(federation, work).run(once=True)
    (work / "mirror" / "site.json").unlink()
    assert check(site, work).exit_code == 0
    daemon(federation, work).run(once=True)
    assert (work / "mirror" / "site.json").read_bytes() == card.read_bytes()
    assert (work / "mirror" / "federation.json").exists()


def test_two_machines_that_joined_with_one_invite_before_either_started_go_on_with_one(
    federation: Federation, north: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "password", (north / "password").read_bytes(), private=True)
    arguments = ["join", str(federation.aggregator / "invites" / "north.json"), "--work", str(tmp_path / "second")]
    arguments += ["--url", f"http://127.0.0.1:{federation.port}/north", "--password-file", str(tmp_path / "password")]
    assert "this is now site north of retina" in CliRunner().invoke(site, arguments).output
    daemon(federation, north).run(once=True)
    told = CliRunner().invoke(site, ["check", "--quick", "--work", str(tmp_path / "second")])
    (problem,) = of_grade("problem", told)
    assert (
        "if this site takes part from another work directory, go on in that one, delete this one, and never" in problem
    )


@pytest.mark.parametrize("change", [{"federation": "other"}, {"site": "south"}])
def test_a_site_believes_no_federation_that_was_written_for_another(
    federation: Federation, north: Path, change: dict[str, str]
) -> None:
    enrol(federation, north)
    path, key = federation.folder("north") / "federation.json", SigningKey.at(federation.aggregator / "signing.key")
    path.write_bytes(key.sign(json.loads(path.read_bytes())["body"] | change))
    with pytest.raises(ActionRequiredError, match=r"federation\.json was written for (other/north|retina/south)"):
        daemon(federation, north).run(once=True)
    assert not (north / "mirror" / "federation.json").exists()


@pytest.mark.parametrize("change", [{"federation": "other"}, {"site": "south"}])
@pytest.mark.parametrize("where", ["here", "in the folder", "enrolled"])
def test_a_site_is_told_that_it_is_another(
    federation: Federation, north: Path, change: dict[str, str], where: str
) -> None:
    if where != "here":
        enrol(federation, north)
        (north / "mirror" / "site.json").unlink()
    if where == "enrolled":
        (federation.folder("north") / "site.json").unlink()
    federation.change(north / "site.yaml", **change)
    result = check(site, north)
    if where == "here":
        key, said = next(iter(change.items()))
        assert result.exit_code == 2
        assert f"{north / 'site.yaml'}: {key}: says {said}, and {north / 'mirror' / 'site.json'} says" in result.output
        return
    assert result.exit_code == 1
    if where == "in the folder":
        with pytest.raises(ActionRequiredError, match="in the folder was written for retina/north, site"):
            daemon(federation, north).run(once=True)
    (problem,) = of_grade("problem", result)
    assert "was written for retina/north, site.yaml is for " in problem


def test_a_task_that_there_is_not(federation: Federation, north: Path, work: Path) -> None:
    federation.change(north / "site.yaml", data={"octa": "data"})
    federation.change(work / "aggregator.yaml", heldout={"octa": "data"})
    for command, home, setting in ((site, north, "site.yaml: data"), (aggregator, work, "aggregator.yaml: heldout")):
        result = check(command, home)
        assert result.exit_code == 1
        assert of_grade("problem", result) == [
            f"{setting}: there is no task octa; the tasks are {', '.join(task_names())}"
        ]


def test_an_invite_that_was_spoilt_by_hand(work: Path) -> None:
    invite = work / "invites" / "north.json"
    invite.write_text(invite.read_text().replace('"north"', '"North"', 1))
    (problem,) = of_grade("problem", check(aggregator, work))
    assert problem.startswith(f"north: {invite}: site: must be lower-case letters")


def test_a_password_file_that_is_a_folder_is_told_with_its_site(federation: Federation, work: Path) -> None:
    (work / "passwords" / "north").unlink()
    (work / "passwords" / "north").mkdir(mode=0o700)
    result = check(aggregator, work)
    assert result.exit_code == 1
    assert of_grade("problem", result) == [
        f"north: {work / 'passwords' / 'north'} is not a file: correct the path",
    ]


def test_a_device_that_is_not_there(federation: Federation, north: Path) -> None:
    federation.change(north / "site.yaml", device="cuda:99")
    result = check(site, north)
    assert result.exit_code == 1
    assert of_grade("problem", result) == [
        "device: cuda:99 is not on this machine; set `device: cpu`, or mend the driver"
    ]


def test_join_with_an_authority_and_a_user_of_ones_own(federation: Federation, tmp_path: Path) -> None:
    try:
        with running("nginx-tls") as logins:
            login = logins.sites[SITE]
            write_file(tmp_path / "password", login.password.encode(), private=True)
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
