"""What the demo does for each task: its synthetic sites, its run, and the score it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aggregator.new_run import settings
from deploy.local import synthetic_fundus, synthetic_octa
from shared.errors import ConfigurationError

WriteSite = Callable[[Path, int, int, int, int], None]
"""Writes a data folder: (where, the site's number, how many images, their side in pixels, seed)."""


@dataclass(frozen=True)
class Scenario:
    """One task's demonstration.

    Args:
        method: used where none is named.
        score: the column of ``metrics.csv`` that is shown, and what people call it.
        rounds, sites, image_size: used where nothing else is asked for.
        settings, task_options, augmentation: of the run, where it takes others than ``new-run`` suggests.
        images: what the synthetic images are called, and how many a site has.
        heldout_images: how many are held out; where ``lends_heldout``, a real site's validation images may serve.
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
    lends_heldout: bool
    write: WriteSite

    def write_site(self, root: Path, number: int, size: int, seed: int) -> None:
        """Write a site's synthetic images."""
        self.write(root, number, self.images_per_site, size, seed)

    def write_heldout(self, root: Path, size: int, seed: int) -> None:
        """Write synthetic images for the aggregator."""
        self.write(root, 0, self.heldout_images, size, seed)

    def as_suggested(self) -> Scenario:
        """Return the scenario with the suggested settings instead of the demo's, except the quorum and the seed.

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
_FUNDUS_GRADES = (4, 5, 5, 6)
_LABEL_NOISE = 0.05


def _write_octa(root: Path, number: int, images: int, size: int, seed: int) -> None:
    style = synthetic_octa.STYLES[number % len(synthetic_octa.STYLES)]
    synthetic_octa.write_site(root, style=style, images=images, size=size, seed=seed)


def _write_fundus(root: Path, number: int, images: int, size: int, seed: int) -> None:
    style = synthetic_fundus.STYLES[number % len(synthetic_fundus.STYLES)]
    grades = _FUNDUS_GRADES[number % len(_FUNDUS_GRADES)]
    synthetic_fundus.write_graded_site(
        root, style=style, images=images, size=size, seed=seed, grades=grades, label_noise=_LABEL_NOISE
    )


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
        images_per_site=20,
        heldout_images=6,
        lends_heldout=True,
        write=_write_octa,
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
        images_per_site=240,
        heldout_images=60,
        lends_heldout=False,
        write=_write_fundus,
    ),
}
