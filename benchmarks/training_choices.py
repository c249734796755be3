"""What small sets of masks are learnt by: the loss, the optimizer, and when BatchNorm's statistics are measured.

    .venv/bin/python -m benchmarks.training_choices SET DIR

SET is octa or fundus: DIR holds one folder per site with images/ and masks/; or exudates: DIR is the IDRiD set, with
images/ and masks_EX/, whose images are dealt out to two sites. Small sites: 14 images each, or 10 of the exudates, by a
U-Net of a quarter of the published widths, in 8 rounds of 12 steps of 6 crops, scored on whole images. Each optimizer
has its learning rate: SGD 0.1 with momentum 0.9, Adam 0.001, either along a cosine over the run. When BatchNorm is
measured is told for the loss that MONAI and nnU-Net take.

Writes results/training-choices-SET.json and .md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import torch

from benchmarks.comparison import compare, play
from deploy.local.rounds import Outcome
from shared.exchange.records import RunConfiguration
from shared.folder.durable import link_file

SEEDS = (1, 2, 3)
SCORES = {"dice_mean": "Dice", "auroc_mean": "AUROC", "accuracy_mean": "accuracy"}
LOSSES: dict[str, dict[str, object]] = {
    "cross-entropy": {},
    "cross-entropy and Dice": {"dice": True},
    "focal": {"objective": "focal"},
}
RATES = {"sgd": 0.1, "adam": 0.001}
OPTIMIZERS = {"SGD": "sgd", "Adam": "adam"}
REFRESHES = {"on arrival": "on_arrival", "never": "never"}
"""When BatchNorm's statistics are measured, beside what runs take by default: after training."""
PUBLISHED = {"learning_rate": {"initial": 0.1, "factor": 0.1, "period": 3}, "dropout": 0.5}
ROUNDS = 8
TRAINING = {"octa": 9, "fundus": 9, "exudates": 6}
"""Training images of a site."""
SIZES = {"octa": 256, "fundus": 384, "exudates": 384}
"""Pixels of the longer side."""
CROP = 64


def run_of(name: str, sites: list[str], seed: int, *, optimizer: str, **method_options: object) -> RunConfiguration:
    """A run of 12 steps a round at each site of a set."""
    rate = {"shape": "cosine", "initial": RATES[optimizer], "final": RATES[optimizer] / 100, "period": ROUNDS}
    return RunConfiguration.model_validate(
        {
            "run": f"{name}-{seed}",
            "task": "octa_segmentation",
            "method": "mean",
            "method_options": method_options,
            "sites": sites,
            "rounds": ROUNDS,
            "seed": seed,
            "batch_size": 6,
            "learning_rate": rate,
            "task_options": {
                "image_size": SIZES[name],
                "widths": [8, 16, 32, 64, 128],
                "dropout": 0.2,
                "optimizer": optimizer,
            },
            "augmentation": {
                "copies": 1,
                "crops": {"size": CROP, "per_image": 36 // TRAINING[name], "foreground": 0.5},
            },
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
        }
    )


def published(run: RunConfiguration) -> RunConfiguration:
    """The same with the learning rate and the dropout of Lo et al. 2021."""
    return RunConfiguration.model_validate(
        run.model_dump()
        | {"learning_rate": PUBLISHED["learning_rate"]}
        | {"task_options": run.task_options | {"dropout": PUBLISHED["dropout"]}}
    )


def ways(name: str, data: Mapping[str, Path]) -> Iterator[tuple[str, Callable[[int], Outcome]]]:
    """Each way of training, by what people call it."""
    run = partial(run_of, name, list(data))
    yield "as published", lambda seed: play(published(run(seed, optimizer="sgd")), data)
    for (loss, options), (kind, optimizer) in product(LOSSES.items(), OPTIMIZERS.items()):
        settings = partial(run, optimizer=optimizer, **options)
        yield f"{loss}, {kind}", lambda seed, settings=settings: play(settings(seed), data)
    for (kind, optimizer), (when, refresh) in product(OPTIMIZERS.items(), REFRESHES.items()):
        settings = partial(run, optimizer=optimizer, dice=True, refresh_batch_norm=refresh)
        yield (
            f"cross-entropy and Dice, {kind}, BatchNorm {when}",
            lambda seed, settings=settings: play(settings(seed), data),
        )


def lay_out(name: str, source: Path, root: Path) -> dict[str, Path]:
    """Links as many images of each site as the sites of the benchmark have, spread over all that it has."""
    if name == "exudates":
        images = sorted((source / "images").iterdir())
        dealt = {"odd": images[::2], "even": images[1::2]}
        masks = dict.fromkeys(dealt, source / "masks_EX")
    else:
        folders = [path for path in sorted(source.iterdir()) if (path / "masks").is_dir()]
        dealt = {folder.name.replace("_", "-"): _spread(folder / "images") for folder in folders}
        masks = {folder.name.replace("_", "-"): folder / "masks" for folder in folders}
    for site, images in dealt.items():
        of_stem = {path.stem: path for path in masks[site].iterdir()}
        for image in images:
            link_file(image, root / site / "images" / image.name)
            link_file(of_stem[image.stem], root / site / "masks" / of_stem[image.stem].name)
    return {site: root / site for site in dealt}


def _spread(images: Path, count: int = 14) -> list[Path]:
    """One eye of each child of CHASE_DB1: else what is trained on might be tested on."""
    found = [path for path in sorted(images.iterdir()) if not ("chase" in str(images) and path.stem.endswith("R"))]
    return [found[len(found) * number // count] for number in range(count)]


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    name, source = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        data = lay_out(name, Path(source).resolve(), Path(scratch))
        example = run_of(name, list(data), 1, optimizer="adam")
        compare(
            f"training-choices-{name}",
            f".venv/bin/python -m benchmarks.training_choices {name} DIR",
            dict(ways(name, data)),
            seeds=SEEDS,
            scores=SCORES,
            settings={"first learning rates": RATES, "as published": PUBLISHED}
            | example.model_dump(
                include={"sites", "rounds", "batch_size", "learning_rate", "task_options", "augmentation", "split"}
            ),
        )


if __name__ == "__main__":
    main()
