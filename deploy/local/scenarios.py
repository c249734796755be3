"""What the demo does for each task: its synthetic sites, its run, and the score it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aggregator.new_run import settings
from deploy.local import synthetic_fundus, synthetic_octa
from shared.errors import ConfigurationError

WriteSite = Callable[[Path, int, int, int], None]
"""Writes a data folder: (where, the site's number, side of the images in pixels, seed)."""


@dataclass(frozen=True)
class Scenario:
    """One task's demonstration.

    Args:
        method: used where none is named.
        score: the column of ``metrics.csv`` that is shown, and what people call it.
        rounds, sites, image_size: used where nothing else is asked for.
        settings, task_options, augmentation: of the run, where it takes others than ``new-run`` suggests.
        images: what the synthetic images are called, and how many a site has.
        heldout_images: how many of a real site's validation images may serve as held-out set; 0: none may.
    """

    task: str
    run: str
    method: str
    score: str
    score_title: str
    rounds: int
    sites: int
    image_size: int
    settings: Mapping[str, object]
    task_options: Mapping[str, object]
    augmentation: Mapping[str, object]
    images: str
    images_per_site: int
    heldout_images: int
    write_site: WriteSite
    write_heldout: WriteSite

    def as_suggested(self) -> Scenario:
        """Return the same with settings that are not the demo's own, but for the quorum and the seed.

        Raises:
            ConfigurationError: they want weights that the demo has not.
        """
        said = settings(self.task, None)
        if said["task_options"].get("weights") == "imagenet":
            raise ConfigurationError(
                [f"--as-suggested: {self.task} begins with published weights, which the demo lacks; leave it out"]
            )
        size = said["task_options"]["image_size"]
        return replace(self, rounds=said["rounds"], image_size=size, settings={}, task_options={}, augmentation={})


SPLIT = {"train": 0.5, "validation": 0.25, "test": 0.25}
_OCTA_IMAGES, _OCTA_HELDOUT = 20, 6
_FUNDUS_IMAGES, _FUNDUS_HELDOUT = 240, 60
_FUNDUS_GRADES = (4, 5, 5, 6)
_LABEL_NOISE = 0.05


def _octa_site(images: int) -> WriteSite:
    def write(root: Path, number: int, size: int, seed: int) -> None:
        style = synthetic_octa.STYLES[number % len(synthetic_octa.STYLES)]
        synthetic_octa.write_site(root, style=style, images=images, size=size, seed=seed)

    return write


def _fundus_site(images: int) -> WriteSite:
    def write(root: Path, number: int, size: int, seed: int) -> None:
        synthetic_fundus.write_graded_site(
            root,
            style=synthetic_fundus.STYLES[number % len(synthetic_fundus.STYLES)],
            images=images,
            size=size,
            seed=seed,
            grades=_FUNDUS_GRADES[number % len(_FUNDUS_GRADES)],
            label_noise=_LABEL_NOISE,
        )

    return write


SCENARIOS = {
    "octa_segmentation": Scenario(
        task="octa_segmentation",
        run="octa-demo",
        method="mean",
        score="dice_mean",
        score_title="Dice",
        rounds=4,
        sites=3,
        image_size=96,
        settings={"split": SPLIT},
        task_options={},
        augmentation={"crops": {"size": 64, "per_image": 8, "foreground": 0.5}},
        images="OCTA images",
        images_per_site=_OCTA_IMAGES,
        heldout_images=_OCTA_HELDOUT,
        write_site=_octa_site(_OCTA_IMAGES),
        write_heldout=_octa_site(_OCTA_HELDOUT),
    ),
    "dr_staging": Scenario(
        task="dr_staging",
        run="dr-demo",
        method="feduaa",
        score="auroc",
        score_title="AUROC",
        rounds=20,
        sites=4,
        image_size=64,
        settings={
            # From random weights a few hundred steps must do: Adam, with a rate that falls from round to round.
            "batch_size": 16,
            "learning_rate": {"initial": 0.003, "factor": 0.85, "period": 1000},
            "split": SPLIT,
        },
        task_options={"encoder": "small", "weights": "random"},
        augmentation={},
        images="fundus photographs",
        images_per_site=_FUNDUS_IMAGES,
        heldout_images=0,
        write_site=_fundus_site(_FUNDUS_IMAGES),
        write_heldout=_fundus_site(_FUNDUS_HELDOUT),
    ),
}
