"""The one door to imgaug.

imgaug 0.4.0, the last release, reads ``numpy.sctypes`` while it is imported; NumPy 2 removed that table. It is put
back here, first. imgaug also imports OpenCV, whose desktop build needs libGL, which servers often lack.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from shared.errors import DropfedError

_SCALAR_TYPES = {
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
    "float": [np.float16, np.float32, np.float64],
    "complex": [np.complex64, np.complex128],
    "others": [bool, object, bytes, str, np.void],
}


def import_imgaug() -> ModuleType:
    """Return the module ``imgaug``, with ``imgaug.augmenters`` and ``imgaug.augmentables.segmaps`` loaded.

    Raises:
        DropfedError: imgaug or the OpenCV beneath it cannot be imported; the message says what to install.
    """
    if not hasattr(np, "sctypes"):
        np.sctypes = _SCALAR_TYPES  # type: ignore[attr-defined]
    try:
        # One thread: the images are small, a hospital says how many threads it gives, and a forked process has but one.
        importlib.import_module("cv2").setNumThreads(1)
    except ImportError as error:
        raise DropfedError(
            f"OpenCV, which the augmentation needs, cannot be imported ({error}): "
            "run `pip install --force-reinstall --no-deps opencv-python-headless`."
        ) from error
    try:
        imgaug = importlib.import_module("imgaug")
        importlib.import_module("imgaug.augmenters")
        importlib.import_module("imgaug.augmentables.segmaps")
    except ImportError as error:
        raise DropfedError(
            f"imgaug, which does the augmentation, cannot be imported ({error}): run `pip install imgaug==0.4.0`."
        ) from error
    return imgaug
