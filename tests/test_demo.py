"""``make demo``, as a process: on synthetic images, and on a folder of images with one sub-folder per site."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from aggregator.new_run import Answers, filled_in
from deploy.local.demo import POLICY, _daemon, main, run_configuration, table_of_sites
from deploy.local.scenarios import SCENARIOS
from deploy.local.synthetic_octa import STYLES, write_site
from shared.audit.cli import main as audit_command
from shared.audit.verify import verify
from shared.exchange.names import NAME_FORM
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.methods import method_names, open_method
from shared.learning.run_checks import check_together
from site_client.overview import overview, overview_text
from tests.drawn import render
from tests.federation.forked import Forked

TASK = "octa_segmentation"
SITES = ("north", "south", "east")


SMALL = ("--rounds", "1", "--image-size", "32")


@pytest.fixture
def demo_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The same in this process, whose libraries are loaded, with forked daemons and a small network for vessels.

    Each image is drawn once.
    """

    def daemon(module: str, *arguments: str, work: Path) -> Forked:
        return Forked([module, *arguments, "--work", str(work)], work / "output.txt")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploy.local.demo._daemon", daemon)
    monkeypatch.setattr("deploy.local.synthetic_octa.render", render)
    small = replace(SCENARIOS[TASK], task_options={"widths": [4, 8]}, augmentation={"crops": None})
    monkeypatch.setitem(SCENARIOS, TASK, small)
    return lambda *options: CliRunner().invoke(main, [*SMALL, *options])


def as_typed(*options: str) -> tuple[int, str, str]:
    """Play the demo with every process started as people start it; return how it ended and what it said."""
    command = [sys.executable, "-m", "deploy.local.demo", *SMALL, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def chosen_in(report: str) -> str:
    """The chosen model, as a report calls it."""
    (line,) = (line for line in report.splitlines() if line.startswith("Chosen: "))
    return line.removeprefix("Chosen: ").partition(" (")[0]


def test_a_daemon_is_a_command_whose_output_is_kept(tmp_path: Path) -> None:
    assert _daemon("site_client.cli", "status", work=tmp_path).wait() == 2
    assert "site.yaml" in (tmp_path / "output.txt").read_text()


@pytest.mark.parametrize("is_typed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_demo_ends_by_itself_and_leaves_what_it_promises(
    is_typed: bool, tmp_path: Path, demo_here: Callable[..., Result]
) -> None:
    (tmp_path / "demo-run" / "old").mkdir(parents=True)
    if is_typed:
        code, said_by_demo, trouble = as_typed("--sites", "2")
    else:
        result = demo_here("--sites", "2")
        code, said_by_demo, trouble = result.exit_code, result.stdout, result.stderr
    assert code == 0, said_by_demo + trouble
    run = tmp_path / "demo-run"
    assert not (run / "old").exists()
    summary = json.loads((run / "summary.json").read_bytes())
    assert set(summary) == {"outcome", "sites", "alone", "final_sha256", "rounds", "seconds"}
    report = (run / "report.md").read_text()
    (outcome,) = (line for line in said_by_demo.splitlines() if line.startswith(summary["outcome"]))
    assert report.splitlines()[2] == f"Outcome: {outcome}."
    audit = CliRunner().invoke(audit_command, ["report", "--json", *map(str, sorted((run / "folders").iterdir()))])
    assert json.loads(audit.stdout)["runs"][0]["came_to"] == outcome
    said = overview_text(overview(run / "sites" / "north"))
    assert f"last run: octa-demo ended with {chosen_in(report)}" in said
    alone = summary["alone"]["north"]
    assert list(summary["alone"]) == ["north"] and set(alone) == {"north", "south"}
    for site, scores in summary["sites"].items():
        row = f"| {site} | {scores['before']:.3f} | {scores['after']:.3f} | {alone[site]:.3f} |"
        assert row in " ".join(report.split())
        (shown,) = (line for line in said_by_demo.splitlines() if line.startswith(f"│ {site} "))
        assert [cell.strip() for cell in shown.split("│")][2:5] == [cell.strip() for cell in row.split("|")][2:5]
    assert "north alone: a model trained in as many rounds (1) on its images only." in said_by_demo
    assert summary["final_sha256"] == hash_file(run / "final" / "model.safetensors")[1]
    assert summary["rounds"] == 1
    assert set(summary["sites"]) == {"north", "south"}
    for site, scores in summary["sites"].items():
        assert set(scores) == {"classes", "test_images", "before", "after", "theta", "weight"}
        assert (scores["test_images"], scores["theta"], scores["weight"]) == (5, None, 0.5)
        assert 0 <= scores["before"] <= 1 and 0 <= scores["after"] <= 1
        assert verify(LocalFolder(run / "folders" / site)).findings == []
    assert "| 1 | north | accepted |" in " ".join(report.split())
    for shown in ("north", "Dice", "demo-run/folders", "demo-run/final/model.safetensors", "dropfed-audit verify"):
        assert shown in said_by_demo


@pytest.mark.long
def test_the_demo_runs_on_a_folder_of_images_and_says_what_serves_as_held_out_set(
    tmp_path: Path, demo_here: Callable[..., Result]
) -> None:
    for number, site in enumerate(("clinic-a", "clinic-b")):
        write_site(tmp_path / "data" / site, style=STYLES[number], images=8, size=40, seed=number)
    result = demo_here("--data", "data")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "demo-run" / "summary.json").read_bytes())
    assert sorted(summary["sites"]) == ["clinic-a", "clinic-b"]
    for scores in summary["sites"].values():  # the demo's policy is that of public images: scores over two may leave
        assert (scores["classes"], scores["test_images"], scores["theta"], scores["weight"]) == (None, 2, None, 0.5)
        assert 0 <= scores["before"] <= 1 and 0 <= scores["after"] <= 1
    assert "validation images of clinic-a serve for the tolerance check" in " ".join(result.stdout.split())


@pytest.mark.parametrize("beside", [("60", "0.248"), ("60", "4", "0.123", "0.248")])
def test_each_site_keeps_to_one_line_of_80_columns(beside: tuple[str, ...]) -> None:
    header = ("site", "before training", "after", "north alone", "chosen model ± 1.96 standard errors", "test images")
    header = (*header, *("grades", "θ", "weight")[-len(beside) + 1 :])
    rows = [(site, "0.466", "0.829", "other classes", "0.774 to 0.885", *beside) for site in ("north", "south")]
    console = Console(width=80, file=io.StringIO())
    console.print(table_of_sites(header, rows, console.width))
    told = console.file.getvalue().splitlines()
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in told if line.startswith("│")] == [
        list(row) for row in rows
    ]


@pytest.mark.long
def test_the_demo_stages_by_feduaa_over_sites_with_scales_of_their_own(
    tmp_path: Path, demo_here: Callable[..., Result]
) -> None:
    result = demo_here("--task", "dr_staging", "--sites", "2")
    assert result.exit_code == 0, result.output
    sites = json.loads((tmp_path / "demo-run" / "summary.json").read_bytes())["sites"]
    assert [scores["classes"] for scores in sites.values()] == [4, 5]
    # A head for 4 grades says nothing of 5.
    assert "| other classes |" in (tmp_path / "demo-run" / "report.md").read_text()
    # After one round at 32 pixels a site's features may not pass the tolerance check; those that do share the mean.
    weights = [scores["weight"] for scores in sites.values() if scores["weight"] is not None]
    assert sum(weights) == pytest.approx(1 if weights else 0)
    for scores in sites.values():
        assert 0 < scores["theta"] <= 1 and 0 <= scores["after"] <= 1
    for shown in ("AUROC", "θ", *(["weight"] if weights else []), "dropfed-site predict"):
        assert shown in result.stdout


@pytest.mark.long
def test_a_run_that_is_aborted_ends_the_demo_too(
    demo_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.local.demo.POLICY", POLICY.model_copy(update={"minimum_training_images": 1000}))
    result = demo_here("--sites", "2")
    assert result.exit_code == 1
    said = r"the run was aborted: only 0 of 2 .*; demo-run/sites/SITE/output.txt tells what each site said\n"
    assert re.fullmatch(said, result.stderr)
    assert any("declined" in path.read_text() for path in Path("demo-run/sites").glob("*/output.txt"))


@pytest.mark.parametrize("method", [name for name in method_names() if not open_method(name, {}).reference])
@pytest.mark.parametrize("task", SCENARIOS)
def test_every_method_can_be_shown(task: str, method: str) -> None:
    check_together(run_configuration(SCENARIOS[task], SITES, 64, method=method, rounds=3, seed=1))


def test_the_demo_takes_what_is_suggested() -> None:
    run = run_configuration(SCENARIOS[TASK].as_suggested(), SITES, 384, method="mean", rounds=20, seed=2021)
    text = filled_in(Answers(run.run, TASK, "mean", list(SITES), 20))
    suggested = parse_yaml(text.encode(), RunConfiguration, "suggested")
    assert run.model_copy(update={"quorum": 2}) == suggested
    result = CliRunner().invoke(main, ["--task", "dr_staging", "--as-suggested"])
    assert (result.exit_code, "dr_staging begins with published weights" in result.stderr) == (2, True)


def test_bad_data_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "Bad Name" / "images").mkdir(parents=True)
    bad = CliRunner().invoke(main, ["--data", "data"])
    assert bad.exit_code == 2
    assert bad.stderr == f"data/Bad Name: is not a name: use {NAME_FORM}\n"
    (tmp_path / "empty").mkdir()
    assert "has no sub-folder with images/" in CliRunner().invoke(main, ["--data", "empty"]).stderr
