"""Masks that only colour tells apart: what a model sees of an image is the green channel, or all three."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dropfed
from shared.learning.data.augmentation import Augmentation, augment
from shared.learning.data.images import colour_of, grey_of, scale_to
from tests.at_length import shown_by

_SIDE = 48
_RED, _BLUE = (200, 120, 40), (40, 120, 200)  # alike in green


def write_site(folder: Path, seed: int) -> Path:
    """Draw squares, red on blue."""
    chance = np.random.default_rng(seed)
    for number in range(10):
        mask = np.zeros((_SIDE, _SIDE), np.uint8)
        top, left = chance.integers(4, 28, size=2)
        mask[top : top + 12, left : left + 12] = 1
        image = np.where(mask[..., None] == 1, _RED, _BLUE).astype(np.uint8)
        for kind, levels in (("images", image), ("masks", mask * 255)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(levels).save(folder / kind / f"{number}.png")
    return folder


@pytest.mark.parametrize("colour", shown_by([True], [False, True]))
def test_a_run_sees_as_many_channels_as_it_says(tmp_path: Path, colour: bool) -> None:
    sites = {site: write_site(tmp_path / site, seed) for seed, site in enumerate(("north", "south"))}
    run = {
        "task": "segmentation",
        "method": "fedavg",
        "rounds": 3,
        "batch_size": 2,
        "learning_rate": {"initial": 0.02, "factor": 1.0},
        "task_options": {"colour": colour, "widths": [4, 8], "dropout": 0.0, "optimizer": "adam"},
        "augmentation": {"copies": 1, "crops": {"size": 32}},
    }
    result = dropfed.simulate(run, sites, heldout=write_site(tmp_path / "heldout", 2), home=tmp_path / "home")
    dice = [found.scores["dice_mean"].value for found in result.tests.values()]
    assert all(value is not None and (value > 0.9) == colour for value in dice), dice

    model = dropfed.load(tmp_path / "home" / "final" / "north")
    assert model.transform(sites["north"] / "images").shape == (10, 3 if colour else 1, _SIDE, _SIDE)
    grey = tmp_path / "grey.png"
    Image.fromarray(np.full((_SIDE, _SIDE), 120, np.uint8)).save(grey)
    (found,) = model.predict(grey)
    assert found.probabilities.shape == (2, _SIDE, _SIDE)


def test_a_grey_image_has_three_equal_channels() -> None:
    levels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(colour_of(levels, 255), np.dstack([grey_of(levels, 255)] * 3))


def test_sixteen_bits_of_colour_keep_their_range() -> None:
    levels = np.array([[[0, 65535, 13107]]], dtype=np.uint16)
    assert colour_of(levels, 65535) == pytest.approx(np.array([[[0, 1, 0.2]]]))


def test_channels_are_scaled_and_varied_alike() -> None:
    grey = np.random.default_rng(0).random((40, 60), dtype=np.float32)
    mask = (grey > 0.5).astype(np.uint8)
    colour = np.dstack([grey] * 3)
    (small, small_mask), (small_colour, of_colour) = scale_to(grey, mask, 48), scale_to(colour, mask, 48)
    assert np.array_equal(small_colour, np.dstack([small] * 3)) and np.array_equal(of_colour, small_mask)
    varied, moved = augment(grey, mask, Augmentation(), 7)
    varied_colour, moved_with_colour = augment(colour, mask, Augmentation(), 7)
    assert np.array_equal(varied_colour, np.dstack([varied] * 3)) and np.array_equal(moved_with_colour, moved)
