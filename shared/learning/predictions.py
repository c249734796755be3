"""Using a kept model: predictions with their uncertainty, and how it does on labelled images."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from shared.csv_file import as_csv
from shared.errors import ConfigurationError, DataError, added_to
from shared.escaping import escape, uncomputed
from shared.folder.durable import temporary_name, write_file, writing
from shared.learning.blame import require_ranges
from shared.learning.data.dicom import read_any_levels
from shared.learning.data.images import grey_of, not_hidden
from shared.learning.data.time_series import Window
from shared.learning.dicom_segmentation import require_highdicom, write_segmentation
from shared.learning.kept_model import KeptModel
from shared.learning.measures import with_measures
from shared.learning.metrics import mean_dice
from shared.learning.objectives import IGNORED, by_target
from shared.learning.plugins import is_permitted
from shared.learning.prediction_page import ORDERED_BY_SCORE, ORDERED_BY_UNCERTAINTY, Page, picture_of
from shared.learning.tasks.contract import Evaluation, Sample, TabledTask
from shared.learning.tasks.terms import Options
from shared.learning.training import answers, evaluate, tame

TABLE, PAGE = "predictions.csv", "predictions.html"
MASKS, UNCERTAINTY, OVERLAYS, SEGMENTATIONS = ("masks", "uncertainty", "overlays", "segmentations")
_IN_COLOUR, _UNSURE = "prediction (in colour)", "uncertainty (white: unsure)"
_LONGEST_NAME = 255  # bytes, on most disks
_COLOUR = 0.4  # share of a class's colour in an overlay


def predict(
    kept: KeptModel, images: Path, out: Path, *, page: bool = False, dicom_seg: bool = False
) -> tuple[Path, int, list[str]]:
    """Write what the model says about unlabelled images into ``out``.

    A classification gives ``predictions.csv``: image, grade, its name, the probability of each class, the uncertainty
    u, and the task's advice where u >= θ, as "refer to an ophthalmologist". A segmentation gives pictures of each
    image's own size: ``masks/`` (the class of each pixel, spread over 0 to 255), ``uncertainty/`` (u from 0, black, to
    1, white) and ``overlays/`` (the image, grey, with each class but the first in a colour); and in the table each
    image's share of each class, mean u, and the share of pixels with u >= θ.

    Args:
        page: whether ``predictions.html`` shows the images to a person, the most uncertain first.
        dicom_seg: whether each mask is also written as a DICOM segmentation, ``segmentations/NAME.dcm``.

    Returns:
        The table's path, how many images it speaks of, and a sentence for each file that is no readable image.

    Raises:
        DataError: there is no readable image at all; names every problem. Or a page was asked of what is no picture.
        ConfigurationError: ``out`` cannot be written, or holds pictures of others or segmentations of before; or
            segmentations were asked of a task that labels no pixels.
        ActionRequiredError: a package is missing.
    """
    if dicom_seg:
        _require_pixels(kept)
    _require_own(out)
    opened, problems = _open(kept, images)
    _require_no_others(out, {*opened, *(path.stem for _, path in opened.values())})
    if not dicom_seg:
        _require_no_segmentations(out)
    samples = [sample for sample, _ in opened.values()]
    shown = Page(_title(kept), ORDERED_BY_UNCERTAINTY) if page and _are_pictures(samples) else None
    rows: list[dict[str, str]] = []
    try:
        for earlier in (TABLE, PAGE):  # they would tell of other pictures than lie beside them
            (out / earlier).unlink(missing_ok=True)
        for sample, probabilities, uncertainty in each_answer(kept, samples):
            if probabilities.ndim == 1:
                row, pictures = _graded_row(kept, sample.id, probabilities, float(uncertainty)), _plainly(sample)
            else:
                source = opened[sample.id][1]
                try:
                    drawn = _drawn(source, probabilities, uncertainty)
                except DataError as error:  # it changed, or went, since it was opened
                    problems += error.problems
                    continue
                drawn.write(out, sample.id)
                row, pictures = _segmented_row(kept, sample.id, drawn.classes, drawn.unsure), drawn.pictures
                if dicom_seg:
                    problems += _segmentation_problems(kept, source, drawn.classes, out)
            rows.append(row)
            if shown:
                shown.add(float(uncertainty.mean()), sample.id, _in_words(kept, row), pictures)
        if not rows:
            raise DataError(problems)
        path = out / TABLE
        write_file(path, _table(rows))
        if shown:
            write_file(out / PAGE, shown.html(f"{TABLE} tells of all"))
    except OSError as error:
        raise ConfigurationError([f"{out}: cannot be written ({error.strerror}); name another folder"]) from None
    return path, len(rows), problems


@dataclass(frozen=True)
class _Drawn:
    """A segmented image in its own size.

    Args:
        grey: (H, W) in [0, 1].
        classes: (H, W), from 0 to ``highest``.
        unsure: (H, W) in [0, 1].
    """

    grey: NDArray[np.float32]
    classes: NDArray[np.intp]
    unsure: NDArray[np.float64]
    highest: int

    @property
    def pictures(self) -> dict[str, NDArray[Any]]:
        """What a person is shown."""
        overlay = _overlay(self.grey, self.classes, self.highest + 1)
        return {"image": self.grey, _IN_COLOUR: overlay, _UNSURE: self.unsure}

    def write(self, out: Path, name: str) -> None:
        """Write uncertainty, mask and overlay, in this order."""
        _write_picture(out / UNCERTAINTY / f"{name}.png", self.unsure)
        _write_picture(out / MASKS / f"{name}.png", self.classes / self.highest)
        _write_picture(out / OVERLAYS / f"{name}.png", self.pictures[_IN_COLOUR])


def _drawn(source: Path, probabilities: NDArray[np.float64], uncertainty: NDArray[np.float64]) -> _Drawn:
    """Return an answer in the size of the image's file; the network may have seen it smaller."""
    grey = grey_of(*read_any_levels(source))  # (H, W)
    likely, unsure = _scaled(probabilities, grey.shape), _scaled(uncertainty[None], grey.shape)[0]
    return _Drawn(grey, likely.argmax(axis=0), unsure, len(likely) - 1)  # (K, H, W) -> (H, W)


def _require_own(out: Path) -> None:
    """Check that there are no masks but those of a prediction, which writes the uncertainty before: a data folder's."""
    if (out / MASKS).exists() and not (out / UNCERTAINTY).exists():
        raise ConfigurationError([f"{out}: has a folder {MASKS} that no prediction wrote; name another folder"])


def _require_no_others(out: Path, asked: Set[str]) -> None:
    """Check that there are no pictures of images that are not asked about: no table would tell of them.

    Args:
        asked: the images' ids and their files' names, by which segmentations are called.
    """
    parts = [out / part for part in (MASKS, UNCERTAINTY, OVERLAYS, SEGMENTATIONS) if (out / part).is_dir()]
    if others := sorted({path.stem for part in parts for path in not_hidden(part)} - asked):
        raise ConfigurationError(
            [f"{out}: has pictures of other images, as of {others[0]}, from an earlier prediction; name another folder"]
        )


def _require_no_segmentations(out: Path) -> None:
    """Check that there are none that an earlier prediction wrote: the table would not tell of them."""
    if (out / SEGMENTATIONS).exists():
        raise ConfigurationError(
            [f"{out}: has {SEGMENTATIONS} from an earlier prediction; pass --dicom-seg, or name another folder"]
        )


def _require_pixels(kept: KeptModel) -> None:
    """Check that DICOM segmentations can be written of what a model says."""
    if not kept.task.labels_pixels:
        raise ConfigurationError([f"--dicom-seg: {kept.card.task} labels no pixels: leave it out"])
    require_highdicom()


def _segmentation_problems(kept: KeptModel, source: Path, classes: NDArray[np.intp], out: Path) -> Sequence[str]:
    """Write a mask as a DICOM segmentation; return why it cannot be."""
    path = out / SEGMENTATIONS / f"{source.stem}.dcm"
    try:
        write_segmentation(source, classes, kept.card.classes, run=kept.card.run, sha256=kept.sha256, path=path)
    except DataError as error:
        return error.problems
    return ()


def _open(kept: KeptModel, images: Path) -> tuple[dict[str, tuple[Sample, Path]], list[str]]:
    """Return all readable images, by id, with their files, and what is wrong with the others.

    One broken file does not spoil a folder.
    """
    problems: list[str] = []
    if isinstance(kept.task, TabledTask):
        listed = kept.task.open_listed(images, kept.options, problems)
        if not listed:
            raise DataError(problems)
        return {sample.id: (sample, images) for sample in listed}, problems
    samples: dict[str, tuple[Sample, Path]] = {}
    for path in not_hidden(images) if images.is_dir() else [images]:
        with added_to(problems):
            for sample in [] if path.is_dir() else kept.task.open_unlabelled(path, kept.options):
                if sample.id in samples:
                    raise DataError([f"{path}: another image has the same name but for its ending; rename one."])
                if kept.task.labels_pixels and len(os.fsencode(temporary_name(f"{sample.id}.png"))) > _LONGEST_NAME:
                    raise DataError([f"{path}: its name is too long for its pictures; give it a shorter."])
                samples[sample.id] = sample, path
    if not samples:
        raise DataError(problems or [f"{images}: has no image in it; name the folder that holds the images."])
    return samples, problems


def evaluate_labelled(kept: KeptModel, folder: Path, page: Path | None = None) -> Evaluation:
    """Return how the model does on labelled images.

    Args:
        page: an HTML file that shows them to a person, what the model was most wrong about first.

    Raises:
        ConfigurationError: every problem of every image; or they are graded by another scale than the model's, or have
            classes that it does not know.
        DataError: a page was asked of what is no picture.
        FaultError: a score of a plug-in's lies elsewhere than the model's run says.
    """
    try:
        images = kept.task.open_images(folder, _by_its_classes(kept, folder))
    except DataError as error:
        raise ConfigurationError(error.problems) from None
    if len(images.classes) != len(kept.card.classes):
        raise ConfigurationError(
            [
                f"{folder}: has {len(images.classes)} classes, the model {len(kept.card.classes)} "
                f"({', '.join(kept.card.classes)}); grade the images by that scale"
            ]
        )
    if page and _are_pictures(images.samples):
        write_file(page, _compared(kept, images.samples).html("the scores are of all"))
    return evaluate_kept(kept, images.samples)


def _by_its_classes(kept: KeptModel, folder: Path) -> Options:
    """Return the options that read a labelled folder by the model's classes, also where each site has its own.

    Raises:
        DataError: it has images of a class that the model does not know.
    """
    if getattr(kept.options, "labels", None) != "own":
        return kept.options
    known = kept.card.classes
    found = {unit.kind or "" for unit in kept.task.units(folder)} - {""}  # what has no label is named when it is read
    if others := sorted(found - set(known)):
        told = ", ".join(escape(other) for other in others[:5])
        raise DataError(
            [f"{folder}: has images of {told}; the model knows {', '.join(known)}; take the other images out"]
        )
    return kept.options.model_copy(update={"labels": tuple(known)})


def evaluate_kept(kept: KeptModel, samples: Sequence[Sample]) -> Evaluation:
    """Return how the model does on samples of its task: the scores of its run's wheels too, where these may run here.

    Raises:
        FaultError: a score of a plug-in's lies elsewhere than the model's run says.
    """
    told = {name: where for name, where in kept.card.scores.items() if name not in not_computed(kept)}
    found = evaluate(with_measures(kept.task, told), kept.model, samples, kept.objective)
    if kept.card.plugins:
        require_ranges(found.scores, told)
    return found


def not_computed(kept: KeptModel) -> list[str]:
    """Return the scores of the model's run that are not computed here, for they come from a wheel that may not run."""
    return [name for name in kept.card.scores if name not in kept.task.scores and not is_permitted("scores", name)]


def _compared(kept: KeptModel, samples: Sequence[Any]) -> Page:
    """Return a page of labelled images: lowest Dice, or least probability of the right class, first."""
    shown = Page(_title(kept), ORDERED_BY_SCORE)
    for sample, probabilities, uncertainty in each_answer(kept, samples):
        if probabilities.ndim == 1:
            right, row = int(sample.grade), _graded_row(kept, sample.id, probabilities, float(uncertainty))
            truth = f"Graded as {kept.card.classes[right]} by people"
            shown.add(-float(probabilities[right]), sample.id, [truth, *_in_words(kept, row)], _plainly(sample))
            continue
        classes, number = probabilities.argmax(axis=0), len(probabilities)
        overlap = mean_dice(classes, sample.mask, number)
        words = [
            f"Dice {overlap:.3f} against the mask",
            *_in_words(kept, _segmented_row(kept, "", classes, uncertainty)),
        ]
        pictures = {
            "image": sample.image,
            "mask (in colour)": _overlay(sample.image, sample.mask, number),
            _IN_COLOUR: _overlay(sample.image, classes, number),
            _UNSURE: uncertainty,
        }
        shown.add(-overlap, sample.id, words, pictures)
    return shown


def each_answer(
    kept: KeptModel, samples: Sequence[Sample]
) -> Iterator[tuple[Any, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield each image, its probabilities (K, ...) and its uncertainty (...)."""
    for batch, logits, targets in answers(kept.task, kept.model, samples):
        for sample, filled_up, target in zip(batch, by_target(logits, targets), targets, strict=True):
            image_logits = tame(_without_filling(filled_up, target))
            shape = image_logits.shape[: target.ndim]
            flat = image_logits.reshape(-1, *image_logits.shape[target.ndim :]).double()  # (..., K) -> (P, K)
            probabilities = kept.objective.probabilities(flat).T.reshape(-1, *shape).numpy()  # (P, K) -> (K, ...)
            yield sample, probabilities, kept.objective.uncertainty(flat).reshape(shape).numpy()


def _without_filling(logits: Tensor, target: Tensor) -> Tensor:
    """Return (h, w, K) of a segmented image without what filled it up at the bottom and at the right; (K,) as it is."""
    if target.ndim == 0:
        return logits
    counts = target != IGNORED  # (H, W)
    return logits[: int(counts.any(dim=1).sum()), : int(counts.any(dim=0).sum())]


def _graded_row(kept: KeptModel, name: str, probabilities: NDArray[np.float64], uncertainty: float) -> dict[str, str]:
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
    kept: KeptModel, name: str, classes: NDArray[np.intp], uncertainty: NDArray[np.float64]
) -> dict[str, str]:
    return {
        "image": name,
        **{f"share_{label}": f"{np.mean(classes == index):.4f}" for index, label in enumerate(kept.card.classes)},
        "uncertainty": f"{uncertainty.mean():.4f}",
        "share_uncertain": f"{np.mean(uncertainty >= kept.card.theta):.4f}",
    }


def _in_words(kept: KeptModel, row: Mapping[str, str]) -> list[str]:
    """Return what a row of the table says, as short sentences without full stops."""
    if "grade_name" in row:
        sure = [f"{name} {float(row[f'probability_{index}']):.0%}" for index, name in enumerate(kept.card.classes)]
        told = [f"Predicted: {row['grade_name']}", ", ".join(sure), f"Uncertainty {float(row['uncertainty']):.2f}"]
        return [*told, *([row["advice"].capitalize()] if row["advice"] else [])]
    shares = [f"{name} {float(row[f'share_{name}']):.1%}" for name in kept.card.classes[1:]]
    unsure = f"uncertain (u ≥ {kept.card.theta:.2f}) {float(row['share_uncertain']):.1%}"
    return [f"Of the image: {', '.join([*shares, unsure])}", f"Mean uncertainty {float(row['uncertainty']):.2f}"]


def _are_pictures(samples: Sequence[Sample]) -> bool:
    """Return True if images can be shown.

    Raises:
        DataError: they are time series.
    """
    if isinstance(samples[0], Window):
        raise DataError(["a page shows images, and these are time series: leave --page out"])
    return True


def _plainly(sample: Sample) -> dict[str, NDArray[Any]]:
    """Return the picture of a graded image, on the range 0 to 1."""
    return {"image": sample.image / 255}


def _title(kept: KeptModel) -> str:
    return f"Predictions of the model of {kept.card.run}"


def _scaled(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Interpolate linearly: (K, h, w) -> (K, H, W)."""
    if values.shape[1:] == shape:
        return values
    scaled = functional.interpolate(torch.from_numpy(values)[None], size=shape, mode="bilinear", align_corners=False)
    result: NDArray[np.float64] = scaled[0].numpy()
    return result


def _overlay(image: NDArray[np.float32], classes: NDArray[np.intp], number: int) -> NDArray[np.float64]:
    """Return (H, W, 3) in [0, 1]: an image with its classes, 0 to ``number`` - 1, in colours; class 0 is unchanged."""
    hues = [colorsys.hsv_to_rgb((index - 1) / (number - 1), 1, 1) for index in range(1, number)]
    coloured = np.array([(0, 0, 0), *hues])[classes]  # (H, W, 3)
    share = _COLOUR * (classes > 0)[..., None]
    result: NDArray[np.float64] = np.atleast_3d(image) * (1 - share) + coloured * share
    return result


def _write_picture(path: Path, levels: NDArray[np.float64]) -> None:
    """Write (H, W) or (H, W, 3) values in [0, 1] as an 8-bit PNG."""
    with writing(path) as file:
        picture_of(levels).save(file, format="PNG")


def _table(rows: Sequence[dict[str, str]]) -> bytes:
    return as_csv(map(uncomputed, cells) for cells in (rows[0], *(row.values() for row in rows)))
