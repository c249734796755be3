"""Gaussian noise on images, to see how a model bears it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shared.learning.seeds import seed_for


def with_noise(sample: Any, variance: float, seed: int) -> Any:
    """Return a copy of a sample whose image has noise added.

    Args:
        sample: with an ``image``: uint8 levels, which are taken as 0 to 1 and cut off there, or float32 values.
        variance: of the noise, > 0.
        seed: decides the noise, together with the sample's id.
    """
    generator = np.random.default_rng(seed_for(seed, "noise", sample.id))
    noise = generator.normal(0.0, np.sqrt(variance), sample.image.shape)
    if sample.image.dtype == np.uint8:
        return replace(sample, image=np.clip(np.rint(sample.image + 255 * noise), 0, 255).astype(np.uint8))
    return replace(sample, image=(sample.image + noise).astype(np.float32))
