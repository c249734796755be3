"""What is said of a run that is encrypted, without a key: what its manifests tell, and that the rest is not opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shared.audit.cli import main
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.wire import Encrypt
from tests.played import Played

PLAIN, ENCRYPTED = "octa-1", "octa-2"
NEED = f"run {ENCRYPTED} is encrypted: name a key that opens it with --secret-key; the aggregator's opens every folder"


@pytest.fixture(scope="module", params=["weights", "all"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Encrypt]:
    """The same run twice, the second time encrypted."""
    played, encrypt = Played(tmp_path_factory.mktemp(request.param)), request.param
    for run, how in ((PLAIN, "none"), (ENCRYPTED, encrypt)):
        played.run = run
        played.offer_and_consent(encrypt=how)
        played.round(1, trains=True)
        played.finish()
    return played, encrypt


def audit(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert "Traceback" not in result.output
    return result


def report(played: Played, tmp_path: Path, *options: object) -> tuple[str, dict[str, object]]:
    page = tmp_path / "page.html"
    result = audit("report", played.drop, "--html", page, "--json", *options)
    assert result.exit_code == 0
    return " ".join(page.read_text(encoding="utf-8").split()), json.loads(result.stdout)


def secret_key(played: Played) -> Path:
    return played.drop.parent / "aggregator" / "encryption.key"


def test_the_page_says_what_was_not_opened(both: tuple[Played, Encrypt], tmp_path: Path) -> None:
    played, encrypt = both
    page, document = report(played, tmp_path)
    count = document["unopened"]
    assert f"{count} encrypted files were not opened: they are the signed bytes" in page and "--secret-key" in page
    assert "No finding in what was opened" in page
    assert "Every signature, hash, chain and name holds" in page and "name and content holds" not in page
    of_run = page[page.index(f"Run {ENCRYPTED}</h2>") :]
    assert "no verdict yet" not in of_run and "no answer" not in of_run and "No final model was sent" not in of_run
    unknown = {"all": 5, "weights": 1}[encrypt]  # the offer, the answer, the verdict, the choice, the final model
    assert of_run.count("encrypted, not opened") == unknown


def test_with_a_key_the_page_says_all(both: tuple[Played, Encrypt], tmp_path: Path) -> None:
    played, _ = both
    page, document = report(played, tmp_path, "--secret-key", secret_key(played))
    assert document["unopened"] == 0 and "not opened" not in page and "name and content holds" in page
    assert document["runs"][0]["outcome"] == document["runs"][1]["outcome"]


def test_runs_are_compared_by_what_they_say(both: tuple[Played, Encrypt]) -> None:
    played, encrypt = both
    for folders in ((played.drop, "--secret-key", secret_key(played)), (played.drop.parent / "aggregator",)):
        found = json.loads(audit("diff", PLAIN, ENCRYPTED, *folders, "--json").stdout)
        assert found == {"configuration.encrypt": ["none", encrypt]}
    for first in (PLAIN, ENCRYPTED):
        result = audit("diff", first, ENCRYPTED, played.drop)
        if encrypt == "all":
            assert isinstance(result.exception, SystemExit) and result.exit_code == 2
            assert NEED in " ".join(result.output.split())
        else:
            assert "outcome.final model.north: " in result.output
            assert f"encrypted, not opened in {ENCRYPTED}" in result.output


def test_a_round_is_shown_with_what_was_not_opened(both: tuple[Played, Encrypt]) -> None:
    played, encrypt = both
    result = audit("show", f"{ENCRYPTED}/1", played.drop)
    assert result.exit_code == 0 and "does not hold" not in result.output and "verdict: none" not in result.output
    hidden = [
        f"{MessageRef('update', ENCRYPTED, 1).path}/{names.METRICS}",
        f"{MessageRef('round', ENCRYPTED, 1).path}/{names.ROUND_CONFIGURATION}",
        f"{MessageRef('verdict', ENCRYPTED, 1).path}/{names.VERDICT}",
    ]
    told = f"  encrypted, not opened: {', '.join(hidden)}; name a key that opens them with --secret-key\n"
    assert (told in result.output) == (encrypt == "all")


def test_the_timeline_says_of_what_it_does_not_know_the_outcome(both: tuple[Played, Encrypt]) -> None:
    played, encrypt = both
    events = json.loads(audit("timeline", played.drop, "--json").stdout)
    outcomes = {event["kind"]: event["outcome"] for event in events if event["run"] == ENCRYPTED}
    hidden = {kind for kind, outcome in outcomes.items() if outcome == "encrypted, not opened"}
    assert hidden == ({"consent", "update", "verdict", "final"} if encrypt == "all" else set())
