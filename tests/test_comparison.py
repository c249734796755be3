"""``compare``: runs side by side, with an empty cell for whatever was not told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner, Result

from aggregator.cli import main
from aggregator.comparison import comparison_text, summary_of
from aggregator.run_view import Mean, Part, Participant, RunView
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import MetricsRow, write_metrics
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played
from tests.views import row, view_of_rounds

OTHER = "octa-2"


def compare(work: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments, "--work", str(work)])


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that has ended, and one that has only begun, with other settings."""
    played = Played(tmp_path_factory.mktemp("played"))
    work = played.drop.parent / "aggregator"
    store, sharing = RunStore(work, RUN), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    store.begin(run_configuration(run=RUN, sites=["north", "south"], quorum=1), sharing)
    played.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    played.send(
        "round", 1, {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: played.model(0.5)}, "consent"
    )
    rows = [
        MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.25, "dice_error": None}),
        MetricsRow(1, 0, "test", "6", 0.1, 0.5, {"dice_mean": 0.5, "dice_error": 0.05}),
    ]
    played.send("update", 1, {names.METRICS: write_metrics(rows), names.SITE_MODEL: played.model(0.25)}, "round")
    verdict = Verdict(
        run=RUN,
        round=1,
        site="north",
        status="omitted",
        score="0.2",
        tolerance="0.3",
        theta=None,
        weight=None,
        reason="",
    )
    store.close_round(1, {"north": verdict})
    card = FinalCard(
        run=RUN,
        task="octa_segmentation",
        method="mean",
        chosen_round=0,
        score_name="dice_mean",
        validation={"0": "0.25"},
        took_part={"1": [], "2": []},
        reason="best",
    )
    store.write_card(card)
    privacy = {"noise_multiplier": 1.0, "delta": 0.001, "max_grad_norm": 1.0}
    other = run_configuration(run=OTHER, sites=["south"], method="fedprox", quorum=1, privacy=privacy)
    RunStore(work, OTHER).begin(other, sharing)
    return work


def test_for_scripts(work: Path) -> None:
    result = compare(work, RUN, OTHER, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    differing = found["differing"]
    assert set(differing) == {
        "method",
        "sites",
        "privacy",
        "privacy.delta",
        "privacy.max_grad_norm",
        "privacy.noise_multiplier",
        "privacy.target_epsilon",
    }
    assert differing["method"] == {RUN: "mean", OTHER: "fedprox"}
    assert differing["privacy"] == {RUN: None}
    assert differing["privacy.delta"] == {OTHER: 0.001}
    ended, begun = found["runs"][RUN], found["runs"][OTHER]
    assert (ended["state"], ended["score"], ended["aggregate"], ended["rounds"]) == ("ended", "dice_mean", 0, 1)
    assert ended["validation"] == {
        "sites": {"north": 0.25, "south": None},
        "support": {"north": {"images": "10", "interval": None}, "south": None},
        "mean": 0.25,
    }
    assert ended["test"]["sites"] == {"north": 0.5, "south": None}
    assert ended["test"]["support"]["north"] == {"images": "6", "interval": pytest.approx([0.402, 0.598])}
    assert ended["verdicts"] == {"omitted": 1}
    assert ended["bytes"]["up"] > 0 and ended["seconds"] is None
    assert (ended["outcome"], begun["outcome"]) == ("nothing was accepted", None)
    assert begun == {
        "outcome": None,
        "state": "open",
        "rounds": 0,
        "score": "dice_mean",
        "aggregate": None,
        "validation": {"sites": {"south": None}, "support": {"south": None}, "mean": None},
        "test": {"sites": {"south": None}, "support": {"south": None}, "mean": None},
        "verdicts": {},
        "bytes": {"down": None, "up": None},
        "seconds": None,
    }


def test_for_people(work: Path) -> None:
    result = compare(work, RUN, OTHER)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[0] == f"| | {RUN} | {OTHER} |"
    assert lines[2:4] == ["| outcome | nothing was accepted | – |", "| state | ended | open |"]
    for line in (
        "| method | mean | fedprox |",
        "| sites | north, south | south |",
        "| privacy | null | |",
        "| validation, north | 0.250 (10 images) | |",  # which is not in the other run
        "| validation, south | not reported | – |",
        "| validation, mean over sites | 0.250 (1 site) | – |",
        "| test, north | 0.500 (0.402 to 0.598 by ± 1.96 standard errors, 6 images) | |",
        "| omitted | 1 | 0 |",
        "| seconds in rounds | – | – |",
    ):
        assert line in lines, result.output
    widths = {len(line) for line in result.output.splitlines()[:3]}
    assert len(widths) == 1


@pytest.mark.parametrize(("took", "seconds"), [((3600, 60), 3660), ((3600, None), None)])
def test_the_seconds_in_rounds_are_not_known_where_a_clock_was_put_back(
    took: tuple[int, int | None], seconds: int | None
) -> None:
    rounds = [{"north": Part(status="accepted", seconds=each)} for each in took]
    assert summary_of(view_of_rounds([*rounds, {"north": Part()}])).seconds == seconds  # the last one is still open


def ended(run: str, scores: dict[str, float | None], **settings: object) -> RunView:
    """A run whose first model was chosen, with each site's Dice of its validation images."""
    view = view_of_rounds([{site: Part(row(dice_mean=score)) for site, score in scores.items()}], run=run, **settings)
    told = [score for score in scores.values() if score is not None]
    means = {"validation": {"dice_mean": Mean(len(told), fmean(told), None)}, "test": {}}
    card = FinalCard(
        run=run,
        task="octa_segmentation",
        method="mean",
        chosen_round=0,
        score_name="dice_mean",
        validation={},
        took_part={"1": []},
        reason="best",
    )
    rounds = [replace(view.rounds[0], means=means)]
    return replace(
        view, card=card, rounds=rounds, sites={site: Participant(True, None, {}, None, None) for site in scores}
    )


def test_means_over_other_sites_say_whose_they_are_and_the_common_ones_are_compared() -> None:
    three, two = ended("three", {"a": 0.9, "b": 0.5, "c": 0.1}), ended("two", {"a": 0.8, "b": 0.6, "c": None})
    lines = [" ".join(line.split()) for line in comparison_text([three, two]).splitlines()]
    assert "| validation, mean over sites | 0.500 (a, b, c) | 0.700 (a, b) |" in lines
    assert "| validation, mean over a, b | 0.700 | 0.700 |" in lines
    same = comparison_text([two, replace(two, configuration=two.configuration.model_copy(update={"run": "again"}))])
    assert "0.700 (2 sites)" in same and "mean over a" not in same


def test_runs_that_divide_images_otherwise_say_so() -> None:
    first, second = ended("first", {"a": 0.5}), ended("second", {"a": 0.6}, method="fedprox")
    assert "their test images are not the same" not in comparison_text([first, second])
    for settings in ({"seed": 9}, {"split": {"train": 0.8, "validation": 0.1, "test": 0.1}}):
        said = comparison_text([first, second, ended("third", {"a": 0.6}, **settings)])
        assert "their test images are not the same" in said


@pytest.mark.parametrize("runs", [(RUN,), (RUN, RUN), (RUN, "no-such-run")])
def test_what_cannot_be_compared_is_one_sentence(work: Path, runs: tuple[str, ...]) -> None:
    result = compare(work, *runs)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    expected = (
        "there is no run no-such-run here"
        if "no-such-run" in runs
        else "name two runs or more, each once; the runs here are"
    )
    assert expected in result.output
