"""Scores of one image and over images."""

import math
import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as reference

from shared.learning.metrics import (
    DROPPED_PERCENTS,
    REFERRAL_GOALS,
    Score,
    accuracy,
    calibration_error,
    dice,
    grading_scores,
    mean_and_std,
    mean_over_sites,
    ood_auroc,
    pixel_scores,
    ranking,
)
from tests.learning.fixtures_file import cases

masks = arrays(np.bool_, (4, 5))


def test_dice_of_a_worked_example():
    """Two of three pixels on each side agree: 2·2 / (3 + 3)."""
    predicted, truth = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert dice(predicted, truth) == pytest.approx(2 / 3, rel=1e-12)
    assert accuracy(predicted, truth) == pytest.approx(3 / 5)


@pytest.mark.parametrize("case", cases("oct_dice"))
def test_worked_dice(case):
    assert dice(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])) == pytest.approx(case["expected"], rel=1e-11)


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


@pytest.fixture(autouse=True)
def nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


GRADING_NAMES = {
    *("accuracy", "balanced_accuracy", "f1", "auroc", "auroc_logits", "auprc", "sensitivity", "specificity", "kappa"),
    *("dice", "iou", "calibration_error", "misdiagnosis_auroc", "uncertainty_right", "uncertainty_wrong"),
    *(f"selective_accuracy_{percent}" for percent in (10, 20, 30, 40, 50, 60, 70, 80, 90)),
    *("referral_share_90", "referral_share_95"),
}

# Coarse, so that ties are common.
shares = st.integers(0, 10).map(lambda n: n / 10)


@st.composite
def graded(draw, classes=None, most=25):
    """Classes, probabilities and uncertainties of some images; classes may be absent."""
    classes = classes or draw(st.integers(2, 6))
    images = draw(st.integers(1, most))
    truth = draw(arrays(np.int64, images, elements=st.integers(0, classes - 1)))
    weights = draw(arrays(np.float64, (images, classes), elements=st.integers(1, 9).map(float)))
    return truth, weights / weights.sum(axis=1, keepdims=True), draw(arrays(np.float64, images, elements=shares))


def one_hot(predicted, classes, top=0.8):
    """Probabilities whose greatest is ``top``."""
    rest = (1 - top) / (classes - 1)
    return np.where(np.arange(classes) == np.asarray(predicted)[:, None], top, rest)  # (N,) -> (N, K)


def test_grading_of_a_worked_example():
    """Three grades, of which grade 3 has no image and grade 1 is once taken for 0, once for 3."""
    truth = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    predicted = np.array([0, 0, 0, 1, 1, 0, 2, 3])
    doubt = np.array([0.1, 0.1, 0.2, 0.9, 0.3, 0.3, 0.1, 0.8])
    scores = grading_scores(truth, one_hot(predicted, 4), doubt)
    assert scores["accuracy"] == Score(5 / 8, 8)
    assert scores["accuracy_of_0"] == Score(3 / 4, 4)
    assert scores["accuracy_of_1"] == Score(1 / 2, 2)
    assert scores["accuracy_of_2"] == Score(1 / 2, 2)
    assert scores["accuracy_of_3"] == Score(None, 0)
    third = (3 / 4 + 1 / 2 + 1 / 2) / 3
    assert scores["balanced_accuracy"].value == scores["sensitivity"].value == pytest.approx(third)
    assert scores["specificity"].value == pytest.approx((3 / 4 + 5 / 6 + 6 / 6 + 7 / 8) / 4)
    assert scores["f1"].value == scores["dice"].value == pytest.approx((6 / 8 + 2 / 4 + 2 / 3) / 3)
    assert scores["iou"].value == pytest.approx((3 / 5 + 1 / 3 + 1 / 2) / 3)
    assert scores["calibration_error"].value == pytest.approx(0.8 - 5 / 8)
    # Of 3 · 5 pairs, 0.9 and 0.8 are above all right ones; 0.3 is above four and level with one.
    assert scores["misdiagnosis_auroc"].value == pytest.approx((5 + 5 + 4.5) / 15)
    assert scores["uncertainty_right"] == Score(pytest.approx(0.8 / 5), 5)
    assert scores["uncertainty_wrong"] == Score(pytest.approx(2.0 / 3), 3)
    assert scores["selective_accuracy_20"].value == 5 / 6
    assert scores["auroc_logits"] == Score(None, 8)


def test_an_absent_grade_is_neither_perfect_nor_hopeless():
    """All four images of the two grades there are right: every mean over grades is 1, though three grades have none."""
    truth = np.array([0, 0, 3, 3])
    scores = grading_scores(truth, one_hot(truth, 5), np.full(4, 0.5), one_hot(truth, 5))
    for name in ("accuracy", "balanced_accuracy", "f1", "auroc", "auroc_logits", "auprc", "sensitivity", "specificity"):
        assert scores[name] == Score(pytest.approx(1), 4), name
    assert [scores[f"accuracy_of_{k}"].value for k in range(5)] == [1, None, None, 1, None]
    assert scores["misdiagnosis_auroc"] == Score(None, 0), "undefined, not 1.0"
    assert scores["uncertainty_wrong"] == Score(None, 0)


def test_one_grade_alone():
    truth = np.array([2, 2, 2])
    right, wrong = (grading_scores(truth, one_hot([k] * 3, 4), np.zeros(3)) for k in (2, 1))
    assert right["auroc"].value is None
    assert right["kappa"].value is None
    assert wrong["kappa"].value == 0
    assert right["specificity"].value == 1
    assert wrong["specificity"].value == pytest.approx(2 / 3)
    assert wrong["misdiagnosis_auroc"].value is None
    assert wrong["uncertainty_right"] == Score(None, 0)


def test_kappa_counts_the_grades_between():
    """Weights are of the grades' distance, also where a grade between has no image."""
    truth, predicted = np.array([0, 0, 3, 4]), np.array([0, 3, 3, 0])
    observed = sum((truth - predicted) ** 2) / 4
    expected = sum((a - b) ** 2 for a in truth for b in predicted) / 16
    kappa = grading_scores(truth, one_hot(predicted, 5), np.zeros(4))["kappa"].value
    assert kappa == pytest.approx(1 - observed / expected)


@settings(deadline=None, max_examples=50)
@given(graded())
def test_grading_scores_are_shares(images):
    truth, probabilities, uncertainty = images
    classes = probabilities.shape[1]
    scores = grading_scores(truth, probabilities, uncertainty, probabilities)
    assert set(scores) == GRADING_NAMES | {f"accuracy_of_{k}" for k in range(classes)}
    for name, score in scores.items():
        assert score.value is None or (-1 if name == "kappa" else 0) <= score.value <= 1 + 1e-12, name
        assert 0 <= score.images <= len(truth)
    assert scores["auroc"] == scores["auroc_logits"]
    assert sum(scores[f"accuracy_of_{k}"].images for k in range(classes)) == len(truth)
    assert scores["uncertainty_right"].images + scores["uncertainty_wrong"].images == len(truth)


@settings(deadline=None, max_examples=50)
@given(graded(classes=2))
def test_grading_of_two_classes_agrees_with_pixels(images):
    of_images, of_pixels = grading_scores(*images), pixel_scores(*images)
    both = ["accuracy", "balanced_accuracy", "auroc", "calibration_error", "misdiagnosis_auroc"]
    both += [f"selective_accuracy_{percent}" for percent in DROPPED_PERCENTS]
    both += [f"referral_share_{percent}" for percent in REFERRAL_GOALS]
    for name in (*both, "uncertainty_right", "uncertainty_wrong"):
        expected = of_images[name].value
        assert of_pixels[name] == (None if expected is None else pytest.approx(expected, abs=1e-12)), name


@settings(deadline=None, max_examples=50)
@given(graded())
def test_grading_scores_are_those_of_scikit_learn(images):
    truth, probabilities, uncertainty = images
    predicted, classes = probabilities.argmax(axis=1), range(probabilities.shape[1])
    present = sorted(set(truth))
    among = {"labels": present, "average": "macro"}
    expected = {
        "accuracy": reference.accuracy_score(truth, predicted),
        "sensitivity": reference.recall_score(truth, predicted, **among),
        "f1": reference.f1_score(truth, predicted, **among),
        "iou": reference.jaccard_score(truth, predicted, **among),
        "auprc": np.mean([reference.average_precision_score(truth == k, probabilities[:, k]) for k in present]),
    }
    if with_rest := [k for k in classes if (truth != k).any()]:
        expected["specificity"] = np.mean([reference.recall_score(truth != k, predicted != k) for k in with_rest])
    if separable := [k for k in present if k in with_rest]:
        expected["auroc"] = np.mean([reference.roc_auc_score(truth == k, probabilities[:, k]) for k in separable])
    if separable or (truth != predicted).any():
        expected["kappa"] = reference.cohen_kappa_score(truth, predicted, labels=classes, weights="quadratic")
    scores = grading_scores(truth.astype(np.uint8), probabilities, uncertainty, probabilities)
    expected["auroc_logits"] = expected.get("auroc")
    for name in ("accuracy", "sensitivity", "f1", "iou", "auprc", "specificity", "auroc", "auroc_logits", "kappa"):
        value = expected.get(name)
        assert scores[name].value == (None if value is None else pytest.approx(value, abs=1e-12)), name


@settings(deadline=None, max_examples=50)
@given(graded(classes=2))
def test_pixel_scores_are_those_of_scikit_learn(pixels):
    truth, probabilities, uncertainty = pixels
    predicted = probabilities.argmax(axis=1)
    scores = pixel_scores(truth, probabilities, uncertainty)
    if 0 < truth.sum() < len(truth):
        assert scores["auroc"] == pytest.approx(reference.roc_auc_score(truth, probabilities[:, 1]), abs=1e-12)
        assert scores["specificity"] == pytest.approx(reference.recall_score(1 - truth, 1 - predicted), abs=1e-12)
    else:
        assert scores["auroc"] is None
        assert None in (scores["sensitivity"], scores["specificity"])
    if truth.any():
        precision = reference.average_precision_score(truth, probabilities[:, 1])
        assert scores["auprc"] == pytest.approx(precision, abs=1e-12)
        assert scores["sensitivity"] == pytest.approx(reference.recall_score(truth, predicted), abs=1e-12)
        assert scores["iou"] == pytest.approx(reference.jaccard_score(truth, predicted), abs=1e-12)
    else:
        assert scores["auprc"] is None
    assert scores["dice"] == dice(predicted, truth)


def test_no_vessel_where_none_is_predicted():
    scores = pixel_scores(np.zeros(4, dtype=np.int64), one_hot([0] * 4, 2), np.full(4, 0.2))
    assert scores["dice"] == scores["iou"] == scores["specificity"] == scores["balanced_accuracy"] == 1
    assert [scores[name] for name in ("sensitivity", "auroc", "auprc", "misdiagnosis_auroc")] == [None] * 4
    assert scores["uncertainty_right"] == pytest.approx(0.2)
    assert scores["uncertainty_wrong"] is None


def doubted(uncertainty, right):
    """The scores of predictions, through grading: class 1 where right."""
    probabilities = one_hot(np.ones(len(right), dtype=np.int64), 2)
    return grading_scores(np.asarray(right, dtype=np.int64), probabilities, np.asarray(uncertainty))


def selective(uncertainty, right, percent):
    """Accuracy of what a doubt threshold keeps."""
    return doubted(uncertainty, right)[f"selective_accuracy_{percent}"]


def referral(uncertainty, right, percent):
    return doubted(uncertainty, right)[f"referral_share_{percent}"]


@pytest.mark.parametrize("case", cases("fedee_selective"))
def test_worked_selection(case):
    uncertainty, right, expected = case["input"]["u"], case["input"]["correct"], case["expected"]
    assert np.quantile(uncertainty, 0.6) == pytest.approx(expected["threshold"])
    found = selective(uncertainty, right, 40)
    assert found.value == pytest.approx(expected["acc"], rel=1e-11)
    assert round(found.value * expected["kept"]) == 5  # of the six that are kept
    assert found.images == 1  # a tenth of ten: over so few it is never told


def test_selection_keeps_ties():
    uncertainty, right = [0.05, 0.1, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9], [1, 1, 1, 0, 1, 1, 0, 1, 0, 0]
    assert selective(uncertainty, right, 40).value == 5 / 6
    assert selective([0.5] * 10, right, 40).value == 6 / 10
    assert selective([0.5], [0], 50).value == 0.0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(shares, st.booleans()), min_size=1, max_size=40), st.sampled_from(DROPPED_PERCENTS))
def test_selection_keeps_what_is_not_above_the_quantile(pairs, percent):
    """The quantile in fractions: in floats, 0.7 · 90 is below 63, and one image fewer would be kept."""
    ordered = sorted(Fraction(u) for u, _ in pairs)
    place = Fraction((len(pairs) - 1) * (100 - percent), 100)
    lower = math.floor(place)
    following = ordered[min(lower + 1, len(ordered) - 1)]
    quantile = ordered[lower] + (place - lower) * (following - ordered[lower])
    kept = [right for u, right in pairs if Fraction(u) <= quantile]
    found = selective([u for u, _ in pairs], [right for _, right in pairs], percent)
    assert found.value == pytest.approx(sum(kept) / len(kept))


def test_selection_of_91_images():
    assert 0.7 * 90 < 63
    assert selective(np.arange(91) / 100, [1] * 63 + [0] * 28, 30).value == 63 / 64


def test_referral_of_a_worked_example():
    """Twenty, of which the 1st, 2nd and 7th most uncertain are wrong, and one right one is level with the 2nd."""
    uncertainty = np.array([20, 18, 18, *range(17, 0, -1)]) / 20
    right = [0, 0, 1, 1, 1, 1, 0, *[1] * 13]
    # 17 of 20; without one 17 of 19; without three 16 of 17; until the 7th is gone it stays below 19 of 20.
    assert referral(uncertainty, right, 90) == Score(3 / 20, 3)
    assert referral(uncertainty, right, 95) == Score(7 / 20, 3)  # three are wrong: fewer than the 7 and the 13


def test_nobody_is_referred_where_enough_are_right():
    uncertainty = np.arange(10) / 10
    assert referral(uncertainty, [0, *[1] * 9], 90) == Score(0, 10)  # 9 of 10 are 90 %, also in floats
    assert referral(uncertainty, [1] * 10, 95) == Score(0, 10)


def test_referral_is_undefined_where_only_all_would_do():
    assert referral([0.1, 0.2, 0.2, 0.9], [0, 1, 1, 1], 90) == Score(None, 0)
    assert referral([0.5] * 10, [*[1] * 8, 0, 0], 90) == Score(None, 0), "ties go together"
    assert referral([0.3], [0], 95) == Score(None, 0)


def test_referral_is_over_the_fewest_of_whom_it_could_tell():
    """100 images, 20 of them wrong and most uncertain: 12 referred leave 80 of 88, and 16 leave 80 of 84."""
    uncertainty, right = np.arange(100, 0, -1) / 100, [*[0] * 20, *[1] * 80]
    assert referral(uncertainty, right, 90) == Score(12 / 100, 12)
    assert referral(uncertainty, right, 95) == Score(16 / 100, 16)
    assert referral(uncertainty, right[::-1], 90) == Score(None, 0)
    certain_and_wrong = [*[0] * 93, *[1] * 7]
    assert referral(uncertainty, certain_and_wrong, 90) == Score(93 / 100, 7)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(shares, st.booleans()), min_size=1, max_size=40), st.sampled_from(REFERRAL_GOALS))
def test_referral_is_the_least_that_any_threshold_reaches(pairs, percent):
    enough = []
    for threshold in {1.1, *(u for u, _ in pairs)}:
        rest = [right for u, right in pairs if u < threshold]
        if rest and Fraction(sum(rest), len(rest)) >= Fraction(percent, 100):
            enough.append((len(pairs) - len(rest)) / len(pairs))
    found = referral([u for u, _ in pairs], [right for _, right in pairs], percent)
    assert found.value == (min(enough) if enough else None)


def test_out_of_distribution_images_are_told_by_their_uncertainty():
    """Of 3 · 2 pairs, 0.9 is above all three; 0.2 is above one and level with one."""
    assert ood_auroc(np.array([0.1, 0.2, 0.6]), np.array([0.9, 0.2])) == Score((3 + 1.5) / 6, 2)
    assert ood_auroc(np.array([0.5] * 4), np.array([0.5] * 3)) == Score(0.5, 3)
    assert ood_auroc(np.array([0.5]), np.array([])) == ood_auroc(np.array([]), np.array([])) == Score(None, 0)
    with pytest.raises(ValueError, match="not a number"):
        ood_auroc(np.array([0.5]), np.array([math.nan]))


def test_sites_count_alike_or_by_their_images_or_in_between():
    values, images = [0.9, 0.5, 0.7], [10, 1000, 100]
    assert mean_over_sites(values, images, 1) == pytest.approx(0.7)
    assert mean_over_sites(values, images, math.e) == pytest.approx((9 + 500 + 70) / 1110)
    between = [2 ** math.log(count) for count in images]
    expected = sum(weight * value for weight, value in zip(between, values, strict=True)) / sum(between)
    assert mean_over_sites(values, images, 2) == pytest.approx(expected)
    assert mean_over_sites([0.4], [1], math.e) == pytest.approx(0.4)
    for wrong in (([], [], 1), ([0.5], [0], 1), ([0.5], [1, 2], 1), ([0.5], [1], 3)):
        with pytest.raises(ValueError, match="cannot average"):
            mean_over_sites(*wrong)


@given(st.lists(st.tuples(shares, st.booleans()), min_size=1, max_size=30))
def test_ranking_counts_what_is_at_least_as_high(pairs):
    scores, positive = np.array([u for u, _ in pairs]), np.array([mark for _, mark in pairs])
    ranked = ranking(scores, positive)
    assert ranked.scores.tolist() == sorted(set(scores.tolist()), reverse=True)
    for score, positives, negatives in zip(ranked.scores, ranked.positives, ranked.negatives, strict=True):
        assert positives == np.sum(positive & (scores >= score))
        assert negatives == np.sum(~positive & (scores >= score))
    pairs_won = [float(a > b) + 0.5 * float(a == b) for a in scores[positive] for b in scores[~positive]]
    assert ranked.auroc() == (pytest.approx(np.mean(pairs_won)) if pairs_won else None)


def test_calibration_error_of_a_worked_example():
    """0.95 and 0.97 share the last bin, 2 · |0.96 − 1/2| / 4; 0.6 still is in the ninth, 2 · |0.59 − 1/2| / 4."""
    found = calibration_error(np.array([0.95, 0.97, 0.6, 0.58]), np.array([True, False, True, False]))
    assert found == pytest.approx(0.23 + 0.045)
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0
    with pytest.raises(ValueError, match="as many"):
        calibration_error(np.zeros(0), np.zeros(0, dtype=bool))


@pytest.mark.parametrize(
    ("truth", "probabilities", "uncertainty", "words"),
    [
        ([], np.zeros((0, 2)), [], "classes and"),
        ([0], [[0.5, 0.5], [0.5, 0.5]], [0.5], "classes and"),
        ([0], [0.5], [0.5], "classes and"),
        ([2], [[0.5, 0.5]], [0.5], "outside 0 to 1"),
        ([-1], [[0.5, 0.5]], [0.5], "outside 0 to 1"),
        ([0], [[0.5, math.nan]], [0.5], "not a number"),
        ([0], [[0.5, 1.5]], [0.5], "not a number"),
        ([0], [[0.5, 0.5]], [-0.5], "not a number"),
        ([0], [[0.5, 0.5]], [0.5, 0.5], "of shape"),
    ],
)
@pytest.mark.parametrize("score", [grading_scores, pixel_scores])
def test_what_cannot_be_scored_is_refused(score, truth, probabilities, uncertainty, words):
    with pytest.raises(ValueError, match=words):
        score(np.array(truth, dtype=np.int64), np.array(probabilities), np.array(uncertainty))


def test_rounding_is_not_refused():
    scores = pixel_scores(np.array([1]), np.array([[0, 1 + 1e-7]], dtype=np.float32), np.array([0.0]))
    assert scores["calibration_error"] == 0


def test_of_several_classes_pixels_have_the_mean_of_each_against_the_rest():
    truth = np.array([0, 0, 1, 1, 2, 2])
    probabilities = np.eye(4)[[0, 1, 1, 1, 2, 0]] * 0.6 + 0.1
    scores = pixel_scores(truth, probabilities, np.full(6, 0.5))
    one, two = (
        pixel_scores(
            (truth == k).astype(int), np.stack([1 - probabilities[:, k], probabilities[:, k]], 1), np.full(6, 0.5)
        )
        for k in (1, 2)
    )
    for name in ("auroc", "auprc"):
        assert scores[name] == pytest.approx((one[name] + two[name]) / 2), name  # no pixel is of class 3
    assert scores["dice"] == pytest.approx((0.8 + 2 / 3 + 1) / 3)  # of 1, of 2, and of 3, which nobody has
    assert scores["iou"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert scores["sensitivity"] == pytest.approx((1 + 1 / 2) / 2)
    assert scores["specificity"] == pytest.approx((3 / 4 + 1 + 1) / 3)
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["balanced_accuracy"] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)


def test_scoring_does_not_import_scikit_learn():
    """It takes a daemon's memory, and seconds."""
    program = (
        "import sys, numpy as np, shared.learning.uncertainty\n"
        "from shared.learning.metrics import grading_scores\n"
        "grading_scores(np.zeros(2, dtype=int), np.eye(2), np.zeros(2))\n"
        "sys.exit(any(name in sys.modules for name in ('sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
