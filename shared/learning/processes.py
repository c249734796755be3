"""The processes that train one network: one alone, or several together, each with its share of every batch.

Together they take the very steps that one alone would take, but for rounding: batches are those of one process, the
gradient is that of the loss of the whole batch however unequal the shares are, and BatchNorm normalises by the whole
batch, or by all that the processes answer at once. What a method adds to the gradients it adds after that, in every
process alike. Dropout alone is another: each process draws its own masks.

All go through the same code in the same order, and each knows what all of them found. Only what is written is written
by one, who leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from shared.errors import ActionRequiredError, TransientError
from shared.learning.batch_norm import batch_norms
from shared.learning.methods.contract import Local, Method
from shared.learning.objectives import IGNORED, WHOLE, Share

Item = TypeVar("Item")
Forward = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""``Method.answer`` to a batch's inputs."""

PATIENCE = timedelta(minutes=30)
"""How long a process waits for what another has to say, at most a batch's work later, before it gives up."""


class ProcessLostError(TransientError):
    """Another of the processes that train together ended before the work did."""


@dataclass(frozen=True)
class Processes:
    """One process alone.

    Args:
        rank: this one's number, from 0.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share_of(self, batch: Sequence[Item]) -> Sequence[Item]:
        """Return this process's part of a batch; the parts of all, in order, are the batch, and differ by one at most.

        Raises:
            ActionRequiredError: there are more processes than items.
        """
        if len(batch) < self.count:
            raise ActionRequiredError(
                f"processes: a batch of {len(batch)} images cannot be shared by {self.count}; set fewer in site.yaml"
            )
        return batch[len(batch) * self.rank // self.count : len(batch) * (self.rank + 1) // self.count]

    @contextmanager
    def answering(self, method: Method, local: Local) -> Iterator[Forward]:
        """Yield a method's ``answer``; while the block runs, all processes have one gradient after ``backward``."""
        yield partial(method.answer, local)

    def shares(self, parts: Sequence[Tensor]) -> list[Share]:
        """Return what part of the batch of all processes each of this one's parts is.

        Args:
            parts: the targets of each, (B, ...).
        """
        if self.count == len(parts) == 1:
            return [WHOLE]
        own = torch.tensor([[int((part != IGNORED).sum()), len(part)] for part in parts], dtype=torch.float64)
        of_batch: list[list[float]] = (own / self.sum(own.sum(dim=0)) * self.count).tolist()
        return [Share(*of_part) for of_part in of_batch]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes, of one shape in all."""
        return tensor

    def all_of(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Return what each process has, in turn, on the CPU where that is of several.

        Their shapes may differ between processes, the number of their dimensions not.
        """
        return [tensors]

    def lead_says(self, value: bool) -> bool:
        """Return what the one that leads says."""
        return value


ALONE = Processes()


class Together(Processes):
    """One of several processes that ``joined`` each other."""

    @contextmanager
    def answering(self, method: Method, local: Local) -> Iterator[Forward]:
        with _common_norms(local.network):
            # Anew for each epoch: what moves may be other parameters, and all begin as the one that leads stands.
            yield DistributedDataParallel(
                _Answering(method, local), forward_sync_buffers=False, find_unused_parameters=True
            )

    def sum(self, tensor: Tensor) -> Tensor:
        return _sum(tensor)

    def all_of(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(self._of_each(tensor.detach().cpu()) for tensor in tensors), strict=True))

    def _of_each(self, own: Tensor) -> list[Tensor]:
        shapes = [shape.tolist() for shape in self._all_alike(torch.tensor(own.shape, dtype=torch.int64))]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        filled = own.new_zeros(max(sizes))
        filled[: own.numel()] = own.reshape(-1)
        parts = zip(self._all_alike(filled), sizes, shapes, strict=True)
        return [part[:size].view(shape) for part, size, shape in parts]

    def lead_says(self, value: bool) -> bool:
        said = torch.tensor([int(value)])
        distributed.broadcast(said, src=0)
        return bool(said)

    def _all_alike(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.count)]
        distributed.all_gather(found, tensor)
        return found


@contextmanager
def joined(rank: int, count: int, store: Store | None, *, gpu: bool) -> Iterator[Together]:
    """Join the other processes; the block is left in order only when all do.

    Args:
        store: where they find each other; None: as torchrun says in the environment.
        gpu: each has one of its own, the current device.

    Raises:
        ProcessLostError: another of them did not join, or ended while the block ran.
    """
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    try:
        distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
        yield Together(rank, count)
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "/gloo/" in str(error):  # Gloo has no class for it
            raise ProcessLostError(f"another training process ended, or did not join: {error}") from error
        raise
    distributed.destroy_process_group()


class _Answering(nn.Module):
    """What a method does with a batch as one forward, whatever it asks of the network in it."""

    def __init__(self, method: Method, local: Local) -> None:
        super().__init__()
        self.network = local.network
        self._method, self._local = method, local

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._method.answer(self._local, inputs)


@contextmanager
def _common_norms(network: nn.Module) -> Iterator[None]:
    """Have every BatchNorm normalise by the batches of all processes while this block runs."""
    norms = batch_norms(network)
    kinds = [type(norm) for norm in norms]
    try:
        for norm in norms:
            norm.__class__ = nn.SyncBatchNorm if next(norm.buffers()).is_cuda else _CommonBatchNorm
            norm.__dict__["process_group"] = None  # SyncBatchNorm's: all
        yield
    finally:
        for norm, kind in zip(norms, kinds, strict=True):
            norm.__class__ = kind


class _CommonBatchNorm(_BatchNorm):
    """What ``nn.SyncBatchNorm`` does on GPUs alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return super().forward(inputs)
        over = [0, *range(2, inputs.ndim)]
        channels = (1, -1, *[1] * (inputs.ndim - 2))
        values = inputs.float()
        count = values.new_tensor([values.numel() // values.shape[1]])
        sums = _differentiable_sum(torch.cat([values.sum(over), count]))  # (C + 1,)
        total = sums[-1]
        centred = values - (sums[:-1] / total).view(channels)  # (B, C, ...)
        variance = _differentiable_sum((centred**2).sum(over)) / total  # (C,)
        self._follow(sums[:-1] / total, variance * total / (total - 1))
        normalised = centred * (variance + self.eps).rsqrt().view(channels)
        if self.affine:
            normalised = normalised * self.weight.view(channels) + self.bias.view(channels)
        return normalised.to(inputs.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of a batch, as ``nn.BatchNorm2d`` does: (C,), (C,)."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)

    def _check_input_dim(self, inputs: Tensor) -> None:
        """Accept inputs of any shape that the replaced layer has let pass."""


def _sum(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total


class _Sum(torch.autograd.Function):
    """The sum over all processes; each process's loss depends on it, so that its gradients are summed too."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return _sum(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return _sum(gradients[0])


def _differentiable_sum(tensor: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return total
