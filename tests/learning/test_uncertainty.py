"""The threshold θ of a site's uncertainty, and the weight it gives the site."""

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.learning.uncertainty import FALLBACK_THETA, reliability_weights, youden_threshold
from tests.learning.fixtures_file import cases

answers = st.lists(st.tuples(st.integers(0, 12).map(lambda n: n / 12), st.booleans()), min_size=1, max_size=40)


def threshold(uncertainty, wrong):
    return youden_threshold(np.asarray(uncertainty, dtype=np.float64), np.asarray(wrong, dtype=bool))


def youden_j(theta, uncertainty, wrong):
    """J of one threshold, in fractions."""
    flagged = [u >= theta for u in uncertainty]
    hits = sum(flag and mark for flag, mark in zip(flagged, wrong, strict=True))
    alarms = sum(flag and not mark for flag, mark in zip(flagged, wrong, strict=True))
    return Fraction(hits, sum(wrong)) - Fraction(alarms, len(wrong) - sum(wrong))


def by_brute_force(uncertainty, wrong):
    """The highest observed θ of the greatest J > 0, and that J; None where J is undefined or never above 0."""
    if not 0 < sum(wrong) < len(wrong):
        return None
    best = max((youden_j(theta, uncertainty, wrong), theta) for theta in set(uncertainty))
    return best if best[0] > 0 else None


def test_a_worked_example():
    """J is 0.75 at 0.7 and at 0.5: the higher is taken."""
    found = threshold([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2], [1, 1, 1, 0, 1, 0, 0, 0])
    assert (found.theta, found.status, found.youden_j) == (0.7, "measured", 0.75)
    assert (found.predictions, found.wrong) == (8, 4)


def test_a_tie_that_floats_break():
    """2/3 − 1/3 at 0.4 and 3/3 − 2/3 at 0.2 are equal, but not as floats, which prefer the lower threshold."""
    assert 2 / 3 - 1 / 3 < 3 / 3 - 2 / 3
    found = threshold([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0, 1, 1, 0, 1, 0])
    assert (found.theta, found.youden_j) == (0.4, 1 / 3)


@pytest.mark.parametrize("case", cases("youden_"))
def test_worked_numbers(case):
    found = threshold(case["input"]["u"], case["input"]["u_gt"])
    expected = case["expected"]
    assert found.youden_j == expected["J"]
    if expected["theta"] is None:
        assert found.theta == FALLBACK_THETA
        assert found.status != "measured"
    else:
        assert (found.theta, found.status) == (expected["theta"], "measured")


@pytest.mark.parametrize(
    ("uncertainty", "wrong", "status", "j"),
    [
        ([0.1, 0.2, 0.3], [0, 0, 0], "all right", None),
        ([0.1, 0.2, 0.3], [1, 1, 1], "all wrong", None),
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], "no separation", 0.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], "no separation", 0.0),
        ([0.0, 0.0], [0, 1], "no separation", 0.0),
    ],
)
def test_where_nothing_can_be_measured(uncertainty, wrong, status, j):
    """Neither infinity nor the greatest u + 1, as an ROC's artificial first threshold would give."""
    found = threshold(uncertainty, wrong)
    assert (found.theta, found.status, found.youden_j) == (FALLBACK_THETA, status, j)


@given(answers)
def test_theta_is_the_highest_of_the_greatest_j(pairs):
    uncertainty, wrong = [u for u, _ in pairs], [mark for _, mark in pairs]
    found = threshold(uncertainty, wrong)
    best = by_brute_force(uncertainty, wrong)
    assert 0 < found.theta <= 1
    if best is None:
        assert found.theta == 0.5
        assert found.status != "measured"
    else:
        assert (found.status, found.theta) == ("measured", best[1])
        assert found.youden_j == pytest.approx(float(best[0]), abs=1e-15)


@given(answers, st.randoms(use_true_random=False))
def test_the_order_of_the_answers_does_not_matter(pairs, random):
    mixed = random.sample(pairs, len(pairs))
    assert threshold(*zip(*pairs, strict=True)) == threshold(*zip(*mixed, strict=True))


def test_the_ends_of_the_range():
    assert threshold([0.0, 5e-324], [0, 1]).theta == 5e-324
    assert threshold([0.0, 1.0], [0, 1]).theta == 1.0
    single = youden_threshold(np.array([0.1, 0.7], dtype=np.float32), np.array([False, True]))
    assert single.theta == float(np.float32(0.7))


@pytest.mark.parametrize(
    "uncertainty", [[], [[0.5, 0.5]], [0.5], [0.5, math.nan], [0.5, math.inf], [-0.1, 0.5], [0.5, 1.1]]
)
def test_what_is_no_uncertainty_is_refused(uncertainty):
    with pytest.raises(ValueError, match="uncertaint"):
        threshold(uncertainty, [True, False])
    with pytest.raises(ValueError, match="uncertaint"):
        threshold([], [])


def test_weights_of_five_sites():
    thetas = dict(zip("abcde", [0.12, 0.35, 0.81, 0.44, 0.5], strict=True))
    expected = [0.141009358302, 0.177474379759, 0.281132547979, 0.194187902349, 0.206195811611]
    assert list(reliability_weights(thetas).values()) == pytest.approx(expected, rel=1e-11)
    assert list(reliability_weights(thetas)) == list("abcde")


def of_case(case):
    return {str(site): float(theta) for site, theta in enumerate(case["input"]["theta"])}


@pytest.mark.parametrize(
    "case", [*cases("uaw_softmax_equal5"), *cases("uaw_softmax_extreme2"), *cases("uaw_softmax_five")]
)
def test_worked_weights(case):
    weights = reliability_weights(of_case(case))
    assert list(weights.values()) == pytest.approx(case["expected"]["w"], rel=1e-10)


@pytest.mark.parametrize("case", [*cases("uaw_softmax_inf"), *cases("uaw_softmax_max_plus_one")])
def test_an_artificial_threshold_is_refused(case):
    """One infinite θ makes every weight NaN; the greatest u + 1 gives its site most of the model."""
    with pytest.raises(ValueError, match="site 1: theta"):
        reliability_weights(of_case(case))


@pytest.mark.parametrize("case", cases("uaw_aggregate"))
def test_worked_aggregate(case):
    weights = reliability_weights({"a": 0.1, "b": 0.2, "c": 0.3})
    aggregate = np.array(list(weights.values())) @ np.array(case["input"]["params"])
    assert aggregate.tolist() == pytest.approx(case["expected"], rel=1e-10)


@pytest.mark.parametrize("theta", [None, math.inf, -math.inf, math.nan, -0.01, 1.01, 1.99])
def test_a_theta_that_is_none_is_refused_by_the_name_of_its_site(theta):
    with pytest.raises(ValueError, match="site north: theta"):
        reliability_weights({"south": 0.5, "north": theta})


def test_no_sites_have_no_weights():
    with pytest.raises(ValueError, match="no sites"):
        reliability_weights({})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=20))
def test_weights_sum_to_one_and_are_within_e_of_each_other(thetas):
    weights = reliability_weights(thetas)
    assert math.fsum(weights.values()) == pytest.approx(1, abs=1e-14)
    assert max(weights.values()) / min(weights.values()) <= math.e * (1 + 1e-14)
    assert all(weights[a] <= weights[b] for a in thetas for b in thetas if thetas[a] < thetas[b])


def test_the_weights_are_the_same_to_the_last_digit_wherever_they_are_computed():
    """numpy's exp has other last digits with AVX512 than without."""
    weights = reliability_weights({"north": 0.3627, "south": 0.0998})
    powers = [float(Decimal(theta).exp(Context(prec=60))) for theta in (0.3627, 0.0998)]
    assert list(weights.values()) == [power / math.fsum(powers) for power in powers]
    assert list(weights.values()) == [0.5653490419362537, 0.4346509580637464]
