"""Networks that dropfed does not know: each hospital trains them by a program of its own.

The run says which tensors there are. They come, leave and are combined as those of any model. The files are of any
kind, and handed to the program as they lie there; see ``site_client/outside.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.errors import ConfigurationError
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.plain_files import FIRST, plain_files, plain_units
from shared.learning.data.sets import Members
from shared.learning.data.units import Listed, Unit
from shared.learning.models.named_tensors import NamedTensors
from shared.learning.objectives import Objective
from shared.learning.tasks.contract import Collection, Dataset, divided
from shared.learning.tasks.external import terms
from shared.learning.tasks.external.terms import ExternalOptions


@dataclass(frozen=True)
class PlainFile:
    """One file, unread.

    Args:
        grade: the place of its label among the run's; 0 where it has none.
    """

    id: str
    path: Path
    grade: int

    @property
    def image(self) -> NDArray[np.uint8]:
        """Its bytes."""
        return np.fromfile(self.path, dtype=np.uint8)


class External(terms.External):
    """The task ``external``; see ``contract.Task`` for what each method promises."""

    tolerance_scores = ("score",)
    main_scores = ("score",)
    advice = "have a person decide"
    labels_pixels = False
    head_is_local = False

    def build_model(self, options: ExternalOptions, classes: int, seed: int) -> NamedTensors:
        return NamedTensors(options.tensors)

    def input_shape(self, options: ExternalOptions) -> tuple[int, ...]:
        return (1,)

    def load_initial_weights(self, model: NamedTensors, options: ExternalOptions, folders: Sequence[Path]) -> None:
        return None  # the run's `start` has them

    def units(self, root: Path) -> list[Unit]:
        return plain_units(root)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return plain_units(path)

    def listed(self, root: Path, options: ExternalOptions) -> list[Listed]:
        return plain_files(root, options.labels)

    def open_dataset(self, root: Path, options: ExternalOptions, members: Members) -> Dataset[PlainFile]:
        return divided(self.open_images(root, options), members)

    def open_images(self, root: Path, options: ExternalOptions) -> Collection[PlainFile]:
        classes = options.labels or ()
        return Collection(
            [
                PlainFile(each.id, each.files[FIRST], classes.index(each.label) if each.label in classes else 0)
                for each in self.listed(root, options)
            ],
            classes,
        )

    def open_unlabelled(self, path: Path, options: ExternalOptions) -> Sequence[PlainFile]:
        return self.open_images(path, options).samples

    def vary(self, sample: PlainFile, augmentation: Augmentation, seed: int) -> PlainFile:
        return sample

    def collate(self, samples: Sequence[PlainFile]) -> tuple[Tensor, Tensor]:
        """Return no inputs, (B, 0): only a hospital's program knows how a file is read."""
        return torch.zeros(len(samples), 0), torch.tensor([sample.grade for sample in samples])

    def batches(self, samples: Sequence[PlainFile]) -> list[Sequence[PlainFile]]:
        return [samples]

    def scoring(self, objective: Objective) -> NoReturn:
        raise ConfigurationError(
            ["task: external has no network that dropfed could ask; use the hospital's own program"]
        )
