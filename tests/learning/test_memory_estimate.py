"""What `show` says of memory, beside what is measured: bytes of tensors, which are the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shared.exchange.records.run import Privacy, RunConfiguration
from shared.learning.data.graded_images import GradedImage
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.optimizers import new_optimizer
from shared.learning.private_training import IMAGES_AT_A_TIME
from shared.learning.requirements import requirements, yielded_by
from shared.learning.sharing import build_network
from shared.learning.tasks import task_named
from shared.learning.tasks.segmentation.task import SegmentedImage
from shared.learning.training import Epoch, evaluate, train_epoch
from tests.federation.running import run_configuration, staging_run

SIDE = 64


class Counted(TorchDispatchMode):
    """Counts the bytes of all tensors that operations yield, as long as these live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        yielded = operation(*args, **(kwargs or {}))
        for each in yielded if isinstance(yielded, tuple | list) else [yielded]:
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return yielded

    def _count(self, storage: torch.UntypedStorage) -> None:
        place = storage._cdata
        if place not in self._known:
            self._known[place] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self.now -= self._known.pop(place)


def measured(run: RunConfiguration) -> int:
    """The most bytes that an epoch of one step, or more by crops, and scoring as many images take."""
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options, augmentation = task.options(run.task_options), task.augmentation(run.augmentation)
    levels = np.random.default_rng(1).random((run.batch_size, SIDE, SIDE))
    images: list[Any] = [
        SegmentedImage(f"eye-{number}", each.astype(np.float32), (each > 0.5).astype(np.uint8))
        if task.labels_pixels
        else GradedImage(f"eye-{number}", np.stack([each * 255] * 3, axis=2).astype(np.uint8), number % 3)
        for number, each in enumerate(levels)
    ]
    with Counted() as counted:
        network = build_network(task, method, options, 3, run_seed=1, is_private=False)
        train_epoch(
            task,
            method,
            Local(network),
            new_optimizer(network, options, 0.01),
            images,
            epoch=Epoch(0.01, run.batch_size, 1, augmentation),
            objective=method.objective(1, 1),
            on_batch=lambda done, total: None,
        )
        evaluate(task, network, images, method.objective(1, 1))
    return counted.most


PIXELS = {"image_size": SIDE, "widths": [8, 16]}
ONCE = {"copies": 1, "originals": False}
GRADES = {"encoder": "small", "weights": "random", "image_size": SIDE}


@pytest.mark.parametrize(
    "run",
    [
        run_configuration(task_options=PIXELS, augmentation=ONCE, batch_size=4),
        run_configuration(task_options=PIXELS, augmentation=ONCE | {"crops": {"size": 32}}, batch_size=4),
        staging_run(method="fedavg", task_options=GRADES, batch_size=32),
    ],
    ids=["masks", "crops", "grades"],
)
def test_the_estimate_is_of_what_is_measured(run: RunConfiguration) -> None:
    assert 0.5 < requirements(run).memory_bytes / measured(run) < 2


def test_masks_are_scored_one_by_one_whatever_the_batch() -> None:
    def scored(side: int) -> int:
        crops = {"augmentation": ONCE | {"crops": {"size": 32}}, "batch_size": 32}
        return requirements(run_configuration(task_options=PIXELS | {"image_size": side}, **crops)).memory_bytes

    of_one = 2 * 4 * 3 * 8 * (512**2 - 256**2)  # laid out anew, bytes, two inputs and an output of so many channels
    assert scored(512) - scored(256) == of_one


@pytest.mark.parametrize(
    ("encoder", "method", "side", "expected"),
    [
        ("efficientnet_b0", "fedavg", 224, 1305999976),
        ("efficientnet_b0", "mc_dropout", 96, 284351080),
        ("timm:test_vit", "fedavg", 224, 151358292),
    ],
)
def test_layers_that_are_not_computed_count_as_if_they_were(
    encoder: str, method: str, side: int, expected: int
) -> None:
    """The figures are of every layer computed, by PyTorch 2.13."""
    options = {"encoder": encoder, "weights": "random", "image_size": side}
    asked = {"run": "memory", "task": "dr_staging", "sites": ["north"], "rounds": 2, "method": method}
    assert requirements(RunConfiguration.model_validate({**asked, "task_options": options})).memory_bytes == expected


class Odd(nn.Module):
    """A network that asks more of a layer than how much it yields."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1)
        self.batch_norm, self.layer_norm, self.relu = nn.BatchNorm2d(4), nn.LayerNorm(4), nn.ReLU()


class ChangesInPlace(Odd):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.convolution.requires_grad_(False)
        normalised = self.batch_norm(self.convolution(images))
        normalised += 1
        return self.head(self.relu(normalised))


class Views(Odd):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(self.convolution(images).flatten(2).transpose(1, 2)).view(len(images), -1)


class LearnsInPart(Odd):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.relu(self.batch_norm(self.convolution(images)))
        return self.head(features)


class HasAnotherForward(Odd):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.batch_norm(self.convolution(images))))

    def __init__(self) -> None:
        super().__init__()
        self.relu.forward = lambda features: features[..., ::2]  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("network", "kept"),
    [(ChangesInPlace, 9), (Views, 8), (LearnsInPart, 1), (HasAnotherForward, 10.5)],
)
def test_what_odd_networks_yield_is_counted(network: type[Odd], kept: float) -> None:
    with torch.device("meta"):
        odd = network()
    assert yielded_by(odd, (3, 8, 8))[0] == 64 * kept  # of 64 pixels: values that training keeps
    assert not any("forward" in vars(layer) for layer in (odd.batch_norm, odd.layer_norm))


def test_a_batch_norm_of_other_channels_is_told_before_anybody_trains() -> None:
    with torch.device("meta"):
        odd = HasAnotherForward()
        odd.batch_norm = nn.BatchNorm2d(5)
    with pytest.raises(RuntimeError, match="should contain 4 elements not 5"):
        yielded_by(odd, (3, 8, 8))


def test_private_training_answers_few_images_at_once() -> None:
    private = Privacy(target_epsilon=8, delta=0.001, max_grad_norm=1.0)
    few, many = (requirements(run_configuration(privacy=private, batch_size=size)) for size in (IMAGES_AT_A_TIME, 64))
    assert few.memory_bytes == many.memory_bytes


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_configuration(task_options=PIXELS), SIDE**2 * (4 + 1)),
        (run_configuration(task="segmentation", task_options=PIXELS | {"colour": True}), SIDE**2 * (3 * 4 + 1)),
        (staging_run(task_options=GRADES), SIDE**2 * 3),
    ],
    ids=["masks", "colour", "grades"],
)
def test_images_are_held_as_they_are_read(run: RunConfiguration, expected: int) -> None:
    assert requirements(run).image_bytes == expected
