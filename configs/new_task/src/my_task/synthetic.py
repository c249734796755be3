"""Synthetic images: ``python -m my_task.synthetic FOLDER SEED`` writes a site's data folder; tests need no real one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32


def write_site(root: Path, images: int, seed: int) -> None:
    """Write a folder of images for each label, as a hospital would lay them out."""
    draw = np.random.default_rng(seed)
    for number in range(images):
        label = ("round", "square")[number % 2]
        rows, columns = np.mgrid[:SIDE, :SIDE] - draw.integers(12, 20, size=(2, 1, 1))
        radius = draw.integers(5, 10)
        if label == "round":
            shape = rows**2 + columns**2 < radius**2
        else:
            shape = np.maximum(abs(rows), abs(columns)) < radius
        levels = np.clip(60 + 130 * shape + draw.normal(0, 20, shape.shape), 0, 255).astype(np.uint8)
        path = root / label / f"{label}-{seed}-{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels).save(path)


if __name__ == "__main__":
    write_site(Path(sys.argv[1]), images=60, seed=int(sys.argv[2]))
