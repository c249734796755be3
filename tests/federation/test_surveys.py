"""A survey by real processes over a real server: what is asked, shown, agreed to, sent and reported, before any run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import main as aggregator
from shared.audit.cli import main as audit
from shared.doors.json_text import parse_canonical
from shared.exchange.names import MAX_RECORD_BYTES
from site_client.cli import main as site
from tests.federation.running import POLICY, TASK, Federation

LEAST = 5


def told(command: object, *arguments: str, exits: int = 0) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(command, [*arguments])  # type: ignore[arg-type]
    assert result.exit_code == exits, result.output
    return result.output


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Two sites, of which one answers by its policy and one asks a person, who looks first."""
    root = tmp_path_factory.mktemp("survey")
    statistics = POLICY.model_copy(update={"statistics_minimum_count": LEAST, "statistics": "auto"})
    with Federation(root, policy=statistics, images=30) as federation:
        federation.change(
            federation.site("south") / "site.yaml",
            policy=statistics.model_copy(update={"statistics": "ask"}).model_dump(),
        )
        for name in ("north", "south"):
            federation.start_site(name)
        work = str(federation.aggregator)
        federation.wait_until(
            lambda: all((federation.folder(name) / "site.json").exists() for name in ("north", "south")), "the cards"
        )
        assert "north: asked" in told(aggregator, "survey", TASK, "--work", work)
        federation.wait_until((federation.folder("north") / "sheets/0001.json").exists, "north's sheet")
        draft = federation.site("south") / "surveys/0001.json"
        federation.wait_until(draft.exists, "south's draft")
        shown = told(site, "show", "surveys/0001", "--work", str(federation.site("south")))
        assert draft.read_text() in shown.splitlines()
        assert not (federation.folder("south") / "sheets").exists()
        assert "surveys/0001" in told(site, "status", "--work", str(federation.site("south")))
        assert "has not answered yet" in told(aggregator, "survey", "--report", "--work", work)
        told(site, "approve", "surveys/0001", "--work", str(federation.site("south")))
        sent = federation.folder("south") / "sheets/0001.json"
        federation.wait_until(sent.exists, "south's sheet")
        federation.stop_all()
        assert parse_canonical(sent.read_bytes(), MAX_RECORD_BYTES)["body"] == json.loads(draft.read_text())
        yield federation


def test_the_report_sets_sites_side_by_side_with_proposals(surveyed: Federation) -> None:
    output = told(aggregator, "survey", "--report", "--work", str(surveyed.aggregator))
    assert "| images " in output
    assert "share of vessel" in output
    assert "`method: " in output
    assert "`tolerance: " in output
    assert "too few to test on" in output
    as_json = json.loads(told(aggregator, "survey", "--report", "--json", "--work", str(surveyed.aggregator)))
    assert as_json["sites"]["south"]["answer"]["sheet"]["images"] == "30"


def test_a_folder_with_a_survey_holds(surveyed: Federation) -> None:
    folder = str(surveyed.folder("north"))
    assert "holds" in told(audit, "verify", folder)
    assert "surveys/0001.json" in told(audit, "timeline", folder)
    assert "sheets/0001.json" in told(audit, "sent", "north", folder)
    page = surveyed.root / "page.html"
    told(audit, "report", folder, "--html", str(page))
    assert "<code>sheets/0001.json</code>" in page.read_text()
    assert "sheets/0001.json" in told(site, "sent", "--work", str(surveyed.site("north")))


def test_no_name_of_a_file_leaves(surveyed: Federation) -> None:
    stems = [path.stem for path in (Path(surveyed.data_of("north")) / "images").iterdir()]
    sheet = (surveyed.folder("north") / "sheets/0001.json").read_text()
    assert stems
    assert not any(stem in sheet for stem in stems)
