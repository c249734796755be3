"""``predict`` and ``evaluate``, alike for a site and the aggregator: a kept model is asked about images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from shared.commands import AS_JSON, NamedPath, require_replaceable, say
from shared.errors import ConfigurationError
from shared.exchange.drop_folder import lies_in, require_no_drop_folder_around
from shared.exchange.records.run import Plugin
from shared.learning.apart import WITH_PLUGINS, Bounds, Progress, Question, answered
from shared.learning.dicom_segmentation import RESEARCH_ONLY
from shared.learning.kept_card import KeptCard
from shared.learning.kept_model import described, open_model
from shared.learning.predictions import PAGE, evaluate_labelled, not_computed, predict
from shared.plugin_options import PluginOptions, plugin_options
from shared.plurals import pluralize

_IMAGES = click.argument("images", type=NamedPath(exists=True))
_FOLDER = click.argument("folder", type=NamedPath(exists=True, file_okay=False))
_OUTPUT = click.option(
    "--output",
    type=NamedPath(),
    default=Path("predictions"),
    show_default=True,
    help="Folder for the predictions.",
)
_PAGE = click.option("--page", is_flag=True, help=f"Also show them on one page, {PAGE}, the most uncertain first.")
_DICOM_SEG = click.option(
    "--dicom-seg",
    is_flag=True,
    help="Also write masks of DICOM images as DICOM segmentations; needs the extra dicomseg.",
)
_PAGE_FILE = click.option(
    "--page",
    type=NamedPath(dir_okay=False),
    help="HTML file to write, which shows the images, the worst first.",
)
_PLUGINS = plugin_options("the model needs", minutes=60.0)
_ALL = click.option("--all", "shows_all", is_flag=True, help="Show every score, not only those that matter most.")

_NO_THETA = {
    "all right": "every answer about the {images} images was right, and none that is wrong could be told by it",
    "all wrong": "every answer about the {images} images was wrong, and none that is right could be told by it",
    "no separation": "about the {images} images, wrong answers were as certain as right ones",
}


def predict_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``ask_about`` is told on the command line, besides the model."""
    return _IMAGES(_OUTPUT(_PAGE(_DICOM_SEG(_PLUGINS(command)))))


def evaluate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``show_scores`` is told on the command line, besides the model."""
    return _FOLDER(AS_JSON(_ALL(_PAGE_FILE(_PLUGINS(command)))))


def ask_about(model: Path, *, images: Path, output: Path, page: bool, dicom_seg: bool, plugins: PluginOptions) -> None:
    """Write what a model says about images.

    Raises:
        DropfedError: the model cannot be opened, no image can be read, or ``output`` cannot be written, or may not.
        SystemExit: one of the images cannot be read; the exit code is 1.
    """
    home, card = described(model)
    _require_apart(output, images)
    asked = Predict(folder=home, images=images, output=output, page=page, dicom_seg=dicom_seg)
    predicted = answered(asked, *_apart(card, plugins))
    if card.personal_round == 0:
        say("warning: no part of this model was ever trained at this site", err=True)
    _warn_of_theta(card)
    by = f"by the model of {card.run}, θ {card.theta:.4f}"
    shown = f" and {predicted.table.with_name(PAGE)}" if page else ""
    say(f"{pluralize(predicted.images, 'image')} {by}: {predicted.table}{shown}")
    say(f"{RESEARCH_ONLY}: no decision about a patient may rest on these answers.")
    if predicted.problems:
        say("\n".join(predicted.problems), err=True)
        raise SystemExit(1)


def show_scores(
    model: Path, *, folder: Path, page: Path | None, as_json: bool, shows_all: bool, plugins: PluginOptions
) -> None:
    """Print how a model does on a labelled folder.

    Raises:
        DropfedError: the model or the images cannot be opened, or no page may be where it is to be.
    """
    if page is not None:
        _require_apart(page, folder)
        require_replaceable(page, ".html")
    home, card = described(model)
    asked = Evaluate(folder=home, labelled=folder, page=page)
    found = answered(asked, *_apart(card, plugins))
    if left_out := ", ".join(found.not_computed):
        say(
            f"warning: {left_out}: not computed; install the plug-in's wheel, and pass {WITH_PLUGINS} to run it",
            err=True,
        )
    if page is not None:  # scores do not depend on it
        _warn_of_theta(card)
    scores: dict[str, float | None] = {"images": found.images, "loss": found.loss}
    scores |= dict(sorted(found.scores.items()))
    if as_json:
        say(json.dumps(scores, indent=2))
        return
    if page is not None:
        say(f"the images, on one page: {page}")
    say(f"{'model of':28} {card.run}")
    own = [name for name in card.scores if name in scores and name not in found.main]
    first = ("images", *found.main, *own)
    for name in [*first, *(name for name in scores if shows_all and name not in first)]:
        value = scores[name]
        text = "absent" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        say(f"{name:28} {text}")
    if not shows_all:
        say(f"(--all shows {len(scores) - len(first)} more)")


def _require_apart(written: Path, images: Path) -> None:
    """Check that what shows images comes neither among them, where it would be taken for some, nor before others' eyes.

    Raises:
        ConfigurationError: it would.
    """
    if lies_in(written, images):
        raise ConfigurationError([f"{written}: lies in {images}, among the images themselves; name another place"])
    require_no_drop_folder_around(written)


def _warn_of_theta(card: KeptCard) -> None:
    """Warn that statements on single images rest on no θ of the model's own, if it has none."""
    if (status := card.theta_status) != "measured":
        images = "validation" if card.method_options.get("theta_from") == "validation" else "training"
        why = _NO_THETA[status].format(images=images) if status in _NO_THETA else status
        say(f"warning: θ could not be measured here ({why}); advice is given from 0.5", err=True)


def _apart(card: KeptCard, plugins: PluginOptions) -> tuple[Bounds, list[Plugin]]:
    """Return what a model's plug-ins may do here, and those that are run: none, if nobody has asked for that."""
    bounds = plugins.bounds(card.plugins, torch.get_num_threads())
    return bounds, card.plugins if plugins.are_run else []


# --- what needs the model, and so its plug-ins, if it is of some ---------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """What was written, about how many images, and a sentence for each file that is no readable image."""

    table: Path
    images: int
    problems: list[str]


class Predict(Question[Predicted]):
    """Write what a model says about images; arguments as for ``ask_about``."""

    folder: Path
    images: Path
    output: Path
    page: bool
    dicom_seg: bool

    def answer(self, on_progress: Progress) -> Predicted:
        """See ``Question``."""
        kept = open_model(self.folder)
        return Predicted(*predict(kept, self.images, self.output, page=self.page, dicom_seg=self.dicom_seg))


@dataclass(frozen=True)
class Evaluated:
    """How a model does on labelled images.

    Args:
        main: the scores that matter most.
        not_computed: those of a plug-in that is not run.
    """

    images: int
    loss: float | None
    scores: dict[str, float | None]
    main: list[str]
    not_computed: list[str]


class Evaluate(Question[Evaluated]):
    """How does a model do on a labelled folder? Arguments as for ``show_scores``."""

    folder: Path
    labelled: Path
    page: Path | None

    def answer(self, on_progress: Progress) -> Evaluated:
        """See ``Question``."""
        kept = open_model(self.folder)
        evaluation = evaluate_labelled(kept, self.labelled, self.page)
        scores = {name: score.value for name, score in evaluation.scores.items()}
        return Evaluated(evaluation.images, evaluation.loss, scores, [*kept.task.main_scores], not_computed(kept))
