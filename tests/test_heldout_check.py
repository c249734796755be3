"""``dropfed-aggregator check`` says of held-out images with which no model can be checked why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.local.synthetic_signals import write_sounds, write_time_series, write_wave
from shared.check import look_at_images, look_at_ood
from shared.errors import DataError
from tests.federation.running import run_configuration
from tests.learning.small_sites import SIGNALS, write_small

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


def electrocardiograms(root: Path) -> Path:
    """Recordings of other channels and another rate than any task's defaults name."""
    labels, channels = ("sinus rhythm", "atrial fibrillation"), ("I", "II", "V1")
    write_time_series(root, recordings=6, rows=400, seed=1, labels=labels, channels=channels, rate_hz=500.0)
    return root


def test_recordings_are_looked_at_as_they_are_before_a_run_says_what_it_reads(tmp_path: Path) -> None:
    root = electrocardiograms(tmp_path / "series")
    common = "time_series: each recording lasts 0.8 s or more, at 500 Hz, with I, II, V1; what a run asks of them is "
    labelled, told = [(found.grade, found.text) for found in look_at_images("heldout", "time_series", root)]
    assert labelled == (
        "ok",
        f"time_series: 6 labelled recordings in {root}; classes: atrial fibrillation, sinus rhythm",
    )
    assert told == ("ok", common + "looked at once there is one")
    files = root / "recordings"
    assert [found.text for found in look_at_ood("ood", "time_series", files)][1:] == [told[1]]

    write_sounds(tmp_path / "sounds", recordings=8, seconds=3, seed=1, labels=("pass", "refer"), rate=400)
    _, of_sounds = look_at_images("heldout", "spectrograms", tmp_path / "sounds")
    assert of_sounds.text.startswith("spectrograms: each recording lasts 3 s or more, at 400 Hz; what a run asks")


def test_what_no_run_could_read_of_all_recordings_is_told_before_a_run(tmp_path: Path) -> None:
    root = electrocardiograms(tmp_path)
    header, *rows = (root / "recordings" / "series-002.csv").read_text().splitlines()
    slower = [",".join([f"{number / 250:.3f}", *row.split(",")[1:3], ""]) for number, row in enumerate(rows)]
    (root / "recordings" / "series-002.csv").write_text("\n".join([header, *slower]))
    found = [each.text for each in look_at_images("heldout", "time_series", root) if each.grade == "warning"]
    assert found == [
        "time_series: not in each recording, or not with a finite number in each row: V1, as of series-002; a run that "
        "names them takes no such recording: fill such gaps in, or correct the header",
        "time_series: the rates differ, 250 to 500 Hz, and a run takes one alone; resample the others to it",
    ]

    table = root / "recordings.csv"
    table.write_text(table.read_text().replace("sinus rhythm", "sinus/regular"))
    with pytest.raises(DataError, match="no run can name the label 'sinus/regular': each must do as a folder's name"):
        list(look_at_images("heldout", "time_series", root))


@pytest.mark.parametrize("task", SIGNALS)
def test_recordings_are_read_as_the_newest_run_of_their_task_reads_them(task: str, tmp_path: Path) -> None:
    write_small(task, tmp_path, images=6, size=96)
    run = run_configuration(task=task, task_options=SIGNALS[task], augmentation={})
    length = {"window": 97} if task == "time_series" else {"segment_seconds": 7.0}
    longer = run_configuration(task=task, task_options=SIGNALS[task] | length, augmentation={})
    for look, folder in ((look_at_images, tmp_path), (look_at_ood, tmp_path / "recordings")):
        (found,) = look("heldout", task, folder, run)
        assert found.grade == "ok" and found.text.startswith(f"{task}: ")
        with pytest.raises(DataError, match=f"^{task}, as run {run.run} reads it: .*(a window 97|a segment 7 s)"):
            list(look("heldout", task, folder, longer))
