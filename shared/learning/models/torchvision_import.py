"""The one door to torchvision.

torchvision's compiled part serves object detection. Where it cannot be loaded (a torchvision built for CUDA beside a
torch built without, which is what package mirrors often pair) torchvision goes on without it, but still describes two
of its operators to torch, and stops there because they do not exist. They are declared here, without a body, and the
import is tried once more: every classification network then works, and nothing here detects objects.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from shared.errors import DropfedError


def import_models() -> ModuleType:
    """Return the module ``torchvision.models``.

    It takes some 12 MB of memory beside a torch that has trained already, and 90 MB beside one that has not, because
    it imports the parts of torch that the first optimizer would.

    Raises:
        DropfedError: torchvision cannot be imported; the message says what to install.
    """
    try:
        try:
            return importlib.import_module("torchvision.models")
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _declare_missing_operators()
            return importlib.import_module("torchvision.models")
    except (ImportError, OSError, RuntimeError) as error:
        raise DropfedError(
            f"torchvision, which brings the encoders, cannot be imported ({error}): "
            f"install the torchvision that belongs to torch {torch.__version__}, "
            "from where that came, as docs/dependencies.md says."
        ) from error


def _declare_missing_operators() -> None:
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
