"""What the tolerance check scores, and what a score must exceed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from deploy.local import synthetic_octa
from shared.errors import ConfigurationError, RejectedError
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.verdicts import Verdict
from shared.learning.answers import limit_below, passes
from shared.learning.batch_norm import batch_norms
from shared.learning.methods import open_method
from shared.learning.metrics import accuracy, macro_dice
from shared.learning.model_files import save_tensors
from shared.learning.run_checks import check_together
from shared.learning.run_files import Scored
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tolerance import HeldOutSet, score_name
from shared.learning.training import evaluate
from tests.federation.running import TINY, run_configuration

TASK = task_named("octa_segmentation")
BELOW = BelowLast(below_last=0.1)
shares = st.floats(0, 1)


# --- macro Dice -------------------------------------------------------------------------------------------------


def test_always_background_is_worth_less_than_one_half() -> None:
    """Pixel accuracy calls it right in 88 of 100."""
    truth = np.arange(100) < 12
    nothing = np.zeros(100, dtype=np.int64)
    assert accuracy(nothing, truth) == 0.88
    assert macro_dice(nothing, truth, 2) == pytest.approx((2 * 88 / 188 + 0) / 2)
    assert macro_dice(nothing + 1, truth, 2) == pytest.approx((0 + 2 * 12 / 112) / 2)
    assert macro_dice(truth, truth, 2) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_macro_dice_is_the_macro_f1_of_the_pixels(pixels: list[tuple[int, int]]) -> None:
    predicted, truth = np.array(pixels).T
    classes = [0, 1, 2]
    expected = f1_score(truth, predicted, labels=classes, average="macro", zero_division=1.0)
    assert macro_dice(predicted, truth, 3) == pytest.approx(expected)


# --- the held-out set -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heldout")
    synthetic_octa.write_site(root, style=synthetic_octa.WIDE, images=3, size=32, seed=1)
    return root


def held_out(folder: Path, score: str, method_name: str = "mean") -> tuple[HeldOutSet, torch.nn.Module, Path]:
    method, options = open_method(method_name, {}), TASK.options(TINY)
    network = build_network(TASK, method, options, 2, run_seed=3, is_private=False)
    listed, objective = sharing(TASK, method, network), method.objective(1, 1)
    images = TASK.open_images(folder, options)
    save_tensors(network, listed.shared, path := folder.parent / f"{method_name}.safetensors")
    return HeldOutSet(TASK, network, images, listed, score, objective, seed=1), network, path


def test_the_papers_accuracy_is_that_of_the_tables(folder: Path) -> None:
    found, network, path = held_out(folder, "accuracy")
    images = TASK.open_images(folder, TASK.options(TINY))
    expected = evaluate(TASK, network, images.samples, open_method("mean", {}).objective(1, 1))
    assert found.score(path, "model") == expected.scores["accuracy_mean"].value


@pytest.mark.parametrize("method", ["mean", "fedbn", "feduaa", "deep_ensembles"])
def test_the_limit_follows_from_the_aggregates_score(folder: Path, method: str) -> None:
    """Of whole models, of ensembles, and of a linear probe's features."""
    found, _, path = held_out(folder, "macro_dice", method)
    score = found.score(path, "model")
    assert score is not None and 0 < score < 1
    assert found.limit(path, BELOW) == limit_below(score, BELOW)


@pytest.mark.parametrize("method", ["mean", "fedbn"])
def test_an_aggregate_that_has_diverged_has_a_limit(folder: Path, method: str, tmp_path: Path) -> None:
    """As large as any number may be: what comes of it is not finite."""
    found, network, _ = held_out(folder, "macro_dice", method)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.6e7)
    listed = sharing(TASK, open_method(method, {}), network)
    save_tensors(network, listed.shared, tmp_path / "aggregate.safetensors")
    assert 0 <= found.limit(tmp_path / "aggregate.safetensors", BELOW) < 0.6


@pytest.mark.parametrize("is_scored", [True, False])
def test_a_model_with_a_negative_variance_is_refused_also_where_nothing_is_scored(
    is_scored: bool, folder: Path, tmp_path: Path
) -> None:
    found, network, _ = held_out(folder, "macro_dice")
    batch_norms(network)[0].running_var[0] = -0.1
    save_tensors(network, found.sharing.shared, path := tmp_path / "model.safetensors")
    with pytest.raises(RejectedError, match="has a BatchNorm with a negative variance"):
        (found if is_scored else replace(found, images=None)).score(path, "model")


@given(last=shares, below=st.floats(0, 1, exclude_max=True))
def test_a_limit_is_a_share_that_reads_back(last: float, below: float) -> None:
    limit = limit_below(last, BelowLast(below_last=below))
    assert 0 <= limit <= 1 and abs(limit - max(0.0, last - below)) <= 0.00005 + 1e-12
    assert float(f"{limit:.4f}") == limit


# --- who passes -------------------------------------------------------------------------------------------------


@given(score=shares, last=shares)
def test_an_answer_counts_above_the_limit_alone(score: float, last: float) -> None:
    run = run_configuration(tolerance=BELOW)
    limit = limit_below(last, BELOW)
    scored = Scored(score=repr(score), theta=None, reason="")
    assert passes(scored, run, 1, limit) == (score > limit)
    assert not passes(scored, run, run.rounds + 1, None)
    assert not passes(scored.model_copy(update={"reason": "is not finite"}), run, 1, limit)
    assert not passes(scored.model_copy(update={"score": None}), run, 1, limit)
    told = {"score": repr(score), "tolerance": repr(limit), "theta": None, "weight": None, "reason": ""}
    Verdict.model_validate({"run": "r", "round": 1, "site": "north", "status": "omitted", **told})


# --- which score ------------------------------------------------------------------------------------------------


def test_a_run_that_is_older_than_the_choice_is_scored_as_it_was() -> None:
    assert score_name(TASK, run_configuration()) == "accuracy"
    assert score_name(TASK, run_configuration(tolerance_score="macro_dice")) == "macro_dice"
    staging: RunConfiguration = run_configuration(task="dr_staging", task_options={})
    assert score_name(task_named("dr_staging"), staging) == "balanced_accuracy"


@pytest.mark.parametrize(
    ("task", "known"), [("octa_segmentation", "macro_dice or accuracy"), ("time_series", "balanced_accuracy")]
)
def test_a_score_that_a_task_does_not_have_is_refused(task: str, known: str) -> None:
    run = run_configuration(task=task, task_options={}, augmentation={}, tolerance_score="auroc")
    with pytest.raises(ConfigurationError, match=f"tolerance_score: {task} has no auroc; take {known}"):
        check_together(run)
