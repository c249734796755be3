"""What a PI does from nothing to a report, by the commands of the guide, while the daemons run as real processes:
survey, proposal, a run with `baseline: local`, an early end by `stop_after`, and a report that says who gained.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from aggregator.cli import main as aggregator
from shared.audit.cli import main as audit
from shared.folder.durable import write_file
from tests.federation.running import POLICY, TASK, TINY, WAIT_S, Federation, run_configuration

RUN, ROUNDS = "first-run", 6


def told(command: object, *arguments: str) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(command, [*arguments])  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    return result.output


def as_proposed(path: Path, proposals: dict[str, str]) -> None:
    """Edit the run's file as the report of the survey proposes, and ask for an early end and for what each gains."""
    settings = yaml.safe_load(path.read_bytes())
    settings["task_options"] |= {"image_size": int(proposals["task_options: image_size"]), "widths": TINY["widths"]}
    settings |= {
        "tolerance": yaml.safe_load(proposals["tolerance"]),
        "baseline": "local",
        "stop_after": {"rounds": 1, "gain": 0.95},
        "batch_size": 4,
        "augmentation": {"copies": 1},
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
    }
    write_file(path, yaml.safe_dump(settings, sort_keys=False).encode())


def test_from_a_survey_to_a_report_that_says_who_gained(tmp_path: Path) -> None:
    run = run_configuration(run=RUN)
    policy = POLICY.model_copy(update={"statistics": "auto", "statistics_minimum_count": 5})
    with Federation(tmp_path, run, policy=policy) as federation:
        work, path = str(federation.aggregator), federation.aggregator / f"{RUN}.yaml"
        for site in run.sites:
            federation.start_site(site)
        cards = [federation.folder(site) / "site.json" for site in run.sites]
        federation.wait_until(lambda: all(card.exists() for card in cards), "the cards")
        told(aggregator, "survey", TASK, "--work", work)
        sheets = [federation.folder(site) / "sheets/0001.json" for site in run.sites]
        federation.wait_until(lambda: all(sheet.exists() for sheet in sheets), "the sheets")
        survey = json.loads(told(aggregator, "survey", "--report", "--json", "--work", work))
        proposals = {each["setting"]: each["value"] for each in survey["proposals"]}

        asked = ("--task", TASK, "--method", proposals["method"], "--rounds", str(ROUNDS), "--run", RUN)
        told(aggregator, "new-run", *asked, "--defaults", "--work", work)
        as_proposed(path, proposals)
        told(aggregator, "validate", str(path), "--work", work)
        launched = federation.start("aggregator.cli", "launch", str(path), "--accept-any", work=federation.aggregator)
        assert launched.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()

        report = told(aggregator, "report", RUN, "--work", work)
        outcome = report.splitlines()[2]
        assert outcome.startswith("Outcome: ") and "after round 2 of 6" in outcome and "ended by stop_after" in outcome
        assert len(re.findall("ith the federation [0-2] of 2 sites do", report)) == report.count("stop_after:") == 1
        assert "What each hospital gains: " in report
        assert "holds" in told(audit, "verify", *(str(federation.folder(site)) for site in run.sites))
