"""Nobody but its owner enters a work directory: it is made so, and no daemon starts where others may."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import main as aggregator_command
from aggregator.setup import initialise
from shared.exchange.names import AGGREGATOR
from shared.folder.durable import write_file
from site_client.cli import main as site_command
from site_client.setup import join, read_invite

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")


@pytest.fixture
def works(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep").chmod(0o755)
    initialise(tmp_path / "deep" / "aggregator", "retina", {"north": (tmp_path / "drop").as_uri()}, AGGREGATOR)
    invite = read_invite(tmp_path / "deep" / "aggregator" / "invites" / "north.json")
    url = (tmp_path / "drop").as_uri()
    (tmp_path / "drop").mkdir()
    join(tmp_path / "deep" / "north", invite, data={}, url=url, password=None)
    return {"aggregator": tmp_path / "deep" / "aggregator", "north": tmp_path / "deep" / "north"}


def test_it_is_made_for_its_owner_alone_and_what_lies_above_is_left(works: dict[str, Path]) -> None:
    for work in works.values():
        assert stat.S_IMODE(work.stat().st_mode) == 0o700
        assert stat.S_IMODE(work.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777])
def test_no_daemon_starts_where_others_may_enter(works: dict[str, Path], mode: int) -> None:
    run = works["aggregator"] / "RUN.yaml"
    run.write_text("run: r\n")
    for name, command, arguments in (
        ("north", site_command, ["run", "--once"]),
        ("north", site_command, ["rotate-key", "--yes"]),
        ("north", site_command, ["check", "--quick"]),
        ("aggregator", aggregator_command, ["launch", str(run)]),
        ("aggregator", aggregator_command, ["check"]),
    ):
        works[name].chmod(mode)
        result = CliRunner().invoke(command, [*arguments, "--work", str(works[name])])
        assert result.exit_code == 1
        assert f"{works[name]} can be entered by others than its owner: run `chmod 700 {works[name]}`" in result.output


def test_an_open_directory_is_not_made_a_work_directory(works: dict[str, Path], tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    invite = json.loads((works["aggregator"] / "invites" / "north.json").read_bytes())
    write_file(tmp_path / "invite.json", json.dumps(invite).encode())
    write_file(tmp_path / "password", b"p", private=True)
    told = f"{open_to_all} can be entered by others than its owner"
    options = ["--url", (tmp_path / "drop").as_uri(), "--password-file", str(tmp_path / "password")]
    joined = CliRunner().invoke(
        site_command, ["join", str(tmp_path / "invite.json"), "--work", str(open_to_all), *options]
    )
    made = CliRunner().invoke(
        aggregator_command,
        ["init", "--work", str(open_to_all), "--federation", "f", "--site", "a=https://example.org/a"],
    )
    assert told in joined.output and told in made.output
    assert list(open_to_all.iterdir()) == []
