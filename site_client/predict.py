"""Using a kept model: predictions with their uncertainty, and how it does on labelled images."""

from __future__ import annotations

import colorsys
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from shared.errors import ConfigurationError, DataError
from shared.folder.durable import writing
from shared.learning.data.images import not_hidden, read_image
from shared.learning.objectives import IGNORED, Objective, by_target
from shared.learning.tasks.contract import Evaluation, Sample, Task
from shared.learning.training import answers, evaluate, tame
from site_client.final import SiteModel

TABLE = "predictions.csv"
_COLOUR = 0.4  # share of a class's colour in an overlay


def predict(kept: SiteModel, images: Path, out: Path) -> tuple[Path, int, list[str]]:
    """Write what the model says about unlabelled images into ``out``.

    A classification gives ``predictions.csv``: image, grade, its name, the probability of each class, the uncertainty
    u, and the task's advice where u >= θ, as "refer to an ophthalmologist". A segmentation gives pictures of each
    image's own size: ``masks/`` (the class of each pixel, spread over 0 to 255), ``uncertainty/`` (u from 0, black, to
    1, white) and ``overlays/`` (the image, grey, with each class but the first in a colour); and in the table each
    image's share of each class, mean u, and the share of pixels with u >= θ.

    Returns:
        The table's path, how many images it speaks of, and a sentence for each file that is no readable image.

    Raises:
        DataError: there is no readable image at all; names every problem.
        ConfigurationError: ``out`` cannot be written.
    """
    opened, problems = _open(kept, images)
    rows: list[dict[str, str]] = []
    try:
        samples = [sample for sample, _ in opened.values()]
        for name, probabilities, uncertainty in predictions(kept.task, kept.model, kept.objective, samples):
            if probabilities.ndim == 1:
                rows.append(_graded_row(kept, name, probabilities, float(uncertainty)))
                continue
            grey = read_image(opened[name][1])  # (H, W); the network may have seen it smaller
            likely, unsure = _scaled(probabilities, grey.shape), _scaled(uncertainty[None], grey.shape)[0]
            classes = likely.argmax(axis=0)  # (K, H, W) -> (H, W)
            rows.append(_segmented_row(kept, name, classes, unsure))
            _write_picture(out / "masks" / f"{name}.png", classes / (len(likely) - 1))
            _write_picture(out / "uncertainty" / f"{name}.png", unsure)
            _write_picture(out / "overlays" / f"{name}.png", _overlay(grey, classes, len(likely)))
        path = out / TABLE
        with writing(path) as file:
            file.write(_table(rows))
    except OSError as error:
        raise ConfigurationError([f"{out}: cannot be written ({error.strerror}); name another folder"]) from None
    return path, len(rows), problems


def _open(kept: SiteModel, images: Path) -> tuple[dict[str, tuple[Sample, Path]], list[str]]:
    """All images that can be read, by id, with their files, and what is wrong with the other files: one broken file
    spoils no folder.
    """
    samples: dict[str, tuple[Sample, Path]] = {}
    problems: list[str] = []
    for path in not_hidden(images) if images.is_dir() else [images]:
        try:
            for sample in [] if path.is_dir() else kept.task.open_unlabelled(path, kept.options):
                if sample.id in samples:
                    raise DataError([f"{path}: another image has the same name but for its ending; rename one."])
                samples[sample.id] = sample, path
        except DataError as error:
            problems += error.problems
    if not samples:
        raise DataError(problems or [f"{images}: has no image in it; name the folder that holds the images."])
    return samples, problems


def evaluate_labelled(kept: SiteModel, folder: Path) -> Evaluation:
    """Return how the model does on labelled images.

    Raises:
        ConfigurationError: every problem of every image; or they are graded by another scale than the model's.
    """
    try:
        images = kept.task.open_images(folder, kept.options)
    except DataError as error:
        raise ConfigurationError(error.problems) from None
    if len(images.classes) != len(kept.card.classes):
        raise ConfigurationError(
            [
                f"{folder}: has {len(images.classes)} classes, the model {len(kept.card.classes)} "
                f"({', '.join(kept.card.classes)}); grade the images by that scale"
            ]
        )
    return evaluate(kept.task, kept.model, images.samples, kept.objective)


def predictions(
    task: Task, model: nn.Module, objective: Objective, samples: Sequence[Sample]
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield each image's name, its probabilities (K, ...) and its uncertainty (...), both in [0, 1]."""
    for batch, logits, targets in answers(task, model, samples):
        for sample, filled_up, target in zip(batch, by_target(logits, targets), targets, strict=True):
            image_logits = tame(_without_filling(filled_up, target))
            shape = image_logits.shape[: target.ndim]
            flat = image_logits.reshape(-1, *image_logits.shape[target.ndim :]).double()  # (..., K) -> (P, K)
            probabilities = objective.probabilities(flat).T.reshape(-1, *shape).numpy()  # (P, K) -> (K, ...)
            yield sample.id, probabilities, objective.uncertainty(flat).reshape(shape).numpy()


def _without_filling(logits: Tensor, target: Tensor) -> Tensor:
    """(h, w, K) of a segmented image that was filled up at the bottom and at the right; (K,) as it is."""
    if target.ndim == 0:
        return logits
    counts = target != IGNORED  # (H, W)
    return logits[: int(counts.any(dim=1).sum()), : int(counts.any(dim=0).sum())]


def _graded_row(kept: SiteModel, name: str, probabilities: NDArray[np.float64], uncertainty: float) -> dict[str, str]:
    grade = int(probabilities.argmax())
    return {
        "image": name,
        "grade": str(grade),
        "grade_name": kept.card.classes[grade],
        **{f"probability_{index}": f"{value:.4f}" for index, value in enumerate(probabilities)},
        "uncertainty": f"{uncertainty:.4f}",
        "advice": kept.task.advice if uncertainty >= kept.card.theta else "",
    }


def _segmented_row(
    kept: SiteModel, name: str, classes: NDArray[np.intp], uncertainty: NDArray[np.float64]
) -> dict[str, str]:
    return {
        "image": name,
        **{f"share_{label}": f"{np.mean(classes == index):.4f}" for index, label in enumerate(kept.card.classes)},
        "uncertainty": f"{uncertainty.mean():.4f}",
        "share_uncertain": f"{np.mean(uncertainty >= kept.card.theta):.4f}",
    }


def _scaled(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """(K, h, w) -> (K, H, W), interpolated linearly."""
    if values.shape[1:] == shape:
        return values
    scaled = functional.interpolate(torch.from_numpy(values)[None], size=shape, mode="bilinear", align_corners=False)
    result: NDArray[np.float64] = scaled[0].numpy()
    return result


def _overlay(grey: NDArray[np.float32], classes: NDArray[np.intp], number: int) -> NDArray[np.float64]:
    """(H, W, 3) in [0, 1]: an image with its classes, 0 to ``number`` - 1, in colours; class 0 stays grey."""
    hues = [colorsys.hsv_to_rgb((index - 1) / (number - 1), 1, 1) for index in range(1, number)]
    coloured = np.array([(0, 0, 0), *hues])[classes]  # (H, W, 3)
    share = _COLOUR * (classes > 0)[..., None]
    result: NDArray[np.float64] = grey[..., None] * (1 - share) + coloured * share
    return result


def _write_picture(path: Path, levels: NDArray[np.float64]) -> None:
    """Write (H, W) or (H, W, 3) values in [0, 1] as an 8-bit PNG."""
    with writing(path) as file:
        Image.fromarray(np.rint(levels * 255).astype(np.uint8)).save(file, format="PNG")


def _table(rows: Sequence[dict[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
