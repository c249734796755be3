"""Measures of shapes: by hand, beside MONAI where it is installed, and told by a run that names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from aggregator.new_run import Answers, filled_in
from deploy.local.synthetic_fundus import STYLES, write_disc_and_cup_site
from shared.errors import ConfigurationError
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import Range, RunConfiguration
from shared.learning.measures import OF_SHAPES, task_of
from shared.learning.new_runs import as_of_now
from shared.learning.objectives import IGNORED, CrossEntropy
from shared.learning.shapes import cup_to_disc_error, hausdorff_95, nested_dice
from studies.simulation import run_rounds
from tests.federation.running import run_configuration, staging_run

MASKS = arrays(np.int64, (9, 7), elements=st.integers(0, 2))


def said(mask: np.ndarray, classes: int = 3) -> np.ndarray:
    """Probabilities that say this mask."""
    return np.eye(classes)[mask]


def square(top: int, left: int, side: int, number: int = 1, into: np.ndarray | None = None) -> np.ndarray:
    mask = np.zeros((20, 20), dtype=np.int64) if into is None else into.copy()
    mask[top : top + side, left : left + side] = number
    return mask


def test_a_square_that_lies_elsewhere_is_as_far_as_it_was_moved() -> None:
    assert hausdorff_95(said(square(2, 2, 6)), square(2, 2, 6)) == 0
    assert hausdorff_95(said(square(2, 7, 1)), square(2, 2, 1)) == 5
    assert hausdorff_95(said(square(2, 2, 6)), square(5, 2, 6)) == pytest.approx(3, abs=0.01)
    nothing = np.zeros((20, 20), dtype=np.int64)
    assert hausdorff_95(said(nothing), square(2, 2, 6)) is None  # no distance to what is not there
    assert hausdorff_95(said(square(2, 2, 6)), nothing) is None


@pytest.mark.monai
def test_distances_are_those_of_monai() -> None:
    from monai import metrics

    random = np.random.default_rng(4)
    for _ in range(20):
        masks = [square(*random.integers(1, 10, 2), int(random.integers(2, 9))) for _ in range(2)]
        masks = [np.where(random.random(mask.shape) < 0.02, 1, mask) for mask in masks]
        predicted, truth = (torch.from_numpy(said(mask, 2)).permute(2, 0, 1)[None] for mask in masks)
        theirs = metrics.compute_hausdorff_distance(predicted, truth, percentile=95).item()
        assert hausdorff_95(said(masks[0], 2), masks[1]) == pytest.approx(theirs)


def test_a_cup_lies_in_its_disc() -> None:
    eye = square(6, 6, 4, 2, into=square(4, 4, 8))  # a cup of 4 in a disc of 8
    rim_alone = np.where(eye == 2, 0, eye)
    assert cup_to_disc_error(said(eye), eye) == 0
    assert cup_to_disc_error(said(square(4, 4, 8)), eye) == 0.5  # no cup is seen
    assert cup_to_disc_error(said(square(6, 6, 2, 2, into=square(4, 4, 8))), eye) == 0.25
    assert cup_to_disc_error(said(np.zeros_like(eye)), eye) is None
    assert nested_dice(said(eye), eye) == 1
    assert nested_dice(said(square(4, 4, 8)), eye) == 0.5  # of the disc with its cup 1, of the cup 0
    assert 0 < nested_dice(said(rim_alone), eye) < 0.5


@given(MASKS, MASKS)
def test_they_lie_in_their_ranges_and_know_no_order_of_the_two(one: np.ndarray, other: np.ndarray) -> None:
    for name, measure in OF_SHAPES.items():
        value = measure.compute(said(one), other)
        assert value is None or measure.range.lowest <= value
        assert value is None or measure.range.highest is None or value <= measure.range.highest
        assert measure.compute(said(one), one) in (None, 1.0 if name == "nested_dice" else 0.0)
    assert nested_dice(said(one), other) == pytest.approx(nested_dice(said(other), one))


def test_a_run_of_masks_tells_those_that_it_names_of_each_image_without_its_margin() -> None:
    run = run_configuration(scores={name: {} for name in OF_SHAPES})
    task = task_of(run)
    assert task.scores == {name: measure.range for name, measure in OF_SHAPES.items()}
    truth = torch.full((2, 32, 48), IGNORED)
    truth[0, :20, :30] = 0
    truth[0, 3:9, 4:10] = 1
    truth[1, :16, :48] = 0
    truth[1, 3:9, 4:10] = 1
    shown = torch.where(truth == IGNORED, 0, truth)
    logits = torch.nn.functional.one_hot(shown, 2).movedim(-1, 1).float() * 9
    logits[1] = logits[1].roll(2, dims=-1)  # as far as the second image's square is moved
    logits[:, 1][truth == IGNORED] = 99  # whatever is said of a margin
    scores = task.scoring(CrossEntropy()).scores([task.scoring(CrossEntropy()).look(logits, truth)])
    assert scores["hausdorff_95"].value == pytest.approx(1.0)  # the mean of 0 and 2
    assert (scores["hausdorff_95"].images, scores["nested_dice"].images) == (2, 2)
    assert 0.5 < scores["nested_dice"].value < 1  # type: ignore[operator]


def test_a_run_without_masks_cannot_have_them() -> None:
    with pytest.raises(ConfigurationError, match="scores: hausdorff_95: of masks, which dr_staging has not"):
        task_of(staging_run(scores={"hausdorff_95": Range().model_dump()}))


def test_disc_and_cup_are_learnt_and_told_by_what_the_preset_says(tmp_path: Path) -> None:
    for number, site in enumerate(("north", "south")):
        write_disc_and_cup_site(tmp_path / site, style=STYLES[number], images=12, size=32, seed=number)
        masks = [np.asarray(Image.open(path)) for path in (tmp_path / site / "masks").iterdir()]
        assert all(set(np.unique(mask)) <= {0, 1, 2} and 1 in mask for mask in masks)
    answers = Answers("run", "segmentation", "mean", ["north", "south"], 1, "disc_and_cup")
    run = parse_yaml(filled_in(answers).encode(), RunConfiguration, "RUN.yaml")
    small = {"task_options": run.task_options | {"image_size": 32, "widths": [4, 8]}, "augmentation": {"copies": 1}}
    run = as_of_now(run.model_copy(update={**small, "tolerance": None}))
    outcome = run_rounds(run, {site: tmp_path / site for site in run.sites}, tmp_path / "home")
    for table in outcome.tables[2].values():
        tested = next(row for row in table if row.split == "test")
        assert {"nested_dice", "cup_to_disc_error", "hausdorff_95"} <= set(tested.scores)
        assert 0 <= tested.scores["nested_dice"] <= 1  # type: ignore[operator]
