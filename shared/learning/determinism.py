"""The same inputs give the same bytes: fixed threads and deterministic algorithms."""

from __future__ import annotations

import torch


def compute_deterministically(threads: int) -> None:
    """Set up this process's arithmetic; call once, before any model is built.

    Args:
        threads: CPU threads of one operation, >= 1. Sums may round differently with another number.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
