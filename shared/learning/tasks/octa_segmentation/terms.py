"""What a run may say about octa_segmentation; see ``../terms.py``."""

from __future__ import annotations

from shared.learning.tasks.terms import PixelOptions, Terms


class OctaOptions(PixelOptions):
    """What a run may choose about this task."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return "background", "vessel"


class OctaSegmentation(Terms[OctaOptions]):
    """See ``task.py``."""

    name = "octa_segmentation"
    selection_score = "dice_mean"
    form = OctaOptions
