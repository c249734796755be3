"""Small data folders of the tasks that classify with a frozen base."""

from __future__ import annotations

import csv
from pathlib import Path

from shared.learning.data import synthetic_fundus, synthetic_octa
from shared.learning.data.synthetic_scans import write_scans

SEVERITIES = ("normal", "mild", "moderate", "severe", "proliferative")
LABELS = ("normal", "glaucoma", "cataract")


def write_small(task: str, folder: Path, *, images: int, size: int, seed: int = 1, site: int = 0) -> None:
    """Write a site's data folder for a task."""
    if task == "rdr_classification":
        style = synthetic_octa.STYLES[site]
        write_scans(folder, style=style, scans=images, size=size, seed=seed, severities=SEVERITIES)
        return
    style = synthetic_fundus.STYLES[site]
    synthetic_fundus.write_graded_site(folder, style=style, images=images, size=size, seed=seed, grades=4)
    rows = list(csv.DictReader((folder / "labels.csv").open(encoding="utf-8")))
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows([row["id"], LABELS[min(int(row["grade"]), 2)]] for row in rows)
