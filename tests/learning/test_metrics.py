"""Scores of one image and over images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shared.learning.metrics import accuracy, dice, mean_and_std

masks = arrays(np.bool_, (4, 5))


def test_dice_of_a_worked_example():
    """Two of three pixels on each side agree: 2·2 / (3 + 3)."""
    predicted, truth = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert dice(predicted, truth) == pytest.approx(2 / 3, rel=1e-12)
    assert accuracy(predicted, truth) == pytest.approx(3 / 5)


def test_two_empty_masks_agree():
    empty = np.zeros((3, 3), dtype=np.uint8)
    assert dice(empty, empty) == 1.0


@given(masks, masks)
def test_dice_is_symmetric_and_bounded(one, other):
    score = dice(one, other)
    assert 0 <= score <= 1
    assert score == dice(other, one)
    assert (score == 1) == bool(np.array_equal(one, other))


@given(masks, masks)
def test_accuracy_counts_agreement(one, other):
    assert accuracy(one, other) + accuracy(one, ~other) == pytest.approx(1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_mean_and_population_std(values):
    mean, std = mean_and_std(values)
    assert mean == pytest.approx(sum(values) / len(values), abs=1e-12)
    assert std == pytest.approx((sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5, abs=1e-9)


def test_nothing_to_score_is_refused():
    with pytest.raises(ValueError, match="no values"):
        mean_and_std([])
    with pytest.raises(ValueError, match="one shape"):
        dice(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="one shape"):
        accuracy(np.zeros(0), np.zeros(0))
