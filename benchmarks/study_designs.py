"""What is compared on which images, by the name of its study: ``benchmarks/studies.py`` plays and records them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from deploy.local import synthetic_fundus, synthetic_signals
from deploy.local.synthetic_fundus import CLINIC, CROPPED, HANDHELD, PALE, FundusStyle
from shared.folder.durable import link_file
from shared.learning.data.splits import SPLIT_FILE

Data = Mapping[str, str]
"""Each site's folder, relative to the study's file."""


@dataclass(frozen=True)
class Design:
    """A study but for its data.

    Args:
        settings: of ``STUDY.yaml``.
        lay_out: links, or draws, the images below a folder; takes that folder and DIR, and returns the sites' folders.
        needs_images: whether it takes a DIR.
        by_images: the score to draw by number of images, of arms that are called ``METHOD, NUMBER images``.
    """

    settings: Mapping[str, object]
    lay_out: Callable[[Path, Path], Data]
    needs_images: bool = False
    by_images: str | None = None


# --- real images, on small budgets ----------------------------------------------------------------------------------

_COMPARATORS = {
    "internal and external": {"method": "single_site"},
    "sequential": {"method": "sequential"},
    "combined": {"method": "centralised"},
}
_VESSELS = {
    "task": "octa_segmentation",
    "run": {
        "rounds": 6,
        "batch_size": 4,
        "task_options": {"image_size": 64, "widths": [8, 16, 32, 64], "dropout": 0.1},
        "augmentation": {"copies": 2},
        "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
    },
    "arms": _COMPARATORS
    | {
        "combined, equal": {"method": "centralised", "images_per_site": 15},
        "mean": {"method": "mean"},
        "FedAvg": {"method": "fedavg"},
        "FedBN": {"method": "fedbn"},
    },
    "seeds": [1, 2, 3],
    "noise": [0.001, 0.01],
    "scores": [
        "dice_mean",
        "iou_mean",
        "accuracy_mean",
        "auroc_mean",
        "auprc_mean",
        "sensitivity_mean",
        "specificity_mean",
    ],
}
_RETINOPATHY = {
    "task": "dr_staging",
    "run": {
        "rounds": 10,
        "batch_size": 4,
        "learning_rate": {"initial": 0.02, "factor": 1.0, "period": 1},
        "task_options": {"encoder": "small", "weights": "random", "image_size": 96},
    },
    "folds": {"outer": 3, "inner": 1},  # so few images: each is tested on once
    "seeds": [1, 2],
    "arms": _COMPARATORS
    | {
        "combined, equal": {"method": "centralised", "images_per_site": 3},
        "FedAvg": {"method": "fedavg"},
        "FedBN": {"method": "fedbn"},
        "FedUAA": {"method": "feduaa"},
    },
}


_AT_LENGTH = {
    "task": "octa_segmentation",
    "run": {
        "rounds": 30,
        "batch_size": 8,
        "score_every": 5,
        "learning_rate": {"shape": "cosine", "final": 0.00002, "period": 30},
        "task_options": {"widths": [16, 32, 64, 128, 256], "dropout": 0.2, "optimizer": "adam"},
        "method_options": {"dice": True, "refresh_batch_norm": "on_arrival", "refresh_images": 8},
        "augmentation": {"copies": 1, "originals": False, "crops": {"size": 128, "per_image": 1, "foreground": 0.5}},
        "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
    },
    "arms": {
        "each site alone": {"method": "single_site"},
        "combined, all": {"method": "centralised"},
        "FedAvg": {"method": "fedavg"},
        "FedBN": {"method": "fedbn"},
    },
    "tune": {"learning_rates": [0.0005, 0.002, 0.008]},
    "seeds": [1, 2, 3],
    "scores": ["dice_mean", "iou_mean", "sensitivity_mean", "specificity_mean", "auroc_mean"],
}


_OCTA_AT_LENGTH = {
    **_AT_LENGTH,
    "arms": {
        **_AT_LENGTH["arms"],  # type: ignore[dict-item]
        "FedAvg, at a site outside": {"method": "fedavg", "leave_one_out": True},
    },
}
_OCTA_COMPARATORS = {
    **_AT_LENGTH,
    "study": "octa-at-length",  # so the cells of the arms that both have are the same
    "arms": {
        **_AT_LENGTH["arms"],  # type: ignore[dict-item]
        "mean": {"method": "mean"},
        "combined, equal": {"method": "centralised", "images_per_site": "fewest"},
        "sequential": {"method": "sequential", "epochs": 3},  # a round asks one site of three
    },
}


_FUNDUS_AT_LENGTH = {
    **_AT_LENGTH,
    "task": "segmentation",
    "run": {
        **_AT_LENGTH["run"],  # type: ignore[dict-item]
        "task_options": {
            "labels": ["background", "vessel"],
            "image_size": 512,
            "widths": [16, 32, 64, 128, 256],
            "dropout": 0.2,
            "optimizer": "adam",
        },
        "augmentation": {"copies": 1, "originals": False, "crops": {"size": 128, "per_image": 4, "foreground": 0.5}},
    },
}


def _fundus(root: Path, source: Path) -> Data:
    """Link all images; of chase_db1 both eyes of a child are in one set, two of fourteen children in each of two."""
    sites = _linked(root, source, ("chase_db1", "hrf", "fives"), every=1)
    rows = list(csv.DictReader((source / "chase_db1" / "labels.csv").open(encoding="utf-8")))
    sets = dict(zip(sorted({row["child"] for row in rows}), ["test", "validation", *["train"] * 5] * 2, strict=False))
    lines = [f"{row['id']},{sets[row['child']]}" for row in rows]
    (root / "chase_db1" / SPLIT_FILE).write_text("\n".join(["id,split", *lines]) + "\n")
    return sites


def _octa(root: Path, source: Path) -> Data:
    """Link every fourth image of both sites."""
    return _linked(root, source, ("rossa_manual", "rossa_semiautomatic"), every=4)


def _octa_at_length(root: Path, source: Path) -> Data:
    """Link every other image of all three sites."""
    return _linked(root, source, ("rossa_manual", "rossa_semiautomatic", "synthetic"), every=2)


def _linked(root: Path, source: Path, names: Sequence[str], *, every: int) -> Data:
    for name in names:
        for kind in ("images", "masks"):
            for path in sorted((source / name / kind).iterdir())[::every]:
                link_file(path, root / name / kind / path.name)
    return {name.replace("_", "-"): name for name in names}


def _retinopathy(root: Path, source: Path) -> Data:
    """Deal the photographs of two classes out to two sites."""
    grades = {"healthy": 0, "diabetic_retinopathy": 1}
    rows = [row for row in csv.DictReader((source / "labels.csv").open(encoding="utf-8")) if row["class"] in grades]
    files = {path.stem: path for path in (source / "images").iterdir()}
    sites = ("hrf-odd", "hrf-even")
    for number, site in enumerate(sites):
        own = [row for row in rows if int(row["id"].split("_")[0]) % 2 != number]
        for row in own:
            link_file(files[row["id"]], root / site / "images" / files[row["id"]].name)
        _write_grades(root / site, [(row["id"], str(grades[row["class"]])) for row in own])
        (root / site / "grades.txt").write_text("healthy\nretinopathy\n")
    return {site: site for site in sites}


def _write_grades(site: Path, rows: list[tuple[str, str]]) -> None:
    (site / "labels.csv").write_text("\n".join(["id,grade", *(f"{name},{grade}" for name, grade in rows)]) + "\n")


# --- synthetic staging ----------------------------------------------------------------------------------------------

_SIZE = 64
_STAGING = {
    "rounds": 30,
    "batch_size": 16,
    "learning_rate": {"factor": 0.95, "period": 1000},
    "task_options": {"encoder": "small", "weights": "random", "image_size": _SIZE, "optimizer": "adam"},
    "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
}
_TUNE = {"learning_rates": [0.0003, 0.001, 0.003]}
_SCORES = ["auroc", "kappa", "accuracy", "calibration_error", "misdiagnosis_auroc"]
_WRONG_GRADES = 0.4  # share of a site's photographs
_BLURRED = replace(HANDHELD, name="blurred", blur_mm=0.3)


def _staging_site(root: Path, style: FundusStyle, *, seed: int, images: int = 240, grades: int = 5) -> None:
    synthetic_fundus.write_graded_site(root, style=style, images=images, size=_SIZE, seed=seed, grades=grades)


def _sound_sites(root: Path, _: Path) -> Data:
    """Draw five sites with which nothing is wrong; two of them have the same camera."""
    styles = {"good-a": CLINIC, "good-b": PALE, "third": CROPPED, "fourth": HANDHELD, "fifth": CLINIC}
    for number, (site, style) in enumerate(styles.items()):
        _staging_site(root / site, style, seed=number)
    return {site: site for site in styles}


def _troubled_sites(root: Path, _: Path) -> Data:
    """Draw five sites, of which one grades wrongly, one blurs, and one has another scale."""
    _staging_site(root / "good-a", CLINIC, seed=0)
    _staging_site(root / "good-b", PALE, seed=1)
    _staging_site(root / "wrong-grades", CROPPED, seed=2)
    _staging_site(root / "blurred", _BLURRED, seed=3)
    _staging_site(root / "other-scale", CLINIC, seed=4, grades=4)
    _mistake_grades(root / "wrong-grades")
    return {site.name: site.name for site in sorted(root.iterdir())}


def _mistake_grades(site: Path) -> None:
    """Give a share of the photographs another grade, whichever."""
    chance = np.random.default_rng(1)
    rows = [(row["id"], int(row["grade"])) for row in csv.DictReader((site / "labels.csv").open(encoding="utf-8"))]
    mistaken = set(chance.choice(len(rows), round(_WRONG_GRADES * len(rows)), replace=False).tolist())
    graded = [
        (name, str((grade + chance.integers(1, 5)) % 5 if number in mistaken else grade))
        for number, (name, grade) in enumerate(rows)
    ]
    _write_grades(site, graded)


_WEIGHING = {
    "each site alone": {"method": "single_site"},
    "FedBN": {"method": "fedbn"},
    "FedBN, evidential": {"method": "fedbn", "method_options": {"objective": "evidential"}},
    "FedUAA": {"method": "feduaa"},
}
_THETA = {
    "task": "dr_staging",
    "run": {**_STAGING, "score_every": 2, "quorum": 5},
    "arms": _WEIGHING
    | {
        "FedBN, median": {"method": "fedbn", "combination": {"rule": "median"}},
        "FedBN, multi-Krum": {"method": "fedbn", "combination": {"rule": "krum", "hostile": 1, "keep": 2}},
    },
    "tune": _TUNE,
    "seeds": [1, 2, 3],
    "scores": _SCORES,
}
_SOUND = {**_THETA, "arms": _WEIGHING}

_NUMBERS = (10, 40, 160, 320)
_STEPS = 20  # of each site in a round, whatever its number of images
_PAYS = {
    "task": "dr_staging",
    "run": {
        **_STAGING,
        "rounds": 12,
        "score_every": 3,
        "learning_rate": {"factor": 0.9, "period": 1000},
        "split": {"train": 0.6, "validation": 0.15, "test": 0.25},
    },
    "arms": {
        f"{label}, {number} images": {
            **method,
            "images_per_site": number,
            "epochs": round(_STEPS / -(-number // 16)),
        }
        for number in _NUMBERS
        for label, method in {
            "alone": {"method": "single_site"},
            "FedAvg": {"method": "fedavg"},
            "FedBN": {"method": "fedbn"},
            "FedUAA": {"method": "feduaa"},
        }.items()
    },
    "tune": {**_TUNE, "rounds": 5},
    "seeds": [1, 2, 3],
    "scores": _SCORES,
}


_CAMERAS = {"clinic": CLINIC, "cropped": CROPPED, "pale": PALE, "handheld": HANDHELD}


def _large_sites(root: Path, _: Path) -> Data:
    """Draw four sites of as many images as it takes for 320 training ones."""
    for number, (site, style) in enumerate(_CAMERAS.items()):
        _staging_site(root / site, style, seed=number, images=540)
    return {site: site for site in _CAMERAS}


_UNEQUAL = {
    **_PAYS,
    "arms": {"FedAvg": {"method": "fedavg"}, "FedBN": {"method": "fedbn"}, "FedUAA": {"method": "feduaa"}},
}
UNEQUAL = tuple(f"unequal-{turn}" for turn in range(len(_NUMBERS)))
_NOT_FOR_TRAINING = [*["test"] * 135, *["validation"] * 81]


def training_images(turn: int) -> dict[str, int]:
    """Return how many training images each site of ``unequal-TURN`` has: over all turns, each number once."""
    return {site: _NUMBERS[(place + turn) % len(_NUMBERS)] for place, site in enumerate(_CAMERAS)}


def _unequal_sites(root: Path, _: Path, *, turn: int) -> Data:
    """Draw the sites of ``pays``, and leave each as many images to train on as it has in this turn."""
    data = _large_sites(root, _)
    for site, number in training_images(turn).items():
        sets = [*_NOT_FOR_TRAINING, *["train"] * number]
        rows = list(csv.DictReader((root / site / "labels.csv").open(encoding="utf-8")))
        for row in rows[len(sets) :]:
            (root / site / "images" / f"{row['id']}.png").unlink()
        _write_grades(root / site, [(row["id"], row["grade"]) for row in rows[: len(sets)]])
        lines = [f"{row['id']},{name}" for row, name in zip(rows, sets, strict=False)]
        (root / site / SPLIT_FILE).write_text("\n".join(["id,split", *lines]) + "\n")
    return data


_OF_GRADES = {
    "task": "dr_staging",
    "run": {
        **_STAGING,
        "score_every": 3,
        "task_options": {**_STAGING["task_options"], "optimizer": "sgd"},  # type: ignore[dict-item]
        "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
    },
    "tune": {"learning_rates": [0.01, 0.03, 0.1]},
    "seeds": [1, 2, 3],
    "scores": _SCORES,
}
_PER_SITE = 500  # training images, about, of which a site counts as one where sizes weigh
_FEDUAA_1 = {
    **_OF_GRADES,
    "arms": {
        "single site": {"method": "single_site"},
        "FedAvg": {"method": "fedavg"},
        "FedRep": {"method": "fedrep", "method_options": {"head_epochs": 1}},
        "FedBN": {"method": "fedbn"},
        "FedProx": {"method": "fedprox", "method_options": {"mu": 0.01}},
        "FedDyn": {"method": "feddyn", "method_options": {"alpha": 0.01, "mean_images": _PER_SITE}},
        "SCAFFOLD": {"method": "scaffold", "method_options": {"mean_images": _PER_SITE}},
        "FedDC": {"method": "feddc", "method_options": {"alpha": 0.01, "mean_images": _PER_SITE}},
        "MOON": {"method": "moon", "method_options": {"mu": 1.0}},
        "MDT": {"method": "mdt"},
        "FedUAA": {"method": "feduaa"},
    },
}
_FEDUAA_2 = {
    **_OF_GRADES,
    "arms": {
        "single site": {"method": "single_site"},
        "FedBN": {"method": "fedbn"},
        "FedBN, EU": {"method": "fedbn", "method_options": {"objective": "evidential", "tempered": False}},
        "FedBN, TWEU": {"method": "fedbn", "method_options": {"objective": "evidential"}},
        "FedBN, EU, UAW": {"method": "feduaa", "method_options": {"tempered": False}},
        "FedUAA": {"method": "feduaa"},
    },
}


# --- early exits ----------------------------------------------------------------------------------------------------

_UNSURE = {
    "entropy": {"method": "fedbn", "method_options": {"keep_optimizer": True}},
    "MC dropout": {"method": "mc_dropout", "method_options": {"base": "fedbn", "passes": 5, "keep_optimizer": True}},
    "deep ensembles": {
        "method": "deep_ensembles",
        "method_options": {"base": "fedbn", "members": 5, "batches": "own", "keep_optimizer": True},
    },
    "FedEE": {"method": "fedee", "method_options": {"base": "fedbn"}},
}
_FEDEE = {
    "task": "dr_staging",
    "run": {**_STAGING, "score_every": 6},
    "arms": _UNSURE,
    "tune": _TUNE,
    "seeds": [1, 2, 3],
    "scores": ["misdiagnosis_auroc", "accuracy", "selective_accuracy_40", "referral_share_90", "referral_share_95"],
    "noise": [0.001, 0.01],
}
_CHANNELS = ("hand", "chest", "ankle")
_RATE_HZ = 20.0
_FEDEE_SIGNALS = {
    **_FEDEE,
    "task": "time_series",
    "run": {
        "rounds": 30,
        "score_every": 6,
        "batch_size": 16,
        "learning_rate": {"factor": 0.95, "period": 1000},
        "task_options": {
            "labels": ["lying", "standing", "walking", "cycling", "running"],
            "channels": list(_CHANNELS),
            "rate_hz": _RATE_HZ,
            "window": 64,
            "stride": 64,
            "optimizer": "adam",
        },
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
    },
    # Of 0.0003 to 0.003 every arm took the last, and of 0.003 to 0.03 three of the four.
    "tune": {"learning_rates": [0.01, 0.03, 0.1]},
    "noise": [0.1, 1.0],
}


def _noisy_recordings(root: Path, _: Path) -> Data:
    """Draw three sites whose recordings have a noise three times their rhythm, and gains of their own."""
    labels = _FEDEE_SIGNALS["run"]["task_options"]["labels"]  # type: ignore[index]
    for number in range(3):
        synthetic_signals.write_time_series(
            root / f"site-{number + 1}",
            recordings=200,
            rows=128,
            seed=number,
            labels=labels,
            channels=_CHANNELS,
            rate_hz=_RATE_HZ,
            gain=1.0 + number,
            noise=2.0,
        )
    return {site.name: site.name for site in sorted(root.iterdir())}


def _as_many_as_in_the_paper(root: Path, _: Path) -> Data:
    """Draw five sites with the grades of the paper's and, in all, a thirteenth of the photographs."""
    for number, (site, style, images, grades) in enumerate(
        [
            ("aptos", CLINIC, 282, 5),
            ("ddr", CROPPED, 1052, 6),
            ("drr", PALE, 2702, 5),
            ("messidor", HANDHELD, 92, 4),
            ("idrid", CLINIC, 40, 5),
        ]
    ):
        _staging_site(root / site, style, seed=number, images=images, grades=grades)
    return {site.name: site.name for site in sorted(root.iterdir())}


DESIGNS = {
    "octa": Design(_VESSELS, _octa, needs_images=True),
    "octa-at-length": Design(_OCTA_AT_LENGTH, _octa_at_length, needs_images=True),
    "octa-comparators": Design(_OCTA_COMPARATORS, _octa_at_length, needs_images=True),
    "fundus-at-length": Design(_FUNDUS_AT_LENGTH, _fundus, needs_images=True),
    "retinopathy": Design(_RETINOPATHY, _retinopathy, needs_images=True),
    "theta": Design(_THETA, _troubled_sites),
    "theta-sound": Design(_SOUND, _sound_sites),
    "pays": Design(_PAYS, _large_sites, by_images="auroc"),
    **{name: Design(_UNEQUAL, partial(_unequal_sites, turn=turn)) for turn, name in enumerate(UNEQUAL)},
    "fedee": Design(_FEDEE, _sound_sites),
    "fedee-signals": Design(_FEDEE_SIGNALS, _noisy_recordings),
    "feduaa-1": Design(_FEDUAA_1, _as_many_as_in_the_paper),
    "feduaa-2": Design(_FEDUAA_2, _as_many_as_in_the_paper),
}
