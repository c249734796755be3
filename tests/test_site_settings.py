"""What stands in ``site.yaml``: what needs it, what does without, and whom it may name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shared.exchange import names
from shared.folder.lock import work_lock
from site_client.cli import main
from site_client.configuration import note_running, read_configuration
from site_client.store import Decision, decision
from tests import SOME_KEY
from tests.played import RUN, Played


def site(work: Path, *command: str, answer: str | None = None) -> Result:
    result = CliRunner().invoke(main, [*command, "--work", str(work)], input=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def north(run: Played) -> Path:
    """A site that takes part in a run."""
    run.offer_and_consent()
    return run.drop.parent / "north"


def edit(work: Path, key: str, value: str) -> None:
    path = work / "site.yaml"
    text, count = re.subn(rf"^{key}: .*$", f"{key}: {value}", path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


BROKEN = {"a tab": "\tpolicy", "an unknown key": "polcy: {}\n", "nothing": ""}


@pytest.mark.parametrize("settings", BROKEN.values(), ids=BROKEN)
def test_whoever_withdraws_or_decides_needs_no_settings(run: Played, north: Path, settings: str) -> None:
    (north / "site.yaml").write_text(settings)
    assert site(north, "run").exit_code == 2
    assert "asks for nothing" not in site(north, "show", RUN).output
    result = site(north, "withdraw", RUN, "--yes", "--reason", "the images are not ours")
    assert result.exit_code == 0, result.output
    assert decision(north, RUN) == Decision("withdraw", "the images are not ours")
    run.run = "octa-2"
    run.offer()
    assert site(north, "decline", "octa-2").exit_code == 0
    assert site(north, "pause").exit_code == 0


def test_whoever_decides_again_is_told_what_it_replaces(run: Played, north: Path) -> None:
    run.run = "octa-2"
    run.offer()
    assert "instead" not in site(north, "approve", "octa-2").output
    assert "octa-2: no, instead of the yes of before; " in site(north, "decline", "octa-2").output
    asked = site(north, "withdraw", "octa-2", answer="n\n")
    assert "has not agreed yet, so this declines. Decline" in asked.output and asked.exit_code == 1
    assert decision(north, "octa-2") == Decision("no")


def test_a_run_is_asked_for_that_was_not_offered(run: Played, north: Path) -> None:
    none = "none waits for an answer; of one that was launched just now the daemon learns at its next look"
    told = f"no such run was offered to {north}; the runs here are {RUN}; {none}\n"
    assert told in site(north, "show", "other").output
    run.run = "octa-2"
    run.offer()
    assert "; waiting for an answer: octa-2\n" in site(north, "approve", "other").output
    shutil.rmtree(north / "mirror" / "runs")
    result = site(north, "approve", "other")
    assert "nor any other yet; the daemon fetches what is offered: `dropfed-site status" in result.output


@pytest.mark.parametrize(("key", "said"), [("site", "south"), ("federation", "other"), ("aggregator_key", SOME_KEY)])
def test_settings_of_another_site_are_named_and_not_the_mirror(north: Path, key: str, said: str) -> None:
    edit(north, key, f"'{said}'")
    signed = north / "mirror" / names.FEDERATION
    for command in ("check", "run", "status"):
        result = site(north, command)
        assert result.exit_code == 2
        assert f"{north / 'site.yaml'}: {key}: says {said}, and {signed} says that this directory " in result.output
        assert "as it was left" not in result.output
    signed.unlink()
    assert (f"{key}: says {said}, and {north / 'mirror' / names.SITE_CARD} says" in site(north, "check").output) == (
        key != "aggregator_key"
    )


def test_a_key_is_asked_about_only_where_it_can_be_changed(north: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    result = site(tmp_path / "empty", "rotate-key", answer="y\n")
    assert result.exit_code == 2 and "run `dropfed-site join`" in result.output
    assert "Make a new signing key?" not in result.output
    (north / "signing.key").unlink()
    result = site(north, "rotate-key", answer="y\n")
    assert result.exit_code == 1 and "Make a new signing key?" not in result.output


def test_a_machine_that_no_setting_asks_for_does_not_wait(north: Path) -> None:
    result = site(north, "assist", "1", "--for", "1s")
    said = (
        "site.yaml: nodes: 1 has no node 1, for the daemon's machine is number 0: raise it, or leave this machine out\n"
    )
    assert (result.exit_code, result.output) == (2, said)
    assert not (north / "log-1.txt").exists()
    edit(north, "launcher", "torchrun")
    edit(north, "nodes", "2")
    edit(north, "rendezvous", "127.0.0.1:1")
    north.chmod(0o755)
    assert "can be entered by others than its owner" in site(north, "assist", "1", "--for", "1s").output


def test_the_status_shows_what_the_daemon_runs_with(run: Played, north: Path) -> None:
    run.beat()
    note_running(north, read_configuration(north))
    edit(north, "threads", "3")
    assert "limits: 3 threads" in site(north, "status").output
    with work_lock(north):
        said = site(north, "status").output
        assert "limits: 1 thread\n" in said
        changed = f"{north / 'site.yaml'} was changed since the daemon started"
        assert f"settings: {changed}" in said
        assert f"warning  daemon: {changed}" in site(north, "check", "--quick").output
        edit(north, "threads", "many")
        said = site(north, "status").output
        assert "limits: 1 thread\n" in said and "the daemon goes on with what it started with" in said
        edit(north, "threads", "1")
        assert "settings: " not in site(north, "status").output
    assert (north / "running.yaml").stat().st_mode & 0o077 == 0
