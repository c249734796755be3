"""What small sets of real images are learnt by: the loss, the optimizer, and when BatchNorm's statistics are measured.

    .venv/bin/python -m benchmarks.training_choices SET [DIR]

SET is octa, fundus or exudates, and DIR holds one folder per site with images/ and masks/; of exudates the 20 images of
IDRiD, dealt out in turn to two sites, odd and even. Or SET is staging, of synthetic photographs. Sites with masks have
14 images each, or 10 of the exudates, and a U-Net of a quarter of the published widths, trained in 8 rounds of 12 steps
of 6 crops and scored on whole images. Sites of photographs have 60 each, and a small encoder, trained by FedBN in 20
rounds of 5 steps. Each optimizer has its learning rate, along a cosine over the run. When BatchNorm is measured is told
for one loss.

Writes results/training-choices-SET.json and .md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison import Data, compare, play
from benchmarks.record import given_folder
from deploy.local import synthetic_fundus
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import link_file
from studies.simulation import Outcome

SEEDS = (1, 2, 3)
OPTIMIZERS = {"SGD": "sgd", "Adam": "adam"}
RATES = {"sgd": 0.1, "adam": 0.001}
REFRESHES = {"on arrival": "on_arrival", "never": "never"}
"""When BatchNorm's statistics are measured, beside what runs take by default: after training."""
Options = Mapping[str, object]


@dataclass(frozen=True)
class Compared:
    """A set of images, and what is compared on it.

    Args:
        scores: columns of ``metrics.csv``, by what people call them.
        losses: method options, by what people call them; the one that ``refreshed`` names is tried with each refresh.
        published: what the paper takes instead, as parts of a run's configuration.
        run: what all runs have in common.
    """

    scores: Mapping[str, str]
    losses: Mapping[str, Options]
    refreshed: str
    published: Mapping[str, Options]
    run: Mapping[str, object]


def masks(training: int, pixels: int) -> Compared:
    """Return what to compare for sites that train on so many images, whose longer side has so many pixels."""
    return Compared(
        scores={"dice_mean": "Dice", "auroc_mean": "AUROC", "accuracy_mean": "accuracy"},
        losses={
            "cross-entropy": {},
            "cross-entropy and Dice": {"dice": True},
            "focal": {"objective": "focal"},
        },
        refreshed="cross-entropy and Dice",
        published={
            "learning_rate": {"initial": 0.1, "factor": 0.1, "period": 3},
            "task_options": {"dropout": 0.5, "optimizer": "sgd"},
        },
        run={
            "task": "octa_segmentation",
            "method": "mean",
            "rounds": 8,
            "batch_size": 6,
            "task_options": {"image_size": pixels, "widths": [8, 16, 32, 64, 128], "dropout": 0.2},
            "augmentation": {"copies": 1, "crops": {"size": 64, "per_image": 36 // training, "foreground": 0.5}},
        },
    )


SETS = {
    "octa": masks(training=9, pixels=256),
    "fundus": masks(training=9, pixels=384),
    "exudates": masks(training=6, pixels=384),
    "staging": Compared(
        scores={"auroc": "AUROC", "balanced_accuracy": "balanced accuracy", "kappa": "quadratic κ"},
        losses={
            "cross-entropy": {},
            "cross-entropy, classes balanced": {"class_weights": "balanced"},
            "focal": {"objective": "focal"},
            "evidential": {"objective": "evidential"},
        },
        refreshed="cross-entropy",
        published={
            "learning_rate": {"initial": 0.01, "factor": 1.0, "period": 1},
            "task_options": {"optimizer": "sgd", "momentum": 0.0},
            "method_options": {"objective": "evidential"},
        },
        run={
            "task": "dr_staging",
            "method": "fedbn",
            "rounds": 20,
            "batch_size": 8,
            "task_options": {"encoder": "small", "weights": "random", "image_size": 48, "momentum": 0.9},
        },
    ),
}


def run_of(compared: Compared, sites: Sequence[str], seed: int, optimizer: str, options: Options) -> RunConfiguration:
    """Return a run by one optimizer, with method options."""
    rounds = compared.run["rounds"]
    settings: dict[str, Any] = {
        **compared.run,
        "run": f"choice-{seed}",
        "sites": [*sites],
        "seed": seed,
        "learning_rate": {
            "shape": "cosine",
            "initial": RATES[optimizer],
            "final": RATES[optimizer] / 100,
            "period": rounds,
        },
        "method_options": options,
    }
    settings["task_options"] = {**settings["task_options"], "optimizer": optimizer}
    return RunConfiguration.model_validate(settings)


def published(run: RunConfiguration, changes: Mapping[str, Options]) -> RunConfiguration:
    """Return the same run with what a paper takes; a learning rate is of one piece."""
    settings = run.model_dump()
    options = {key: {**settings[key], **of_paper} for key, of_paper in changes.items() if key != "learning_rate"}
    return RunConfiguration.model_validate(settings | dict(changes) | options)


def arms(compared: Compared, data: Callable[[int], Data]) -> Iterator[tuple[str, Callable[[int], Outcome]]]:
    """Yield each arm, by what people call it."""

    def by(optimizer: str, options: Options) -> Callable[[int], Outcome]:
        return lambda seed: play(run_of(compared, [*data(seed)], seed, optimizer, options), data(seed))

    yield (
        "as published",
        lambda seed: play(published(run_of(compared, [*data(seed)], seed, "sgd", {}), compared.published), data(seed)),
    )
    for (loss, options), (kind, optimizer) in product(compared.losses.items(), OPTIMIZERS.items()):
        yield f"{loss}, {kind}", by(optimizer, options)
    for (kind, optimizer), (when, refresh) in product(OPTIMIZERS.items(), REFRESHES.items()):
        options = {**compared.losses[compared.refreshed], "refresh_batch_norm": refresh}
        yield f"{compared.refreshed}, {kind}, BatchNorm {when}", by(optimizer, options)


def lay_out(source: Path, root: Path) -> Data:
    """Link few images of each site, spread over all that it has, and their masks."""
    folders = {path.name.replace("_", "-"): path for path in sorted(source.iterdir()) if (path / "masks").is_dir()}
    for site, folder in folders.items():
        of_stem = {path.stem: path for path in (folder / "masks").iterdir()}
        for image in _spread(folder / "images"):
            link_file(image, root / site / "images" / image.name)
            link_file(of_stem[image.stem], root / site / "masks" / of_stem[image.stem].name)
    return {site: root / site for site in folders}


def _spread(images: Path, count: int = 14) -> list[Path]:
    """Return one eye of each child of CHASE_DB1: else what is trained on might be tested on."""
    found = [path for path in sorted(images.iterdir()) if not ("chase" in str(images) and path.stem.endswith("R"))]
    count = min(count, len(found))
    return [found[len(found) * number // count] for number in range(count)]


def drawn(root: Path, seed: int) -> Data:
    """Return synthetic photographs of three cameras, drawn once for each seed."""
    folders = {style.name: root / str(seed) / style.name for style in synthetic_fundus.STYLES[:3]}
    for number, (folder, style) in enumerate(zip(folders.values(), synthetic_fundus.STYLES, strict=False)):
        if not folder.exists():
            synthetic_fundus.write_graded_site(
                folder, style=style, images=60, size=48, seed=1000 * seed + number, grades=4, label_noise=0.05
            )
    return folders


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    name, *source = sys.argv[1:] or [""]
    if name not in SETS or len(source) != (name != "staging"):
        raise SystemExit(__doc__)
    compared = SETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        laid_out = lay_out(given_folder(source[0], __doc__).resolve(), Path(scratch)) if source else None
        compare(
            f"training-choices-{name}",
            " ".join([".venv/bin/python -m benchmarks.training_choices", name, *(["DIR"] if source else [])]),
            dict(arms(compared, lambda seed: laid_out or drawn(Path(scratch), seed))),
            seeds=SEEDS,
            scores=compared.scores,
            is_timed=False,
            settings={"first learning rates": RATES, "as published": compared.published, **compared.run},
        )


if __name__ == "__main__":
    main()
