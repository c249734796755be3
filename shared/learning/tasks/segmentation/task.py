"""A class for each pixel of an image, of any kind and with any labels.

The model is the residual U-Net of Lo et al. 2021, trained on whole images or on crops. Of a colour image it sees the
green channel, or all three. A mask's pixels say the class by its number; where there are two, anything but 0 is the
second. With an evidential objective each pixel's logits become its evidence, and each pixel has its uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shared.learning.data.augmentation import Augmentation, Crops, augment, crop
from shared.learning.data.dicom import read_any_levels
from shared.learning.data.graded_images import GRADED_EXTENSIONS
from shared.learning.data.images import (
    SegmentedImage,
    colour_of,
    grey_of,
    list_images,
    pair_files,
    pair_units,
    read_pairs,
    scale_to,
    unlabelled_units,
)
from shared.learning.data.sets import Members
from shared.learning.data.units import Listed, Unit
from shared.learning.drawing import drawn_by
from shared.learning.metrics import ACCURACY, MACRO_DICE, PixelScores, Score, mean_and_std, pixel_scores
from shared.learning.models.residual_unet import ResidualUNet
from shared.learning.objectives import IGNORED, Objective, by_target
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import REFER, Collection, Dataset, Scoring, divided
from shared.learning.tasks.inputs import Input
from shared.learning.tasks.segmentation import terms
from shared.learning.tasks.segmentation.terms import SegmentationOptions
from shared.learning.tasks.terms import PixelOptions

_SEEN = {1: grey_of, 3: colour_of}  # what of a file, by the number of channels
_USUAL_SIDE = 512  # in pixels, of images that are taken as they are

OptionsT = TypeVar("OptionsT", bound=PixelOptions)


class OfPixels(Generic[OptionsT]):
    """A part of ``contract.Task``: images with masks."""

    tolerance_scores = (MACRO_DICE, ACCURACY)
    main_scores = ("dice_mean", "dice_std", "iou_mean", "sensitivity_mean", "specificity_mean", "auroc_mean")
    advice = REFER
    labels_pixels = True
    head_is_local = False

    def build_model(self, options: OptionsT, classes: int, seed: int) -> nn.Module:
        with drawn_by(seed_for(seed, "model")):
            return ResidualUNet(
                widths=options.widths,
                dropout=options.dropout,
                channels=options.channels,
                classes=len(options.class_names),
            )

    def input_shape(self, options: OptionsT) -> tuple[int, ...]:
        return (options.channels, *[options.image_size or _USUAL_SIDE] * 2)

    def describe_input(self, options: OptionsT) -> Input:
        size = "keeps its size" if options.image_size is None else f"has {options.image_size} pixels on its longer side"
        channels = ("green",) if options.channels == 1 else ("red", "green", "blue")
        filled = "is filled up with 0 at the bottom and at the right to multiples of 16"
        return Input(channels, f"an image {size} and {filled}; its levels from 0 to 1", 0, 1)

    def load_initial_weights(self, model: nn.Module, options: OptionsT, folders: Sequence[Path]) -> None:
        return None  # random weights

    def units(self, root: Path) -> list[Unit]:
        return pair_units(root)

    def listed(self, root: Path, options: OptionsT) -> list[Listed]:
        return pair_files(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, GRADED_EXTENSIONS)

    def open_dataset(self, root: Path, options: OptionsT, members: Members) -> Dataset[SegmentedImage]:
        return divided(self.open_images(root, options), members)

    def open_images(self, root: Path, options: OptionsT) -> Collection[SegmentedImage]:
        pairs = read_pairs(root, len(options.class_names), options.image_size, _SEEN[options.channels])
        return Collection(pairs, options.class_names)

    def open_unlabelled(self, path: Path, options: OptionsT) -> list[SegmentedImage]:
        samples = []
        for file in list_images(path, GRADED_EXTENSIONS):
            image = _SEEN[options.channels](*read_any_levels(file))
            nothing = np.zeros(image.shape[:2], dtype=np.uint8)
            if options.image_size is not None:
                image, nothing = scale_to(image, nothing, options.image_size)
            samples.append(SegmentedImage(file.stem, image, nothing))
        return samples

    def vary(self, sample: SegmentedImage, augmentation: Augmentation, seed: int) -> SegmentedImage:
        return SegmentedImage(sample.id, *augment(sample.image, sample.mask, augmentation, seed))

    def crop(self, sample: SegmentedImage, crops: Crops, seed: int) -> SegmentedImage:
        return SegmentedImage(sample.id, *crop(sample.image, sample.mask, crops, seed))

    def collate(self, samples: Sequence[SegmentedImage]) -> tuple[Tensor, Tensor]:
        """Return images of any sizes as a batch of one size, a multiple of 16, filled up at bottom and right.

        Returns:
            (B, C, H, W) float32, and (B, H, W) int64 classes; ``objectives.IGNORED`` where it is filled up.
        """
        height = max(-(-sample.mask.shape[0] // 16) * 16 for sample in samples)
        width = max(-(-sample.mask.shape[1] // 16) * 16 for sample in samples)
        images = torch.zeros(len(samples), np.atleast_3d(samples[0].image).shape[2], height, width)
        masks = torch.full((len(samples), height, width), IGNORED, dtype=torch.int64)
        for index, sample in enumerate(samples):
            rows, columns = sample.mask.shape
            channels_first = np.moveaxis(np.atleast_3d(sample.image), 2, 0)  # (H, W) or (H, W, C) -> (C, H, W)
            images[index, :, :rows, :columns] = torch.from_numpy(channels_first)
            masks[index, :rows, :columns] = torch.from_numpy(sample.mask)
        return images, masks

    def batches(self, samples: Sequence[SegmentedImage]) -> list[Sequence[SegmentedImage]]:
        """Return one image at a time: sizes may differ, and each image's statistics count alike."""
        return [[sample] for sample in samples]

    def scoring(self, objective: Objective) -> PixelScoring:
        return PixelScoring(objective)


class Segmentation(terms.Segmentation, OfPixels[SegmentationOptions]):
    """The task ``segmentation``; see ``contract.Task`` for what each method promises."""

    advice = "have a person decide"


class PixelScoring(Scoring[list[PixelScores]]):
    """Scores each image by its pixels; over images, the mean and the population standard deviation."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def look(self, logits: Tensor, targets: Tensor) -> list[PixelScores]:
        """Return each image's scores, from (B, K, H, W) logits and (B, H, W) classes."""
        looks = []
        for image_logits, mask in zip(by_target(logits, targets), targets, strict=True):
            counts = mask != IGNORED  # (H, W)
            flat = image_logits[counts].double()  # (H, W, K) -> (P, K)
            probabilities, uncertainty = self._objective.probabilities(flat), self._objective.uncertainty(flat)
            truth, *of_pixels = (each.cpu().numpy() for each in (mask[counts], probabilities, uncertainty))
            looks.append(pixel_scores(truth, *of_pixels))
        return looks

    def scores(self, looks: Sequence[list[PixelScores]]) -> dict[str, Score]:
        """Return ``NAME_mean`` and ``NAME_std`` of each score; images for which one is undefined do not count in it.

        Such a score is over part of a block, and so over one image, whatever the number of the others.
        """
        of_images = [scores for look in looks for scores in look]
        over_images: dict[str, Score] = {}
        for name in of_images[0]:
            defined = [value for scores in of_images if (value := scores[name]) is not None]
            mean, std = mean_and_std(defined) if defined else (None, None)
            images = len(defined) if len(defined) == len(of_images) else min(len(defined), 1)
            over_images[f"{name}_mean"] = Score(mean, images)
            over_images[f"{name}_std"] = Score(std, images)
        return over_images

    def score(self, looks: Sequence[list[PixelScores]], name: str) -> float | None:
        of_image = name.removesuffix("_mean")
        if of_image == name or of_image not in looks[0][0]:
            return super().score(looks, name)
        values = [value for look in looks for scores in look if (value := scores[of_image]) is not None]
        return float(np.mean(values)) if values else None
