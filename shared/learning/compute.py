"""How this process computes: device, threads, determinism."""

from __future__ import annotations

import torch

from shared.errors import StandingError


def prepare_compute(device: str, threads: int) -> None:
    """Set up this process's arithmetic; call once, before any model is built.

    On the CPU the same inputs then give the same bytes; on a GPU they need not.

    Args:
        device: cpu, cuda or cuda:N.
        threads: CPU threads of one operation, >= 1. Sums may round differently with another number.

    Raises:
        StandingError: the device is not there.
    """
    demand_device(device)
    torch.set_num_threads(threads)
    # Not use_deterministic_algorithms: it does the same, and loads 70 MB of compiler first.
    torch.set_deterministic_debug_mode("error" if device == "cpu" else "default")


def demand_device(device: str) -> None:
    """See whether this machine can compute on ``device``.

    Raises:
        StandingError: the device is not there.
    """
    if device != "cpu" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise StandingError(f"device: {device} is not on this machine; set `device: cpu`, or mend the driver")
