"""Each site for itself, FedAvg, FedBN and FedUAA on four synthetic sites that grade by 4, 5, 5 and 6 grades.

    .venv/bin/python -m benchmarks.dr_methods

The images are those of ``make demo TASK=dr_staging``; each seed has its own images, split, first model and order.
"FedBN, evidential" is FedUAA without its weights: so what the loss does, and what θ does, can be told apart.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.comparison import Data, compare, play
from benchmarks.record import take_no_arguments
from deploy.local.demo import SITE_NAMES
from deploy.local.scenarios import SCENARIOS
from shared.exchange.records.run import RunConfiguration

SEEDS = (1, 2, 3)
SCENARIO = SCENARIOS["dr_staging"]
SITES = list(SITE_NAMES[: SCENARIO.sites])
SCORES = {
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "quadratic κ",
    "calibration_error": "calibration error",
    "misdiagnosis_auroc": "misdiagnosis AUROC",
    "selective_accuracy_40": "accuracy without the 40 % most uncertain",
}


def run_of(method: str, seed: int, **options: object) -> RunConfiguration:
    """Return a run of the demo's sites by another method."""
    task_options = {**SCENARIO.task_options, "optimizer": "adam", "image_size": SCENARIO.image_size}
    return RunConfiguration.model_validate(
        {
            **SCENARIO.settings,
            "run": f"dr-{method}-{seed}",
            "task": SCENARIO.task,
            "method": method,
            "method_options": options,
            "sites": SITES,
            "rounds": SCENARIO.rounds,
            "seed": seed,
            "task_options": task_options,
        }
    )


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:

        def data(seed: int) -> Data:
            folders = {site: Path(home) / str(seed) / site for site in SITES}
            for number, folder in enumerate(folders.values()):
                if not folder.exists():
                    SCENARIO.write_site(folder, number, SCENARIO.image_size, 1000 * seed + number)
            return folders

        compare(
            "dr-methods",
            ".venv/bin/python -m benchmarks.dr_methods",
            {
                "single site": lambda seed: play(run_of("single_site", seed), data(seed)),
                "FedAvg": lambda seed: play(run_of("fedavg", seed), data(seed)),
                "FedBN": lambda seed: play(run_of("fedbn", seed), data(seed)),
                "FedBN, evidential": lambda seed: play(run_of("fedbn", seed, objective="evidential"), data(seed)),
                "FedUAA": lambda seed: play(run_of("feduaa", seed), data(seed)),
            },
            seeds=SEEDS,
            scores=SCORES,
            settings={
                "images": "synthetic fundus photographs, 240 a site, 5 % of the labels one grade off",
                "grades by site": [4, 5, 5, 6],
                **run_of("feduaa", 1).model_dump(include={"rounds", "batch_size", "learning_rate", "task_options"}),
            },
        )


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
