"""The residual U-Net with cross-entropy and with evidence, by FedAvg, on folders of real vessel images.

    .venv/bin/python -m benchmarks.vessel_objectives NAME DIR [SITE ...]

NAME names the result; DIR holds one folder per site with images/ and masks/. Small: 64 pixels, half the published
widths, one augmented copy beside each original, 9 rounds. Cross-entropy begins with the published learning rate, 0.1.
With evidence the net called nearly everything background at 0.1 and 0.03, tried once each with one seed; so it begins
with 0.01.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.comparison import compare, play
from benchmarks.record import given_folder
from deploy.local.scenarios import SPLIT
from shared.exchange.records.run import RunConfiguration

SEEDS = (1, 2, 3)
SCORES = {
    "dice_mean": "Dice",
    "auroc_mean": "AUROC",
    "calibration_error_mean": "calibration error",
    "misdiagnosis_auroc_mean": "misdiagnosis AUROC",
    "accuracy_mean": "accuracy",
    "selective_accuracy_40_mean": "accuracy without the 40 % most uncertain pixels",
}
RATES = {"cross_entropy": 0.1, "evidential": 0.01}
TASK_OPTIONS = {"image_size": 64, "widths": [16, 32, 64, 128, 256]}


def run_of(objective: str, seed: int, sites: list[str]) -> RunConfiguration:
    """Return a run that differs in its objective, and in the learning rate that goes with it."""
    return RunConfiguration.model_validate(
        {
            "run": f"vessels-{objective.replace('_', '-')}-{seed}",
            "task": "octa_segmentation",
            "method": "fedavg",
            "method_options": {"objective": objective},
            "sites": sites,
            "rounds": 9,
            "seed": seed,
            "batch_size": 8,
            "learning_rate": {"initial": RATES[objective]},
            "task_options": TASK_OPTIONS,
            "augmentation": {"copies": 1},
            "split": SPLIT,
        }
    )


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    name, root, *chosen = sys.argv[1:]
    found = sorted(path for path in given_folder(root, __doc__).iterdir() if (path / "images").is_dir())
    if unknown := set(chosen) - {path.name for path in found}:
        raise SystemExit(f"{root}: holds no site {', '.join(sorted(unknown))}\n\n{__doc__}")
    folders = {path.name.replace("_", "-"): path for path in found if not chosen or path.name in chosen}
    compare(
        f"vessel-objectives-{name}",
        " ".join([".venv/bin/python -m benchmarks.vessel_objectives", name, "DIR", *chosen]),
        {
            "cross-entropy": lambda seed: play(run_of("cross_entropy", seed, list(folders)), folders),
            "evidential": lambda seed: play(run_of("evidential", seed, list(folders)), folders),
        },
        seeds=SEEDS,
        scores=SCORES,
        settings={"first learning rate": RATES}
        | run_of("evidential", 1, list(folders)).model_dump(
            include={"sites", "rounds", "batch_size", "task_options", "augmentation", "split"}
        ),
    )


if __name__ == "__main__":
    main()
