"""Whole runs of one number by the daemons' own round loop, against numbers worked out apart from it.

Files hold float32, so a result is right to about 1e-7 per step; a method that is wrong is off by 1e-3 or more.
"""

from statistics import fmean

import pytest

from aggregator.store import RunStore
from shared.learning.combinations.contract import Rule
from shared.learning.methods import open_method, usual_options
from studies.simulation import run_rounds
from tests.learning.fixtures_file import cases
from tests.learning.quadratic import know_the_task, run_of, sites_of, w_of

EXACT = 2e-6
WRONG = 1e-3


@pytest.fixture(autouse=True)
def quadratic(monkeypatch):
    know_the_task(monkeypatch)


def played(tmp_path, told, method, **options):
    """The global model, and the mean of the sites' models, after each round."""
    assert (told["lr"], told["local_steps"], told["w0"]) == (0.1, 3, 1.0)
    data = sites_of(tmp_path, told["a"], told["b"])
    run = run_of(method, list(data), method_options=options)
    run_rounds(run, data, tmp_path / "home")
    store = RunStore(tmp_path / "home", run.run)
    rounds = range(1, run.rounds + 1)
    trained = {site: store.home / "sites" / site for site in data}
    return (
        [w_of(store.aggregate_path(round_no)) for round_no in rounds],
        [fmean(w_of(of / f"{round_no:04d}.trained.safetensors") for of in trained.values()) for round_no in rounds],
    )


def differ(found, wrong):
    """Whether the two part, at the latest in round 2, and stay apart."""
    return all(abs(one - other) > WRONG for one, other in list(zip(found, wrong, strict=True))[1:])


@pytest.mark.parametrize("method", ["fedavg", "mean", "dataweightedfed"])
@pytest.mark.parametrize("case", cases("quad_fedavg"))
def test_fedavg(case, method, tmp_path):
    assert played(tmp_path, case["input"], method)[0] == pytest.approx(case["expected"], rel=EXACT)


@pytest.mark.parametrize("case", cases("quad_fedprox_mu0.5"))
def test_fedprox(case, tmp_path):
    found, _ = played(tmp_path, case["input"], "fedprox", mu=case["input"]["mu"])
    assert found == pytest.approx(case["expected"], rel=EXACT)


@pytest.mark.parametrize("case", cases("quad_fedprox_norm_bug"))
def test_fedprox_is_not_that_of_an_unsquared_norm_skipped_in_the_first_step(case, tmp_path):
    found, _ = played(tmp_path, case["input"], "fedprox", mu=case["input"]["mu"])
    assert abs(found[0] - case["expected"]) > WRONG


@pytest.mark.parametrize("case", cases("quad_fedavg"))
def test_fedprox_without_its_term_is_fedavg(case, tmp_path):
    assert played(tmp_path, case["input"], "fedprox", mu=0)[0] == pytest.approx(case["expected"], rel=EXACT)


@pytest.mark.parametrize("case", cases("quad_scaffold"))
def test_scaffold(case, tmp_path):
    assert played(tmp_path, case["input"], "scaffold")[0] == pytest.approx(case["expected"], rel=EXACT)


@pytest.mark.parametrize("case", cases("quad_negative_controls"))
def test_scaffold_is_not_fedavg(case, tmp_path):
    """As it is where the corrections are added to tensors that nothing trains."""
    found, _ = played(tmp_path, case["input"], "scaffold")
    wrong = case["expected"]["fedlab_scaffold"]
    assert found[0] == pytest.approx(wrong[0], rel=EXACT)  # no control variate is known in the first round
    assert differ(found, wrong)


@pytest.mark.parametrize(
    ("method", "case"),
    [
        *[pytest.param("feddyn", *case.values, id="feddyn", marks=case.marks) for case in cases("quad_feddyn_a0.5")],
        *[pytest.param("feddc", *case.values, id="feddc", marks=case.marks) for case in cases("quad_feddc_a0.5")],
    ],
)
def test_feddyn_and_feddc(method, case, tmp_path):
    found, mean = played(tmp_path, case["input"], method, alpha=case["input"]["alpha"])
    assert found == pytest.approx(case["expected"]["cloud"], rel=EXACT)
    assert mean == pytest.approx(case["expected"]["avg"], rel=EXACT)


@pytest.mark.parametrize("case", cases("quad_negative_controls"))
def test_feddyn_is_not_that_whose_sites_have_no_regulariser(case, tmp_path):
    found, _ = played(tmp_path, case["input"], "feddyn", alpha=0.5)
    assert differ(found, case["expected"]["fedlab_feddyn_alpha0_5"])


BOXES = {"fedprox": {"mu": 0.5}, "scaffold": {"server_rate": 0.8}, "feddyn": {"alpha": 0.5}, "feddc": {"alpha": 0.5}}
A, B = (1.0, 4.0, 2.0), (0.0, 3.0, -1.0)


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "feddc"])
def test_they_find_the_optimum_of_all_sites_that_fedavg_misses(method, tmp_path):
    """Of ½ (w − 0)² + ½ · 4 (w − 3)²: 2.4. Plain means of three steps each stay at 2.229."""
    data = sites_of(tmp_path, A[:2], B[:2])
    options = {"alpha": 0.5} if method != "scaffold" else {}
    run = run_of(method, list(data), rounds=16, method_options=options)
    run_rounds(run, data, tmp_path / "home")
    assert w_of(RunStore(tmp_path / "home", run.run).aggregate_path(run.rounds)) == pytest.approx(2.4, abs=0.04)


def boxed(method, accepted, *, momentum=0.0, rates=(0.1,) * 6):
    """The papers' algorithm boxes in double precision, on three sites of which some are accepted in each round."""
    strength = 0.5
    w, c, h, found = 1.0, 0.0, 0.0, []
    controls, tilts = [0.0] * 3, [0.0] * 3
    for rate, sites in zip(rates, accepted, strict=True):
        ends, changes = [], []
        for k in sites:
            x, velocity, unit, step_sizes = w, 0.0, 0.0, 0.0
            for _ in range(3):
                pull = strength * (x - w)
                added = {
                    "fedprox": pull,
                    "scaffold": c - controls[k],
                    "feddyn": pull - tilts[k],
                    "feddc": pull + strength * tilts[k] + c - controls[k],
                }[method]
                velocity, unit = momentum * velocity + A[k] * (x - B[k]) + added, momentum * unit + 1
                x, step_sizes = x - rate * velocity, step_sizes + rate * unit
            ends.append(x)
            changes.append((w - x) / step_sizes - c)
            controls[k] += changes[-1]
            tilts[k] += (x - w) * (1 if method == "feddc" else -strength)
        if method in ("scaffold", "feddc"):
            c += len(sites) / 3 * fmean(changes)
        moved = fmean(ends) - w
        h += len(sites) / 3 * moved * (1 if method == "feddc" else -strength)
        w += {"scaffold": 0.8 * moved, "feddyn": moved - h / strength, "feddc": moved + h}.get(method, moved)
        found.append(w)
    return found


def aggregates(tmp_path, method, **further):
    """Of a run over three sites, the global models, and who was accepted in each round."""
    data = sites_of(tmp_path, A, B)
    run = run_of(method, list(data), **{"rounds": 6, "method_options": BOXES[method], **further})
    outcome = run_rounds(run, data, tmp_path / "home")
    rounds = range(1, run.rounds + 1)
    accepted = [[int(site) for site, weight in outcome.weights[round_no].items() if weight > 0] for round_no in rounds]
    store = RunStore(tmp_path / "home", run.run)
    return [w_of(store.aggregate_path(round_no)) for round_no in rounds], accepted


@pytest.mark.parametrize("method", BOXES)
def test_with_two_of_three_sites_drawn_for_each_round(method, tmp_path):
    """Who is left out keeps its c_k and h_k, and the mean over all sites moves by |S| / N only."""
    found, accepted = aggregates(tmp_path, method, sites_per_round=2, seed=1)
    assert {len(sites) for sites in accepted} == {2}
    assert {site for sites in accepted for site in sites} == {0, 1, 2}
    assert found == pytest.approx(boxed(method, accepted), rel=5e-6)


@pytest.mark.parametrize("method", BOXES)
def test_an_answer_that_is_left_out_has_never_been(method, tmp_path, monkeypatch):
    """All three train each round; one of them, another each time, does not count, there and then not here."""

    class LeavesOneOut(Rule):
        asked = 0  # twice in each round: its answers are tried together, and then weighed

        def choose(self, sites, distances):
            self.asked += 1
            return [site for site in sites if int(site) != (self.asked + 1) // 2 % 3]

    monkeypatch.setattr("shared.learning.aggregation.open_rule", lambda combination: LeavesOneOut())
    found, accepted = aggregates(tmp_path, method)
    assert accepted == [[0, 2], [0, 1], [1, 2]] * 2
    assert found == pytest.approx(boxed(method, accepted), rel=5e-6)


@pytest.mark.parametrize("method", BOXES)
def test_with_momentum_and_a_schedule_the_step_sizes_are_those_really_taken(method, tmp_path):
    found, accepted = aggregates(
        tmp_path,
        method,
        task_options={"momentum": 0.5},
        learning_rate={"initial": 0.1, "factor": 0.5, "period": 3},
    )
    rates = (0.1, 0.05, 0.025) * 2
    assert found == pytest.approx(boxed(method, accepted, momentum=0.5, rates=rates), rel=5e-6)


@pytest.mark.parametrize(
    ("method", "total", "own"), [("feddyn", "total-tilt", "tilt"), ("feddc", "total-drift", "drift")]
)
def test_what_travels_rounded_leaves_both_ends_with_one_sum(method, total, own, tmp_path):
    """The aggregator sees rounded models: were h_k of those before rounding, H would less and less be their sum."""
    data = sites_of(tmp_path, A, B)
    run = run_of(method, list(data), rounds=12, wire={"numbers": "bfloat16"}, method_options=BOXES[method])
    run_rounds(run, data, tmp_path / "home")
    store = RunStore(tmp_path / "home", run.run)
    kept = [w_of(store.home / "sites" / site / "0012.kept.safetensors", f"{own}/w") for site in data]
    assert w_of(store.state_path(12, total)) == pytest.approx(sum(kept), abs=1e-5)


def released(method, sizes, *, alpha=0.5, rate=0.1, rounds=6):
    """The code released with FedDC, for sites of these sizes, in double precision: train_SCAFFOLD, _FedDyn, _FedDC."""
    w, c, found = 1.0, 0.0, []
    controls, drifts = [0.0] * 3, [0.0] * 3
    for _ in range(rounds):
        ends, changes = [], []
        for k, w_k in enumerate(size / fmean(sizes) for size in sizes):
            x = w
            for _ in range(3):
                pull = alpha / w_k * (x - w + drifts[k])
                control = c / w_k - controls[k]
                added = {"scaffold": control, "feddyn": pull, "feddc": pull + control}[method]
                x -= rate * (A[k] * (x - B[k]) + added)
            ends.append(x)
            new = controls[k] - (c if method == "scaffold" else c / w_k) + (w - x) / (3 * rate)
            changes.append(w_k * (new - controls[k]))
            controls[k], drifts[k] = new, drifts[k] + x - w
        c += fmean(changes)
        w = fmean(ends) + (0.0 if method == "scaffold" else fmean(drifts))
        found.append(w)
    return found


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("method", ["scaffold", "feddyn", "feddc"])
def test_sites_of_unequal_size_count_as_released_where_they_are_weighted(method, weighted, tmp_path):
    """In the papers of SCAFFOLD and FedDyn all count alike, and so as sites of one size in the released code."""
    sizes = (2, 4, 9)
    data = sites_of(tmp_path, A, B, sizes)
    options = {"weighted": weighted, "mean_images": 5} | ({"alpha": 0.5} if method != "scaffold" else {})
    run = run_of(method, list(data), rounds=6, method_options=options)
    run_rounds(run, data, tmp_path / "home")
    store = RunStore(tmp_path / "home", run.run)
    found = [w_of(store.aggregate_path(round_no)) for round_no in range(1, 7)]
    assert found == pytest.approx(released(method, sizes if weighted else (1, 1, 1)), rel=5e-6)
    assert differ(found, released(method, (1, 1, 1) if weighted else sizes))


def test_by_default_each_counts_as_in_its_own_paper():
    assert {name: usual_options(name)["weighted"] for name in ("scaffold", "feddyn", "feddc")} == {
        "scaffold": False,
        "feddyn": False,
        "feddc": True,
    }
    assert not open_method("feddc", {}).options.weighted  # of a run that is older than the choice
