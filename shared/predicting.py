"""``predict`` and ``evaluate``, alike for a site and the aggregator: a kept model is asked about images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shared.commands import AS_JSON, say
from shared.learning.kept_model import WITH_PLUGINS, open_model
from shared.learning.predictions import PAGE, evaluate_labelled, predict, untold
from shared.plurals import pluralize

_IMAGES = click.argument("images", type=click.Path(path_type=Path, exists=True))
_FOLDER = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
_OUTPUT = click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("predictions"),
    show_default=True,
    help="Folder for the answers.",
)
_PAGE = click.option("--page", is_flag=True, help=f"Show them on one page too, {PAGE}, the most uncertain first.")
_DICOM_SEG = click.option(
    "--dicom-seg", is_flag=True, help="Write masks of DICOM images as DICOM segmentations too; needs dropfed[dicomseg]."
)
_PAGE_FILE = click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), help="HTML file to show the images in, the worst first."
)
_WITH_PLUGINS = click.option(
    WITH_PLUGINS, is_flag=True, help="Run the plug-ins that the model needs, if they are installed."
)
_ALL = click.option("--all", "shows_all", is_flag=True, help="Show every score, not only those that matter most.")


def predict_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``ask_about`` is told on the command line, besides the model."""
    return _IMAGES(_OUTPUT(_PAGE(_DICOM_SEG(_WITH_PLUGINS(command)))))


def evaluate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``show_scores`` is told on the command line, besides the model."""
    return _FOLDER(AS_JSON(_ALL(_PAGE_FILE(_WITH_PLUGINS(command)))))


def ask_about(folder: Path, images: Path, output: Path, *, page: bool, dicom_seg: bool, with_plugins: bool) -> None:
    """Write what the model in a folder says about images; end with exit code 1 if one of them cannot be read.

    Raises:
        DropfedError: the model cannot be opened, no image can be read, or ``output`` cannot be written.
    """
    kept = open_model(folder, with_plugins=with_plugins)
    if kept.card.personal_round == 0:
        say("warning: no part of this model was ever trained at this site", err=True)
    if kept.card.theta_status != "measured":
        say(f"warning: θ could not be measured here ({kept.card.theta_status}); advice is given from 0.5", err=True)
    table, count, problems = predict(kept, images, output, page=page, dicom_seg=dicom_seg)
    by = f"by the model of {kept.card.run}, θ {kept.card.theta:.4f}"
    say(f"{pluralize(count, 'image')} {by}: {table}")
    if problems:
        say("\n".join(problems), err=True)
        raise SystemExit(1)


def show_scores(
    folder: Path, labelled: Path, page: Path | None, *, as_json: bool, shows_all: bool, with_plugins: bool
) -> None:
    """Print how the model in a folder does on a labelled one.

    Raises:
        DropfedError: the model or the images cannot be opened.
    """
    kept = open_model(folder, with_plugins=with_plugins)
    if left_out := ", ".join(untold(kept)):
        say(f"warning: {left_out}: not told; install the plug-in's wheel, and pass {WITH_PLUGINS} to run it", err=True)
    evaluation = evaluate_labelled(kept, labelled, page)
    scores: dict[str, float | None] = {"images": evaluation.images, "loss": evaluation.loss}
    scores |= {name: score.value for name, score in sorted(evaluation.scores.items())}
    if as_json:
        say(json.dumps(scores, indent=2))
        return
    own = [name for name in kept.card.scores if name in scores and name not in kept.task.main_scores]
    first = ("images", *kept.task.main_scores, *own)
    for name in [*first, *(name for name in scores if shows_all and name not in first)]:
        value = scores[name]
        text = "absent" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        say(f"{name:28} {text}")
    if not shows_all:
        say(f"(--all shows {len(scores) - len(first)} more)")
