"""Synthetic photographs: reproducible, lesions by grade, cameras that differ, sites with scales of their own."""

import csv
import hashlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from deploy.local.synthetic_fundus import (
    CLINIC,
    CROPPED,
    GRADE_NAMES,
    HANDHELD,
    PALE,
    STYLES,
    UNGRADABLE,
    contact_sheet,
    draw_fundus,
    write_graded_site,
)


def labels_of(root):
    with (root / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "grade"]
    return {stem: int(grade) for stem, grade in rows[1:]}


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize("size", [32, 97, 512])
def test_any_size(style, size):
    for grade in (4, UNGRADABLE):
        picture = draw_fundus(grade, style, size, 1)
        assert (picture.shape, picture.dtype) == ((size, size, 3), np.uint8)
        assert picture.max() > 20


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_black_outside_the_retina_and_not_within(style):
    size = 96
    along = (np.arange(size) + 0.5 - size / 2) / (size / 2)
    radius = np.hypot(along[None, :], along[:, None])
    for grade in range(5):
        picture = draw_fundus(grade, style, size, 3)
        assert not picture[radius > style.aperture].any()
        within = picture[radius < 0.95 * style.aperture]
        assert within.sum(axis=1).min() > 0
        red, _, blue = within.mean(axis=0)
        assert red > 1.3 * blue


def test_seeded_whatever_was_drawn_before():
    np.random.seed(1)
    first = draw_fundus(3, CLINIC, 64, 5)
    np.random.seed(2)
    draw_fundus(2, PALE, 48, 9)
    assert np.array_equal(draw_fundus(3, CLINIC, 64, 5), first)
    assert not np.array_equal(draw_fundus(3, CLINIC, 64, 6), first)


def test_another_process_draws_the_same_bytes():
    code = (
        "import hashlib; from deploy.local.synthetic_fundus import HANDHELD, draw_fundus;"
        "print(hashlib.sha256(draw_fundus(4, HANDHELD, 64, 7).tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(draw_fundus(4, HANDHELD, 64, 7).tobytes()).hexdigest()


def test_left_and_right_eyes():
    brightest_right = 0
    for seed in range(16):
        green = draw_fundus(0, CLINIC, 64, seed)[..., 1].astype(float)
        column = int(np.median(np.argsort(green.ravel())[-20:] % 64))  # where the disc is
        assert abs(column - 32) > 8
        brightest_right += column > 32
    assert 3 <= brightest_right <= 13


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_the_same_eye_shows_more_at_a_higher_grade(style):
    still = replace(style, noise=0.0)
    changed = np.zeros((5, 5))
    for seed in range(5):
        healthy = draw_fundus(0, still, 96, seed).astype(int)
        for grade in range(5):
            difference = np.abs(draw_fundus(grade, still, 96, seed).astype(int) - healthy).max(axis=2)
            changed[seed, grade] = (difference > 15).mean()
    assert not changed[:, 0].any()
    assert (changed[:, 1] > 0).all()
    assert (np.diff(changed[:, :4], axis=1) > 0).all()
    assert changed[:, 1].max() < 0.03  # it is the same eye, but for a few dots
    assert changed[:, 4].mean() > changed[:, 2].mean()


def test_ungradable_shows_less():
    def detail(grade, seed):
        green = draw_fundus(grade, replace(CLINIC, noise=0.0), 96, seed)[20:76, 20:76, 1].astype(float)
        return np.abs(np.diff(green, axis=0)).mean()

    assert all(detail(UNGRADABLE, seed) < 0.6 * detail(0, seed) for seed in range(10))


def test_cameras_differ():
    means = np.array([np.mean([draw_fundus(0, style, 64, seed) for seed in range(9)], (0, 1, 2)) for style in STYLES])
    for one in range(len(STYLES)):
        for other in range(one):
            assert np.abs(means[one] - means[other]).max() > 10
    assert draw_fundus(0, CROPPED, 64, 1)[0, 32].any()
    assert not draw_fundus(0, HANDHELD, 64, 1)[0, 32].any()


@pytest.mark.parametrize(("grades", "quota"), [(4, [12, 5, 7, 6]), (5, [10, 5, 7, 4, 4]), (6, [10, 4, 6, 4, 3, 3])])
def test_a_site_has_its_scale(tmp_path, grades, quota):
    write_graded_site(tmp_path, style=PALE, images=30, size=32, seed=4, grades=grades)
    labels = labels_of(tmp_path)
    assert list(labels) == [f"pale-{number:03d}" for number in range(1, 31)]
    assert list(labels) == sorted(path.stem for path in (tmp_path / "images").iterdir())
    counts = Counter(labels.values())
    assert [counts[grade] for grade in range(grades)] == quota
    assert list(labels.values()) != sorted(labels.values())
    assert (tmp_path / "grades.txt").read_text().splitlines() == list(GRADE_NAMES[grades])
    with Image.open(tmp_path / "images" / "pale-001.png") as picture:
        assert (picture.mode, picture.size) == ("RGB", (32, 32))


def test_a_site_is_decided_by_its_seed(tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_graded_site(tmp_path / name, style=CLINIC, images=10, size=32, seed=seed, label_noise=0.5)
    one, again, other = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()}
        for name in ("one", "again", "other")
    )
    assert one == again
    assert one["labels.csv"] != other["labels.csv"]
    assert one["clinic-001.png"] != other["clinic-001.png"]


@pytest.mark.parametrize("grades", [4, 5, 6])
def test_label_noise_moves_labels_to_a_neighbour(tmp_path, grades, monkeypatch):
    monkeypatch.setattr("deploy.local.synthetic_fundus.draw_fundus", lambda *_: np.zeros((32, 32, 3), dtype=np.uint8))
    for name, noise in (("true", 0.0), ("some", 0.2), ("all", 1.0)):
        write_graded_site(tmp_path / name, style=CLINIC, images=500, size=32, seed=4, grades=grades, label_noise=noise)
    true, some, every = (np.array(list(labels_of(tmp_path / name).values())) for name in ("true", "some", "all"))
    sick = true != UNGRADABLE
    assert 0.13 < (some != true)[sick].mean() < 0.27
    assert (np.abs(every - true)[sick] == 1).all()
    assert (np.abs(some - true)[sick] <= 1).all()
    assert (every[~sick] == UNGRADABLE).all()
    assert every[sick].min() == 0
    assert every[sick].max() == min(grades, 5) - 1


@pytest.mark.parametrize("grade", [-1, 6])
def test_other_grades_are_refused(grade):
    with pytest.raises(ValueError, match="0 to 4, or 5 for ungradable"):
        draw_fundus(grade, CLINIC, 64, 1)


@pytest.mark.parametrize("size", [31, 513])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="between 32 and 512"):
        draw_fundus(0, CLINIC, size, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"grades": 3}, "4, 5 or 6 grades"),
        ({"grades": 7}, "4, 5 or 6 grades"),
        ({"images": 9}, "at least 10 images"),
        ({"size": 31}, "between 32 and 512"),
        ({"label_noise": -0.1}, "between 0 and 1"),
        ({"label_noise": float("nan")}, "between 0 and 1"),
    ],
)
def test_a_wrong_site_is_refused_before_anything_is_written(tmp_path, wrong, message):
    site = {"style": CLINIC, "images": 10, "size": 32, "seed": 1} | wrong
    with pytest.raises(ValueError, match=message):
        write_graded_site(tmp_path / "site", **site)
    assert not (tmp_path / "site").exists()


def test_the_contact_sheet_has_a_row_for_each_camera_and_a_column_for_each_grade():
    sheet = contact_sheet(size=32)
    assert isinstance(sheet, Image.Image)
    assert sheet.size == (6 * 36 + 4, len(STYLES) * 54 + 4)
