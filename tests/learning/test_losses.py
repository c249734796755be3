"""The evidential loss: worked numbers, gradients, extremes and precision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import digamma, gammaln

from shared.learning.losses import (
    annealing,
    dirichlet,
    evidence,
    evidential_terms,
    integrated_cross_entropy,
    kl_to_uniform,
    tempered_belief,
    tempered_cross_entropy,
)
from tests.learning.fixtures_file import cases

CLOSE = {"rel": 1e-10, "abs": 1e-10}


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def confident_wrong():
    """Evidence (4, 1, 0) where class 1 is right."""
    return dirichlet(doubles([[4.0, 1.0, 0.0]])), torch.tensor([1])


def test_a_worked_example():
    """α = (5, 2, 1), so ψ(8) − ψ(2) = 1/2 + … + 1/7; L_KL of α̃ = (5, 1, 1)."""
    opinion, targets = confident_wrong()
    assert opinion.strength.tolist() == [8]
    assert opinion.belief.tolist() == [[0.5, 0.125, 0.0]]
    assert opinion.uncertainty.tolist() == [0.375]
    assert integrated_cross_entropy(opinion, targets).item() == pytest.approx(1.59285714286, rel=1e-11)
    assert integrated_cross_entropy(opinion, targets).item() == pytest.approx(sum(1 / n for n in range(2, 8)))
    assert kl_to_uniform(opinion, targets).item() == pytest.approx(1.24138353444, rel=1e-11)
    assert tempered_cross_entropy(opinion, targets).item() == pytest.approx(7.50059830528, rel=1e-11)


def test_the_gammas_are_multiplied_not_added():
    """Eq. 6 read literally, log Γ(S̃) − log Σ Γ(α̃_k): 1.161 here, and below zero for evidence of nothing."""
    opinion, targets = confident_wrong()
    assert kl_to_uniform(opinion, targets).item() != pytest.approx(1.16134082676, abs=0.05)
    nothing = dirichlet(torch.zeros(1, 5, dtype=torch.float64))
    assert kl_to_uniform(nothing, torch.tensor([2])).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("case", [*cases("edl_zero"), *cases("edl_confident"), *cases("edl_logits")])
def test_worked_numbers(case):
    given_, expected = case["input"], case["expected"]
    targets = torch.tensor([given_["y"]])
    logits = doubles([given_["logits"]]).requires_grad_() if "logits" in given_ else None
    opinion = dirichlet(doubles([given_["evidence"]]) if logits is None else evidence(logits))
    terms = {
        "alpha": opinion.alpha[0],
        "S": opinion.strength[0],
        "b": opinion.belief[0],
        "u": opinion.uncertainty[0],
        "b_T": tempered_belief(opinion.belief, given_["tau"])[0],
        "L_Ice": (ice := integrated_cross_entropy(opinion, targets))[0],
        "L_KL": (kl := kl_to_uniform(opinion, targets))[0],
        "L_Uce": (ice + given_["lam"] * kl)[0],
        "L_Tce": (tce := tempered_cross_entropy(opinion, targets, given_["tau"]))[0],
        "L_total": (ice + given_["lam"] * kl + tce)[0],
    }
    for name, value in terms.items():
        assert value.tolist() == pytest.approx(expected[name], **CLOSE), name
    assert terms["b"].argmax().item() == terms["b_T"].argmax().item() == expected["pred"]
    literal = expected["L_KL_paper_eq6_literal_sum_of_gammas"]
    assert terms["L_KL"].item() != pytest.approx(literal, abs=1e-3), "a sum of gammas"
    if logits is not None:
        total = evidential_terms(logits, targets, given_["tau"]).total(given_["lam"])
        assert total.item() == pytest.approx(expected["L_total"], **CLOSE)
        total.sum().backward()
        # torch's own ψ' is right to some 1e-10.
        assert logits.grad[0].tolist() == pytest.approx(expected["grad_logits_of_L_total"], rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("case", cases("edl_batch_mean"))
def test_worked_numbers_of_a_batch(case):
    given_, expected = case["input"], case["expected"]
    logits = doubles(given_["logits"])
    terms = evidential_terms(logits, torch.tensor(given_["y"]), given_["tau"])
    uncertain = terms.integrated_cross_entropy + given_["lam"] * terms.kl_to_uniform
    assert uncertain.mean().item() == pytest.approx(expected["L_Uce_mean"], **CLOSE)
    assert terms.tempered_cross_entropy.mean().item() == pytest.approx(expected["L_Tce_mean"], **CLOSE)
    assert terms.total(given_["lam"]).mean().item() == pytest.approx(expected["L_total"], **CLOSE)
    assert dirichlet(evidence(logits)).uncertainty.tolist() == pytest.approx(expected["u"], **CLOSE)


def test_rows_do_not_know_of_each_other():
    logits = doubles([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-1.0, 4.0, 0.0]])
    targets = torch.tensor([0, 1, 2])
    together = evidential_terms(logits, targets).total(0.3)
    assert together.mean().item() == pytest.approx(4.6060615851, rel=1e-10)
    alone = [evidential_terms(logits[i : i + 1], targets[i : i + 1]).total(0.3).item() for i in range(3)]
    assert together.tolist() == pytest.approx(alone, rel=1e-14)


def tempered_floor(classes, temperature):
    return math.log1p((classes - 1) * math.exp(-1 / temperature))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tempered_cross_entropy_has_a_floor(dtype):
    """b < 1, so that b/τ < 1/τ: 8.24e-9 for five classes and τ = 0.05, also in float32."""
    logits = torch.tensor([[1e9, -1e9, -1e9, -1e9, -1e9]], dtype=dtype)
    lowest = evidential_terms(logits, torch.tensor([0])).tempered_cross_entropy.item()
    assert tempered_floor(5, 0.05) == pytest.approx(8.24461445577e-09, rel=1e-11)
    assert lowest == pytest.approx(tempered_floor(5, 0.05), rel=1e-6)
    assert lowest >= tempered_floor(5, 0.05) * (1 - 1e-6)


@pytest.mark.parametrize("case", cases("edl_btau_floor"))
def test_worked_floor(case):
    assert tempered_floor(case["input"]["K"], case["input"]["tau"]) == pytest.approx(
        case["expected"]["floor"], rel=1e-11
    )


@pytest.mark.parametrize("classes", [2, 5])
def test_gradients_are_those_of_finite_differences(classes):
    generator = torch.Generator().manual_seed(1)
    logits = (4 * torch.randn(6, classes, dtype=torch.float64, generator=generator)).requires_grad_()
    targets = torch.arange(6) % classes

    def terms(values):
        parts = evidential_terms(values, targets)
        return parts.integrated_cross_entropy, parts.kl_to_uniform, parts.tempered_cross_entropy, parts.total(0.7)

    assert torch.autograd.gradcheck(terms, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [50.0, 1e4, 1e6])
def test_extreme_logits_stay_finite(size, dtype):
    """Every row of −size, 0 and +size, every target: values and gradients are numbers, and no term is negative."""
    signs = torch.cartesian_prod(*3 * [torch.tensor([-1.0, 0.0, 1.0])]).repeat_interleave(3, dim=0)
    logits = (size * signs).to(dtype).requires_grad_()
    parts = evidential_terms(logits, torch.arange(3).repeat(27))
    for term in (parts.integrated_cross_entropy, parts.kl_to_uniform, parts.tempered_cross_entropy):
        assert term.dtype is dtype
        assert torch.isfinite(term).all()
        assert (term >= -1e-7).all()
    parts.total(1.0).sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("size", [1.0, 50.0, 1e4, 1e6])
def test_float32_is_as_right_as_float32_can_be(size):
    """lgamma in float32 would be off by whole units at α = 1e6."""
    values = torch.tensor([[size, 0.3 * size, 0.0], [0.9 * size, size, 0.5 * size]])
    for targets in (torch.tensor([0, 0]), torch.tensor([2, 1])):
        opinion = dirichlet(values)
        for row, y in enumerate(targets.tolist()):
            alpha = values[row].double().numpy() + 1
            tilde = np.where(np.arange(3) == y, 1, alpha)
            ice = digamma(alpha.sum()) - digamma(alpha[y])
            kl = gammaln(tilde.sum()) - gammaln(tilde).sum() - gammaln(3)
            kl += ((tilde - 1) * (digamma(tilde) - digamma(tilde.sum()))).sum()
            assert integrated_cross_entropy(opinion, targets)[row].item() == pytest.approx(ice, rel=1e-6)
            assert kl_to_uniform(opinion, targets)[row].item() == pytest.approx(kl, rel=1e-6)


def test_float32_logits_lose_nothing_on_the_way():
    """Each term is that of the same logits in float64, rounded once."""
    logits = 8 * torch.randn(50, 5, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(50) % 5
    single, double = evidential_terms(logits, targets), evidential_terms(logits.double(), targets)
    for name in ("integrated_cross_entropy", "kl_to_uniform", "tempered_cross_entropy"):
        assert torch.equal(getattr(single, name), getattr(double, name).float()), name


def test_the_right_answer_is_free_and_evidence_for_it_lowers_the_loss():
    targets = torch.tensor([0])
    sure = [evidential_terms(doubles([[size, -50.0, -50.0]]), targets) for size in (0.0, 5.0, 50.0)]
    assert [part.kl_to_uniform.item() for part in sure] == pytest.approx([0, 0, 0], abs=1e-12)
    losses = [part.total(1.0).item() for part in sure]
    assert losses == sorted(losses, reverse=True)


@given(st.lists(st.floats(-60, 60), min_size=2, max_size=7))
@example([-41.0, -40.0])
def test_beliefs_and_uncertainty_share_one(logits):
    opinion = dirichlet(evidence(doubles([logits])))
    assert 0 < opinion.uncertainty.item() <= 1
    assert (opinion.belief.sum() + opinion.uncertainty).item() == pytest.approx(1, abs=1e-12)
    tempered = tempered_belief(opinion.belief)
    assert tempered.sum().item() == pytest.approx(1, abs=1e-12)
    # Beliefs that differ by less, as when there is next to no evidence, temper to the same.
    assert opinion.belief[0, tempered.argmax()].item() == pytest.approx(opinion.belief.max().item(), abs=1e-15)


def test_annealing_goes_from_zero_to_one():
    assert [annealing(t, 4) for t in range(7)] == [0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert annealing(0, 1) == 0
    assert annealing(1, 1) == 1


@pytest.mark.parametrize("case", cases("lambda_schedule_code"))
def test_annealing_beside_the_published_programs(case):
    """Its t counts from 1, and its T + 1 is the rounds until λ is 1: so its λ is ours one round later, of T + 1."""
    rounds = case["input"]["T"]
    for t, published in zip(case["input"]["t"], case["expected_code"], strict=True):
        assert annealing(t, rounds + 1) == pytest.approx(published, rel=1e-11)
        ours = annealing(t - 1, rounds)  # the same round, counted from 0, as we do it
        assert ours == (t - 1) / rounds
        assert ours < published


def test_what_is_outside_its_range_is_refused():
    opinion, targets = confident_wrong()
    for done, until in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="annealing needs"):
            annealing(done, until)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="temperature"):
            tempered_belief(opinion.belief, temperature)
        with pytest.raises(ValueError, match="temperature"):
            tempered_cross_entropy(opinion, targets, temperature)
    for kl_weight in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="kl_weight"):
            evidential_terms(torch.zeros(1, 3), targets).total(kl_weight)
    for shape in ((3,), (2, 1), (1, 2, 3)):
        with pytest.raises(ValueError, match="shape"):
            dirichlet(torch.zeros(shape))


@pytest.mark.parametrize("term", [integrated_cross_entropy, kl_to_uniform, tempered_cross_entropy])
def test_a_missing_target_is_noticed(term):
    with pytest.raises(ValueError, match="targets of shape"):
        term(dirichlet(torch.ones(3, 2)), torch.tensor([0, 1]))
