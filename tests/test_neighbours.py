"""What a site gains with neighbours of its own size and of others, from the tables of two kinds of studies."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.neighbours import equal_neighbours, gains, unequal_neighbours
from benchmarks.study_designs import DESIGNS, UNEQUAL, training_images

HEADER = ["arm", "tested on", "clinic", "cropped", "pale", "handheld"]


def undrawn(root: Path, _style: object, *, seed: int, images: int) -> None:
    (root / "images").mkdir(parents=True)
    for number in range(images):
        (root / "images" / f"{seed}-{number}.png").touch()
    grades = [f"{seed}-{number},{number % 5}" for number in range(images)]
    (root / "labels.csv").write_text("\n".join(["id,grade", *grades]) + "\n")


def test_over_all_turns_each_site_has_each_number_once() -> None:
    pairs = [pair for turn, _ in enumerate(UNEQUAL) for pair in training_images(turn).items()]
    assert len(set(pairs)) == len(pairs) == 16


def test_a_turn_leaves_its_sites_so_many_images_to_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that nobody draws here: only how many are left is looked at."""
    monkeypatch.setattr("benchmarks.study_designs._staging_site", undrawn)
    (tmp_path / "data").mkdir()
    for site, folder in DESIGNS[UNEQUAL[2]].lay_out(tmp_path / "data", tmp_path).items():
        with (tmp_path / "data" / folder / "split.csv").open(encoding="utf-8") as file:
            sets = Counter(row["split"] for row in csv.DictReader(file))
        assert sets == {"test": 135, "validation": 81, "train": training_images(2)[site]}
        assert len([*(tmp_path / "data" / folder / "images").iterdir()]) == sets.total()


def test_gains_are_of_each_site_over_itself_alone() -> None:
    equal = equal_neighbours(
        [
            HEADER,
            *(
                [f"alone, {number} images", "internal", "0.500 ± 0.010", "0.500", "0.600", "0.600"]
                for number in (10, 40, 160, 320)
            ),
            ["alone, 10 images", "external", "0.1", "0.1", "0.1", "0.1"],
            ["combined", "internal", "0.1", "0.1", "0.1", "0.1"],
        ]
    )
    # A site scores 0.7 with 10 images, and 0.5 with any other number.
    turns = [
        [
            HEADER,
            ["FedBN", "internal", *("0.700" if training_images(turn)[site] == 10 else "0.500" for site in HEADER[2:])],
        ]
        for turn, _ in enumerate(UNEQUAL)
    ]
    header, alone, fedbn = gains(equal | {"FedBN, unequal": unequal_neighbours(turns)["FedBN"]})
    assert header == ["AUROC", "10 images", "40 images", "160 images", "320 images", "as good alone from"]
    assert alone == ["alone", *["0.550"] * 4, ""]
    assert fedbn[1:3] == ["0.700 (+0.150 ± 0.058)", "0.500 (-0.050 ± 0.058)"]
    assert fedbn[-1] == "about 28 images"  # three quarters of the way from 10 to 40 on a log scale
