"""One class for each image, of any kind and with any labels.

The model is an encoder and the layers behind it; which of it learns, the run says. Images are grey or colour, PNG,
JPEG, TIFF or DICOM, in ``images/`` with ``labels.csv``, or in one folder for each label.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.learning.data.graded_images import GRADED_EXTENSIONS, GradedImage, read_colour
from shared.learning.data.images import list_images, unlabelled_units
from shared.learning.data.labelled_photographs import labelled_files, labelled_units, own_labels, read_labelled
from shared.learning.data.units import Listed, Unit
from shared.learning.tasks.contract import Collection
from shared.learning.tasks.frozen_classification import FrozenClassification
from shared.learning.tasks.image_classification import terms
from shared.learning.tasks.image_classification.terms import ImageOptions

ImageOptionsT = TypeVar("ImageOptionsT", bound=ImageOptions)


class OfLabels(FrozenClassification[ImageOptionsT, GradedImage]):
    """A part of ``contract.Task``: images by their labels. A task of one's own may read them in another way."""

    advice = "have a person decide"
    extensions: ClassVar[Sequence[str]] = GRADED_EXTENSIONS
    """In small letters, what the names of the files end in that ``read`` reads."""

    def read(self, path: Path, options: ImageOptionsT) -> NDArray[np.uint8]:
        """Return one image: (S, S, 3) uint8.

        Raises:
            DataError: it cannot be read.
        """
        return read_colour(path, options.image_size)

    def units(self, root: Path) -> list[Unit]:
        return labelled_units(root, self.extensions)

    def listed(self, root: Path, options: ImageOptionsT) -> list[Listed]:
        return labelled_files(root, options.labels, self.extensions)

    def unlabelled_units(self, path: Path) -> list[Unit]:
        return unlabelled_units(path, self.extensions)

    def open_images(self, root: Path, options: ImageOptionsT) -> Collection[GradedImage]:
        classes = options.class_names or own_labels(root, self.extensions)
        images = read_labelled(root, classes, lambda path: self._read(path, options), self.extensions)
        return Collection(images, classes)

    def open_unlabelled(self, path: Path, options: ImageOptionsT) -> Sequence[GradedImage]:
        files = list_images(path, self.extensions)
        return [GradedImage(file.stem, self._read(file, options), 0) for file in files]

    def _read(self, path: Path, options: ImageOptionsT) -> NDArray[np.uint8]:
        """Read one image.

        Raises:
            TypeError: ``read``, which may be a plug-in's, gives something else than it must.
        """
        image, due = self.read(path, options), (options.image_size, options.image_size, 3)
        if image.shape != due or image.dtype != np.uint8:
            raise TypeError(f"read gave {image.dtype} {image.shape} for {path.name}, and must give uint8 {due}")
        return image


class ImageClassification(terms.ImageClassification, OfLabels[ImageOptions]):
    """The task ``image_classification``; see ``contract.Task`` for what each method promises."""
