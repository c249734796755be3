"""Small data folders of every task, of one site each."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from deploy.local import synthetic_fundus, synthetic_octa, synthetic_signals
from tests.drawn import draw_once
from tests.learning.synthetic_scans import write_scans

SEVERITIES = ("normal", "mild", "moderate", "severe", "proliferative")
LABELS = ("normal", "glaucoma", "cataract")
SIGNALS: dict[str, dict[str, object]] = {
    "time_series": {
        "labels": ["resting", "walking", "running"],
        "channels": ["x", "y"],
        "rate_hz": 20.0,
        "window": 32,
        "stride": 16,
    },
    "spectrograms": {"encoder": "small", "segment_seconds": 2.0, "image_size": 32},
}
"""Task options for these folders."""


def write_small(
    task: str, folder: Path, *, images: int, size: int, seed: int = 1, site: int = 0, grades: int = 4
) -> None:
    """Write a site's data folder for a task; of recordings so many, each of ``size`` rows or sixteenths of a second.

    Args:
        site: decides its device or camera.
        grades: of ``dr_staging``.
    """
    name = f"small-{task}-{images}-{size}-{seed}-{site}-{grades}"
    draw_once(
        name, lambda drawn: _write(task, drawn, images=images, size=size, seed=seed, site=site, grades=grades), folder
    )


def write_labelled_vessels(folder: Path, *, images: int) -> None:
    """Write a site's data folder of three labels: vessels on the left are of one, those on the right of another."""
    write_small("segmentation", folder, images=images, size=64)
    for path in (folder / "masks").iterdir():
        mask = np.asarray(Image.open(path)) > 0
        labels = mask * np.where(np.arange(mask.shape[1]) < mask.shape[1] // 2, 1, 2)
        Image.fromarray(labels.astype(np.uint8)).save(path)


def _write(task: str, folder: Path, *, images: int, size: int, seed: int, site: int, grades: int) -> None:
    octa = synthetic_octa.STYLES[site % len(synthetic_octa.STYLES)]
    camera = synthetic_fundus.STYLES[site % len(synthetic_fundus.STYLES)]
    match task:
        case "octa_segmentation" | "segmentation":
            synthetic_octa.write_site(folder, style=octa, images=images, size=size, seed=seed)
        case "rdr_classification":
            write_scans(folder, style=octa, scans=images, size=size, seed=seed, severities=SEVERITIES)
        case "dr_staging" | "fundus_disease" | "image_classification":
            synthetic_fundus.write_graded_site(folder, style=camera, images=images, size=size, seed=seed, grades=grades)
            if task != "dr_staging":
                _name_diseases(folder / "labels.csv")
        case "time_series":
            synthetic_signals.write_time_series(
                folder,
                recordings=images,
                rows=size,
                seed=seed,
                labels=("resting", "walking", "running"),
                channels=("x", "y"),
                rate_hz=20.0,
                gain=1.0 + site,
            )
        case "spectrograms":
            labels, gain = ("normal", "abnormal"), 0.3 + 0.2 * site
            synthetic_signals.write_sounds(
                folder, recordings=images, seconds=size / 16, seed=seed, labels=labels, gain=gain
            )
        case _:
            raise ValueError(f"there are no small sites of {task}")


def _name_diseases(labels: Path) -> None:
    """Diseases in the place of grades."""
    rows = list(csv.DictReader(labels.open(encoding="utf-8")))
    with labels.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows([row["id"], LABELS[min(int(row["grade"]), 2)]] for row in rows)
