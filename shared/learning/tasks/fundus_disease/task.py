"""Diseases in colour fundus photographs, by any set of labels.

Source: DataWeightedFed (Jiang et al. 2025): normal, glaucoma and cataract of ODIR; photographs cropped to the retina,
contrast evened out channel by channel, 224 pixels; VGG-19 with ImageNet's weights, frozen; behind it two layers of
4,096 with ReLU and dropout 0.5; Adam at 1e-3, batches of 16. There the features are the published network's 7×7
positions; here their mean over all positions (``models/encoders.py``), which keeps what travels at 76 MB.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.learning.data.labelled_photographs import read_retina
from shared.learning.tasks.contract import REFER
from shared.learning.tasks.fundus_disease import terms
from shared.learning.tasks.fundus_disease.terms import FundusOptions
from shared.learning.tasks.image_classification.task import OfLabels


class FundusDisease(terms.FundusDisease, OfLabels[FundusOptions]):
    """The task ``fundus_disease``; see ``contract.Task`` for what each method promises."""

    advice = REFER
    made = "a photograph is cropped to the square around the retina and scaled, each channel's contrast evened out"

    def read(self, path: Path, options: FundusOptions) -> NDArray[np.uint8]:
        return read_retina(path, options.image_size)
