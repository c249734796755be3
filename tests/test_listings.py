"""Both ends list their runs, say which there are where one is asked for that is not, and what a directory is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aggregator import run_view
from aggregator.cli import main as aggregator_command
from aggregator.listing import list_runs
from aggregator.store import RunStore, take_turn
from shared.exchange.records.tensors import Sharing
from shared.folder.durable import write_file
from shared.moments import moment_text
from site_client.cli import main as site_command
from site_client.final import prune_personal
from site_client.rotation import read_ledger
from site_client.sent import sent
from site_client.store import personal_path
from tests.audit.test_hostile_folder import without_roots_rights
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played, ended_run


def aggregator(work: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(aggregator_command, [*arguments, "--work", str(work)])
    return result.exit_code, result.output


def site(work: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(site_command, [*arguments, "--work", str(work)])
    return result.exit_code, result.output


def test_a_list_of_runs_reads_what_each_site_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_run(tmp_path)
    work, opened = tmp_path / "aggregator", list[Path]()
    for number in range(2, 5):
        later = RunStore(work, f"octa-{number}")
        run = run_configuration(run=later.run, sites=["north"], quorum=1)
        later.begin(run, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    open_ledger = run_view.open_ledger

    def counted(home: Path, **keys: Any) -> Any:
        opened.append(home)
        return open_ledger(home, **keys)

    monkeypatch.setattr(run_view, "open_ledger", counted)
    assert len(list_runs(work)) == 4 and sorted(home.name for home in opened) == ["north", "south"]
    take_turn(work, "octa-4")
    assert len(list_runs(work)) == 4 and len(opened) == 3  # the ended run is as it was
    RunStore(work, "octa-2").write_waited(0, 60)
    assert len(list_runs(work)) == 4 and len(opened) == 3


def test_the_aggregator_lists_its_runs_the_newest_first(tmp_path: Path) -> None:
    ended_run(tmp_path)
    work = tmp_path / "aggregator"
    later = RunStore(work, "octa-2")
    later.begin(
        run_configuration(run="octa-2", sites=["north"], quorum=1, rounds=3),
        Sharing(tensors=TENSORS.tensors, start={}, personal=[]),
    )
    later.ask(1, ("north",), ("north",))
    later.pause()
    code, said = aggregator(work, "runs")
    head, newest, oldest = said.splitlines()
    assert (code, head.split()) == (0, ["run", "launched", "what", "state"])
    assert newest.split()[0] == "octa-2" and newest.endswith("octa_segmentation by mean  paused, round 1 of 3")
    assert oldest.split()[0] == RUN and oldest.endswith(
        "cannot be told whether the model improved: no site reported a "
        "validation dice_mean both before and after training (too few "
        "images?)"
    )
    assert moment_text(list_runs(work)[0].began) in newest
    assert [each["run"] for each in json.loads(aggregator(work, "runs", "--json")[1])] == ["octa-2", RUN]

    (work / "runs" / RUN / "final" / "card.json").write_bytes(b"{}")
    code, said = aggregator(work, "runs")
    assert code == 0 and "octa-2" in said and "card.json" in said

    (later.home / "run.yaml").write_bytes(b"run: [")
    code, said = aggregator(work, "runs")
    assert code == 0 and f"{later.home / 'run.yaml'}: " in said and "the file is damaged" in said and RUN in said

    (later.home / "run.yaml").unlink()
    (later.home / "run.yaml").mkdir()  # no disk reads that
    code, said = aggregator(work, "runs")
    assert code == 0 and "Is a directory" in said and RUN in said


def test_a_site_lists_what_was_offered_to_it(tmp_path: Path) -> None:
    run = Played(tmp_path)
    north = tmp_path / "north"
    assert site(north, "runs") == (0, "no run was offered to this site yet\n")
    run.offer()
    assert (
        site(north, "runs")[1]
        .splitlines()[1]
        .endswith("octa_segmentation by mean  0        offered, and not answered yet")
    )
    ended_run(tmp_path / "ended")
    (listed,) = json.loads(site(tmp_path / "ended" / "north", "runs", "--json")[1])
    assert (listed["run"], listed["answers"], listed["model"]) == (RUN, 2, None)
    assert listed["state"].startswith("ended with the aggregate of round 1")
    code, said = site(north, "show", "octa-9")
    assert code == 2
    assert f"the runs here are {RUN}; waiting for an answer: {RUN}\n" in said


def test_what_stayed_here_of_an_ended_run_goes_except_what_its_model_is_made_with(tmp_path: Path) -> None:
    ended_run(tmp_path)
    north = tmp_path / "north"
    for run, round_no in ((RUN, 1), (RUN, 2), ("open", 1)):
        write_file(personal_path(north, run, round_no), b"head")
    prune_personal(north, read_ledger(north))
    kept = sorted(path.relative_to(north / "personal").as_posix() for path in north.glob("personal/*/*"))
    assert kept == [f"{RUN}/0001.safetensors", "open/0001.safetensors"]


@pytest.mark.parametrize(
    "command", [("status",), ("runs",), ("report", RUN), ("dashboard",), ("launch",), ("rotate-key",)]
)
def test_a_directory_that_is_no_aggregators_is_told(command: tuple[str, ...], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    remedy = "aggregator.yaml is not in it; name that with --work, or run `dropfed-aggregator init`"
    assert aggregator(tmp_path, *command) == (2, f"{tmp_path}: is no aggregator's work directory: {remedy}\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("runs",),
        ("sent",),
        ("show", RUN),
        ("run",),
        ("rotate-key",),
        ("accept-division",),
        ("predict", "."),
        ("evaluate", "."),
    ],
)
def test_a_directory_that_is_no_sites_is_told(command: tuple[str, ...], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    remedy = "site.yaml is not in it; name that with --work, or run `dropfed-site join`"
    assert site(tmp_path, *command) == (2, f"{tmp_path}: is no site's work directory: {remedy}\n")
    assert not [*tmp_path.iterdir()]


def test_a_work_directory_that_only_its_owner_may_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    told = f"{tmp_path}: may not be read by this user: type the command as the user who owns it\n"
    assert aggregator(tmp_path, "status") == site(tmp_path, "status") == (2, told)


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_a_work_directory_below_one_that_is_shut_says_so_too(tmp_path: Path) -> None:
    (work := tmp_path / "private" / "work").mkdir(parents=True)
    assert site(work, "status")[1].startswith(f"{work}: is no site's work directory")  # imported as root
    work.parent.chmod(0)
    try:
        with without_roots_rights():
            told = f"{work}: may not be read by this user: type the command as the user who owns it\n"
            assert site(work, "status") == (2, told)
    finally:
        work.parent.chmod(0o700)


def test_what_left_is_told_while_the_settings_are_broken(tmp_path: Path) -> None:
    ended_run(tmp_path)
    north = tmp_path / "north"
    before = sent(north)
    (north / "site.yaml").write_text("policy: [")
    now = sent(north)
    assert now == before | {"folder": None}
    code, said = site(north, "sent")
    assert code == 0 and "into a folder that site.yaml does not name now: `dropfed-site check` says" in said
    assert site(north, "runs")[0] == 0
