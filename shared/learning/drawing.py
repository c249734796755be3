"""What PyTorch draws, by a seed of its own: the weights that a network begins with, and what it drops in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_by(seed: int, device: str = "cpu") -> Iterator[None]:
    """Have PyTorch draw by a seed, and leave what is drawn afterwards as it would have been.

    Args:
        seed: in [0, 2**63); see ``seeds.seed_for``.
        device: which draws besides the CPU: cpu, cuda or cuda:N.
    """
    gpus = [place] if (place := torch.device(device)).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        # Not torch.manual_seed: for each kind of device that is not there it notes the stack, a millisecond a step.
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        yield
