"""The augmentation: as the paper says, decided by its seed, on a fixed range."""

import random
import sys

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from shared.errors import DropfedError
from shared.learning.data.augmentation import Augmentation, augment
from shared.learning.data.imgaug_import import import_imgaug

STILL = {
    "pixel_dropout": (0.0, 0.0),
    "contrast": (1.0, 1.0),
    "gamma": (1.0, 1.0),
    "rotation_degrees": (0.0, 0.0),
    "horizontal_flip": 0.0,
    "vertical_flip": 0.0,
}
IMAGE = np.random.default_rng(0).uniform(0.2, 0.7, (40, 50)).astype(np.float32)
MASK = (IMAGE > 0.5).astype(np.uint8)


def only(**changes):
    return Augmentation.model_validate(STILL | changes)


def test_defaults_are_the_papers():
    """Lo et al. 2021: 5 copies; dropout 5-10 %, contrast 0.5-3, gamma 0.4-1.75, ±15°, flips at 0.5."""
    assert Augmentation().model_dump() == {
        "copies": 5,
        "originals": True,
        "pixel_dropout": (0.05, 0.10),
        "contrast": (0.5, 3.0),
        "gamma": (0.4, 1.75),
        "rotation_degrees": (-15.0, 15.0),
        "translation": (0.0, 0.0),
        "horizontal_flip": 0.5,
        "vertical_flip": 0.5,
        "crops": None,
    }


def test_nothing_to_do_changes_nothing():
    image, mask = augment(IMAGE, MASK, only(), 1)
    assert image == pytest.approx(IMAGE, abs=1e-5)
    assert np.array_equal(mask, MASK)
    assert (image.dtype, mask.dtype) == (np.float32, np.uint8)


def test_dropout_blackens_its_share():
    image, mask = augment(
        np.full((200, 200), 0.5, np.float32), np.ones((200, 200), np.uint8), only(pixel_dropout=(0.05, 0.1)), 1
    )
    assert 0.04 < np.mean(image == 0) < 0.11
    assert mask.all()


def test_contrast_turns_about_the_middle_and_is_never_undone():
    image, _ = augment(IMAGE, MASK, only(contrast=(2.0, 2.0)), 1)
    assert image == pytest.approx(np.clip(0.5 + 2 * (IMAGE - 0.5), 0, 1), abs=1e-4)
    faint, _ = augment(IMAGE, MASK, only(contrast=(0.5, 0.5)), 1)
    assert faint.max() < 0.61  # nothing stretches it to 1 again


def test_translation_moves_image_and_mask_together_and_fills_up_with_nothing():
    image, mask = augment(IMAGE, MASK, only(translation=(0.1, 0.1)), 1)
    assert image[4:, 5:] == pytest.approx(IMAGE[:-4, :-5], abs=1e-4)
    assert np.array_equal(mask[4:, 5:], MASK[:-4, :-5])
    assert not image[:4].any() and not mask[:, :5].any()
    with pytest.raises(ValidationError, match="translation must be two numbers in order"):
        only(translation=(0.0, 0.6))


def test_gamma():
    image, _ = augment(IMAGE, MASK, only(gamma=(1.7, 1.7)), 1)
    assert image == pytest.approx(IMAGE**1.7, abs=1e-4)


def test_the_mask_moves_with_the_image():
    image, mask = augment(IMAGE, MASK, only(horizontal_flip=1.0, vertical_flip=1.0), 1)
    assert image == pytest.approx(IMAGE[::-1, ::-1], abs=1e-4)
    assert np.array_equal(mask, MASK[::-1, ::-1])

    bar = np.zeros((64, 64), np.uint8)
    bar[20:44, 28:36] = 1
    turned_image, turned = augment(bar.astype(np.float32), bar, only(rotation_degrees=(15.0, 15.0)), 1)
    assert set(np.unique(turned)) == {0, 1}
    assert not np.array_equal(turned, bar)
    assert np.mean((turned_image >= 0.5) == turned) > 0.99


def test_the_seed_decides_and_nothing_else():
    first = augment(IMAGE, MASK, Augmentation(), 5)
    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)
    import_imgaug().random.seed(1)
    before = np.random.get_state()[1].copy(), random.getstate()
    again = augment(IMAGE, MASK, Augmentation(), 5)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert random.getstate() == before[1]
    assert not np.array_equal(first[0], augment(IMAGE, MASK, Augmentation(), 6)[0])


@pytest.mark.parametrize(
    "wrong", [{"contrast": (3, 0.5)}, {"gamma": (0, 1)}, {"pixel_dropout": (0.5, 2)}, {"copies": -1}, {"flip": 1}]
)
def test_ranges_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        Augmentation.model_validate(wrong)


def test_imgaug_works_with_this_numpy():
    assert import_imgaug().__version__ == "0.4.0"
    assert np.sctypes["float"]


@pytest.mark.parametrize(("broken", "remedy"), [("cv2", "opencv-python-headless"), ("imgaug", "imgaug==0.4.0")])
def test_a_broken_import_says_what_to_install(monkeypatch, broken, remedy):
    monkeypatch.setitem(sys.modules, broken, None)  # what Python does where the module cannot be imported
    with pytest.raises(DropfedError, match=f"pip install .*{remedy}"):
        import_imgaug()
