"""What a run may say about segmentation; see ``../terms.py``."""

from __future__ import annotations

from pydantic import Field

from shared.learning.tasks.terms import Labels, PixelOptions, Terms


class SegmentationOptions(PixelOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=("background", "foreground"), min_length=2, max_length=20)
    """What the classes of pixels are called; the first is the background."""
    colour: bool = False
    """Whether the model sees all three channels of an image; if not, the green one, in which blood stands out."""

    @property
    def channels(self) -> int:
        return 3 if self.colour else 1

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


class Segmentation(Terms[SegmentationOptions]):
    """See ``task.py``."""

    name = "segmentation"
    selection_score = "dice_mean"
    form = SegmentationOptions
