"""Vessel segmentation of en-face OCTA images.

Source: Lo et al. 2021. Residual U-Net, cross-entropy, SGD with momentum 0.9, five augmented copies of each image
beside the original in each epoch. The options' defaults are the paper's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional

from shared.exchange.reading import check_record
from shared.learning.data.augmentation import augment
from shared.learning.data.images import SMALLEST_SIDE, read_pairs
from shared.learning.data.splits import SplitPlan, split_images
from shared.learning.metrics import accuracy, dice, mean_and_std
from shared.learning.models.residual_unet import ResidualUNet
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Dataset, Epoch, Evaluation, OnBatch, Options, Sample, Statistic

IGNORED = 255
"""The class of pixels that only fill a batch up; neither the loss nor a score counts them."""

_MOMENTUM = 0.9


class OctaOptions(Options):
    """What a run may choose about this task."""

    image_size: int | None = Field(default=None, ge=SMALLEST_SIDE, le=4096)
    """Pixels that the longer side of every image is scaled to; None keeps every image as it is."""
    widths: tuple[int, ...] = Field(default=(32, 64, 128, 256, 512), min_length=2, max_length=5)
    """Channels of each level of the U-Net."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Probability that a value is dropped."""
    group_pattern: str | None = None
    """Regular expression that finds, in an image's name, the group that is never divided between splits."""

    @field_validator("widths")
    @classmethod
    def _widths_are_channels(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 2048 for width in widths):
            raise ValueError("each width must be between 1 and 2048")
        return widths

    @field_validator("group_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"is not a regular expression ({error})") from error
        return pattern


class OctaSegmentation:
    """The task ``octa_segmentation``; see ``contract.Task`` for what each method promises."""

    name = "octa_segmentation"
    selection_score = "dice"

    def options(self, raw: Mapping[str, object]) -> OctaOptions:
        return check_record(raw, OctaOptions, "task_options")

    def build_model(self, options: OctaOptions, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "model"))
            return ResidualUNet(widths=options.widths, dropout=options.dropout)

    def open_dataset(self, root: Path, options: OctaOptions, split: SplitPlan, seed: int) -> Dataset:
        samples = {sample.id: sample for sample in self.open_images(root, options)}
        parts = split_images(list(samples), root, split, seed, options.group_pattern)
        train, validation, test = (
            tuple(samples[image] for image in parts[name]) for name in ("train", "validation", "test")
        )
        return Dataset(train, validation, test)

    def open_images(self, root: Path, options: OctaOptions) -> list[Sample]:
        return [Sample(pair.id, pair.image, pair.mask) for pair in read_pairs(root, options.image_size)]

    def optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=_MOMENTUM)

    def train_epoch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: Sequence[Sample],
        epoch: Epoch,
        on_batch: OnBatch,
    ) -> Evaluation:
        device = _device_of(model)
        for group in optimizer.param_groups:
            group["lr"] = epoch.learning_rate
        model.train()
        batches = plan_batches(samples, epoch)
        losses: list[float] = []
        correct: list[float] = []
        overlap: list[float] = []
        for done, batch in enumerate(batches):
            views = [view_of(sample, copy, epoch) for sample, copy in batch]
            images, masks = fill_up(views)
            with torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []):
                torch.manual_seed(seed_for(epoch.seed, "dropout", done))
                logits = model(images.to(device))  # (B, 2, H, W)
            loss, loss_of_image = cross_entropy(logits, masks.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses += loss_of_image.tolist()
            classes = logits.detach().argmax(dim=1).cpu().numpy()  # (B, 2, H, W) -> (B, H, W)
            for predicted, (_, mask) in zip(classes, views, strict=True):
                height, width = mask.shape
                correct.append(accuracy(predicted[:height, :width], mask))
                overlap.append(dice(predicted[:height, :width], mask))
            on_batch(done + 1, len(batches))
        measure_statistics(model, samples)
        return _evaluation(len(samples), losses, correct, overlap)

    def evaluate(self, model: nn.Module, samples: Sequence[Sample]) -> Evaluation:
        device = _device_of(model)
        was_training = model.training
        model.eval()
        losses: list[float] = []
        correct: list[float] = []
        overlap: list[float] = []
        try:
            with torch.no_grad():
                for sample in samples:
                    image = torch.from_numpy(sample.image)[None, None].to(device)  # (H, W) -> (1, 1, H, W)
                    mask = torch.from_numpy(sample.mask)[None].long().to(device)  # (H, W) -> (1, H, W)
                    logits = model(image)  # (1, 2, H, W)
                    losses.append(float(cross_entropy(logits, mask)[0]))
                    predicted = logits[0].argmax(dim=0).cpu().numpy()  # (2, H, W) -> (H, W)
                    correct.append(accuracy(predicted, sample.mask))
                    overlap.append(dice(predicted, sample.mask))
        finally:
            model.train(was_training)
        return _evaluation(len(samples), losses, correct, overlap)


def measure_statistics(model: nn.Module, samples: Sequence[Sample]) -> None:
    """Sets every BatchNorm's running statistics to those of the images as they are, without augmentation or dropout.

    Dropout of 0.5 before every convolution, pixel dropout and contrast make the values met in training spread wider
    than those met in evaluation. With statistics gathered while training, a round or two after the start, nearly every
    pixel is then called background, although the weights are good. So they are measured once, after the epoch, with the
    weights as they are now (Wu and Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3).

    Args:
        model: changed in place, statistics only; left in training mode.
        samples: the images, taken one at a time, each counting alike.
    """
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    device = _device_of(model)
    model.eval()
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all images
        with torch.no_grad():
            for sample in samples:
                model(torch.from_numpy(sample.image)[None, None].to(device))  # (H, W) -> (1, 1, H, W)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train()


View = tuple[NDArray[np.float32], NDArray[np.uint8]]
"""An image (H, W) in [0, 1] and its mask (H, W), as the model is to see them once."""


def plan_batches(samples: Sequence[Sample], epoch: Epoch) -> list[list[tuple[Sample, int]]]:
    """Which copies of which images make up each batch of an epoch; copy 0 is the original.

    The order is the epoch's own. Batches differ in size by at most one, so that no BatchNorm has to learn from a last
    batch of a single image.

    Raises:
        ValueError: there are no samples, or the batch size is below 1.
    """
    if not samples or epoch.batch_size < 1:
        raise ValueError(
            f"an epoch needs samples and a batch size of 1 or more; got {len(samples)}, {epoch.batch_size}"
        )
    views = [(sample, copy) for sample in samples for copy in range(epoch.augmentation.copies + 1)]
    views.sort(key=lambda view: seed_for(epoch.seed, "order", view[0].id, view[1]))
    count = math.ceil(len(views) / epoch.batch_size)
    return [views[len(views) * index // count : len(views) * (index + 1) // count] for index in range(count)]


def view_of(sample: Sample, copy: int, epoch: Epoch) -> View:
    """The original of an image for copy 0, else its augmented copy of that number in this epoch."""
    if copy == 0:
        return sample.image, sample.mask
    return augment(sample.image, sample.mask, epoch.augmentation, seed_for(epoch.seed, "augment", sample.id, copy))


def fill_up(views: Sequence[View], multiple: int = 16) -> tuple[Tensor, Tensor]:
    """Makes one batch of images of any sizes, filled up at the bottom and at the right to one size.

    Args:
        views: B images and masks, each (h, w).
        multiple: what the batch's height and width are a multiple of.

    Returns:
        (B, 1, H, W) float32, filled up with 0, and (B, H, W) int64, filled up with ``IGNORED``.
    """
    height = max(-(-mask.shape[0] // multiple) * multiple for _, mask in views)
    width = max(-(-mask.shape[1] // multiple) * multiple for _, mask in views)
    images = torch.zeros(len(views), 1, height, width)
    masks = torch.full((len(views), height, width), IGNORED, dtype=torch.int64)
    for index, (image, mask) in enumerate(views):
        images[index, 0, : image.shape[0], : image.shape[1]] = torch.from_numpy(image)
        masks[index, : mask.shape[0], : mask.shape[1]] = torch.from_numpy(mask)
    return images, masks


def cross_entropy(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of a batch, in nats.

    Args:
        logits: (B, classes, H, W).
        masks: (B, H, W) int64 classes, or ``IGNORED``.

    Returns:
        The mean over all pixels of the batch that count, a scalar with gradients, and the mean over the pixels of each
        image, (B,), without.
    """
    of_pixel = functional.cross_entropy(logits, masks, ignore_index=IGNORED, reduction="none")  # (B, H, W)
    counts = masks != IGNORED
    of_image = of_pixel.detach().sum(dim=(1, 2)) / counts.sum(dim=(1, 2))  # (B, H, W) -> (B,)
    return of_pixel.sum() / counts.sum(), of_image


def _evaluation(images: int, losses: Sequence[float], correct: Sequence[float], overlap: Sequence[float]) -> Evaluation:
    scores = {"accuracy": Statistic(*mean_and_std(correct)), "dice": Statistic(*mean_and_std(overlap))}
    return Evaluation(images=images, loss=mean_and_std(losses)[0], scores=scores)


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
