"""Seeds and learning rates."""

from decimal import Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.exchange.records.run import Falling, RunConfiguration
from shared.learning.schedules import learning_rate, round_configuration, rounds_of_equal_steps
from shared.learning.seeds import seed_for
from tests.learning.fixtures_file import cases

purposes = st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4)


def test_a_seed_never_changes():
    """Recorded once: a run of last year must be repeatable next year."""
    assert seed_for(7, "round", 3, "augment") == 4217246078555228709


@given(st.integers(), purposes)
def test_a_seed_fits_numpy_and_torch(run_seed, purpose):
    assert 0 <= seed_for(run_seed, *purpose) < 2**63


@given(st.integers(), purposes, purposes)
def test_two_purposes_have_two_seeds(run_seed, one, other):
    typed = [(type(part), part) for part in one]
    assert (seed_for(run_seed, *one) == seed_for(run_seed, *other)) == (typed == [(type(part), part) for part in other])


def test_parts_do_not_run_together():
    assert len({seed_for(1, "ab", "c"), seed_for(1, "a", "bc"), seed_for(1, "abc"), seed_for(11, "abc")}) == 4
    assert seed_for(1, 1) != seed_for(1, "1")


def rates(count=None, at=None, **rate):
    """The learning rates of a run's rounds as sites are told them."""
    run = RunConfiguration(run="r", task="t", method="m", sites=["north"], rounds=200, learning_rate=rate)
    return [
        round_configuration(run, index + 1, "north").learning_rate for index in (range(count) if at is None else at)
    ]


def test_the_learning_rate_by_default_is_that_published_for_segmentation():
    assert rates(6) == pytest.approx([0.1, 0.01, 0.001, 0.1, 0.01, 0.001], rel=1e-12)


@pytest.mark.parametrize("case", cases("oct_lr_seg"))
def test_worked_rates_of_segmentation(case):
    cycle, triangle = case["expected"]["default"], case["expected"]["triangle"]
    assert rates(len(cycle)) == pytest.approx(cycle, rel=1e-12)
    assert rates(len(triangle), shape="triangle") == pytest.approx(triangle, rel=1e-12)


@pytest.mark.parametrize("case", cases("oct_lr_cls"))
def test_worked_rates_of_classification(case):
    given, expected = case["input"], case["expected"]
    line = {"shape": "line", "initial": given["max"], "final": given["min"]}
    twice = rates(at=given["epochs"], period=given["T"] // 2, **line)
    assert twice == pytest.approx(expected["sawtooth_n2"], rel=1e-12)
    once = rates(at=given["epochs"], period=given["T"], hold=2, **line)
    assert [round(rate, 7) for rate in once] == pytest.approx(expected["aggregator_n50"], rel=1e-12)


@pytest.mark.parametrize("case", cases("fedee_rounds"))
def test_worked_rounds_of_equal_steps(case):
    expected = case["expected"]
    worked = [expected["isic"], expected["pamap2"], expected["physionet"]]
    assert [rounds_of_equal_steps(*given) for given in expected["inputs"]] == worked


def test_other_cycles():
    assert rates(3, initial=1.0, factor=0.5, period=2) == [1.0, 0.5, 1.0]
    assert rates(3, shape="line", initial=1.0, final=2.0, period=2) == [1.0, 1.5, 1.0]


@pytest.mark.parametrize(("factor", "falls"), [(0.85, 26), (0.65, 45), (0.1, 2), (0.999, 4999)])
def test_a_power_is_the_double_nearest_to_it(factor, falls):
    """The C library's is another one for these factors, where it has no fused multiply-add."""
    exact = Context(prec=60).power(Decimal(factor), falls)
    assert learning_rate(Falling(initial=0.1, factor=factor, period=5000), falls) == 0.1 * float(exact)


def test_a_cosine_warms_up_and_falls():
    """Loshchilov and Hutter 2017, equation 5, after two rounds of warm-up."""
    whole = {"shape": "cosine", "initial": 1.0, "final": 0.2}
    assert rates(5, **whole, period=4) == pytest.approx([1.0, 0.882842712, 0.6, 0.317157288, 1.0], abs=1e-9)
    warm = rates(7, **whole, period=6, warm_up=2)
    assert warm == pytest.approx([1 / 3, 2 / 3, 1.0, 0.882842712, 0.6, 0.317157288, 1 / 3], abs=1e-9)
    assert all(float(f"{rate:.9g}") == rate for rate in warm)  # the same on every machine, whatever its cosine


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial": 0},
        {"factor": 0},
        {"period": 0},
        {"shape": "line", "initial": 1.0, "period": 3},
        {"shape": "line", "initial": 1.0, "final": 0.0, "period": 3},
        {"shape": "line", "initial": 1.0, "final": 0.1, "period": 3, "factor": 0.1},
        {"shape": "sine"},
        {"shape": "cosine", "initial": 1.0, "period": 3},
        {"shape": "cosine", "initial": 1.0, "final": 0.1, "period": 3, "warm_up": 3},
        {"shape": "cosine", "initial": 5e-324, "final": 5e-324, "period": 3, "warm_up": 2},
        {"final": 0.1},
        {"factor": 1e-200, "period": 3},
    ],
)
def test_a_wrong_learning_rate_is_refused(wrong):
    with pytest.raises(ValidationError):
        rates(1, **wrong)
