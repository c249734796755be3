"""From how many images a site does as well alone, from a study's tables."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.break_even import Curve, break_even, break_even_table, curves, draw

HEADER = ["arm", "tested on", "auroc", "kappa"]


def curve(*means: float) -> Curve:
    return {number: (mean, 0.01) for number, mean in zip((10, 40, 160), means, strict=False)}


@pytest.mark.parametrize(
    ("alone", "federated", "expected"),
    [
        ((0.5, 0.6, 0.7), (0.6, 0.7, 0.8), math.inf),
        ((0.5, 0.6, 0.7), (0.5, 0.5, 0.5), 0.0),
        ((0.5, 0.6, 0.7), (0.6, 0.5, 0.5), 20.0),  # half way from 10 to 40 on a log scale
        ((0.5, 0.6, 0.7), (0.6, 0.7, 0.4), 40 * 4**0.25),
        ((0.5, 0.6, 0.7), (0.4, 0.7, 0.6), None),
    ],
)
def test_where_the_curves_cross(alone: tuple[float, ...], federated: tuple[float, ...], expected: float | None) -> None:
    found = break_even(curve(*alone), curve(*federated))
    assert found == (None if expected is None else pytest.approx(expected))


def test_numbers_that_one_curve_lacks_do_not_count() -> None:
    assert break_even(curve(0.5, 0.6, 0.7), curve(0.6, 0.7)) == math.inf


def test_a_study_is_read_tabled_and_drawn(tmp_path: Path) -> None:
    rows = [
        ["alone, 10 images (untrained model in 1 of 3 cells)", "internal", "0.500 ± 0.010", ""],
        ["alone, 40 images", "internal", "0.700 ± 0.010", ""],
        ["FedBN, 10 images", "internal", "0.600 ± 0.020", ""],
        ["FedBN, 40 images", "internal", "0.600", ""],  # one seed
        ["FedAvg, 10 images", "internal", "0.600 ± 0.020", ""],
        ["FedAvg, 40 images", "internal", "0.750 ± 0.020", ""],
        ["alone, 10 images", "external", "0.700 ± 0.010", ""],
        ["FedBN, 10 images", "external", "0.400 ± 0.010", ""],
        ["combined", "internal", "0.9 ± 0.010", ""],
    ]
    found = curves([HEADER, *rows], "auroc")
    assert found["internal"]["FedBN"][10] == (0.6, 0.02) and math.isnan(found["internal"]["FedBN"][40][1])
    assert found["external"] == {"alone": {10: (0.7, 0.01)}, "FedBN": {10: (0.4, 0.01)}}
    assert break_even_table([HEADER, *rows], "auroc") == [
        ["method", "tested on", "as good alone from"],
        ["FedBN", "own images", "about 20 images"],
        ["FedAvg", "own images", "more than 40 images"],
        ["FedBN", "other sites' images", "10 images or fewer"],
    ]
    picture = tmp_path / "curves.png"
    draw([HEADER, *rows], "auroc", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
