"""The augmentation of the OCT study: what is done to an image each time the model sees it.

Source: Lo et al. 2021. Pixel dropout, linear contrast, gamma, rotation and flips, in the order of the paper's text.
Images stay on one fixed range: nothing is normalised again afterwards, which would undo the contrast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.learning.data import SMALLEST_SIDE
from shared.learning.data.imgaug_import import import_imgaug
from shared.learning.seeds import seed_for

_UNCHANGED = (1.0, 1.0)
"""The contrast and the gamma of an image as it is."""
_UNMOVED = (0.0, 0.0)
"""The translation of an image as it is."""


class Crops(BaseModel):
    """Parts of images that a segmentation is trained on, at full resolution; it is evaluated on whole images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=SMALLEST_SIDE, le=4096)
    """Pixels of each side; of an image that is smaller, all that there is."""
    per_image: int = Field(default=1, ge=1, le=100)
    """Crops of each copy of an image, at most."""
    per_epoch: int | None = Field(default=None, ge=1, le=1_000_000)
    """Crops of all images of a site together: where they are many, each has fewer, though one or more."""
    foreground: float = Field(default=0.5, ge=0, le=1)
    """Probability that a crop is centred, as far as the image allows, on a pixel that is no background."""


class Augmentation(BaseModel):
    """How each image is varied. Ranges are (lowest, highest) of a uniform draw, one draw per copy.

    ``copies = 0`` trains on the originals alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    copies: int = Field(default=5, ge=0, le=100)
    """Augmented copies per image and epoch."""
    originals: bool = True
    """Whether the model sees the original beside them."""
    pixel_dropout: tuple[float, float] = (0.05, 0.10)
    """Share of pixels set to 0, within [0, 1]."""
    contrast: tuple[float, float] = (0.5, 3.0)
    """Factor on the distance from the middle of the range, >= 0; what leaves the range is clipped."""
    gamma: tuple[float, float] = (0.4, 1.75)
    """Exponent on the image in [0, 1], > 0."""
    rotation_degrees: tuple[float, float] = (-15.0, 15.0)
    """About the centre; corners that come from outside are 0 in image and mask."""
    translation: tuple[float, float] = _UNMOVED
    """Share of each side that the image is moved by, within [-0.5, 0.5], each side by its own; what comes from outside
    is 0 in image and mask.
    """
    horizontal_flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a flip left to right."""
    vertical_flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a flip top to bottom."""
    crops: Crops | None = None
    """Of segmentations alone; None: the model is trained on whole images."""

    @model_validator(mode="after")
    def _ranges_make_sense(self) -> Augmentation:
        limits = {"pixel_dropout": (0.0, 1.0), "contrast": (0.0, 100.0), "gamma": (0.01, 100.0)}
        limits |= {"rotation_degrees": (-180.0, 180.0), "translation": (-0.5, 0.5)}
        for name, (lowest, highest) in limits.items():
            start, end = getattr(self, name)
            if not lowest <= start <= end <= highest:
                raise ValueError(f"{name} must be two numbers in order, between {lowest:g} and {highest:g}")
        if not self.originals and not self.copies:
            raise ValueError("originals: false needs copies of 1 or more, or there is nothing to train on")
        return self

    @property
    def crops_per_copy(self) -> int:
        """How many crops of each copy the model sees; 1 where it sees it whole."""
        return self.crops.per_image if self.crops else 1

    @property
    def views(self) -> int:
        """How often the model sees an image in an epoch, whole or in part."""
        return (self.copies + self.originals) * self.crops_per_copy

    def for_images(self, count: int) -> Augmentation:
        """Return this augmentation for a site that trains on ``count`` images: as many crops of each.

        All images together have at most ``per_epoch`` crops, if that leaves one of each copy.
        """
        if self.crops is None or self.crops.per_epoch is None:
            return self
        fitting = self.crops.per_epoch // (count * (self.copies + self.originals))
        fewer = self.crops.model_copy(update={"per_image": max(1, min(self.crops.per_image, fitting))})
        return self.model_copy(update={"crops": fewer})


def crop(
    image: NDArray[np.float32], mask: NDArray[np.uint8], crops: Crops, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return one part of an image and its mask, decided by the seed alone.

    Args:
        image: (H, W), or (H, W, 3) in colour.
        mask: (H, W) classes, 0 the background.

    Returns:
        (min(H, size), min(W, size)) of both, and all channels.
    """
    draw = np.random.default_rng(seed_for(seed, "crop"))
    least = np.minimum(mask.shape, crops.size)
    latest = np.array(mask.shape) - least  # the last pixel at which it may begin, of each side
    foreground = np.flatnonzero(mask) if draw.random() < crops.foreground else ()
    if len(foreground):
        centre = np.array(np.unravel_index(draw.choice(foreground), mask.shape))
        top, left = np.clip(centre - least // 2, 0, latest)
    else:
        top, left = draw.integers(latest, endpoint=True)
    part = np.s_[top : top + least[0], left : left + least[1]]
    return image[part], mask[part]


def augment(
    image: NDArray[np.float32], mask: NDArray[np.uint8], augmentation: Augmentation, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return one augmented copy of an image and its mask, decided by the seed alone.

    Args:
        image: (H, W), or (H, W, 3) in colour, float32 in [0, 1]; each step treats the channels alike.
        mask: (H, W) uint8 classes; it moves with the image, by nearest neighbour, and never changes otherwise.
        augmentation: what may be done.
        seed: any integer in [0, 2**63).

    Returns:
        The image's shape, float32 in [0, 1], and (H, W) uint8.

    Raises:
        DropfedError: imgaug cannot be imported.
    """
    # Sixteen bits: imgaug takes its contrast about 0 for floats, but about the middle of the range for integers, and
    # clips there. Nothing of an 8- or 16-bit file is lost.
    levels = np.rint(np.atleast_3d(image) * 65535.0).astype(np.uint16)  # (H, W) -> (H, W, 1)
    segments = import_imgaug().augmentables.segmaps.SegmentationMapsOnImage(mask[..., np.newaxis], shape=levels.shape)
    varied, moved = _steps(augmentation, seed)(image=levels, segmentation_maps=segments)
    return (
        (varied.reshape(image.shape).astype(np.float32) / np.float32(65535.0)),  # (H, W, 1) -> (H, W)
        moved.get_arr()[..., 0].astype(np.uint8),  # (H, W, 1) -> (H, W)
    )


def augment_photograph(image: NDArray[np.uint8], augmentation: Augmentation, seed: int) -> NDArray[np.uint8]:
    """Return one augmented copy of a colour photograph, decided by the seed alone.

    Args:
        image: (H, W, 3).
        augmentation: what may be done; each step treats the three channels alike.
        seed: any integer in [0, 2**63).

    Returns:
        (H, W, 3).

    Raises:
        DropfedError: imgaug cannot be imported.
    """
    return np.ascontiguousarray(_steps(augmentation, seed)(image=image), dtype=np.uint8)


def _steps(augmentation: Augmentation, seed: int) -> Any:
    """Return imgaug's augmenter, ready for one image.

    A step that would change nothing takes time all the same, so that another stands in its place: every step's draws
    follow from its place in the row.
    """
    augmenters = import_imgaug().augmenters
    nothing = augmenters.Identity()
    lowest, highest = augmentation.pixel_dropout
    dropout = augmenters.Dropout(p=lowest if lowest == highest else (lowest, highest))
    is_moved = augmentation.translation != _UNMOVED
    moved = {"translate_percent": dict.fromkeys("xy", augmentation.translation)} if is_moved else {}
    steps = augmenters.Sequential(
        [
            nothing if highest == 0 else dropout,
            nothing if augmentation.contrast == _UNCHANGED else augmenters.LinearContrast(alpha=augmentation.contrast),
            nothing if augmentation.gamma == _UNCHANGED else augmenters.GammaContrast(gamma=augmentation.gamma),
            augmenters.Affine(rotate=augmentation.rotation_degrees, order=1, mode="constant", cval=0, **moved),
            augmenters.Fliplr(augmentation.horizontal_flip),
            augmenters.Flipud(augmentation.vertical_flip),
        ]
    )
    # imgaug seeds NumPy's older generators underneath, which take 32 bits.
    steps.seed_(entropy=seed_for(seed, "imgaug") % 2**31)
    return steps
