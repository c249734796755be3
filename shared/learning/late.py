"""An answer that came once its round was closed, as it counts in the next one.

    x' = w + s · (x − b)    of what training moves       x: what the site sent, b: what it had received
    x' = w + s · (x − w)    of BatchNorm's statistics    w: what the next round began with

    s = 1 / √(1 + τ), where the answer is τ = 1 round old

The polynomial staleness of FedAsync (Xie et al. 2019, section 5.2, a = 0.5), which FedBuff (Nguyen et al. 2022) scales
each difference by before it averages them. x' has the weight in the aggregate that the method gives any answer. So what
a late one moves is less than what the same training moves in time, also where no other has come.

Statistics are measured on images, not learned: a difference of two of them says nothing of a third, and could make a
variance negative. They are mixed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared.exchange.records.tensors import Sharing
from shared.exchange.weights import Array, TensorFile, check_tensors, write_tensors

STALENESS_WEIGHT = (1 + 1) ** -0.5
"""s, of an answer that is one round old."""


def move_on(sent: Path, base: Path, now: Path, sharing: Sharing, target: Path, *, shown_as: str) -> None:
    """Write x' of a checked model in the plain form, as float32; the same files give the same bytes.

    Args:
        sent, base, now: x, b and w, in the plain form.
        shown_as: the model's path inside the folder, for the error.

    Raises:
        RejectedError: a number of x' is one that no model has.
    """
    opened, buffers = [TensorFile(path) for path in (sent, base, now)], frozenset(sharing.buffers)

    def moved(name: str) -> Array:
        x, b, w = (file.tensor(name).astype(np.float64) for file in opened)
        with np.errstate(over="ignore"):
            return (w + STALENESS_WEIGHT * (x - (w if name in buffers else b))).astype(np.float32)

    write_tensors(target, sharing.shared, moved)
    check_tensors(target, sharing.shared, shown_as)
