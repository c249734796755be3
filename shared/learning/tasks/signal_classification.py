"""What the tasks have in common that classify stretches of recordings, with a network that travels whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic

from numpy.typing import NDArray
from torch import nn
from typing_extensions import TypeVar

from shared.learning.data.augmentation import Augmentation
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import unlabelled_units
from shared.learning.data.recordings import read_recordings, read_unlisted, recording_units
from shared.learning.data.sets import Members
from shared.learning.data.time_series import Window
from shared.learning.data.units import Unit
from shared.learning.tasks.classification import OneClassEach
from shared.learning.tasks.contract import Collection, Dataset, divided, trainable
from shared.learning.tasks.terms import SignalOptions

OptionsT = TypeVar("OptionsT", bound=SignalOptions)
ExcerptT = TypeVar("ExcerptT", GradedImage, Window)


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

    def load_initial_weights(self, model: nn.Module, options: OptionsT, folders: Sequence[Path]) -> str | None:
        return None  # random weights

    def _numbered(self, name: str, excerpts: Sequence[NDArray[Any]], label: int) -> list[ExcerptT]:
        return [self.sample(f"{name}/{number:04d}", excerpt, label) for number, excerpt in enumerate(excerpts, 1)]
