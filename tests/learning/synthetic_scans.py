"""Synthetic scans for the task ``rdr_classification``: made from synthetic OCTA, with vessels missing in patches.

They say nothing about patients: the severity is how many patches have lost their vessels.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from deploy.local.synthetic_octa import OctaStyle, render
from shared.learning.data.scans import PICTURES, SCANS_FILE
from shared.learning.seeds import seed_for

_PATCH_SHARE = 0.3  # of the image's side


def write_scans(folder: Path, *, style: OctaStyle, scans: int, size: int, seed: int, severities: Sequence[str]) -> None:
    """Writes ``scans.csv`` and its pictures, as many of each severity as of the next.

    Args:
        folder: where the data folder goes.
        scans: how many.
        size: side of each picture in pixels.
        seed: decides the scans.
        severities: their names.
    """
    rows = []
    for number in range(scans):
        severity = number % len(severities)
        name = f"scan-{number + 1:03d}"
        rng = np.random.default_rng(seed_for(seed, "scan", number))
        retina, _ = render(style, size, seed_for(seed, "retina", number))
        for quarters, picture in enumerate(PICTURES):
            image = np.rot90(retina, quarters)  # another picture each, for drawing one takes a fifth of a second
            path = folder / "pictures" / f"{name}-{picture}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = image if picture.startswith("structural") else _without_patches(image, severity, rng)
            Image.fromarray(levels).save(path)
        rows.append([name, *(f"pictures/{name}-{picture}.png" for picture in PICTURES), severities[severity]])
    with (folder / SCANS_FILE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *PICTURES, "severity"])
        writer.writerows(rows)


def _without_patches(image: NDArray[np.uint8], patches: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the image with so many dark squares, at drawn places."""
    left = image.copy()
    side = round(_PATCH_SHARE * len(image))
    for _ in range(patches):
        row, column = rng.integers(0, len(image) - side, 2)
        left[row : row + side, column : column + side] //= 6
    return left
