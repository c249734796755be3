"""What private training costs, what a run may say of it, and what it is refused for."""

import math
import subprocess
import sys

import pytest
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import norm

from shared.errors import ConfigurationError
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.run import Privacy
from shared.learning.data.augmentation import Augmentation
from shared.learning.opacus_import import import_opacus
from shared.learning.privacy import Mechanism, Spent, epsilon, mechanism, objections
from tests.at_length import held_to

DELTA = 1e-5
ONE_VIEW = Augmentation(copies=1, originals=False)
spent_steps = st.builds(
    Spent,
    noise_multiplier=st.floats(0.3, 50),
    sampling_rate=st.floats(0.001, 1),
    steps=st.integers(1, 10_000),
)


def privacy(**said):
    return Privacy(max_grad_norm=1.0, delta=DELTA, **said)


def delta_of_gaussian(sigma, eps):
    """δ of one Gaussian mechanism of sensitivity 1, exactly (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(1 / (2 * sigma) - eps * sigma) - math.exp(eps) * norm.cdf(-1 / (2 * sigma) - eps * sigma)


def test_a_run_says_exactly_one_of_noise_and_epsilon():
    text = b"max_grad_norm: 1.0\ndelta: 1e-5\ntarget_epsilon: 8.0\n"
    assert parse_yaml(text, Privacy, "run.yaml") == privacy(target_epsilon=8.0)
    for said in ({}, {"target_epsilon": 8.0, "noise_multiplier": 1.0}):
        with pytest.raises(ValidationError, match="give exactly one of them"):
            privacy(**said)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_grad_norm", 0.0),
        ("max_grad_norm", math.inf),
        ("delta", 0.0),
        ("delta", 0.5),
        ("target_epsilon", 0.0),
        ("target_epsilon", "8"),
        ("noise", 1.0),
    ],
)
def test_a_senseless_value_is_named(key, value):
    said = {"max_grad_norm": 1.0, "delta": DELTA, "target_epsilon": 8.0} | {key: value}
    with pytest.raises(ConfigurationError) as refused:
        check_record(said, Privacy, "privacy")
    [problem] = refused.value.problems
    assert key in problem


@held_to(
    4,
    15,
    target=st.floats(0.1, 30),
    images=st.integers(20, 20_000),
    batch_size=st.integers(1, 64),
    epochs=st.integers(1, 500),
)
def test_the_noise_keeps_the_whole_run_within_epsilon_and_is_not_wasted(target, images, batch_size, epochs):
    chosen = mechanism(privacy(target_epsilon=target), images=images, batch_size=batch_size, epochs=epochs)
    reached = epsilon([chosen.spent(epochs)], DELTA)
    assert 0.998 * target <= reached <= target


@held_to(4, 12, kinds=st.lists(spent_steps, max_size=3), more=spent_steps)
def test_more_steps_never_cost_less_and_neither_does_less_noise_or_a_higher_rate(kinds, more):
    before = epsilon(kinds, DELTA)
    after = epsilon([*kinds, more], DELTA)
    noisier = epsilon([*kinds, more._replace(noise_multiplier=1.5 * more.noise_multiplier)], DELTA)
    rarer = epsilon([*kinds, more._replace(sampling_rate=more.sampling_rate / 2)], DELTA)
    rounding = 1e-9 * after
    assert before <= after + rounding
    assert noisier <= after + rounding
    assert rarer <= after + rounding


def test_rounds_add_up_to_what_all_their_steps_cost_together():
    chosen = Mechanism(max_grad_norm=1.0, noise_multiplier=1.1, images=1000, batch_size=32)
    together = epsilon([chosen.spent(12)], DELTA)
    assert epsilon([chosen.spent(3)] * 4, DELTA) == pytest.approx(together, rel=1e-12)
    assert epsilon([chosen.spent(0)], DELTA) == epsilon([], DELTA) == 0


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.05, 200), (0.7, 0.01, 1000), (4.0, 0.9, 50)])
def test_it_is_what_opacus_finds_step_by_step(noise, rate, steps):
    accountant = import_opacus("opacus.accountants").RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    found = epsilon([Spent(noise, rate, steps)], DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    tighter = import_opacus("opacus.accountants").PRVAccountant()
    tighter.history = [(noise, rate, steps)]
    assert 0.8 * found < tighter.get_epsilon(DELTA) < found


@pytest.mark.parametrize("noise", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("steps", [1, 10])
def test_it_bounds_the_exact_cost_of_gaussian_noise(noise, steps):
    bound = epsilon([Spent(noise, 1.0, steps)], DELTA)
    together = noise / math.sqrt(steps)  # steps over all images are one step with less noise
    assert delta_of_gaussian(together, bound) <= DELTA
    assert delta_of_gaussian(together, bound / 2) > DELTA


@pytest.mark.parametrize(
    ("images", "batch_size", "rate", "steps"), [(100, 8, 0.08, 13), (64, 8, 0.125, 8), (5, 8, 1.0, 1), (9, 8, 8 / 9, 2)]
)
def test_an_epoch_shows_each_image_once_on_average(images, batch_size, rate, steps):
    chosen = mechanism(privacy(noise_multiplier=2.0), images=images, batch_size=batch_size, epochs=1)
    assert chosen.spent(3) == Spent(2.0, rate, 3 * steps)
    assert chosen.noise_multiplier == 2.0


def test_too_great_a_delta_and_too_small_an_epsilon_are_refused():
    with pytest.raises(ConfigurationError, match=r"delta: 0\.01 is not below 1 / n, of this site's n training"):
        mechanism(Privacy(max_grad_norm=1.0, delta=0.01, target_epsilon=8.0), images=100, batch_size=8, epochs=1)
    least = Privacy(max_grad_norm=1.0, delta=1e-12, target_epsilon=0.01)
    with pytest.raises(ConfigurationError, match=r"no noise keeps 500 steps within 0\.01; raise it"):
        mechanism(least, images=40, batch_size=8, epochs=100)


def test_what_keeps_the_promise_is_not_refused():
    for augmentation in (ONE_VIEW, Augmentation(copies=0)):
        for theta_from in (None, "validation"):
            assert not objections(
                "fedprox",
                keeps_batch_norm=False,
                sends_features=False,
                theta_from=theta_from,
                augmentation=augmentation,
            )


def test_everything_that_breaks_it_is_named_at_once():
    reasons = objections(
        "fedap",
        keeps_batch_norm=True,
        sends_features=True,
        theta_from="train",
        augmentation=Augmentation(copies=5),
    )
    assert len(reasons) == 4
    for reason, said in zip(
        reasons,
        ["BatchNorm", "features of validation images", "say validation", "shows each image 6 times"],
        strict=True,
    ):
        assert reason.startswith("privacy: ")
        assert said in reason
        assert "\n" not in reason


def test_opacus_leaves_the_log_of_the_process_and_its_warnings_alone():
    program = """
import logging, sys
from shared.exchange.records.run import Privacy
from shared.learning.privacy import epsilon, mechanism
assert "opacus" not in sys.modules and "torch" not in sys.modules
chosen = mechanism(Privacy(max_grad_norm=1.0, delta=1e-5, target_epsilon=0.5), images=20_000, batch_size=32, epochs=1)
assert epsilon([chosen.spent(1)], 1e-5) <= 0.5
assert "opacus" in sys.modules and not logging.root.handlers
"""
    done = subprocess.run(
        [sys.executable, "-W", "error:Optimal order", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
