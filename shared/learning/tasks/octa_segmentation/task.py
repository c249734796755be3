"""Vessel segmentation of en-face OCTA images.

Source: Lo et al. 2021. Residual U-Net, SGD with momentum 0.9, five augmented copies of each image beside the original
in each epoch. The options' defaults are the paper's.
"""

from __future__ import annotations

from shared.learning.tasks.octa_segmentation import terms
from shared.learning.tasks.octa_segmentation.terms import OctaOptions
from shared.learning.tasks.segmentation.task import OfPixels


class OctaSegmentation(terms.OctaSegmentation, OfPixels[OctaOptions]):
    """The task ``octa_segmentation``; see ``contract.Task`` for what each method promises."""
