"""Cells of a study: the daemons play a federated one over drop folders, to the same figures as its rounds without."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from aggregator.cli import main as aggregator_command
from shared.audit.cli import main as audit_command
from shared.audit.verify import lines, verify
from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.folder.lock import LOCK
from shared.learning.new_runs import as_of_now
from studies import daemons
from studies.cell import ELAPSED, Elapsed, play
from studies.configuration import read_study
from studies.daemons import FOLDERS, run_exchange
from studies.matrix import Cell, expand
from studies.results import CONFIGURATION, RESULT
from studies.simulation import run_rounds
from tests.at_length import shown_by
from tests.audit.replaying import not_same, replayed
from tests.federation.forked import Forked
from tests.federation.in_turns import as_before
from tests.federation.running import RUN, make_data, run_configuration, staging_run
from tests.learning.small_sites import write_small

SITES = ("north", "south")
RUNS = {
    "mean": run_configuration(rounds=2, keep="last 1", tolerance=None),
    "not scored in round 2": run_configuration(rounds=2, score_every=2, tolerance=None),
    "scaffold, rounded and encrypted": run_configuration(
        rounds=2,
        method="scaffold",
        wire={"numbers": "bfloat16", "compression": "zstd", "difference": True},
        encrypt="weights",
        tolerance=None,
    ),
    "sequential": run_configuration(rounds=3, method="sequential", quorum=1, tolerance=None),
    "feduaa, as many images": staging_run(tolerance=None, split={"train_images": 7}),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A cell has a process of its own, with a log and a number of threads of its own."""
    with as_before():
        yield


def data_of(run: RunConfiguration, root: Path) -> dict[str, Path]:
    make_data(run, root, 20)
    return {site: root / site for site in run.sites}


def folder_of(home: Path, site: str) -> LocalFolder:
    return LocalFolder(home / FOLDERS / site)


@pytest.mark.parametrize("case", shown_by(["scaffold, rounded and encrypted", "feduaa, as many images"], RUNS))
def test_over_folders_a_run_comes_to_the_same_as_without(case: str, tmp_path: Path) -> None:
    run = as_of_now(RUNS[case])  # as `launch` has it
    data, home = data_of(run, tmp_path / "data"), tmp_path / "home"
    found = run_exchange(run, data, home)
    rounds = run_rounds(run, data, tmp_path / "rounds")
    assert (found.chosen, found.rows, found.thetas, found.weights, found.spent) == (
        rounds.chosen,
        rounds.rows,
        rounds.thetas,
        rounds.weights,
        rounds.spent,
    )
    assert found.tests == rounds.tests
    for site in run.sites:
        here, there = (outcome.finals[site] for outcome in (found, rounds))
        assert [sample.id for sample in here.dataset.train] == [sample.id for sample in there.dataset.train]
        state = there.network().state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in here.network().state_dict().items())
        assert list(lines(verify(folder_of(home, site)))) == []
    assert "score" not in {step.what.partition(" ")[0] for step in replayed(home / "aggregator", RUN)}
    if run.keep == "all":
        assert not_same(replayed(home / "aggregator", RUN, secret_key=home / "aggregator" / "encryption.key")) == []


def test_its_bytes_lay_in_the_folders_and_reports_tell_that_no_model_was_scored(tmp_path: Path) -> None:
    run = RUNS["mean"].model_copy(update={"rounds": 1, "keep": "all"})
    home = tmp_path / "home"
    found = run_exchange(run, data_of(run, tmp_path / "data"), home)
    moved: dict[names.Kind, int] = {"round": found.received_bytes, "update": found.sent_bytes}
    for kind, told in moved.items():
        ref = MessageRef(kind, RUN, 1).path
        sizes = [sum(path.stat().st_size for path in (home / FOLDERS / site / ref).iterdir()) for site in run.sites]
        assert told == round(sum(sizes) / len(sizes)) > 0
    aggregator = ["report", RUN, "--work", str(home / "aggregator"), "--pages", str(tmp_path / "pages")]
    assert CliRunner().invoke(aggregator_command, aggregator).exit_code == 0
    assert "Not drawn: models are not scored in this run." in (tmp_path / "pages" / "report.html").read_text()
    auditor = ["report", "--html", str(tmp_path / "audit.html"), str(home / FOLDERS)]
    assert CliRunner().invoke(audit_command, auditor).exit_code == 0
    assert "counts whatever it answers" in (tmp_path / "audit.html").read_text()


def test_with_held_out_images_models_are_scored_and_left_out(tmp_path: Path) -> None:
    run = run_configuration(tolerance=0.999)
    data = data_of(run, tmp_path / "data")
    found = run_exchange(run, data, tmp_path / "home", heldout=tmp_path / "data" / "heldout")
    assert found.weights == {1: dict.fromkeys(run.sites, 0.0)}
    verdict = json.loads(
        (folder_of(tmp_path / "home", "north").root / f"runs/{RUN}/rounds/0001/verdict/verdict.json").read_bytes()
    )
    assert verdict["status"] == "omitted"
    assert 0 < float(verdict["score"]) <= 0.999


def test_a_site_that_does_not_take_part_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than that a cell is of fewer sites than the others."""
    monkeypatch.setattr(daemons, "POLICY", daemons.POLICY.model_copy(update={"max_epochs": 1}))
    run = run_configuration(epochs=2, tolerance=None)
    with pytest.raises(ActionRequiredError, match=r"^(north|south) does not take part: 2 epochs per round"):
        run_exchange(run, data_of(run, tmp_path / "data"), tmp_path / "home")


# --- in a process of its own ----------------------------------------------------------------------------------------


def written(root: Path, **changes: object) -> Cell:
    """A cell of a fold of a small cross-validation, in its folder."""
    for number, site in enumerate(SITES):
        write_small("rdr_classification", root / site, images=15, size=32, seed=number, site=number)
    study = {
        "study": "folds",
        "task": "rdr_classification",
        "data": {site: site for site in SITES},
        "run": {
            "rounds": 3,
            "batch_size": 8,
            "task_options": {"encoder": "plain", "weights": "random", "hidden": [8], "image_size": 32},
        },
        "arms": {"federated": {"method": "mean"}},
        "folds": {"outer": 3, "inner": 2},
        "keep_folders": True,
    }
    path = root / "study.yaml"
    path.write_text(yaml.safe_dump(study | changes))
    cell = expand(read_study(path), root)[3]
    settings = cell.configuration.model_dump(mode="json")
    write_file(root / "cell" / CONFIGURATION, json.dumps(settings).encode())
    return cell


def test_a_cell_that_goes_on_tells_the_seconds_until_it_was_cut_off_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    home, long_before = tmp_path / "cell", 1000.0
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        keep = Elapsed.keep

        def cut_off(elapsed: Elapsed) -> None:
            keep(elapsed)
            raise KeyboardInterrupt

        patched.setattr(Elapsed, "keep", cut_off)
        play(home)
    assert 0 < float((home / ELAPSED).read_text()) < long_before
    (home / ELAPSED).write_text(str(long_before))
    play(home)
    assert json.loads((home / RESULT).read_bytes())["cost"]["seconds"] > long_before
    assert not (home / ELAPSED).exists()


@pytest.mark.long
def test_a_killed_cell_goes_on_and_every_round_is_of_its_fold(tmp_path: Path) -> None:
    cell, home = written(tmp_path), tmp_path / "cell"
    run = cell.configuration.run
    command, log = ["studies.cell", str(home)], tmp_path / "log.txt"
    first = Forked(command, log)
    second_round = home / "aggregator" / "runs" / run.run / "rounds" / "0002" / "opened.json"
    deadline = time.monotonic() + 240
    while not second_round.exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first.kill()
    first.wait()
    assert second_round.exists() and not (home / RESULT).exists()

    assert Forked(command, log).wait() == 0, log.read_text()
    result = json.loads((home / RESULT).read_bytes())
    assert sorted(path.name for path in home.iterdir()) == sorted([CONFIGURATION, FOLDERS, LOCK, "predictions", RESULT])
    configurations = {}
    for site in SITES:
        folder = folder_of(home, site)
        assert list(lines(verify(folder))) == []
        for path in folder.root.glob(f"runs/*/rounds/*/to_site/{names.ROUND_CONFIGURATION}"):
            configurations[site, path.parent.parent.name] = parse_yaml(path.read_bytes(), RoundConfiguration, str(path))
        (offer,) = folder.root.glob(f"runs/*/offer/{names.RUN_CONFIGURATION}")
        asked = parse_yaml(offer.read_bytes(), RunConfiguration, str(offer))
        assert asked.split["folds"] == {"count": 3, "outer": 1, "inner": 1}
    assert len(configurations) == len(SITES) * (run.rounds + 1)
    outcome = run_rounds(run, {site: tmp_path / site for site in SITES}, tmp_path / "rounds")
    tested = {(row["model_of"], row["tested_on"]): row["scores"] for row in result["rows"] if row["split"] == "test"}
    for site in SITES:
        assert tested[site, site] == {name: score.value for name, score in outcome.tests[site].scores.items()}
    weights = {int(round_no): of_round for round_no, of_round in result["weights"].items()}
    assert weights == outcome.weights
