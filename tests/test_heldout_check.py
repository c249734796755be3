"""``dropfed-aggregator check`` says of held-out images with which no model can be checked why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.local.synthetic_signals import write_wave
from shared.check import look_at_images

EMPTY, FULL, HALF = (0, 0), (255, 255), (0, 255)


def segmentation(root: Path, masks: Sequence[tuple[int, int]]) -> None:
    """Images whose masks have an upper and a lower half of these greys."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for number, (upper, lower) in enumerate(masks):
        mask = np.full((32, 32), upper, np.uint8)
        mask[16:] = lower
        Image.fromarray(np.full((32, 32), 40 + number, np.uint8)).save(root / "images" / f"{number}.png")
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")


def staging(root: Path, grades: Sequence[int]) -> None:
    (root / "images").mkdir(parents=True)
    for number in range(len(grades)):
        Image.fromarray(np.full((32, 32, 3), 40 + number, np.uint8)).save(root / "images" / f"{number}.png")
    rows = "".join(f"{number},{grade}\n" for number, grade in enumerate(grades))
    (root / "labels.csv").write_text(f"id,grade\n{rows}")
    (root / "grades.txt").write_text("none\nmild\nsevere\n")


def warnings(root: Path, task: str) -> list[str]:
    return [found.text for found in look_at_images("heldout", task, root) if found.grade != "ok"]


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([HALF, HALF], []),
        ([HALF, FULL, HALF], ["1 mask has no pixel of background"]),
        ([HALF], ["there is one image alone, and its score says little; add others"]),
        (
            [EMPTY, EMPTY],
            [
                "2 masks are empty, background all over",
                "every image shows background alone, so that a model which always says so scores best",
            ],
        ),
        (
            [FULL, FULL],
            [
                "2 masks have no pixel of background",
                "every image shows vessel alone, so that a model which always says so scores best",
            ],
        ),
        (
            [HALF, EMPTY, EMPTY],
            [
                "2 masks are empty, background all over",
                "one image alone shows vessel, which is too few for methods that leave part",
            ],
        ),
    ],
)
def test_masks(masks: Sequence[tuple[int, int]], expected: Sequence[str], tmp_path: Path) -> None:
    segmentation(tmp_path / "heldout", masks)
    found = warnings(tmp_path / "heldout", "octa_segmentation")
    assert len(found) == len(expected)
    assert all(text.startswith(f"octa_segmentation: {start}") for text, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("grades", "expected"),
    [
        ([0, 0, 1, 1, 2, 2], []),
        ([1, 1, 1], ["every image shows mild alone"]),
        ([0, 0, 2, 2], ["no image shows mild, which is not checked then; add some"]),
        ([0, 0, 1, 2], ["one image alone shows mild, severe, which is too few"]),
        ([0, 2, 2], ["no image shows mild", "one image alone shows none"]),
    ],
)
def test_grades(grades: Sequence[int], expected: Sequence[str], tmp_path: Path) -> None:
    staging(tmp_path / "heldout", grades)
    found = warnings(tmp_path / "heldout", "dr_staging")
    assert len(found) == len(expected)
    assert all(text.startswith(f"dr_staging: {start}") for text, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("people", "expected"),
    [
        ("pqrs", []),
        ("pqpr", ["one recording or person alone shows normal, which is too few"]),
        ("pppp", ["there is one recording or person alone, and its score says little"]),
    ],
)
def test_recordings_count_by_their_people(people: str, expected: Sequence[str], tmp_path: Path) -> None:
    """Of two segments each, normal and abnormal in turns."""
    rows = ["id,file,label,group\n"]
    for number, person in enumerate(people):
        sound = np.random.default_rng(number).uniform(-0.5, 0.5, 10 * 2000)
        write_wave(tmp_path / f"{number}.wav", sound, 2000)
        rows.append(f"r{number},{number}.wav,{('normal', 'abnormal')[number % 2]},{person}\n")
    (tmp_path / "recordings.csv").write_text("".join(rows))
    found = warnings(tmp_path, "spectrograms")
    assert len(found) == len(expected)
    assert all(text.startswith(f"spectrograms: {start}") for text, start in zip(found, expected, strict=True))
