"""Training and evaluation, the same for every task and every method.

On the CPU, with a fixed number of threads, the same weights, samples, epoch and objective give the same weights, bit by
bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from shared.errors import FaultError
from shared.exchange.tables import LARGEST_LOSS, difference_of, error_of
from shared.learning.batch_norm import batch_norms
from shared.learning.batches import count_of_parts, even_parts
from shared.learning.compute import EXACT, Computing
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import block_of
from shared.learning.drawing import drawn_by
from shared.learning.loading import Batch, prepared
from shared.learning.methods.contract import Local, Method, Tensors
from shared.learning.metrics import Score
from shared.learning.models.ensembles import apart
from shared.learning.objectives import LOSS, Objective, Share, annealed, image_losses, unweighted
from shared.learning.processes import Processes
from shared.learning.seeds import seed_for
from shared.learning.standard_error import Jackknife
from shared.learning.tasks.contract import Evaluation, Sample, SampleT, Scoring, SegmentationTask, Task
from shared.plurals import pluralize
from shared.service import alive

OnBatch = Callable[[int, int], None]
"""Called after each batch with (batches done, batches in all); what it raises stops the epoch and passes through."""


@dataclass(frozen=True)
class Epoch:
    """Everything that decides one local epoch, beside the weights, the images and the objective.

    Args:
        repeats: by id, how often an image is taken where it is more than once.
        max_grad_norm: to which the gradient of a step is clipped, if it is.
        refreshes: whether BatchNorm's statistics are measured anew after it.
        refresh_images: of about how many images, in whole blocks; None: of all.
        blocks: by id of its unit, each image's block of the site's division; one that is in none is by itself.
        epochs_before: of the whole run, at this site; each takes as many steps.
    """

    learning_rate: float
    batch_size: int
    seed: int
    augmentation: Augmentation
    repeats: Mapping[str, int] = field(default_factory=dict)
    max_grad_norm: float | None = None
    refreshes: bool = True
    refresh_images: int | None = None
    blocks: Mapping[str, int] = field(default_factory=dict)
    epochs_before: int = 0

    @property
    def first_view(self) -> int:
        """Of each image; see ``view_of``."""
        return 0 if self.augmentation.originals else self.augmentation.crops_per_copy

    def views(self, sample: Sample) -> Iterator[int]:
        """Yield the views of an image that the model sees; see ``view_of``."""
        first = self.first_view
        yield from range(first, first + self._views_of(sample))

    def _views_of(self, sample: Sample) -> int:
        return self.augmentation.views * self.repeats.get(sample.id, 1)

    def steps_before(self, samples: Sequence[Sample]) -> int:
        """Return how many steps the epochs before this one take at a site of these training images."""
        return self.epochs_before * count_of_parts(sum(map(self._views_of, samples)), self.batch_size)


def train_epoch(
    task: Task[Any, SampleT],
    method: Method,
    local: Local,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[SampleT],
    *,
    epoch: Epoch,
    objective: Objective,
    on_batch: OnBatch,
    computing: Computing = EXACT,
) -> Evaluation:
    """Train a ``Network`` for one epoch in place; then measure BatchNorm's statistics, if ``epoch`` asks for it.

    Where ``computing`` names a micro-batch, a step is the same but for rounding, dropout's masks, and BatchNorm, which
    normalises by micro-batches.

    Args:
        local: with the network as ``computing`` placed it.

    Returns:
        How the network did on the images as it was trained on them: augmented, dropout on, weights moving.

    Raises:
        ValueError: there are no samples, or the batch size is below 1.
        ActionRequiredError: a batch has fewer images than there are processes.
        Whatever ``on_batch`` raises.
    """
    model, processes = local.network, computing.processes
    device = device_of(model)
    begin_epoch(local, optimizer, epoch)
    planned = plan_batches(samples, epoch)
    batches = [processes.share_of(batch) for batch in planned]
    has_norms = bool(batch_norms(model))
    refreshed_by = (
        task.batches(evenly(samples, epoch.refresh_images, epoch.blocks)) if epoch.refreshes and has_norms else []
    )
    whole = [[(sample, None) for sample in batch] for batch in refreshed_by]
    own_part = whole[processes.rank :: processes.count]
    steps_before = epoch.steps_before(samples)

    def prepare(batch: Sequence[tuple[SampleT, int | None]]) -> Batch:
        return task.collate([sample if view is None else view_of(task, sample, view, epoch) for sample, view in batch])

    if computing.workers:
        prepare(batches[0][:1])  # once here, so that they need not import what it takes
    with (
        prepared(prepare, [*batches, *own_part], computing.workers, device) as coming,
        _Record(task.scoring(objective), computing.scoring_threads) as record,
    ):
        with processes.answering(method, local) as answer:
            for done, (inputs, targets) in enumerate(islice(coming, len(batches))):
                present = annealed(objective, steps_before + done)
                optimizer.zero_grad(set_to_none=True)
                parts = computing.parts_of(len(planned[done]), has_norms=has_norms)
                for number, (its_inputs, its_targets, share) in enumerate(_divided(processes, inputs, targets, parts)):
                    draws = (processes.rank, number) if number else (processes.rank,) if processes.rank else ()
                    seed = seed_for(epoch.seed, "dropout", done, *draws)
                    with drawn_by(seed, computing.device), computing.arithmetic():
                        logits, term = _pair(method, answer(its_inputs), len(its_inputs))  # (B, K, ...)
                        logits = logits.float()
                    loss, loss_of_image = image_losses(present, logits, its_targets, share)
                    loss = loss if term is None else loss + term * share.images
                    loss.backward()  # type: ignore[no-untyped-call]
                    for part in processes.all_of(logits, its_targets, *loss_of_image.values()):
                        record.add(part[0], part[1], dict(zip(loss_of_image, part[2:], strict=True)))
                take_step(method, local, optimizer, epoch.max_grad_norm)
                on_batch(done + 1, len(batches))
        if whole:
            _measure(model, (inputs for inputs, _ in coming), computing, len(own_part) / len(whole))
        return record.evaluation(len(samples), max(len([*epoch.views(sample)]) for sample in samples))


def _divided(processes: Processes, inputs: Tensor, targets: Tensor, parts: int) -> list[tuple[Tensor, Tensor, Share]]:
    """Return a batch's micro-batches, each with its share of the batch.

    The batch was collated as one, so that its images are filled up to one size however many parts there are.
    """
    of_each = targets.tensor_split(parts)
    return [*zip(inputs.tensor_split(parts), of_each, processes.shares(of_each), strict=True)]


def _pair(method: Method, answered: Any, images: int) -> tuple[Tensor, Tensor | None]:
    """Return what a method's ``answer`` gave.

    Raises:
        FaultError: something else than logits of so many images, and one number or None.
    """
    if not (isinstance(answered, tuple) and len(answered) == 2 and isinstance(answered[0], Tensor)):
        raise FaultError(method.answer, "gave something else than logits, and what is added to the loss or None")
    logits, term = answered
    if logits.ndim < 2 or len(logits) != images:
        raise FaultError(method.answer, f"gave logits of shape {(*logits.shape,)} for {pluralize(images, 'image')}")
    if term is not None and not (isinstance(term, Tensor) and term.numel() == 1):
        raise FaultError(method.answer, "gave to be added to the loss what is neither one number nor None")
    return logits, term


def _addends(method: Method, local: Local) -> Tensors:
    """Return what a method's ``correction`` gave.

    Raises:
        FaultError: something else than tensors of shared parameters, by name, of their shapes.
    """
    found = method.correction(local)
    if not isinstance(found, Mapping):
        raise FaultError(method.correction, "gave something else than tensors by name")
    for name, addend in found.items():
        if name not in local.x:
            raise FaultError(method.correction, f"gave {name}, which is no shared parameter")
        if not isinstance(addend, Tensor) or addend.shape != local.x[name].shape:
            raise FaultError(method.correction, f"gave no tensor of shape {(*local.x[name].shape,)} for {name}")
    return found


def begin_epoch(local: Local, optimizer: torch.optim.Optimizer, epoch: Epoch) -> None:
    """Set the epoch's learning rate, and the network to training."""
    for group in optimizer.param_groups:
        group["lr"] = epoch.learning_rate
    local.network.train()


def take_step(
    method: Method, local: Local, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None
) -> None:
    """Step by the gradients, and by what a method adds to those of the shared parameters in training.

    Their sum is clipped, if it is to be: each member's of an ensemble, which learns as if it were alone.
    """
    for name, addend in _addends(method, local).items():
        if (gradient := local.x[name].grad) is not None:
            gradient.add_(addend)
    if max_grad_norm is not None:
        for alone in apart(local.network):
            nn.utils.clip_grad_norm_(alone.parameters(), max_grad_norm)
    optimizer.step()
    local.note_step(optimizer)


def evaluate(
    task: Task[Any, SampleT],
    model: nn.Module,
    samples: Sequence[SampleT],
    objective: Objective,
    computing: Computing = EXACT,
    *,
    jackknife: Jackknife | None = None,
) -> Evaluation:
    """Evaluate a ``Network`` on the images as they are, in eval mode, without gradients.

    Args:
        jackknife: the score whose standard error is computed too.

    Raises:
        ValueError: there are no samples.
    """
    return evaluate_answers(task, answers(task, model, samples, computing), objective, computing, jackknife=jackknife)


def evaluate_answers(
    task: Task[Any, SampleT],
    given: Iterable[tuple[Sequence[SampleT], Tensor, Tensor]],
    objective: Objective,
    computing: Computing = EXACT,
    *,
    jackknife: Jackknife | None = None,
) -> Evaluation:
    """Evaluate what a network says, for a caller who wants its answers for something else too.

    Args:
        given: by batch: its samples, the (B, K, ...) logits, and the (B, ...) targets, as ``answers`` yields them.
        jackknife: the score whose standard error is computed too.

    Raises:
        ValueError: there are no answers.
    """
    images, objective = 0, unweighted(objective)
    with _Record(task.scoring(objective), computing.scoring_threads) as record:
        for batch, logits, targets in given:
            images += len(batch)
            losses = image_losses(objective, logits, targets)[1]
            for part in [slice(None)] if jackknife is None else [slice(at, at + 1) for at in range(len(batch))]:
                record.add(logits[part], targets[part], {name: of_image[part] for name, of_image in losses.items()})
        found = record.evaluation(images)
        return found if jackknife is None else record.with_error(found, jackknife)


def compare(
    task: Task[Any, SampleT],
    model: nn.Module,
    other: nn.Module,
    samples: Sequence[SampleT],
    objective: Objective,
    *,
    jackknife: Jackknife,
    computing: Computing = EXACT,
) -> dict[str, Score]:
    """Return how much greater a score of a model is than another's on the same images, and its standard error.

    Args:
        jackknife: of that score.
    """
    scoring, score = task.scoring(objective), jackknife.score
    looks = [
        [
            scoring.look(tame(logits[at : at + 1]), targets[at : at + 1])
            for batch, logits, targets in answers(task, each, samples, computing)
            for at in range(len(batch))
        ]
        for each in (model, other)
    ]
    own, others = (scoring.scores(seen)[score] for seen in looks)
    difference = None if own.value is None or others.value is None else own.value - others.value
    images, column = min(own.images, others.images), difference_of(score)
    error = jackknife.error_of_difference(scoring, *looks)
    return {column: Score(difference, images), error_of(column): Score(error, images)}


def answers(
    task: Task[Any, SampleT], model: nn.Module, samples: Sequence[SampleT], computing: Computing = EXACT
) -> Iterator[tuple[Sequence[SampleT], Tensor, Tensor]]:
    """Yield what a model says to images as they are, in eval mode, batch by batch.

    Yields:
        The samples, the logits (B, K, ...) and the targets (B, ...), both on the CPU. Whenever the caller has the word,
        the model is in the mode it was in.
    """
    batches, processes = task.batches(samples), computing.processes
    for first in range(0, len(batches), processes.count):
        alive()
        at_once = batches[first : first + processes.count]
        # The last ones may be fewer than the processes: who has none of its own answers another's, and nobody looks.
        inputs, targets = task.collate(at_once[min(processes.rank, len(at_once) - 1)])
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), computing.arithmetic():
                logits = model(inputs.to(device_of(model))).float().cpu()
        finally:
            model.train(was_training)
        for batch, (its_logits, its_targets) in zip(at_once, processes.all_of(logits, targets), strict=False):
            yield batch, its_logits, its_targets


def evenly(samples: Sequence[SampleT], most: int | None, blocks: Mapping[str, int]) -> Sequence[SampleT]:
    """Return every nth block of images, the first always, so that there are about ``most`` images; None: all of them.

    Nothing leaves that is about a part of a block: who asks with one number and then with another learns of whole ones.
    """
    if most is None:
        return samples
    of_block: dict[int | str, list[SampleT]] = defaultdict(list)
    for sample in samples:
        of_block[block_of(sample.id, blocks)].append(sample)
    taken = list(of_block.values())[:: math.ceil(len(samples) / most) or 1]
    return [sample for block in taken for sample in block]


def measure_statistics(
    task: Task[Any, SampleT],
    model: nn.Module,
    samples: Sequence[SampleT],
    computing: Computing = EXACT,
    *,
    most: int | None = None,
    blocks: Mapping[str, int] | None = None,
) -> None:
    """Set every BatchNorm's running statistics to those of the images as they are, without augmentation or dropout.

    Dropout, pixel dropout and contrast make the values met in training spread wider than those met in evaluation, and a
    round of few batches leaves the running statistics behind the weights. So they are measured with the weights as they
    are now (Wu and Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3).

    Args:
        model: changed in place, statistics only; left in training mode.
        samples: the images; each batch counts alike.
        most: of them to be measured, taken evenly, as ``evenly`` has it; None: all of them.
        blocks: of the site's division; None: each image is by itself.
    """
    whole, processes = task.batches(evenly(samples, most, blocks or {})), computing.processes
    own_part = whole[processes.rank :: processes.count]
    _measure(model, (task.collate(batch)[0] for batch in own_part), computing, len(own_part) / len(whole))


def _measure(model: nn.Module, batches: Iterable[Tensor], computing: Computing, share: float) -> None:
    """See ``measure_statistics``; ``batches`` are this share of all that the processes have."""
    norms = batch_norms(model)
    momenta = [norm.momentum for norm in norms]
    device = device_of(model)
    model.eval()
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
        if norms:
            with torch.no_grad(), computing.arithmetic():
                for number, inputs in enumerate(batches, 1):
                    for norm in norms:
                        # The plain mean over all batches. None would say the same, but ask the GPU for the number.
                        norm.momentum = 1 / number
                    model(inputs.to(device))
                for statistics in (tensor for norm in norms for tensor in norm.buffers() if tensor.is_floating_point()):
                    statistics.copy_(computing.processes.sum(statistics * share))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train()


def bounded(losses: Tensor) -> Tensor:
    """Return each image's loss, within ±10: no image says more in a mean than that; what is not finite stays so."""
    return torch.where(losses.isfinite(), losses.clamp(-LARGEST_LOSS, LARGEST_LOSS), losses)


def tame(logits: Tensor) -> Tensor:
    """Return logits of any shape as finite numbers: where a diverged model says NaN, it says 0 of every class."""
    return logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4)


def device_of(model: nn.Module) -> torch.device:
    """Return where the model is."""
    return next(model.parameters()).device


def plan_batches(samples: Sequence[SampleT], epoch: Epoch) -> list[list[tuple[SampleT, int]]]:
    """Return which views of which images make up each batch of an epoch; see ``view_of``.

    The order is the epoch's own. Batches differ in size by at most one, so that no BatchNorm has to learn from a last
    batch of a single image.

    Raises:
        ValueError: there are no samples, or the batch size is below 1.
    """
    if not samples or epoch.batch_size < 1:
        raise ValueError(
            f"an epoch needs samples and a batch size of 1 or more; got {len(samples)}, {epoch.batch_size}"
        )
    views = [(sample, view) for sample in samples for view in epoch.views(sample)]
    views.sort(key=lambda each: seed_for(epoch.seed, "order", each[0].id, each[1]))
    return even_parts(views, epoch.batch_size)


def view_of(task: Task[Any, SampleT], sample: SampleT, view: int, epoch: Epoch) -> SampleT:
    """Return one view of an image in this epoch.

    Views are counted over the original, which is copy 0, and its augmented copies; where these are cropped, over the
    crops of each.
    """
    augmentation, seed = epoch.augmentation, seed_for(epoch.seed, "augment", sample.id, view)
    if augmentation.crops is not None:
        sample = cast(SegmentationTask[Any, SampleT], task).crop(sample, augmentation.crops, seed)
    is_original = view < augmentation.crops_per_copy
    return sample if is_original else task.vary(sample, augmentation, seed)


_Look = tuple[dict[str, list[float]], Any]
"""Of one batch: each image's losses by name, and what the scoring has seen."""


class _Record:
    """The losses and the scores of a model's answers. With threads, these look at them while the model goes on."""

    def __init__(self, scoring: Scoring, threads: int) -> None:
        self._scoring = scoring
        self._threads = ThreadPoolExecutor(threads) if threads else None
        self._most_waiting = 2 * threads
        self._looks: list[Callable[[], _Look]] = []

    def __enter__(self) -> _Record:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def add(self, logits: Tensor, targets: Tensor, losses: dict[str, Tensor]) -> None:
        if self._threads is None:
            seen = self._look(logits.detach(), targets, losses)
            self._looks.append(lambda: seen)
        else:
            if len(self._looks) >= self._most_waiting:  # each holds its logits
                self._looks[-self._most_waiting]()
            self._looks.append(self._threads.submit(self._look, logits.detach(), targets, losses).result)

    def _look(self, logits: Tensor, targets: Tensor, losses: dict[str, Tensor]) -> _Look:
        of_images: dict[str, list[float]] = {name: bounded(of_image).tolist() for name, of_image in losses.items()}
        return of_images, self._scoring.look(tame(logits), targets)

    def evaluation(self, images: int, most_views: int = 1) -> Evaluation:
        """Return the evaluation of so many different images, each of which was seen so often at most."""
        if not self._looks:
            raise ValueError("there are no images to look at")
        looks = [look() for look in self._looks]
        values = {name: [value for of_images, _ in looks for value in of_images[name]] for name in looks[0][0]}
        losses = {name: math.fsum(of_images) / len(of_images) for name, of_images in values.items()}
        terms = {name: Score(value, images) for name, value in losses.items() if name != LOSS}
        # Copies of an image make no score one over more images, so the views of the one most seen count as one.
        scores = {
            name: Score(score.value, -(-score.images // most_views))
            for name, score in self._scoring.scores([seen for _, seen in looks]).items()
        }
        return Evaluation(images=images, loss=losses[LOSS], scores=terms | scores)

    def with_error(self, found: Evaluation, jackknife: Jackknife) -> Evaluation:
        """Return an evaluation with the standard error of a score, over as many images, if each was added by itself."""
        error = jackknife.error(self._scoring, [look()[1] for look in self._looks])
        told = {error_of(jackknife.score): Score(error, found.scores[jackknife.score].images)}
        return replace(found, scores=found.scores | told)
