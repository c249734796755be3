"""What a task is: the data, the model and the measures that a federation trains for.

A task knows nothing of rounds, sites, folders or methods. It reads images, builds the model, varies an image, makes a
batch and scores answers; ``shared/learning/training.py`` does with these what is the same for every task, a method
(``shared/learning/methods``) says what is learnt from an answer and what happens to the weights in between.
To add a task, write one class that keeps this contract: in a folder here, or in a wheel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from shared.errors import ConfigurationError, DataError
from shared.exchange.records.run import FIXED_COLUMNS, Range
from shared.learning.data.augmentation import Augmentation, Crops
from shared.learning.data.division import deal, present
from shared.learning.data.sets import Member, Members, members_of, sets_of
from shared.learning.data.splits import SPLITS, SplitPlan, unit_of
from shared.learning.data.units import Unit, settled
from shared.learning.metrics import Score
from shared.learning.objectives import Objective
from shared.learning.tasks.terms import Options

REFER = "refer to an ophthalmologist"


class Sample(Protocol):
    """One image and what the model should say about it; each task has its own class."""

    @property
    def id(self) -> str:
        """The file's stem, unique within its folder; of a part of a recording ``RECORDING/0001``."""

    @property
    def image(self) -> NDArray[Any]:
        """What is seen, (H, W) or (H, W, C), as it was read."""


OptionsT = TypeVar("OptionsT", bound=Options, default=Any)
SampleT = TypeVar("SampleT", bound=Sample, default=Any)


@dataclass(frozen=True)
class Collection(Generic[SampleT]):
    """Images that are not divided.

    Args:
        samples: sorted by id.
        classes: the names of the classes that a target may be, from class 0 upwards.
        groups: as of ``Dataset``, where a linear probe must keep them together.
    """

    samples: Sequence[SampleT]
    classes: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)

    def group_of(self, sample: SampleT) -> str:
        """Return what a sample belongs together with, or its own id."""
        return self.groups.get(sample.id, sample.id)


@dataclass(frozen=True)
class Dataset(Generic[SampleT]):
    """One site's images, in sets that are unions of whole blocks of its division.

    Args:
        ood: images unlike the site's own, without labels, to see whether a model is less sure of them.
        repeats: by id, how often an image is trained on in an epoch, where it is more than once.
        blocks: the number of each unit's block, by the unit's id; see ``splits.unit_of``.
        groups: what samples belong together with, by their ids: a person, or the recording that they are cut from. A
            sample that is not named is by itself.
    """

    train: Sequence[SampleT]
    validation: Sequence[SampleT]
    test: Sequence[SampleT]
    classes: tuple[str, ...]
    ood: Sequence[SampleT] = ()
    repeats: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def group_of(self, sample: Sample) -> str:
        """Return what a sample belongs together with; the id of one that is by itself."""
        return self.groups.get(sample.id, sample.id)


def divided(found: Collection[SampleT], members: Members) -> Dataset[SampleT]:
    """Return a site's images in the sets of a run. A block that the run does not read all of is left out whole.

    Raises:
        DataError: a set stays empty.
    """
    read = {unit_of(sample.id) for sample in found.samples}
    torn = {member.block for of_set in members.values() for unit, member in of_set.items() if unit not in read}
    whole = {unit: each for name in SPLITS for unit, each in members[name].items() if each.block not in torn}
    train, validation, test = (
        tuple(sample for sample in found.samples if (unit := unit_of(sample.id)) in members[name] and unit in whole)
        for name in SPLITS
    )
    if problems := [
        f"the {name} set is empty: the run reads no whole block of it here; it asks for other classes than these."
        for name, samples in zip(SPLITS, (train, validation, test), strict=True)
        if not samples
    ]:
        raise DataError(problems)
    blocks = {unit: each.block for unit, each in whole.items()}
    groups = {sample.id: _group_of(sample.id, whole) for sample in (*train, *validation, *test)}
    return Dataset(train, validation, test, found.classes, blocks=blocks, groups=groups)


def _group_of(sample_id: str, members: Mapping[str, Member]) -> str:
    """Return who a sample is of, as the folder says, or its unit."""
    unit = unit_of(sample_id)
    group = members[unit].group
    return f"unit {unit}" if group is None else f"group {group}"


def trainable(dataset: Dataset[SampleT], what: str = "image", source: str = "images") -> Dataset[SampleT]:
    """Return a dataset of which a batch can be normalised.

    Args:
        what: a sample is called.
        source: where more samples come from.

    Raises:
        DataError: it has a single sample to train on.
    """
    if len(dataset.train) < 2:
        raise DataError([f"the train split has a single {what}; training needs two or more: add {source}."])
    return dataset


def open_anew(
    task: Task[Any, SampleT],
    root: Path,
    options: Options,
    plan: SplitPlan,
    seed: int,
    *,
    secret: bytes,
    least: int = 1,
) -> Dataset[SampleT]:
    """Return a folder's images in the sets of a run, at a site that has dealt none before.

    Args:
        seed: decides what the plan leaves open.
        secret: decides the blocks, of so many images or more.

    Raises:
        DataError: names every problem of every file, or the sets cannot be made.
    """
    return task.open_dataset(root, options, members_anew(task, root, plan, seed, secret=secret, least=least))


def members_anew(
    task: Task[Any, Any], root: Path, plan: SplitPlan, seed: int, *, secret: bytes, least: int = 1
) -> Members:
    """Return what lies in a folder, in the sets of a run; arguments and errors as for ``open_anew``."""
    units = settled(task.units(root), root, None)
    blocks = present(deal([], {task.name: units}, least, secret), task.name, units, least, secret).blocks
    return members_of(sets_of(blocks, plan, seed), blocks)


@dataclass(frozen=True)
class Evaluation:
    """How a model did on a set of images.

    Args:
        images: how many different images were looked at.
        loss: the objective's loss, mean over images.
        scores: the loss's terms and the task's scores, by name.
    """

    images: int
    loss: float
    scores: dict[str, Score]


LookT = TypeVar("LookT", default=Any)


class Scoring(Protocol[LookT]):
    """Looks at a model's answers batch by batch and scores them in the end. It keeps nothing itself."""

    def look(self, logits: Tensor, targets: Tensor) -> LookT:
        """Return what the scores need of one batch, on the CPU; several threads may look at once.

        Args:
            logits: (B, K, ...), of an ensemble (B, M, K, ...), where the model is, without gradients.
            targets: (B, ...), there too.
        """

    def scores(self, looks: Sequence[LookT]) -> dict[str, Score]:
        """Return the scores over all batches, one or more; the names are the same whatever they hold."""

    def score(self, looks: Sequence[LookT], name: str) -> float | None:
        """Return the value of one of the scores, sooner where that can be: its standard error asks for a hundred.

        Who gives a name that is there another meaning in ``scores`` does so here too.
        """
        return self.scores(looks)[name].value


class Network(Protocol):
    """What a task's model is beside a ``torch.nn.Module``."""

    classes: int
    """K, of its logits."""

    @property
    def heads(self) -> Sequence[torch.nn.Module]:
        """Each turns features into logits; a network that has one is ``head(features(inputs))``."""

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the heads see: (B, D, ...) for a batch."""


class Task(Protocol[OptionsT, SampleT]):
    """One learning problem. ``Task`` alone means: a task, whatever its options and samples."""

    @property
    def name(self) -> str:
        """The name a run's configuration calls it by."""

    @property
    def selection_score(self) -> str:
        """The score by which the best aggregate of a run is chosen; higher is better."""

    @property
    def tolerance_scores(self) -> Sequence[str]:
        """The scores in [0, 1] of a whole model that a run may compare with its tolerance. The first is the usual one.
        The last is that of runs which name none, as runs do that are older than the choice.
        """

    @property
    def main_scores(self) -> Sequence[str]:
        """The few scores that tell a person how good a model is, the one that tells most first."""

    @property
    def advice(self) -> str:
        """What is said beside an answer that is less sure than θ."""

    @property
    def labels_pixels(self) -> bool:
        """Whether each pixel of an image has a class, and not the image."""

    @property
    def scores(self) -> Mapping[str, Range]:
        """The columns of ``metrics.csv`` that the protocol does not describe, each with its range; at most 64."""

    @property
    def head_is_local(self) -> bool:
        """Whether no method shares the network's heads, because their shape depends on a site's classes."""

    def options(self, raw: Mapping[str, object]) -> OptionsT:
        """Return the task's options, checked.

        Raises:
            ConfigurationError: names every key that is unknown or wrong, and the remedy.
        """

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        """Return how images are varied: the task's own settings, changed by ``raw``.

        Raises:
            ConfigurationError: names every key that is unknown or wrong, and the remedy.
        """

    def build_model(self, options: OptionsT, classes: int, seed: int) -> torch.nn.Module:
        """Return the untrained model on the CPU, a ``Network``; its weights depend on options, classes and seed alone.

        Outside its heads, no tensor's name or shape depends on ``classes``; nor in them, unless they are local.
        """

    def input_shape(self, options: OptionsT) -> tuple[int, ...]:
        """Return the (C, ...) of one input of the model; what the options leave to the images is a guess."""

    def load_initial_weights(self, model: torch.nn.Module, options: OptionsT, folders: Sequence[Path]) -> str | None:
        """Put the weights that training begins from, if the options name any, into an untrained model.

        Args:
            folders: where their files may lie.

        Returns:
            The file's SHA-256, or None if the model starts from its random weights.

        Raises:
            ConfigurationError: the file is not there, or not what it should be.
        """

    def units(self, root: Path) -> Sequence[Unit]:
        """Return what a labelled folder holds, by the bytes of its files, whatever a run's options make of it.

        Raises:
            DataError: names every problem of its tables and of files that are missing.
        """

    def unlabelled_units(self, path: Path) -> Sequence[Unit]:
        """Return what a folder of images without labels holds, by the bytes of its files."""

    def open_dataset(self, root: Path, options: OptionsT, members: Members) -> Dataset[SampleT]:
        """Read and check every file of a site.

        Args:
            root: the site's data folder.
            options: the task's options.
            members: which units make up each set.

        Raises:
            DataError: names every problem of every file.
        """

    def open_images(self, root: Path, options: OptionsT) -> Collection[SampleT]:
        """Read and check every file of a labelled folder that is not divided.

        Raises:
            DataError: names every problem of every file.
        """

    def open_unlabelled(self, path: Path, options: OptionsT) -> Sequence[SampleT]:
        """Read and check one image, or every image of a folder; what the samples say about them means nothing.

        Of a ``TabledTask`` each file is an image by itself, which is enough for images out of the task's distribution.

        Raises:
            DataError: names every problem of every file.
        """

    def vary(self, sample: SampleT, augmentation: Augmentation, seed: int) -> SampleT:
        """Return an augmented copy of a sample, decided by the seed alone."""

    def collate(self, samples: Sequence[SampleT]) -> tuple[Tensor, Tensor]:
        """Return a batch: (B, C, ...) float32 inputs, (B, ...) int64 targets, a class or ``objectives.IGNORED``."""

    def batches(self, samples: Sequence[SampleT]) -> list[Sequence[SampleT]]:
        """Return the samples in order, in batches for evaluation; no batch is one sample if there are more."""

    def scoring(self, objective: Objective) -> Scoring:
        """Return how answers are scored that are read by an objective."""


def opened(kind: object, name: str) -> Task:
    """Return the task of a class, of a folder here or of somebody's wheel.

    Raises:
        ConfigurationError: it is no class, cannot be made, or lacks a part of ``Task``.
    """
    wrong = f"task: what is provided as {name}"
    if not isinstance(kind, type):
        raise ConfigurationError([f"{wrong} is no class; let its entry point name one"])
    if lacking := sorted(part for part in _PARTS if not hasattr(kind, part)):
        raise ConfigurationError([f"{wrong} lacks {', '.join(lacking)}; derive it from one of dropfed's tasks"])
    try:
        task: Task = kind()
    except Exception as error:  # whatever a class may do wrong
        raise ConfigurationError([f"{wrong} cannot be made ({type(error).__name__}: {error}); correct it"]) from error
    if task.name != name:
        raise ConfigurationError([f"{wrong} calls itself {task.name!r}; give it the name of its entry point"])
    if taken := sorted({*task.scores} & {*FIXED_COLUMNS}):
        raise ConfigurationError([f"{wrong} has a score {taken[0]}, which is a column that every table has; rename it"])
    return task


@runtime_checkable
class TabledTask(Protocol):
    """A task that needs a table to know which files are one image: of single files a model cannot be asked."""

    def open_listed(self, path: Path, options: Any, problems: list[str]) -> Sequence[Any]:
        """Read the images that a table lists, to ask a model about them; what the samples say about them means nothing.

        Args:
            path: the table, or its folder.
            problems: a sentence is added for each image that cannot be read.

        Raises:
            DataError: there is no such table, or it cannot be read.
        """


class SegmentationTask(Task[OptionsT, SampleT], Protocol[OptionsT, SampleT]):
    """A task that labels pixels."""

    def crop(self, sample: SampleT, crops: Crops, seed: int) -> SampleT:
        """Return a part of a sample at full resolution, decided by the seed alone."""


_PARTS = sorted(part for part in vars(Task) if not part.startswith("_"))
"""What a task's class must have."""
