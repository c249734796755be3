"""What a study's tables and page say, against numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from aggregator.report.tables import Partly, Spread, Table
from benchmarks.studies import _markdown
from shared.errors import ConfigurationError, DataError
from studies import analysis, voting
from studies.configuration import POOLED, Energy, StudyConfiguration
from studies.matrix import Cell, expand
from studies.pages import write_study_pages
from studies.results import folder_of
from studies.table import as_table, read_results, write_table
from studies.weighing import weighing
from tests.browser import chromium

HOSTILE = "=1+1 <script>alert(1)</script><img src=//a.example>"


def row(
    arm: str, model_of: str, tested_on: str, *, split: str = "test", images: int = 10, **given: Any
) -> dict[str, Any]:
    """A row as ``as_table`` takes it; what is not one of its columns is a score."""
    fixed = {"seed": 0, "outer": None, "inner": None, "configuration": arm, "loss": 0.5, "chosen_round": 1, "rounds": 2}
    cost = {"answers": 0, "bytes_to_site": 0, "bytes_from_site": 0, "parameters": 7, "flops": 0, "seconds": 0.0}
    columns = {key: given.pop(key) for key in (*fixed, *cost) if key in given}
    pair = {"arm": arm, "model_of": model_of, "tested_on": tested_on, "split": split, "images": images}
    return {**fixed, **cost, **pair, **columns, "scores": given}


def body(table: Table) -> dict[Any, list[Any]]:
    """By the first column of each row, or by the first two where the second says internal or external."""
    kinds = {"internal", "external"}
    return {
        (line[0], line[1]) if line[1] in kinds else line[0]: list(line[2:] if line[1] in kinds else line[1:])
        for line in table.rows
    }


# --- means -----------------------------------------------------------------------------------------------------


def test_of_a_seed_that_lacks_a_site_that_was_left_out_the_table_says_so() -> None:
    rows = [
        row("a", model_of, tested_on, seed=seed, auroc=0.5)
        for seed, left_out in ((0, "nsw"), (1, "ns"))
        for tested_on in left_out
        for model_of in "nsw"
        if model_of != tested_on
    ]
    (line,) = analysis.comparison(as_table(rows), ["auroc"]).rows
    assert line == ["a", "external", Partly(Spread(0.5, 0.0), 10, 12)]


def test_a_mean_over_sites_has_its_spread_over_seeds() -> None:
    rows = [
        row("a", site, site, seed=seed, auroc=value)
        for seed, values in enumerate([(0.6, 0.8), (0.8, 1.0), (0.5, None)])
        for site, value in zip(("n", "s"), values, strict=True)
    ]
    rows += [row("a", "n", "s", auroc=0.1), row("a", "s", "n", auroc=0.3), row("b", POOLED, "n", auroc=None)]
    found = body(analysis.comparison(as_table(rows), ["auroc"]))
    (internal,) = found["a", "internal"]
    assert (internal.values, internal.of) == (5, 6)  # one is undefined
    assert internal.number.mean == pytest.approx((0.7 + 0.9 + 0.5) / 3)
    assert internal.number.std == pytest.approx(0.2)  # of 0.7, 0.9 and 0.5, with n - 1 below
    assert found["a", "external"] == [pytest.approx(0.2)]  # one seed has no spread
    assert found["b", "internal"] == [None]
    assert body(analysis.by_site(as_table(rows), "auroc"))["a", "external"] == [pytest.approx(0.3), pytest.approx(0.1)]


def test_larger_sites_count_more_with_eta() -> None:
    rows = [row("a", "n", "n", images=10, auroc=0.5), row("a", "s", "s", images=1000, auroc=1.0)]
    found = body(analysis.fairness(as_table(rows), "auroc"))["a"]
    assert found[0] == pytest.approx(0.75)
    weights = 1.5 ** math.log(10), 1.5 ** math.log(1000)
    assert found[1] == pytest.approx((0.5 * weights[0] + weights[1]) / sum(weights))
    assert found[-1] == pytest.approx((0.5 * 10 + 1000) / 1010)


def test_noise_is_tabled_by_its_variance_beside_none() -> None:
    scores = {"test": 0.9, "noise-0.001": 0.8, "noise-0.01": 0.7, "noise-1e-05": 0.85}
    rows = [row("a", "n", "n", split=split, auroc=value) for split, value in scores.items()]
    rows.append(row("b", "n", "n", auroc=0.6))
    table = analysis.noise(as_table(rows), "auroc")
    assert table.header == ("arm", "0", "1e-05", "0.001", "0.01")
    assert body(table) == {"a": [0.9, 0.85, 0.8, 0.7], "b": [0.6, None, None, None]}


def test_images_from_elsewhere() -> None:
    rows = [
        row("a", "n", "n", auroc=0.9),
        row("a", "n", "s", ood_auroc=0.7),
        row("a", "s", "n", ood_auroc=0.9),
        row("a", "n", "out_of_distribution", split="out_of_distribution", ood_auroc=0.6),
        row("b", POOLED, "n", auroc=0.9),
        row("b", POOLED, "out_of_distribution", split="out_of_distribution", ood_auroc=None),
    ]
    assert body(analysis.elsewhere(as_table(rows))) == {"a": [pytest.approx(0.8), 0.6], "b": [None, None]}
    assert "one of the scans from elsewhere" in analysis.elsewhere(as_table(rows), "scans").caption
    # One model says of s against n the reverse of what it says of n against s: 0.5, whatever it says.
    rows = [row("a", "n", "s", ood_auroc=0.7), row("a", "s", "n", ood_auroc=0.3)]
    assert [cell.why for cell in body(analysis.elsewhere(as_table(rows)))["a"][:1]] == ["one model"]


def test_the_estimate_of_energy_is_its_formula() -> None:
    cost = {"answers": 6, "bytes_to_site": 3_000_000, "bytes_from_site": 2_000_000, "flops": 4e9, "rounds": 3}
    rows = [row("a", "n", site, seed=seed, configuration=str(seed), seconds=seconds, **cost)
            for seed, seconds in enumerate([100.0, 300.0]) for site in ("n", "s")]  # fmt: skip
    table = analysis.cost(as_table(rows), Energy(watts=90.0, joules_per_megabyte=60.0))
    computing, moving = 200 * 90 / 3600, (3 + 2) * 6 * 60 / 3600
    assert body(table) == {"a": [7, 4.0, 2.0, 3.0, 200.0, pytest.approx(computing), pytest.approx(moving)]}
    assert "estimate, not measured" in table.caption


def test_energy_is_the_mean_of_the_cells_where_one_ends_before_another() -> None:
    cells = [(2, 2_000_000, 100.0), (10, 4_000_000, 300.0)]
    rows = [row("a", "n", "n", seed=seed, configuration=str(seed), answers=answers, bytes_to_site=down, seconds=seconds)
            for seed, (answers, down, seconds) in enumerate(cells)]  # fmt: skip
    table = analysis.cost(as_table(rows), Energy(watts=90.0, joules_per_megabyte=60.0))
    computing, moving = 200 * 90 / 3600, (2 * 2 + 4 * 10) * 60 / 2 / 3600
    assert body(table)["a"][-2:] == [pytest.approx(computing), pytest.approx(moving)]


@pytest.mark.parametrize(("study", "watts"), [({}, 100), ({"energy": {"watts": 30}}, 30)])
def test_what_is_recorded_of_a_study_says_that_its_energy_is_not_measured(study: dict[str, object], watts: int) -> None:
    table = {"cost": [["arm", "Wh of computing", "Wh of moving"], ["mean", "1.5", "0.25"]]}
    page = _markdown("study-octa", "command", study, table)
    assert f"Energy is an estimate, not measured: the mean over cells of seconds · {watts} W for computing" in page
    assert "| mean | 1.500 | 0.250 |" in page


# --- tests between arms ----------------------------------------------------------------------------------------

FIRST, SECOND = (0.71, 0.74, 0.80, 0.85), (0.61, 0.54, 0.50, 0.45)


def of_seeds(arm: str, values: tuple[float, ...], model_of: str = "n") -> list[dict[str, Any]]:
    return [row(arm, model_of, "n", seed=seed, auroc=value) for seed, value in enumerate(values)]


def test_t_tests_by_hand() -> None:
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST) + of_seeds("b", SECOND, POOLED)), "auroc")
    # Differences 0.1, 0.2, 0.3 and 0.4: mean 0.25, deviation sqrt(0.05 / 3), t = 0.25 / (deviation / 2), 3 degrees.
    t = 0.25 / (math.sqrt(0.05 / 3) / 2)
    assert (found.first, found.second, found.pairs) == ("a", "b", 4)
    assert found.difference == pytest.approx(0.25)
    assert found.paired == pytest.approx(2 * stats.t.sf(t, 3))
    assert found.paired == pytest.approx(0.0305, abs=5e-5)  # as printed tables have it
    one, two = (np.var(values, ddof=1) / 4 for values in (FIRST, SECOND))
    degrees = (one + two) ** 2 / ((one**2 + two**2) / 3)
    assert found.unpaired == pytest.approx(2 * stats.t.sf(0.25 / math.sqrt(one + two), degrees))


def test_only_what_both_have_is_compared() -> None:
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST) + of_seeds("b", SECOND[:2])), "auroc")
    assert (found.pairs, found.difference) == (2, pytest.approx(0.15))
    assert not analysis.tests(as_table([*of_seeds("a", FIRST), row("b", "s", "s", auroc=0.5)]), "auroc")


def test_arms_of_different_numbers_of_images_are_not_compared() -> None:
    arms = {"alone, 10": 10, "mean, 10": 10, "alone, 320": 320, "all": None}
    rows = [each for arm in arms for each in of_seeds(arm, FIRST)]
    found = analysis.tests(as_table(rows), "auroc", numbers=arms)
    pairs = {(each.first, each.second) for each in found}
    assert pairs == {("alone, 10", "mean, 10"), *((arm, "all") for arm in arms if arm != "all")}


def test_where_nothing_varies_there_is_no_p() -> None:
    shifted = tuple(value - 0.1 for value in FIRST)  # but for rounding always the same difference
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST) + of_seeds("b", shifted)), "auroc")
    assert found.paired is None and found.unpaired is not None
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST[:1]) + of_seeds("b", SECOND[:1])), "auroc")
    assert (found.pairs, found.paired, found.unpaired) == (1, None, None)
    table = analysis.table_of_tests([found], "auroc")
    assert [line[4:] for line in table.rows] == [[None, None, None, None]]


def test_of_two_values_there_is_no_p() -> None:
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST[:2]) + of_seeds("b", SECOND[:2])), "auroc")
    assert (found.pairs, found.paired, found.unpaired) == (2, None, None)
    (found,) = analysis.tests(as_table(of_seeds("a", FIRST[:3]) + of_seeds("b", SECOND[:3])), "auroc")
    assert found.paired is not None and found.unpaired is not None


def test_on_other_sites_images_several_models_are_one_value() -> None:
    rows = [row(arm, model, "n", seed=seed, auroc=base + spread)
            for arm, base in (("a", 0.6), ("b", 0.5)) for seed in range(2)
            for model, spread in (("s", 0.1 * seed), ("e", 0.1))]  # fmt: skip
    (found,) = analysis.tests(as_table(rows), "auroc", "external")
    assert (found.pairs, found.difference) == (2, pytest.approx(0.1))
    assert not analysis.tests(as_table(rows), "auroc")


WORKED = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528]
WORKED += [0.7590, 1.0]


def test_the_example_of_benjamini_and_hochberg() -> None:
    """The 15 p-values of their paper's section 4.1: at 5 % the four smallest are discoveries."""
    found = analysis.adjusted([WORKED[0], None, *WORKED[1:]])
    assert found[1] is None
    known = [p for p in found if p is not None]
    assert known[:4] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625])
    assert known[4:9] == pytest.approx([0.0603, 0.0298 * 15 / 7, 0.0298 * 15 / 7, 0.0645, 0.0765])
    assert known[-1] == 1.0
    assert sum(p <= 0.05 for p in known) == 4
    assert analysis.adjusted([None, None]) == [None, None]


@given(st.lists(st.none() | st.floats(0, 1), max_size=30))
def test_adjusted_p_values_keep_their_order_and_never_fall(p_values: list[float | None]) -> None:
    found = analysis.adjusted(p_values)
    assert [p is None for p in found] == [p is None for p in p_values]
    pairs = sorted((p, q) for p, q in zip(p_values, found, strict=True) if p is not None and q is not None)
    assert all(p <= q * (1 + 1e-12) and q <= 1 for p, q in pairs)
    assert all(low <= high for (_, low), (_, high) in pairwise(pairs))


# --- votes -----------------------------------------------------------------------------------------------------


def predicted(probabilities: list[float], truth: list[int], severities: tuple[str, ...] = ()) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "image": [f"i{number}" for number in range(len(truth))],
            "class": truth,
            "severity": severities or "",
            "uncertainty": 0.1,
            "probability_0": 1 - np.array(probabilities),
            "probability_1": probabilities,
        }
    )


def test_the_cut_of_youden_by_hand() -> None:
    # At 0.6: 2 of 3 positives, 0 of 3 negatives. At 0.3: 3 of 3 and 2 of 3. So 0.6.
    assert voting.youden_cut(predicted([0.9, 0.6, 0.3, 0.5, 0.4, 0.1], [1, 1, 1, 0, 0, 0])) == 0.6
    # At 0.9 and at 0.3 the gain is a half: the higher.
    assert voting.youden_cut(predicted([0.9, 0.5, 0.3, 0.1], [1, 0, 1, 0])) == 0.9
    assert voting.youden_cut(predicted([0.9, 0.1], [1, 1])) == 0.5  # of one class there is none


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=2, max_size=30))
@example([(0.1, False)] * 2 + [(0.1, True)] * 2 + [(0.3, False)] + [(0.3, True)] * 3 + [(0.5, True)] * 4)  # a tie
def test_no_other_cut_is_better(answers: list[tuple[float, bool]]) -> None:
    probabilities, truth = [p for p, _ in answers], [int(is_one) for _, is_one in answers]
    cut = voting.youden_cut(predicted(probabilities, truth))
    if 0 < sum(truth) < len(truth):

        def gain(at: float) -> float:
            said = [p >= at for p in probabilities]
            hits = sum(says for says, one in zip(said, truth, strict=True) if one) / sum(truth)
            false = sum(says for says, one in zip(said, truth, strict=True) if not one) / (len(truth) - sum(truth))
            return hits - false

        best = max(gain(at) for at in set(probabilities))
        assert gain(cut) == pytest.approx(best)
        assert not any(at > cut and gain(at) > gain(cut) - 1e-12 for at in set(probabilities))


def study(root: Path, **changes: Any) -> StudyConfiguration:
    for site in ("north", "south"):
        (root / site).mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "study": "by-hand",
        "task": "rdr_classification",
        "data": {"north": "north", "south": "south"},
        "run": {"rounds": 1, "task_options": {"encoder": "plain", "weights": "random", "hidden": [8]}},
        "arms": {"mean": {"method": "mean"}},
    }
    return StudyConfiguration.model_validate(values | changes)


def finish(home: Path, cell: Cell, rows: list[dict[str, Any]], **besides: Any) -> None:
    """Put a result where a cell leaves it."""
    folder = folder_of(home, cell)
    folder.mkdir(parents=True, exist_ok=True)
    cost = {"bytes_to_site": 10, "bytes_from_site": 10, "answers": 2, "seconds": 1.0}
    result = {"configuration": cell.digest, "rows": rows, "cost": cost, "weights": {}, "thetas": {}, **besides}
    (folder / "result.json").write_text(json.dumps(result))


def say(home: Path, cell: Cell, name: str, said: pd.DataFrame) -> None:
    """Put predictions of north's model where a cell leaves them."""
    path = folder_of(home, cell) / "predictions" / "north" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    said.to_csv(path, index=False)


def test_inner_folds_vote_softly_once_all_are_there(tmp_path: Path) -> None:
    cells = expand(study(tmp_path, folds={"outer": 3, "inner": 2}), tmp_path)
    members = [cell for cell in cells if cell.turn is not None and cell.turn.outer == 0]
    severities = ("0", "1", "2", "3")
    truth = [0, 0, 1, 1]
    said = [[0.1, 0.6, 0.4, 0.9], [0.3, 0.2, 0.7, 0.5]]  # together 0.2, 0.4, 0.55 and 0.7
    cuts = [predicted([0.2, 0.4], [0, 1]), predicted([0.1, 0.7], [0, 1])]  # 0.4 and 0.7, so 0.55
    for member, probabilities, validation in zip(members, said, cuts, strict=True):
        assert not list(voting.votes(tmp_path, cells))
        say(tmp_path, member, "north.test", predicted(probabilities, truth, severities))
        say(tmp_path, member, "north.validation", validation)
        assert not list(voting.votes(tmp_path, cells))  # what a cell has said before it ended may be cut off
        finish(tmp_path, member, [])
    (voted,) = voting.votes(tmp_path, cells)
    assert (voted.outer, voted.model_of, voted.tested_on) == (0, "north", "north")
    assert voted.cut == pytest.approx(0.55)
    assert [*voted.predicted["probability_1"]] == pytest.approx([0.2, 0.4, 0.55, 0.7])
    removed = next((tmp_path / "cells" / members[0].name).rglob("north.validation.csv"))
    removed.rename(removed.with_suffix(".gone"))
    assert not list(voting.votes(tmp_path, cells))  # what the others say is another ensemble
    table = voting.ensemble([voted])
    scores = dict(zip(table.header[2:], table.rows[0][2:], strict=True))
    assert {name: scores[name] for name in ("AUROC", "AUPRC", "accuracy")} == dict.fromkeys(
        ("AUROC", "AUPRC", "accuracy"), pytest.approx(1.0)
    )
    assert [scores[f"severity {name}"] for name in severities] == [1.0] * 4
    assert voting.ensemble([voted], ["normal", "mild"]).header[-4:] == ("normal", "mild", "severity 2", "severity 3")


def test_a_model_votes_alone_about_each_site_that_was_left_out(tmp_path: Path) -> None:
    for cell in without_each(tmp_path):
        if (left_out := cell.configuration.left_out) is not None and left_out != "north":
            say(tmp_path, cell, f"{left_out}.test", predicted([0.2, 0.6], [0, 1]))
            say(tmp_path, cell, "north.validation", predicted([0.2, 0.4], [0, 1]))
        finish(tmp_path, cell, [])
    (tmp_path / "west").rmdir()
    voted = voting.votes(tmp_path, without_each(tmp_path))
    assert [(each.model_of, each.tested_on, each.kind) for each in voted] == [
        ("north", "south", "external"),
        ("north", "west", "external"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '"',
        "image,class,severity,uncertainty,probability_0,probability_1\na,0,,0.1,0.5,much\n",
        "image,class,severity,uncertainty,probability_0,probability_1\na,0,,0.1,0.5,0.5\nb,1,,0.1,0.5,0.\n",
        "image,class,severity,uncertainty,probability_0,probability_1\na,0,,0.1,0.5,0.5\nb,1\n",
    ],
)
def test_damaged_predictions_are_told_with_what_to_remove(tmp_path: Path, content: str) -> None:
    cells = expand(study(tmp_path), tmp_path)
    finish(tmp_path, cells[0], [])
    for name in ("north.test", "north.validation"):
        say(tmp_path, cells[0], name, predicted([0.2, 0.4], [0, 1]))
    path = folder_of(tmp_path, cells[0]) / "predictions/north/north.test.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{path}: is damaged; remove {folder_of(tmp_path, cells[0])}, and `dropfed-s"):
        list(voting.votes(tmp_path, cells))


def test_what_votes_cannot_say_is_absent() -> None:
    voted = voting.Voted("a", 0, None, "n", "n", predicted([0.1, 0.2], [0, 0]), 0.15)
    table = voting.ensemble([voted])
    scores = dict(zip(table.header[2:], table.rows[0][2:], strict=True))
    assert {name for name, value in scores.items() if value is None} == {
        *("AUROC", "AUPRC", "sensitivity", "specificity", "balanced accuracy")
    }
    assert (scores["accuracy"], scores["F1"]) == (0.5, 0.0)  # one image is wrongly said to be of class 1


# --- the page --------------------------------------------------------------------------------------------------


def result_row(tested_on: str, auroc: float | None, **scores: float | None) -> dict[str, Any]:
    return {
        **{"model_of": "north", "tested_on": tested_on, "split": "test", "images": 9, "loss": None},
        **{"chosen_round": 1, "parameters": 7, "flops": 1e6, "scores": {"auroc": auroc, "accuracy": 0.5, **scores}},
    }


def page_of(home: Path, planned: StudyConfiguration, cells: list[Cell]) -> str:
    return write_study_pages(planned, home, cells, read_results(home, cells)).read_text()


def test_wide_tables_are_parted_until_they_fit_a_screen(tmp_path: Path) -> None:
    arms = {f"{method} with all that it can have": {"method": method} for method in ("mean", "fedavg", "fedbn")}
    planned = study(tmp_path, arms=arms, seeds=[1, 2])
    cells = expand(planned, tmp_path)
    scores = ("balanced_accuracy", "auprc", "f1", "kappa", "sensitivity", "specificity", "calibration_error")
    told = dict(zip(scores, (0.25, 0.5, 0.125, 0.75, 0.375, 0.625, 0.875), strict=True))
    for cell in cells:
        finish(tmp_path, cell, [result_row("north", 0.5, **told), result_row("south", 0.25, **told)])
    page = page_of(tmp_path, planned, cells)
    assert (
        "± standard deviation of that mean over seeds and folds. Of f1, sensitivity, specificity: the mean over "
        "classes, each against all others. (continued)</span>"
    ) in page
    assert all(f'">{score}</th>' in page for score in scores)
    with chromium(tmp_path) as browser:
        browser.resize(1100, 900)
        browser.open((tmp_path / "report.html").as_uri())
        wide = browser.run(
            "document.querySelectorAll('details').forEach((at) => { at.open = true; });"
            "return [...document.querySelectorAll('.wide')].filter((at) => at.scrollWidth > at.clientWidth)"
            ".map((at) => [at.getAttribute('aria-label'), at.scrollWidth, at.clientWidth])"
        )
    assert wide == []


def test_the_page_of_an_interrupted_study(tmp_path: Path) -> None:
    arms = {HOSTILE: {"method": "mean"}, "never played": {"method": "fedavg"}}
    planned = study(tmp_path, arms=arms, seeds=[1, 2], noise=[0.01])
    cells = expand(planned, tmp_path)
    finish(tmp_path, cells[0], [result_row("north", None), result_row("south", 0.25)])
    page = page_of(tmp_path, planned, cells)
    assert "1 of 4 cells are finished." in page
    assert "<script>" not in page and "&lt;script&gt;" in page
    addresses = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page)
    assert addresses and all(address.startswith(("#", "data:image/svg+xml;base64,")) for address in addresses)
    # North's AUROC is undefined: nothing of it is a number, and no figure has a point for it.
    ((_, kind, *scores),) = [
        line for line in csv.reader((tmp_path / "tables" / "comparison.csv").open()) if line[1] == "internal"
    ]
    assert (kind, scores[0]) == ("internal", "")
    assert [line[1:] for line in csv.reader((tmp_path / "tables" / "arms.csv").open())][1:] == [["external", "0.25"]]
    assert "Not drawn: there is no number to draw, or not yet." in page  # of noise
    write_table(tmp_path, read_results(tmp_path, cells))
    (north, south) = csv.DictReader((tmp_path / "results.csv").open())
    assert (north["auroc"], south["auroc"], north["arm"]) == ("", "0.25", HOSTILE)


def test_untrained_models_are_called_so_wherever_their_way_is(tmp_path: Path) -> None:
    planned = study(tmp_path, arms={"mean": {"method": "mean"}, "fedavg": {"method": "fedavg"}})
    cells = expand(planned, tmp_path)
    for cell, chosen in zip(cells, (0, 1), strict=True):
        finish(tmp_path, cell, [{**result_row("north", 0.5), "chosen_round": chosen}])
    page = page_of(tmp_path, planned, cells)
    assert "the untrained model was chosen" in page
    for table in ("comparison", "by-site", "tests", "fairness", "cost"):
        found = {line["arm"] for line in csv.DictReader((tmp_path / "tables" / f"{table}.csv").open())}
        assert found & {"mean (untrained model in 1 of 1 cell)"} and found <= {
            "mean (untrained model in 1 of 1 cell)",
            "fedavg",
        }
    chosen_rounds = list(csv.reader((tmp_path / "tables" / "chosen.csv").open()))[1:]
    assert chosen_rounds == [["mean", "0", "1", "1", "1", "0"], ["fedavg", "1", "1", "1", "0", "0"]]
    finish(tmp_path, cells[0], [result_row("north", 0.5)])
    assert "untrained model was" not in page_of(tmp_path, planned, cells)


def test_a_round_that_did_not_ask_a_site_counts_in_its_mean_weight_and_not_in_its_theta(tmp_path: Path) -> None:
    (tmp_path / "west").mkdir()
    cell = expand(study(tmp_path, data={site: site for site in ("north", "south", "west")}), tmp_path)[0]
    weights = {"1": {"north": 0.75, "south": 0.25}, "2": {"north": 0.5, "west": 0.5}}
    thetas = {number: dict.fromkeys(of_round, 0.25) for number, of_round in weights.items()}
    finish(tmp_path, cell, [result_row("north", 0.5)], weights=weights, thetas=thetas)
    of_weights, of_thetas = weighing(tmp_path, [cell])
    assert of_weights.header == of_thetas.header == ("arm", "north", "south", "west")
    assert (of_weights.rows[0][1:], of_thetas.rows[0][1:]) == ([0.625, 0.125, 0.25], [0.25] * 3)


def without_each(root: Path) -> list[Cell]:
    """The cells of an arm that leaves out north, south and west in turn."""
    (root / "west").mkdir()
    arms = {"mean": {"method": "mean", "leave_one_out": True}}
    return expand(study(root, data={site: site for site in ("north", "south", "west")}, arms=arms), root)


def test_a_site_that_is_left_out_counts_in_no_mean_of_weights(tmp_path: Path) -> None:
    cells = without_each(tmp_path)
    for cell in cells:
        weights = {"1": dict.fromkeys(cell.configuration.run.sites, 0.5)}
        finish(tmp_path, cell, [result_row(cell.configuration.left_out or "", 0.5)], weights=weights)
    (of_weights,) = weighing(tmp_path, cells)
    assert of_weights.rows == [["mean", 0.5, 0.5, 0.5]]  # of one seed, so without a spread


def test_how_many_images_are_behind_the_numbers_is_said(tmp_path: Path) -> None:
    planned = study(tmp_path, seeds=[1, 2])
    cells = expand(planned, tmp_path)
    assert "none yet" in page_of(tmp_path, planned, cells)
    for cell, images in zip(cells, (1, 4), strict=True):
        finish(tmp_path, cell, [{**result_row("north", 0.5), "images": images}])
    page = page_of(tmp_path, planned, cells)
    assert "<dt>Test images</dt><dd>north 1 to 4</dd>" in page and "2 seeds: 1, 2" in page
    assert "test images by site: north 1 to 4" in page


def test_a_study_of_recordings_speaks_of_no_images(tmp_path: Path) -> None:
    run = {"rounds": 1, "task_options": {"labels": ["rest", "walk"]}}
    planned = study(tmp_path, task="time_series", run=run, noise=[0.01])
    cells = expand(planned, tmp_path)
    finish(tmp_path, cells[0], [result_row("north", 0.5), {**result_row("north", 0.4), "split": "noise-0.01"}])
    page = page_of(tmp_path, planned, cells)
    assert "1 of 1 cell is finished." in page
    assert "Noise on test excerpts" in page and "test images" not in page
    (noise,) = re.findall(r'<section id="noise".*?</section>', page, re.DOTALL)
    assert noise.count("<table>") == 1 and "<img" in noise  # the figure's numbers are those of the table


def test_a_score_that_no_run_has_is_refused_before_any_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no aurok; .* accuracy, auprc, auroc") as found:
        expand(study(tmp_path, scores=["auroc", "aurok", "accuracy_of_1"]), tmp_path)
    assert len(found.value.problems) == 1
    with pytest.raises(ConfigurationError, match=r"there is no dice; .* dice_mean"):
        expand(study(tmp_path, scores=["dice"], task="octa_segmentation", run={"rounds": 1}), tmp_path)


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    planned = study(tmp_path)
    cells = expand(planned, tmp_path)
    finish(tmp_path, cells[0], [result_row("north", 0.5), result_row("south", 0.25)])
    assert page_of(tmp_path, planned, cells) == page_of(tmp_path, planned, cells)


def test_what_a_changed_study_has_no_more_is_removed(tmp_path: Path) -> None:
    planned = study(tmp_path, noise=[0.01])
    cells = expand(planned, tmp_path)
    finish(tmp_path, cells[0], [result_row("north", 0.5), {**result_row("north", 0.4), "split": "noise-0.01"}])
    page = page_of(tmp_path, planned, cells)
    drawn = {tmp_path / "tables" / "noise.csv", tmp_path / "figures" / "noise-curve.svg"}
    assert "variance of the noise" in page and all(path.exists() for path in drawn)
    page = page_of(tmp_path, planned.model_copy(update={"noise": []}), cells)
    assert "variance of the noise" not in page and not any(path.exists() for path in drawn)
    assert (tmp_path / "tables" / "comparison.csv").exists()


def test_many_comparisons_are_folded_up(tmp_path: Path) -> None:
    for arms, is_folded in ((3, False), (7, True)):
        planned = study(tmp_path, arms={f"arm {n}": {"method": "mean", "rounds": n + 1} for n in range(arms)})
        cells = expand(planned, tmp_path)
        for number, cell in enumerate(cells):
            finish(tmp_path, cell, [result_row("north", number / 10)])
        page = page_of(tmp_path, planned, cells)
        assert ("<summary>Two-tailed t-tests" in page) == is_folded


def test_a_small_number_is_not_shown_as_none() -> None:
    table = Table("small", "", ("a", "b"), [["x", 0.00012], ["y", 0.0], ["z", -0.2]])
    assert [line[1].text for line in table.shown] == ["1e-04", "0.000", "-0.200"]


def test_a_spread_is_told_in_tables_too() -> None:
    rows = [row("a", "n", "n", seed=seed, auroc=value) for seed, value in enumerate((0.5, 0.7))]
    table = analysis.comparison(as_table(rows), ["auroc"])
    ((_, _, cell),) = table.rows
    assert isinstance(cell, Spread)
    assert next(csv.reader(io.StringIO(table.csv().decode().splitlines()[1])))[2] == "0.600 ± 0.141"
