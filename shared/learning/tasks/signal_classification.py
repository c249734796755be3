"""What the tasks have in common that classify stretches of recordings, with a network that travels whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from torch import nn
from typing_extensions import TypeVar

from shared.errors import all_told
from shared.escaping import escape
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import unlabelled_units
from shared.learning.data.recordings import (
    RECORDINGS_FILE,
    Held,
    read_recordings,
    read_unlisted,
    recording_units,
)
from shared.learning.data.sets import Members
from shared.learning.data.time_series import Window
from shared.learning.data.units import Unit
from shared.learning.tasks.classification import OneClassEach
from shared.learning.tasks.contract import Collection, Dataset, divided, trainable
from shared.learning.tasks.terms import SignalOptions, names_of_classes

OptionsT = TypeVar("OptionsT", bound=SignalOptions)
ExcerptT = TypeVar("ExcerptT", GradedImage, Window)


@dataclass(frozen=True)
class WholeRecording(GradedImage):
    """A recording before a run says what is cut from it.

    Args:
        image: (1, 11, 3) uint8, what tells its content from others, in the form of a picture.
    """

    held: Held

    @classmethod
    def of(cls, name: str, held: Held, label: int = 0) -> WholeRecording:
        return cls(name, np.frombuffer(held.sha256 + b"\0", np.uint8).reshape(1, 11, 3), label, held)


class SignalClassification(OneClassEach, Generic[OptionsT, ExcerptT]):
    """A part of ``contract.Task``: recordings, cut and divided, and no augmentation.

    Attributes:
        extension: of its files, in small letters.
    """

    extension: str
    advice = "have a person decide"
    head_is_local = False

    def excerpts(self, path: Path, options: OptionsT) -> Sequence[NDArray[Any]]:
        """Return what is cut from one file, one or more: all of one shape and type.

        Raises:
            DataError: it cannot be read, or is too short.
        """
        raise NotImplementedError

    def held(self, path: Path) -> Held:
        """Return what one file holds, whatever a run makes of it.

        Raises:
            DataError: no run can read it.
        """
        raise NotImplementedError

    def sample(self, name: str, excerpt: NDArray[Any], label: int) -> ExcerptT:
        """Return one excerpt, as ``excerpts`` cuts it, as a sample; ``label`` is its class."""
        raise NotImplementedError

    def vary(self, sample: ExcerptT, augmentation: Augmentation, seed: int) -> ExcerptT:
        return sample

    def units(self, root: Path) -> list[Unit]:
        return recording_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, (self.extension,))

    def open_dataset(self, root: Path, options: OptionsT, members: Members) -> Dataset[ExcerptT]:
        return trainable(divided(self.open_images(root, options), members), "excerpt", "recordings")

    def open_images(self, root: Path, options: OptionsT) -> Collection[ExcerptT]:
        samples: list[ExcerptT] = []
        groups: dict[str, str] = {}
        for recording in read_recordings(root, options.labels, lambda file: self.excerpts(file, options)):
            listed = recording.listed
            pieces = self._numbered(listed.id, recording.excerpts, options.labels.index(listed.label))
            samples += pieces
            groups |= dict.fromkeys((piece.id for piece in pieces), listed.group or listed.id)
        return Collection(samples, options.labels, groups if options.probe_folds == "of_people" else {})

    def open_unlabelled(self, path: Path, options: OptionsT) -> Sequence[ExcerptT]:
        found = read_unlisted(path, self.extension, lambda file: self.excerpts(file, options))
        return [sample for name, excerpts in found.items() for sample in self._numbered(name, excerpts, 0)]

    def open_whole(self, root: Path) -> Collection[WholeRecording]:
        found = read_recordings(root, None, lambda file: [self.held(file)])
        classes = tuple(sorted({each.listed.label for each in found}))
        _require_names(classes)
        samples = [
            WholeRecording.of(each.listed.id, each.excerpts[0], classes.index(each.listed.label)) for each in found
        ]
        return Collection(samples, classes, {each.listed.id: each.listed.group or each.listed.id for each in found})

    def open_whole_unlabelled(self, path: Path) -> list[WholeRecording]:
        found = read_unlisted(path, self.extension, lambda file: [self.held(file)])
        return [WholeRecording.of(name, held) for name, (held,) in found.items()]

    def load_initial_weights(self, model: nn.Module, options: OptionsT, folders: Sequence[Path]) -> str | None:
        return None  # random weights

    def _numbered(self, name: str, excerpts: Sequence[NDArray[Any]], label: int) -> list[ExcerptT]:
        return [self.sample(f"{name}/{number:04d}", excerpt, label) for number, excerpt in enumerate(excerpts, 1)]


def _require_names(classes: Sequence[str]) -> None:
    with all_told() as problems:
        for name in classes:
            try:
                names_of_classes((name,))
            except ValueError as error:
                problems.append(f"{RECORDINGS_FILE}: no run can name the label {escape(name)!r}: {error}; correct it.")
