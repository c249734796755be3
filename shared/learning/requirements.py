"""What a run demands of a site, known from its configuration alone: before a model is built or an image read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import ceil, prod
from typing import cast

import torch
from torch import Tensor, nn

from shared.errors import ConfigurationError
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.learning.batch_norm import batch_norms
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitName
from shared.learning.methods import open_method
from shared.learning.methods.contract import Method
from shared.learning.models.ensembles import answers_of
from shared.learning.models.lora import LowRankUpdate
from shared.learning.private_training import IMAGES_AT_A_TIME
from shared.learning.schedules import scored_rounds
from shared.learning.sharing import network_of, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Task
from shared.learning.tasks.terms import Options

_NUMBER = 4  # bytes
_TRIED = 2  # inputs in the batch that is tried out: BatchNorm wants more than one
_FEW_STEPS = 100  # of a whole run; small networks have learnt masks in as many
_OF_SAME_SHAPE = {
    layer.forward
    for layer in (
        *(nn.BatchNorm2d, nn.Dropout, nn.Dropout2d, nn.Hardsigmoid, nn.Hardswish),
        *(nn.ELU, nn.GELU, nn.LeakyReLU, nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.SiLU),
    )
}
"""Of layers that yield as much as they are given. PyTorch takes milliseconds to find that out without
values, and for a convolution a tenth of one.
"""
_EVALUATED = 32  # inputs in a batch that is evaluated, at most; masks are scored one by one


@dataclass(frozen=True)
class Requirements:
    """A run's demands.

    Args:
        sharing: which tensors travel and stay, by this software.
        rounds: in which the site trains, at most.
        scored_rounds: of these, in which it scores its validation and test images.
        epochs: of each round, with those that the method adds.
        views: how often one image, or one moment of a recording, is shown to a network in the whole run, fine-tuning
            too, if none is repeated: in all windows that overlap there, to each member or in each pass.
        augmentation: how an input of the model is varied.
        batch_size: views in a step.
        parameters: of all networks that are trained.
        memory_bytes: what training and scoring take beside the images, about: weights, gradients, what the optimizer
            and the method remember, and what the layers yield for what is answered at once.
        image_bytes: what each image of a run takes, about: a site holds all of them in memory. Of a signal: a window.
        guessed_side: the side, in pixels, that is taken for that of the images where the run leaves them as they are.
        theta_from: the set that θ is measured on, if the method has it sent.
        measures: whether the method has sent what it measures on images of training or validation.
        is_private: then nothing leaves that was measured on training images.
        trains_alone: whether the site also trains a model by itself, as long, and tells its scores.
        is_paired: whether the site also compares each model with the first one on its test images.
        has_batch_norm: whether the network has BatchNorm, which normalises by what is answered at once.
    """

    sharing: Sharing
    rounds: int
    scored_rounds: int
    epochs: int
    views: int
    augmentation: Augmentation
    batch_size: int
    parameters: int
    memory_bytes: int
    image_bytes: int
    guessed_side: int | None
    theta_from: SplitName | None
    measures: bool
    is_private: bool
    trains_alone: bool = False
    is_paired: bool = False
    has_batch_norm: bool = False

    def steps(self, inputs: int) -> int:
        """Return how many steps training takes in the whole run at a site with so many inputs of the model."""
        views = inputs * self.augmentation.for_images(inputs).views
        return self.rounds * self.epochs * ceil(views / self.batch_size)

    def takes_few_steps(self, inputs: int) -> bool:
        """Return whether training there is hardly long enough to teach anything."""
        return 0 < self.steps(inputs) < _FEW_STEPS

    def rows(self, trained: int, validated: int) -> dict[SplitName, int]:
        """Return how many rows of numbers over each set leave with the answers to so many rounds.

        θ and each of a method's measurements count as one row.

        Args:
            trained: answers with a model.
            validated: answers to the closing round.
        """
        answers, scored = trained + validated, min(trained, self.scored_rounds)
        measured = answers if self.measures else 0
        later = max(scored + validated - 1, 0)  # not in the first round
        alone = later if self.trains_alone else 0
        rows: dict[SplitName, int] = {
            "train": (0 if self.is_private else trained * self.epochs) + measured,
            "validation": scored + validated + scored * self.epochs + measured + alone,
            "test": scored + validated + alone + (later if self.is_paired else 0),
        }
        if self.theta_from is not None:
            rows[self.theta_from] += answers
        return rows

    @property
    def most_rows(self) -> dict[SplitName, int]:
        """How many rows of scores over each set leave in the whole run, at most."""
        return self.rows(self.rounds, 1)


def rows_bound(run: RunConfiguration, epochs: int) -> int:
    """Return a bound of the rows over any set that leave in a whole run, whatever its method.

    An answer has a row for each epoch and four more at most: of the received model, of the one trained alone, of what
    is measured, and θ.

    Args:
        epochs: of a round, at most.
    """
    return (run.rounds + 1) * (epochs + 4)


def requirements(run: RunConfiguration, micro_batch: int | None = None) -> Requirements:
    """Return what a run demands of each of its sites.

    Args:
        micro_batch: the most images that training answers at once there; None: a batch.

    Raises:
        ConfigurationError: an unknown task, method or option; or the method's epochs are not as many as its phases.
    """
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options: Options = task.options(run.task_options)
    augmentation = task.augmentation(run.augmentation)
    with torch.device("meta"):  # tensors without values: they take neither memory nor time
        network = network_of(run, task, method)
    listed = sharing(task, method, network)
    epochs, phases = method.epochs(run.epochs), method.phases(network, run.epochs)
    if len(phases) != epochs:
        raise ConfigurationError(
            [f"method: {run.method} has {len(phases)} phases and {epochs} epochs; correct its file"]
        )
    of_epoch = augmentation.views * options.overlap
    at_once = 1 if epochs > run.epochs else answers_of(network)  # members with epochs of their own learn one at a time
    shape = task.input_shape(options)
    at_a_time = run.batch_size if run.privacy is None else min(run.batch_size, IMAGES_AT_A_TIME)
    return Requirements(
        sharing=listed,
        rounds=run.rounds,
        scored_rounds=scored_rounds(run),
        epochs=epochs,
        views=(run.rounds * epochs * at_once + method.options.fine_tuning_epochs * answers_of(network)) * of_epoch,
        augmentation=augmentation,
        batch_size=run.batch_size,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        memory_bytes=_memory(run, method, network, listed, min(at_a_time, micro_batch or at_a_time)),
        image_bytes=_held(task, shape),
        guessed_side=shape[-1] if getattr(options, "image_size", shape) is None else None,
        theta_from=method.options.theta_from if method.sends_reliability else None,
        measures=bool(listed.measured),
        is_private=run.privacy is not None,
        trains_alone=run.baseline is not None,
        is_paired=run.paired,
        has_batch_norm=bool(batch_norms(network)),
    )


def _memory(run: RunConfiguration, method: Method, network: nn.Module, listed: Sharing, answered: int) -> int:
    """Return the bytes of memory that training and scoring need if training answers so many images at once."""
    task = task_named(run.task)
    options = task.options(run.task_options)
    weights = sum(tensor.numel() for tensor in network.state_dict().values())
    learning = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    received = sum(prod(shape.shape) for shape in listed.parameters.tensors.values())
    groups = method.groups(network, listed)
    beside = sum(
        prod(shape.shape)
        for part in (groups.to_site, groups.measured, groups.trained, groups.at_site)
        for group in part.values()
        for shape in group.tensors.values()
    )
    gradients = 1 + answered * (run.privacy is not None)
    kept = weights * (1 + method.networks_beside) + learning * (gradients + _remembered(options)) + received
    if run.baseline is not None:
        kept += weights + learning * (1 + _remembered(options))
    # A matrix with an update of low rank is made anew in every step, and kept until the gradients are known.
    kept += sum(len(each.b) * each.a.shape[1] for each in network.modules() if isinstance(each, LowRankUpdate))
    whole, crops = task.input_shape(options), task.augmentation(run.augmentation).crops
    trained = whole if crops is None else (whole[0], *[min(side, crops.size) for side in whole[1:]])
    yielded = {shape: yielded_by(network, shape) for shape in {trained, whole}}
    evaluated = 1 if task.labels_pixels else _EVALUATED
    # A convolution on the CPU lays out anew what goes in and comes out.
    at_once = yielded[trained][0] * answered + 2 * yielded[whole][1] * evaluated
    return _NUMBER * int(kept + beside + at_once)


def _held(task: Task, shape: tuple[int, ...]) -> int:
    """Return the bytes of an image in memory: one with a mask, or a signal, is float32; other pictures have 8 bits."""
    if task.labels_pixels:
        return _NUMBER * prod(shape) + prod(shape[1:])
    return prod(shape) * (1 if len(shape) == len(("C", "H", "W")) else _NUMBER)


def _remembered(options: Options) -> int:
    """Return how many numbers the optimizer remembers of each that learns."""
    if options.optimizer == "sgd":
        return 1 if options.momentum else 0
    return 2


def yielded_by(network: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return how many numbers the layers yield for one input: those that training keeps, and the most that one
    layer takes and yields.

    Args:
        network: without values, on the device ``meta``.
        shape: of an input, as in (C, H, W).
    """
    try:
        return _counted(network, shape, _OF_SAME_SHAPE)
    except Exception:  # a network that asks more of such a layer than its numbers, or is at fault
        return _counted(network, shape, frozenset())


def _counted(
    network: nn.Module, shape: tuple[int, ...], uncomputed: Collection[Callable[..., Tensor]]
) -> tuple[float, float]:
    """Return what ``yielded_by`` does, counted in one pass through the network.

    Args:
        uncomputed: the ``forward`` of each kind of layer that is not computed, for it yields as much as it is given.
    """
    kept, largest = 0, 0

    def count(layer: nn.Module, inputs: tuple[object, ...], values: object) -> None:
        nonlocal kept, largest
        if isinstance(values, Tensor):
            largest = max(largest, sum(each.numel() for each in (*inputs, values) if isinstance(each, Tensor)))
            kept += values.numel() * values.requires_grad

    inner = {"parametrizations"}  # of a layer with an update of low rank, which yields nothing for an input
    layers = [
        layer
        for layer in network.modules()
        if dict(layer.named_children()).keys() <= inner and not isinstance(layer, LowRankUpdate)
    ]
    handles = [layer.register_forward_hook(count) for layer in layers]
    replaced = [layer for layer in layers if type(layer).forward in uncomputed and "forward" not in vars(layer)]
    try:
        for layer in replaced:
            vars(layer)["forward"] = partial(_same_shape, layer)
        network.train()
        answered = network(torch.empty(_TRIED, *shape, device="meta"))
        if (answers := answers_of(network)) > 1:  # (B, M, K, ...), of which training may have made fewer
            largest = max(largest, answered[:, 0].numel() * answers)
    finally:
        for handle in handles:
            handle.remove()
        for layer in replaced:
            del vars(layer)["forward"]
    return kept / _TRIED, largest / _TRIED


def _same_shape(layer: nn.Module, input: Tensor) -> Tensor:
    """Return a tensor as large as what a layer yields, and with gradients where that has some."""
    is_first_that_learns = not input.requires_grad and any(each.requires_grad for each in layer.parameters())
    fits = not isinstance(layer, nn.BatchNorm2d) or (input.ndim == len("BCHW") and input.shape[1] == layer.num_features)
    if is_first_that_learns or not fits:
        return cast("Tensor", type(layer).forward(layer, input))
    return input.clone()
