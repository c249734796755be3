"""Every method, on five synthetic sites that grade photographs and on two real sites with vessels to find.

    .venv/bin/python -m benchmarks.methods grading
    .venv/bin/python -m benchmarks.methods vessels DIR

DIR holds ``rossa_manual`` and ``rossa_semiautomatic``, each with ``images`` and ``masks``. Budgets are small: enough to
see that a method works and what it costs, not to say which is best. Each seed has its own first model, split and order,
and of the synthetic sites its own images. Writes ``results/methods-grading`` and ``results/methods-vessels``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.comparison import Data, compare, play
from benchmarks.record import given_folder
from deploy.local import synthetic_fundus
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import link_file
from studies.simulation import Outcome

SEEDS = (1, 2, 3)
SPLIT = {"train": 0.6, "validation": 0.2, "test": 0.2}
UNCERTAINTY = {
    "calibration_error": "calibration error",
    "misdiagnosis_auroc": "misdiagnosis AUROC",
    "selective_accuracy_40": "accuracy without the 40 % most uncertain",
}

GRADING_SITES = ("north", "south", "east", "west", "isle")
GRADES = (4, 5, 5, 6, 5)
GRADING = {
    "task": "dr_staging",
    "sites": list(GRADING_SITES),
    "rounds": 6,
    "batch_size": 16,
    "learning_rate": {"initial": 0.05, "factor": 0.9, "period": 1000},
    "task_options": {"encoder": "small", "weights": "random", "image_size": 64},
    "split": SPLIT,
}
GRADING_IMAGES = 100

VESSELS = {
    "task": "octa_segmentation",
    "rounds": 6,
    "batch_size": 4,
    "task_options": {"image_size": 64, "widths": [8, 16, 32, 64], "dropout": 0.1},
    "augmentation": {"copies": 2},
    "split": SPLIT,
}
VESSEL_SITES = ("rossa_manual", "rossa_semiautomatic")
EVERY_NTH_IMAGE = 4
EVIDENTIAL_RATE = {"learning_rate": {"initial": 0.01}}

Changes = Mapping[str, object]


def method(name: str, /, **options: object) -> dict[str, object]:
    """Return what a run by a method says."""
    return {"method": name, "method_options": options}


FOR_BOTH: dict[str, Changes] = {
    "single site": method("single_site"),
    "mean": method("mean"),
    "FedAvg": method("fedavg"),
    "FedProx": method("fedprox"),
    "FedBN": method("fedbn"),
    "FedRep": method("fedrep"),
    "SCAFFOLD": method("scaffold"),
    "FedDyn": method("feddyn"),
    "FedDC": method("feddc"),
    "MOON": method("moon"),
    "FedAP": method("fedap"),
    "FedUAA": method("feduaa"),
    "sequential": method("sequential"),
    "FedAvg, fine-tuned 3 epochs": method("fedavg", fine_tuning_epochs=3),
    "MC dropout": method("mc_dropout"),
    "deep ensembles (5)": method("deep_ensembles"),
    "MDT": method("mdt"),
}
FOR_GRADING: dict[str, Changes] = FOR_BOTH | {
    "DataWeightedFed, 3 of 5": method("dataweightedfed") | {"sites_per_round": 3},
    "FedEE over FedAvg": method("fedee"),
    "FedEE over FedBN": method("fedee", base="fedbn"),
    "FedEE over FedBN, fine-tuned 3 epochs": method("fedee", base="fedbn", fine_tuning_epochs=3),
    "FedBN, median": method("fedbn") | {"combination": {"rule": "median"}, "quorum": 5},
    "FedBN, trimmed mean 0.2": method("fedbn") | {"combination": {"rule": "trimmed_mean", "cut": 0.2}, "quorum": 5},
    "FedBN, multi-Krum 2 of 5": method("fedbn")
    | {"combination": {"rule": "krum", "hostile": 1, "keep": 2}, "quorum": 5},
    "FedAvg, private, ε ≤ 8": method("fedavg")
    | {"privacy": {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 8.0}},
}
FOR_VESSELS: dict[str, Changes] = FOR_BOTH | {
    "centralised": method("centralised"),
    "DataWeightedFed, 1 of 2": method("dataweightedfed") | {"sites_per_round": 1},
    "FedUAA": method("feduaa") | EVIDENTIAL_RATE,
}


def run_of(settings: Changes, changes: Changes, seed: int) -> RunConfiguration:
    """Return a run that differs from the others in its method, and in what that needs."""
    return RunConfiguration.model_validate(
        {"run": f"{changes['method']}-{seed}".replace("_", "-"), **settings, "seed": seed, **changes}
    )


def grading(root: Path) -> Callable[[Changes, int], Outcome]:
    """Return a function that plays a run on synthetic photographs, drawn once for each seed."""

    def data(seed: int) -> Data:
        folders = {site: root / str(seed) / site for site in GRADING_SITES}
        for number, (folder, grades) in enumerate(zip(folders.values(), GRADES, strict=True)):
            if not folder.exists():
                synthetic_fundus.write_graded_site(
                    folder,
                    style=synthetic_fundus.STYLES[number % len(synthetic_fundus.STYLES)],
                    images=GRADING_IMAGES,
                    size=64,
                    seed=1000 * seed + number,
                    grades=grades,
                    label_noise=0.05,
                )
        return folders

    return lambda changes, seed: play(run_of(GRADING, changes, seed), data(seed))


def vessels(source: Path, root: Path) -> Callable[[Changes, int], Outcome]:
    """Return a function that plays a run on some of the real images."""
    folders: dict[str, Path] = {}
    for name in VESSEL_SITES:
        site = folders[name.replace("_", "-")] = root / name
        for kind in ("images", "masks"):
            for path in sorted((source / name / kind).iterdir())[::EVERY_NTH_IMAGE]:
                link_file(path, site / kind / path.name)
    settings = VESSELS | {"sites": list(folders)}
    return lambda changes, seed: play(run_of(settings, changes, seed), folders)


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    which, *source = sys.argv[1:] or [""]
    if (which, len(source)) not in {("grading", 0), ("vessels", 1)}:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as home:
        if which == "grading":
            player, arms, settings = grading(Path(home)), FOR_GRADING, GRADING
            scores = {"auroc": "AUROC", "balanced_accuracy": "balanced accuracy", "kappa": "quadratic κ"} | UNCERTAINTY
        else:
            player, arms, settings = vessels(given_folder(source[0], __doc__), Path(home)), FOR_VESSELS, VESSELS
            scores = {"dice_mean": "Dice", "auroc_mean": "AUROC"} | {f"{k}_mean": v for k, v in UNCERTAINTY.items()}
        compare(
            f"methods-{which}",
            f".venv/bin/python -m benchmarks.methods {which}{' DIR' if source else ''}",
            {name: lambda seed, changes=changes: player(changes, seed) for name, changes in arms.items()},  # type: ignore[misc]
            seeds=SEEDS,
            scores=scores,
            settings={"runs": settings, "differing": arms},
        )


if __name__ == "__main__":
    main()
