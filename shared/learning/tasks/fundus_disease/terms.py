"""What a run may say about fundus_disease; see ``../terms.py``."""

from __future__ import annotations

from pydantic import Field

from shared.learning.models.options import EncoderName, Train
from shared.learning.tasks.image_classification.terms import ImageOptions
from shared.learning.tasks.terms import FLIPPED_AND_TURNED, Labels, Terms


class FundusOptions(ImageOptions):
    """What a run may choose about this task."""

    encoder: EncoderName = "vgg19"
    train: Train = "head"
    hidden: tuple[int, ...] = Field(default=(4096, 4096), max_length=4)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    labels: Labels = Field(default=("normal", "glaucoma", "cataract"), min_length=2, max_length=20)


class FundusDisease(Terms[FundusOptions]):
    """See ``task.py``."""

    name = "fundus_disease"
    form = FundusOptions
    usual_augmentation = FLIPPED_AND_TURNED
