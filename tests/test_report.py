"""The report of a run that goes on, is damaged, or was not told everything: null where nothing is known, never 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from aggregator.cli import main
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.verdicts import Verdict
from shared.exchange.tables import MetricsRow, write_metrics
from shared.learning.cost import ModelCost
from tests.played import RUN, Played

WITHHELD = dict.fromkeys(("status", "reason", "score", "tolerance", "theta", "weight", "epsilon"))


def report(run: Played, *options: str) -> Result:
    return CliRunner().invoke(main, ["report", RUN, "--work", str(run.drop.parent / "aggregator"), *options])


def document(run: Played) -> dict[str, Any]:
    result = report(run, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def answered(run: Played, *rows: MetricsRow) -> None:
    """Round 1 is sent and answered with these rows."""
    run.send("round", 1, {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: run.model(0.5)}, "consent")
    run.send("update", 1, {names.METRICS: write_metrics(list(rows)), names.SITE_MODEL: run.model(0.25)}, "round")


def test_an_unknown_run_is_one_sentence(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"
    result = CliRunner().invoke(main, ["report", "no-such-run", "--work", str(work)])
    assert result.exit_code == 2
    assert result.output == f"{work}: there is no run no-such-run here; the runs here are {RUN}\n"
    nowhere = CliRunner().invoke(main, ["report", RUN, "--work", str(work / "nowhere")])
    assert nowhere.exit_code == 2
    assert nowhere.output.endswith(
        "there is no such work directory; name it with --work, or make it with `dropfed-aggregator init`\n"
    )
    output = work / "nowhere" / "report.md"
    result = CliRunner().invoke(main, ["report", RUN, "--work", str(work), "--output", str(output)])
    assert (result.exit_code, output.parent.exists()) == (2, False)
    assert result.output == f"{output}: there is no folder {output.parent}; make it, or name another file\n"


def test_a_report_takes_the_place_of_nothing_but_a_report(run: Played, store: RunStore, tmp_path: Path) -> None:
    work, page = run.drop.parent / "aggregator", tmp_path / "report.md"
    for _ in range(2):
        assert report(run, "--output", str(page)).exit_code == 0
    for name in ("signing.key", "aggregator.yaml", "invites/north.json"):
        before = (work / name).read_bytes()
        refused = report(run, "--output", str(work / name))
        assert refused.exit_code == 2 and refused.output.endswith("; name another file\n")
        assert (work / name).read_bytes() == before
    assert report(run, "--output", "").output == "--output: is empty; name a file or a folder\n"


def test_a_run_that_nobody_has_answered_yet(run: Played, store: RunStore) -> None:
    found = document(run)
    assert (found["is_over"], found["aborted"], found["chosen"], found["rounds"]) == (False, None, None, [])
    assert found["sites"]["north"] == {"agrees": None, "reason": None, "images": {}, "withdrew": None, "ended": None}
    assert found["cost"]["bytes"] == {"north": {"down": None, "up": None}}  # south is not enrolled
    assert found["cost"]["model"] is None
    assert found["cost"]["why_no_model"] == "aggregator.yaml names no held-out images of octa_segmentation"
    assert report(run).output.startswith(f"# Run {RUN}: octa_segmentation by mean\n")


def test_a_round_that_is_open(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    found = document(run)["rounds"][0]
    unknown = WITHHELD | dict.fromkeys(
        ("validation", "test", "asked", "answered", "settled", "seconds", "seconds_to_answer")
    )
    assert found["sites"] == {"north": unknown | {"bytes": {"down": None, "up": None}}}
    assert found["means"] == {"validation": {}, "test": {}}

    row = MetricsRow(1, 0, "validation", "fewer than 5", 0.1, None, {"dice_mean": None, "loss_kl": None})
    answered(run, row)
    north = document(run)["rounds"][0]["sites"]["north"]
    assert north["validation"] == {"images": "fewer than 5", "loss": None, "scores": dict.fromkeys(row.scores)}
    assert north["test"] is None
    assert {name: north[name] for name in WITHHELD} == WITHHELD
    assert north["asked"] and north["answered"]
    assert (north["settled"], north["seconds"]) == (None, None)
    sent = run.drop / MessageRef("update", RUN, 1).path
    assert north["bytes"]["up"] == sum(path.stat().st_size for path in sent.iterdir())
    means = document(run)["rounds"][0]["means"]["validation"]["dice_mean"]
    assert means == {"sites": 0, "alike": None, "by_images": None}


def test_what_is_told_is_in_the_report(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    rows = [
        MetricsRow(1, 0, split, "10", 0.1, 0.5, {"dice_mean": 0.25, "dice_std": 0.0})
        for split in ("validation", "test")
    ]
    answered(run, *rows, MetricsRow(1, 1, "validation", "10", 0.1, 0.4, {"dice_mean": 0.75, "dice_std": 0.0}))
    verdict = Verdict(
        run=RUN,
        round=1,
        site="north",
        status="omitted",
        score="0.25",
        tolerance="0.3",
        theta="0.5",
        weight=None,
        epsilon="2.5",
        reason="0.25 is not above | 0.3",
    )
    store.close_round(1, {"north": verdict})
    of_round = document(run)["rounds"][0]
    north = of_round["sites"]["north"]
    assert north["validation"] == north["test"] == {"images": "10", "loss": 0.5, "scores": rows[0].scores}
    numbers = {"score": 0.25, "tolerance": 0.3, "theta": 0.5, "weight": None, "epsilon": 2.5}
    assert {name: north[name] for name in WITHHELD} == {"status": "omitted", "reason": verdict.reason} | numbers
    mean = {"sites": 1, "alike": 0.25, "by_images": 0.25}
    assert of_round["means"]["test"]["dice_mean"] == mean
    text = " ".join(report(run).output.split())
    assert "| 0 | 0.250 ± 0.000 | not asked |" in text
    assert r"| 1 | north | omitted | 0.250 | 0.500 | – | 0.25 is not above \| 0.3 |" in text


def test_a_table_that_is_none_is_null(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    run.send("round", 1, {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: run.model(0.5)}, "consent")
    run.send("update", 1, {names.METRICS: b"round,epoch\nNaN,inf\n"}, "round")
    north = document(run)["rounds"][0]["sites"]["north"]
    assert (north["validation"], north["test"]) == (None, None)
    assert north["bytes"]["up"] > 0


def test_it_goes_into_the_file_that_is_named(run: Played, store: RunStore, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = report(run, "--json", "--output", str(file))
    assert (result.exit_code, result.output) == (0, f"wrote {file}\n")
    assert json.loads(file.read_bytes()) == document(run)


def test_every_key_is_described(run: Played, store: RunStore) -> None:
    described = (Path(__file__).resolve().parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    answered(run, MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.25}))
    found = document(run)
    of_round = found["rounds"][0]
    north = of_round["sites"]["north"]
    records = [found, found["sites"]["north"], found["cost"], of_round, north, north["validation"], north["bytes"]]
    records += [of_round["means"]["validation"]["dice_mean"], ModelCost.__annotations__]
    for key in {key for record in records for key in record}:
        assert f"`{key}`" in described, key
