"""The methods by name: what they weigh, what they train, what a run may choose, and the mean that follows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shared.errors import ConfigurationError
from shared.exchange.records.tensors import TensorList, TensorShape
from shared.exchange.records.values import decimal_text
from shared.exchange.weights import TensorFile, check_tensors, write_tensors
from shared.learning.combine import Combined, Weighed
from shared.learning.methods import open_method, usual_options
from shared.learning.methods.contract import MODEL, Contribution
from shared.learning.new_runs import as_of_now
from shared.learning.objectives import CrossEntropy, Evidential
from tests.federation.running import staging_run
from tests.learning.fixtures_file import cases

METHODS = ("fedavg", "fedbn", "feduaa", "mean")

sites = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.builds(Contribution, images=st.integers(1, 10**9), theta=st.floats(0, 1, exclude_min=True)),
    min_size=1,
    max_size=12,
)


def weights_of(method, *, images=None, thetas=None):
    """The weights of sites 0, 1, ... in that order."""
    count = len(images or thetas)
    told = zip(images or [10] * count, thetas or [None] * count, strict=True)
    return open_method(method, {}).weights({str(site): Contribution(*facts) for site, facts in enumerate(told)})


def aggregate(folder: Path, params, weights):
    """The mean that the aggregator writes: real files of one tensor, "w"."""
    listed = TensorList(tensors={"w": TensorShape(dtype="F32", shape=list(np.shape(params[0])))})
    models = {}
    for site in weights:
        path = folder / f"{site}.safetensors"
        write_tensors(path, listed, lambda name, site=site: np.array(params[int(site)], dtype=np.float32))
        models[site] = path
    updates = Weighed({site: {MODEL: path} for site, path in models.items()}, weights)
    combination = Combined(open_method("mean", {}), {MODEL: listed}, before={}, updates=updates)
    combination.write({MODEL: folder / "mean.safetensors"})
    check_tensors(folder / "mean.safetensors", listed, "mean")
    return TensorFile(folder / "mean.safetensors").tensor("w").tolist()


def options_of(method, **raw):
    return open_method(method, raw).options


def objective_of(method, round_no, rounds=10, **raw):
    return open_method(method, raw).objective(round_no, rounds)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_loads_and_keeps_the_contract(name):
    method = open_method(name, {})
    assert method.name == name
    assert method.sends_reliability is (name == "feduaa")
    norms = [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.SyncBatchNorm(3)]
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Linear(3, 3), nn.GroupNorm(1, 3), nn.LayerNorm(3), *norms)
    assert list(method.stays(network)) == (norms if name in ("fedbn", "feduaa") else [])
    loss = objective_of(name, 1).terms(torch.randn(2, 3), torch.tensor([0, 2]))["loss"]
    assert loss.shape == (2,)
    assert method.weights({"north": Contribution(images=7, theta=0.3)}) == {"north": 1.0}


def test_an_unknown_method_is_one_sentence():
    with pytest.raises(ConfigurationError, match="no method fedexample; use one of "):
        open_method("fedexample", {})


@pytest.mark.parametrize("name", METHODS)
@given(told=sites)
def test_weights_are_shares_that_sum_to_one(name, told):
    weights = open_method(name, {}).weights(told)
    assert list(weights) == list(told)
    assert all(0 <= weight <= 1 for weight in weights.values())
    assert math.fsum(weights.values()) == pytest.approx(1, abs=1e-14)


@given(sites)
def test_under_feduaa_only_theta_counts_and_no_site_more_than_e_times_another(told):
    weights = open_method("feduaa", {}).weights(told)
    assert max(weights.values()) / min(weights.values()) <= math.e * (1 + 1e-14)
    same_size = {site: Contribution(images=1, theta=facts.theta) for site, facts in told.items()}
    assert open_method("feduaa", {}).weights(same_size) == weights


@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
@given(told=sites)
def test_under_fedavg_and_fedbn_only_the_number_of_images_counts(name, told):
    weights = open_method(name, {}).weights(told)
    total = sum(facts.images for facts in told.values())
    assert weights == {site: facts.images / total for site, facts in told.items()}


@given(sites)
def test_under_the_mean_nothing_counts(told):
    assert set(open_method("mean", {}).weights(told).values()) == {1 / len(told)}


def test_the_number_of_images_enters_fedavg_and_not_feduaa():
    assert list(weights_of("fedavg", images=[100, 300]).values()) == [0.25, 0.75]
    assert list(weights_of("feduaa", images=[1, 10**6], thetas=[0.4, 0.4]).values()) == [0.5, 0.5]
    assert list(weights_of("mean", images=[1, 10**6]).values()) == [0.5, 0.5]


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
@pytest.mark.parametrize("case", cases("wfedavg_full"))
def test_worked_mean_by_images(case, method, tmp_path):
    weights = weights_of(method, images=case["input"]["n"])
    assert aggregate(tmp_path, case["input"]["params"], weights) == pytest.approx(case["expected"], rel=1e-7)


@pytest.mark.parametrize("case", cases("fedavg_plain"))
def test_worked_plain_mean(case, tmp_path):
    params = case["input"]["params"]
    weights = weights_of("mean", images=[1 + 99 * site for site in range(len(params))])
    assert aggregate(tmp_path, params, weights) == pytest.approx(case["expected"], rel=1e-7)


@pytest.mark.parametrize("case", cases("oct_mean_with_tolerance"))
def test_worked_mean_of_those_whose_score_exceeds_the_tolerance(case, tmp_path):
    """Lo et al. 2021: a score of exactly the tolerance does not pass; scores travel as their shortest texts."""
    told = case["input"]
    accepted = {
        str(site): Contribution(images=10)
        for site, score in enumerate(told["acc"])
        if float(decimal_text(score)) > told["tol"]
    }
    assert sorted(accepted) == ["0", "1"]
    weights = open_method("mean", {}).weights(accepted)
    assert aggregate(tmp_path, told["params"], weights) == pytest.approx(case["expected"], rel=1e-7)


@pytest.mark.parametrize("case", [*cases("uaw_softmax_equal5"), *cases("uaw_softmax_five")])
def test_worked_weights_by_reliability(case):
    weights = weights_of("feduaa", thetas=case["input"]["theta"])
    assert list(weights.values()) == pytest.approx(case["expected"]["w"], rel=1e-10)


@pytest.mark.parametrize("case", cases("uaw_aggregate"))
def test_worked_mean_by_reliability(case, tmp_path):
    weights = weights_of("feduaa", thetas=[0.1, 0.2, 0.3])
    assert aggregate(tmp_path, case["input"]["params"], weights) == pytest.approx(case["expected"], rel=1e-6)


@pytest.mark.parametrize("case", [*cases("uaw_softmax_inf"), *cases("uaw_softmax_max_plus_one")])
def test_the_artificial_threshold_of_an_roc_curve_weighs_nothing(case):
    with pytest.raises(ValueError, match="site 1: theta"):
        weights_of("feduaa", thetas=[float(theta) for theta in case["input"]["theta"]])


@pytest.mark.parametrize("theta", [None, math.nan, math.inf, -math.inf, -0.5, 1.5])
def test_feduaa_refuses_a_theta_that_is_none(theta):
    told = {"south": Contribution(images=10, theta=0.5), "north": Contribution(images=10, theta=theta)}
    with pytest.raises(ValueError, match="site north: theta"):
        open_method("feduaa", {}).weights(told)


def test_a_mean_is_summed_in_float64(tmp_path):
    """In float32, 1e8 + 1 is 1e8, and ten thirds are not their sum."""
    assert aggregate(tmp_path, [[3e8], [3.0], [-3e8]], {str(site): 1 / 3 for site in range(3)}) == [1.0]


def test_options_default_to_cross_entropy_and_for_feduaa_to_evidence():
    for name in METHODS:
        options = options_of(name)
        assert options.objective == ("evidential" if name == "feduaa" else "cross_entropy")
        assert (options.temperature, options.anneal_rounds, options.theta_from) == (0.05, None, "train")


@pytest.mark.parametrize("name", METHODS)
def test_every_wrong_option_is_named(name):
    raw = {"mu": 0.1, "temperature": 0, "anneal_rounds": 0, "theta_from": "test", "objective": "hinge"}
    with pytest.raises(ConfigurationError) as caught:
        options_of(name, **raw)
    assert len(caught.value.problems) == 5
    assert "mu: is not a known key; remove it or use one of objective, dice, class_weights, temperature" in str(
        caught.value
    )
    for key in ("temperature", "anneal_rounds", "theta_from", "objective"):
        assert any(f"{key}: " in problem for problem in caught.value.problems)


def test_feduaa_is_never_without_evidence():
    with pytest.raises(ConfigurationError, match="objective: must be 'evidential'"):
        options_of("feduaa", objective="cross_entropy")


@pytest.mark.parametrize("name", ["mean", "fedavg", "fedbn"])
def test_any_method_may_train_by_evidence(name):
    assert objective_of(name, 3) == CrossEntropy()
    chosen = objective_of(name, 3, objective="evidential", temperature=0.1)
    assert chosen == Evidential(temperature=0.1, kl_weight=0.2)


@pytest.mark.parametrize("name", METHODS)
def test_the_kl_term_counts_nothing_in_round_1_and_whole_after_anneal_rounds(name):
    """λ = min(1, t / anneal_rounds), t from 0: counting from 1 would never have the first round without it."""
    found = [
        objective_of(name, round_no, 100, objective="evidential", anneal_rounds=4).kl_weight
        for round_no in (1, 2, 3, 4, 5, 6, 101)
    ]
    assert found == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_new_run_anneals_by_its_sites_steps_and_one_that_says_rounds_by_rounds():
    """λ of a run that says neither is older than the choice, and went by rounds."""
    assert usual_options("feduaa")["anneal_steps"] == 1000
    assert options_of("feduaa").anneal_steps is None
    run = staging_run(method="feduaa")
    assert as_of_now(run).method_options["anneal_steps"] == 1000
    by_rounds = {"anneal_rounds": None}
    assert as_of_now(run.model_copy(update={"method_options": by_rounds})).method_options == by_rounds
    with pytest.raises(ConfigurationError, match="anneal_steps, anneal_rounds: give one of them"):
        options_of("feduaa", anneal_steps=10, anneal_rounds=4)


def test_the_kl_term_is_annealed_over_the_whole_run_unless_the_run_says_otherwise():
    found = [objective_of("feduaa", round_no, 5).kl_weight for round_no in range(1, 7)]
    assert found == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], abs=1e-15)
    assert objective_of("feduaa", 1, 1).kl_weight == 0.0


def test_finite_numbers_whose_sum_is_not_are_not_sent_on(tmp_path):
    """Of a control variate that a site says is 3e38 in every round, the aggregator's would leave float32."""
    listed = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[2])})
    files = {}
    for name, value in (("model", 1.0), ("control", 3e38), ("before", 3e38)):
        files[name] = tmp_path / name
        write_tensors(files[name], listed, lambda _, value=value: np.full(2, value, dtype=np.float32))
    combination = Combined(
        open_method("scaffold", {}),
        dict.fromkeys((MODEL, "control", "total-control"), listed),
        before={MODEL: files["model"], "control": files["before"], "total-control": files["before"]},
        updates=Weighed({"north": {MODEL: files["model"], "control": files["control"]}}, {"north": 1.0}, agreed=1),
    )
    targets = {MODEL: tmp_path / "next", "control": tmp_path / "next-control", "total-control": tmp_path / "next-total"}
    for make in (combination.try_out, lambda: combination.write(targets)):
        with pytest.raises(OverflowError, match="w of what goes on as"):
            make()
    assert not (tmp_path / "next").exists()
