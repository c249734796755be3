"""How this process computes: device, threads, workers, precision, determinism."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import nn

from shared.errors import ActionRequiredError
from shared.learning.loading import can_fork
from shared.learning.processes import ALONE, Processes

Precision = Literal["float32", "bfloat16"]

_HAS_BFLOAT16 = (8, 0)
"""The first generation of GPUs that computes with it; older ones imitate it, slowly."""


@dataclass(frozen=True)
class Computing:
    """Where and how a model is trained and asked. None of it is a run's: each site has its own.

    Args:
        device: cpu, cuda or cuda:N.
        workers: processes that prepare batches ahead, and threads that score them; the same numbers with any.
        precision: ``bfloat16`` is mixed precision: weights, sums and losses stay float32, convolutions and products of
            matrices are computed in 16 bits, channels last.
        processes: who trains: this one alone, or with others.
        micro_batch: the most images that training answers at once; the gradients of a batch of more are added up
            before its step. None: a whole batch.
        gpu_memory_gb: the most of its GPU's memory that PyTorch's tensors may take, in each process. None: all of it.
    """

    device: str = "cpu"
    workers: int = 0
    precision: Precision = "float32"
    processes: Processes = ALONE
    micro_batch: int | None = None
    gpu_memory_gb: float | None = None

    def place(self, model: nn.Module) -> nn.Module:
        """Return the model itself, moved to where and how it computes best."""
        model.to(torch.device(self.device))
        if self.precision == "bfloat16":  # in 32 bits it would change, on the CPU, the order in which sums are made
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context in which a model is asked; what it says may then be bfloat16."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)

    def divides(self, batch_size: int) -> bool:
        """Return whether training divides batches of so many images."""
        return self.micro_batch is not None and self.micro_batch < batch_size

    def parts_of(self, images: int, *, has_norms: bool) -> int:
        """Return into how many micro-batches a batch is divided, by every process alike.

        Args:
            images: of the whole batch; each process has one or more.
            has_norms: whether the network has BatchNorm, which cannot learn from a single image: then a micro-batch has
                two images or more.
        """
        if self.micro_batch is None:
            return 1
        fewest, most = images // self.processes.count, ceil(images / self.processes.count)
        return max(1, min(ceil(most / self.micro_batch), fewest // 2 if has_norms else fewest))

    @property
    def scoring_threads(self) -> int:
        """How many threads score beside the training: on a GPU at least one, so that no step waits for a score."""
        return max(self.workers, int(self.device != "cpu"))


EXACT = Computing()
"""One process on the CPU, the same to the bit wherever software and kind of processor are the same."""


def prepare_compute(computing: Computing, threads: int) -> None:
    """Set up this process's arithmetic; call once, before any model is built.

    On the CPU the same inputs then give the same bytes; on a GPU they need not.

    Args:
        threads: CPU threads of one operation, >= 1. Sums may round differently with another number.

    Raises:
        ActionRequiredError: this machine cannot compute so.
    """
    require_computing(computing)
    torch.set_num_threads(threads)
    # Not use_deterministic_algorithms: it does the same, and loads 70 MB of compiler first.
    torch.set_deterministic_debug_mode("error" if computing.device == "cpu" else "default")
    if computing.gpu_memory_gb is not None:
        device = torch.device(computing.device)
        share = computing.gpu_memory_gb * 1e9 / torch.cuda.get_device_properties(device).total_memory
        # PyTorch refuses a device without a number here; `cuda` is its first.
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device.index or 0)


def require_computing(computing: Computing) -> None:
    """Check that this machine can compute in this way.

    Raises:
        ActionRequiredError: it cannot.
    """
    if computing.workers and not can_fork():
        raise ActionRequiredError("workers: on this system no process can prepare images for another; set `workers: 0`")
    if computing.device == "cpu":
        return
    device = torch.device(computing.device)
    if (device.index or 0) >= torch.cuda.device_count():
        raise ActionRequiredError(f"device: {device} is not on this machine; set `device: cpu`, or mend the driver")
    if computing.precision == "bfloat16" and torch.cuda.get_device_capability(device) < _HAS_BFLOAT16:
        raise ActionRequiredError(f"precision: the GPU {device} is too old for bfloat16; set `precision: float32`")
