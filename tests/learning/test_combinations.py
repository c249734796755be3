"""Rules of combination: what liars can do to the aggregate, by the aggregator's own code on real files."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.store import RunStore
from shared.errors import ConfigurationError, FaultError
from shared.exchange.records import run as rules
from shared.exchange.records.run import Combination
from shared.exchange.records.tensors import TensorList, TensorShape
from shared.exchange.weights import TensorFile, write_tensors
from shared.learning import combine as combine_module
from shared.learning.combinations import open_rule
from shared.learning.combine import Combined, Weighed, distances
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL, Method, Part
from shared.learning.run_checks import check_together
from studies.simulation import run_rounds
from tests.federation.running import run_configuration
from tests.learning.quadratic import know_the_task, run_of, sites_of, w_of

MEDIAN = rules.Median(rule="median")
NUMBERS = 5
LISTED = {MODEL: TensorList(tensors={name: TensorShape(dtype="F32", shape=[NUMBERS]) for name in ("v", "w")})}

few = settings(max_examples=25, deadline=None)  # each writes files, and waits for the disk
honest = st.floats(-1e6, 1e6, width=32)
anything = st.floats(width=32, allow_nan=False, allow_infinity=False)


def models(count: int | st.SearchStrategy[int], numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    """(S, 2, NUMBERS) float32."""
    counts = st.just(count) if isinstance(count, int) else count
    return counts.flatmap(lambda sites: arrays(np.float32, (sites, 2, NUMBERS), elements=numbers))


def krum(hostile: int, keep: int = 1) -> rules.Krum:
    return rules.Krum(rule="krum", hostile=hostile, keep=keep)


def trimmed(cut: float) -> rules.TrimmedMean:
    return rules.TrimmedMean(rule="trimmed_mean", cut=cut)


def name_of(number: int) -> str:
    return f"site-{number:02d}"


def combined(combination: Combination, sent: np.ndarray, weights: list[float] | None = None) -> np.ndarray:
    """What the aggregator makes of the sites' models: chosen, weighed and combined as files. (2, NUMBERS) float32."""
    rule, method = open_rule(combination), open_method("mean", {})
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, model in enumerate(sent):
            files[name_of(number)] = {MODEL: (path := Path(folder) / f"{number}")}
            tensors = dict(zip("vw", model, strict=True))
            write_tensors(path, LISTED[MODEL], lambda name, tensors=tensors: tensors[name])
        apart = distances(files, LISTED) if rule.measures_distances else {}
        chosen = rule.choose(sorted(files), apart)
        given = dict(zip(sorted(files), weights or [1 / len(sent)] * len(sent), strict=True))
        total = sum(given[site] for site in chosen)
        made = Path(folder) / "made"
        updates = Weighed({site: files[site] for site in chosen}, {site: given[site] / total for site in chosen})
        combined = Combined(method, LISTED, before={}, updates=updates, rule=rule, travel=frozenset())  # of any size
        combined.write({MODEL: made})
        return np.stack([TensorFile(made).tensor(name) for name in "vw"])


def attacked(data: st.DataObject, sites: int, liars: int) -> tuple[np.ndarray, np.ndarray]:
    """Models of honest sites, and all models: those and the liars', in any order."""
    truth = data.draw(models(sites - liars, honest), label="honest")
    lies = data.draw(models(liars, anything), label="lies")
    order = data.draw(st.permutations(range(sites)), label="order")
    return truth, np.concatenate([truth, lies])[list(order)]


# --- what it is ---------------------------------------------------------------------------------------------------


@few
@given(sent=models(st.integers(3, 9), anything))
def test_the_median_is_numpys(sent: np.ndarray) -> None:
    assert np.array_equal(combined(MEDIAN, sent), np.median(sent.astype(np.float64), axis=0).astype(np.float32))


@few
@given(sent=models(st.integers(5, 12), honest), cut=st.floats(0.2, 0.49))
def test_the_trimmed_mean_is_the_mean_of_what_is_left(sent: np.ndarray, cut: float) -> None:
    out = math.floor(cut * len(sent) + 1e-9)
    left = np.sort(sent.astype(np.float64), axis=0)[out : len(sent) - out]
    assert 1 <= out < len(sent) / 2
    assert combined(trimmed(cut), sent) == pytest.approx(left.mean(axis=0), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("cut", "sites", "out"), [(0.29, 100, 29), (0.07, 100, 7), (0.2, 5, 1), (0.1, 30, 3), (1 / 3, 9, 3)]
)
def test_a_share_of_the_sites_is_counted_as_people_count(cut: float, sites: int, out: int) -> None:
    """0.29 · 100 is 28.999999999999996."""
    values = [np.array([float(number)]) for number in range(sites)]
    values[0] -= 1e6 * out  # seen only where it is not cut
    assert open_rule(trimmed(cut)).average(values, [1 / sites] * sites) == pytest.approx((sites - 1) / 2)
    lowest = [np.array([-1e6 if number <= out else 1.0]) for number in range(sites)]  # one more than are cut
    assert open_rule(trimmed(cut)).average(lowest, [1 / sites] * sites) < 0


def scores(sent: np.ndarray, hostile: int) -> list[float]:
    """Krum's, in plain numpy."""
    flat = sent.reshape(len(sent), -1).astype(np.float64)
    squared = [sorted(((flat - own) ** 2).sum(axis=1))[1:] for own in flat]
    return [sum(row[: len(sent) - hostile - 2]) for row in squared]


@few
@given(st.data(), st.integers(1, 2))
def test_krum_is_the_mean_of_the_lowest_scores(data: st.DataObject, hostile: int) -> None:
    sites = data.draw(st.integers(2 * hostile + 3, 9))
    keep = data.draw(st.integers(1, sites - hostile - 2))
    sent = data.draw(models(sites, st.integers(-1000, 1000).map(float)))  # whose distances are exact
    best = sorted(range(sites), key=lambda number: (scores(sent, hostile)[number], number))[:keep]
    assert combined(krum(hostile, keep), sent) == pytest.approx(sent[best].astype(np.float64).mean(axis=0), rel=1e-6)


@few
@given(sent=models(st.integers(2, 5), anything))
def test_distances_are_those_of_all_that_counts(sent: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, model in enumerate(sent):
            groups = {}
            for group, numbers in (("model", model), ("control", model[::-1] / 2)):
                groups[group] = Path(folder) / f"{number}.{group}"
                tensors = dict(zip("vw", numbers, strict=True))
                write_tensors(groups[group], LISTED[MODEL], lambda name, tensors=tensors: tensors[name])
            files[name_of(number)] = groups
        one, both = distances(files, LISTED), distances(files, {**LISTED, "control": LISTED[MODEL]})
    for first, second in combinations(range(len(sent)), 2):
        apart = np.square(sent[first].astype(np.float64) - sent[second].astype(np.float64)).sum()
        assert one[name_of(first), name_of(second)] == pytest.approx(apart, rel=1e-12)
        assert both[name_of(first), name_of(second)] == pytest.approx(1.25 * apart, rel=1e-6)


@pytest.mark.parametrize("combination", [rules.Mean(), MEDIAN, trimmed(0.2), krum(1, 2)])
def test_a_tensor_is_combined_in_parts_as_in_one(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = np.random.default_rng(0).normal(size=(5, 2, NUMBERS)).astype(np.float32)
    whole = combined(combination, sent)
    for part in (1, 7, 10):
        monkeypatch.setattr(combine_module, "PART", part)
        assert np.array_equal(combined(combination, sent), whole)


def test_one_number_is_not_taken_for_a_whole_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a method of somebody's wheel may give: numpy would repeat it."""

    def combine(_: Method, part: Part) -> Mapping[str, np.ndarray]:
        return {MODEL: part.mean()[:1]}

    monkeypatch.setattr(type(open_method("mean", {})), "combine", combine)
    with pytest.raises(FaultError, match=r"combine\(\) gave shape \(1,\) for v of model, not"):
        combined(rules.Mean(), np.ones((2, 2, NUMBERS), dtype=np.float32))


# --- what holds whatever is sent ------------------------------------------------------------------------------------


@few
@given(st.data(), models(st.integers(5, 8), anything))
def test_the_order_of_the_sites_changes_nothing(data: st.DataObject, sent: np.ndarray) -> None:
    order = list(data.draw(st.permutations(range(len(sent)))))
    for combination in (MEDIAN, trimmed(0.2)):
        assert np.array_equal(combined(combination, sent[order]), combined(combination, sent))


@few
@given(st.data(), models(st.integers(5, 8), honest))
def test_the_order_of_the_sites_changes_krum_only_where_scores_are_equal(data: st.DataObject, sent: np.ndarray) -> None:
    order = list(data.draw(st.permutations(range(len(sent)))))
    found = scores(sent, 1)
    best = combined(krum(1), sent[order])
    at = [number for number, model in enumerate(sent) if np.array_equal(model, best)]
    assert min(found[number] for number in at) == pytest.approx(min(found), rel=1e-12)


@pytest.mark.parametrize("combination", [MEDIAN, trimmed(0.25)])
@few
@given(sent=models(5, anything))
def test_weights_change_nothing_where_sites_count_alike(combination: Combination, sent: np.ndarray) -> None:
    """Else a liar would say that it has more images than all others."""
    assert not open_rule(combination).weighs
    weighted = combined(combination, sent, [0.96, 0.01, 0.01, 0.01, 0.01])
    assert np.array_equal(weighted, combined(combination, sent))


@pytest.mark.parametrize("combination", [rules.Mean(), MEDIAN, trimmed(0.2), krum(1), krum(1, 2)])
@few
@given(model=models(1, anything))
def test_what_all_agree_on_stays_as_it_is(combination: Combination, model: np.ndarray) -> None:
    assert np.array_equal(combined(combination, np.repeat(model, 5, axis=0)), model[0])


@few
@given(st.data(), st.integers(3, 9))
def test_liars_below_half_cannot_move_the_median_beyond_the_honest(data: st.DataObject, sites: int) -> None:
    truth, sent = attacked(data, sites, (sites - 1) // 2)
    found = combined(MEDIAN, sent)
    assert (found >= truth.min(axis=0)).all() and (found <= truth.max(axis=0)).all()


@few
@given(st.data(), st.sampled_from([(0.2, 5), (0.2, 9), (0.25, 8), (0.3, 7), (0.45, 9)]))
def test_liars_that_are_cut_cannot_move_the_trimmed_mean_beyond_the_honest(
    data: st.DataObject, setting: tuple[float, int]
) -> None:
    cut, sites = setting
    truth, sent = attacked(data, sites, math.floor(cut * sites))
    found = combined(trimmed(cut), sent)
    assert (found >= truth.min(axis=0)).all() and (found <= truth.max(axis=0)).all()


@few
@given(st.data(), st.sampled_from([(1, 1, 5), (1, 2, 5), (1, 4, 7), (2, 1, 7), (2, 3, 7), (2, 2, 8)]))
def test_liars_cannot_move_krum_farther_than_the_honest_are_apart(
    data: st.DataObject, setting: tuple[int, int, int]
) -> None:
    """At most by √(S − f − 2) times as far, from the nearest of them: and so do means of such."""
    hostile, keep, sites = setting
    truth, sent = attacked(data, sites, hostile)
    flat = truth.reshape(len(truth), -1).astype(np.float64)
    widest = max(np.linalg.norm(one - other) for one, other in combinations(flat, 2))
    found = combined(krum(hostile, keep), sent).reshape(-1).astype(np.float64)
    nearest = min(np.linalg.norm(found - own) for own in flat)
    bound = math.sqrt(sites - hostile - 2) * widest + (widest if keep > 1 else 0)
    assert nearest <= bound * (1 + 1e-6) + np.abs(flat).max() * 1e-6


def test_the_plain_mean_follows_one_liar_anywhere() -> None:
    """So the tests above could fail."""
    sent = np.zeros((5, 2, NUMBERS), dtype=np.float32)
    sent[2] = 1e9
    assert (combined(rules.Mean(), sent) == np.float32(2e8)).all()
    for combination in (MEDIAN, trimmed(0.2), krum(1), krum(1, 2)):
        assert (combined(combination, sent) == 0).all()


@pytest.mark.parametrize(("combination", "sites"), [(MEDIAN, 5), (trimmed(0.2), 5), (krum(1), 5)])
def test_each_breaks_down_where_it_is_said_to(combination: Combination, sites: int) -> None:
    liars = {"median": 3, "trimmed_mean": 2, "krum": 3}[combination.rule]
    sent = np.zeros((sites, 2, NUMBERS), dtype=np.float32)
    sent[:liars] = 1e9
    assert (combined(combination, sent) > 1e8).all()


# --- what cannot work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("combination", "fewest"),
    [
        (MEDIAN, 3),
        (trimmed(0.2), 5),
        (trimmed(0.4), 3),
        (trimmed(1 / 3), 3),
        (krum(1), 5),
        (krum(2), 7),
        (krum(1, 4), 7),
    ],
)
def test_a_run_whose_rounds_bring_too_few_answers_is_refused(combination: Combination, fewest: int) -> None:
    assert open_rule(combination).fewest == fewest
    sites = [name_of(number) for number in range(fewest)]
    check_together(run_configuration(sites=sites, quorum=fewest, combination=combination))
    for changes, words in (
        ({"sites": sites[1:], "quorum": 1}, f"needs {fewest} answers in each round, and the run has {fewest - 1} site"),
        ({"sites": [*sites, "x"], "quorum": fewest - 1}, f"and the quorum is {fewest - 1}; raise quorum"),
    ):
        with pytest.raises(ConfigurationError, match=words) as caught:
            check_together(run_configuration(combination=combination, **changes))
        assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("combination", "method", "options", "words"),
    [
        (MEDIAN, "sequential", {}, "combination: median compares 3 answers or more, and sequential asks one site"),
        (krum(1), "sequential", {}, "krum compares 5 answers or more"),
        (MEDIAN, "fedap", {}, "fedap makes each site an aggregate of its own by weights, and median knows none"),
        (trimmed(0.2), "fedee", {"base": "fedap"}, "fedee makes each site an aggregate of its own"),
        (krum(1), "fedap", {}, None),
        (MEDIAN, "fedee", {"base": "fedbn"}, None),
        (rules.Mean(), "fedap", {}, None),
    ],
)
def test_a_rule_that_cannot_do_what_a_method_wants_is_refused(
    combination: Combination, method: str, options: dict[str, object], words: str | None
) -> None:
    sites = [name_of(number) for number in range(5)]
    in_turn = method == "sequential"
    run = run_configuration(
        sites=sites, quorum=1 if in_turn else 5, method=method, method_options=options, combination=combination
    )
    if words is None:
        check_together(run)
        return
    with pytest.raises(ConfigurationError, match=words) as caught:
        check_together(run)
    assert len(caught.value.problems) == 1


# --- in whole runs, with control variates -----------------------------------------------------------------------------

A, B = [1.0, 2.0, 0.5, 1.5, 1.0], [2.0, -1.0, 0.5, 1.0, 40.0]  # the last site is far from the others
RATE, STEPS = 0.1, 3  # as ``run_of`` says


def scaffold_by_hand(
    rounds: int, rule: Callable[[np.ndarray], tuple[np.ndarray, list[int]]]
) -> list[tuple[float, float]]:
    """w and c after each round; ``rule`` makes of what each site sent (S, 2) one of them, and says who counts."""
    w, c, total, own = 1.0, 0.0, 0.0, [0.0] * len(A)
    found = []
    for _ in range(rounds):
        sent, after = [], []
        for a, b, c_k in zip(A, B, own, strict=True):
            x = w
            for _ in range(STEPS):
                x -= RATE * (a * (x - b) - c_k + c)
            after.append(c_k - c + (w - x) / (STEPS * RATE))
            sent.append((x, after[-1] - c_k))
        (w, change), counted = rule(np.array(sent))
        total += len(counted) * change
        c = total / len(A)
        own = [after[site] if site in counted else c_k for site, c_k in enumerate(own)]
        found.append((float(w), float(c)))
    return found


def of_medians(sent: np.ndarray) -> tuple[np.ndarray, list[int]]:
    return np.median(sent, axis=0), list(range(len(sent)))


def of_krum(sent: np.ndarray) -> tuple[np.ndarray, list[int]]:
    found = scores(sent, 1)
    counted = sorted(range(len(sent)), key=lambda site: found[site])[:2]
    return sent[counted].mean(axis=0), counted


@pytest.mark.parametrize(
    ("combination", "rule"),
    [({"rule": "median"}, of_medians), ({"rule": "krum", "hostile": 1, "keep": 2}, of_krum)],
)
def test_scaffold_as_worked_out_by_hand(
    combination: object,
    rule: Callable[[np.ndarray], tuple[np.ndarray, list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control variates are combined by the same rule; where krum leaves a site out, its own stays as it was."""
    know_the_task(monkeypatch)
    data = sites_of(tmp_path, A, B)
    run = run_of("scaffold", list(data), quorum=len(data), combination=combination)
    run_rounds(run, data, tmp_path / "home")
    store = RunStore(tmp_path / "home", run.run)
    rounds = range(1, run.rounds + 1)
    found = [(w_of(store.aggregate_path(round_no)), w_of(store.state_path(round_no, "control"))) for round_no in rounds]
    for (w, c), (expected_w, expected_c) in zip(found, scaffold_by_hand(run.rounds, rule), strict=True):
        assert (w, c) == (pytest.approx(expected_w, rel=1e-5), pytest.approx(expected_c, rel=1e-5))
    plain = scaffold_by_hand(run.rounds, lambda sent: (sent.mean(axis=0), list(range(len(sent)))))
    assert abs(found[-1][0] - plain[-1][0]) > 1  # which the far site has led away
