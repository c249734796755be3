"""Batches prepared ahead, by processes beside the one that trains, and handed over in order.

What is in a batch depends on nothing but the batch, so that the number of processes changes no number. They are forked,
not started anew: so they have the images without a copy, and cost their own batches alone. A batch comes back through
memory that both see, because a pipe would take as long as a fast GPU's step. What a process fails at, or did not live
to do, is done here: so an error is met where it can be caught, as itself.

PyTorch's DataLoader was tried first: each epoch of it left 14 files open until they were collected, a killed process
ended the epoch by one error or another, and it wants a /dev/shm that containers keep small.
"""

from __future__ import annotations

import gc
import logging
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
from torch import Tensor

from shared.service import alive

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""

_Layout = list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]]
"""Of each tensor in shared memory: dtype, shape, strides, and the byte at which it begins."""

_ALIGNMENT = 64
_LOOK_S = 1.0  # between two looks whether the process that trains still lives


def can_fork() -> bool:
    """Return whether this system has what workers need: forked processes, and shared memory without a name."""
    return hasattr(os, "fork") and hasattr(os, "memfd_create")


@contextmanager
def prepared(
    prepare: Callable[[ItemT], Batch], items: Sequence[ItemT], workers: int, device: torch.device
) -> Iterator[Iterator[Batch]]:
    """Prepare every item, in order, while the block runs; no process is left when it ends, however it ends.

    Each worker has one batch ready and works on its next. On a GPU, each batch is copied there while the one before is
    learnt from.

    Args:
        prepare: makes a batch on the CPU; called in this process, or in forked ones. What it imports should have been
            imported before, or each of those does.
        workers: how many processes, >= 0.
        device: where the batches are wanted.

    Yields:
        The batches, each its receiver's own.

    Raises:
        Whatever ``prepare`` raises, when that batch's turn comes.
    """
    with ExitStack() as block:
        processes: list[_Worker] = []
        block.callback(_end, processes)
        for number in range(min(workers, len(items))):
            processes.append(_Worker(prepare, items[number::workers]))

        def batches() -> Iterator[Batch]:
            for number, item in enumerate(items):
                alive()
                batch = processes[number % workers].take(device) if processes else None
                if batch is None:
                    inputs, targets = prepare(item)
                    batch = inputs.to(device), targets.to(device)
                yield batch

        if device.type == "cpu":
            yield batches()
        else:
            yield _ahead(batches(), device, block.enter_context(ThreadPoolExecutor(1)))


def _ahead(batches: Iterator[Batch], device: torch.device, thread: ThreadPoolExecutor) -> Iterator[Batch]:
    """Yield each batch, while a thread copies the next to the GPU: in a stream of its own, which waits for no other."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copied() -> Batch | None:
        with torch.cuda.stream(stream):
            batch = next(batches, None)
        stream.synchronize()
        return batch

    coming = thread.submit(copied)
    while (batch := coming.result()) is not None:
        coming = thread.submit(copied)
        for tensor in batch:
            tensor.record_stream(torch.cuda.current_stream(device))
        yield batch


class _Worker:
    """A forked process that prepares some of the batches, and the memory in which it hands them over."""

    def __init__(self, prepare: Callable[[ItemT], Batch], items: Sequence[ItemT]) -> None:
        self._shared = _SharedMemory()
        self._connection, theirs = multiprocessing.Pipe()
        work = partial(_work, os.getpid(), prepare, items, theirs, self._shared)
        # A daemon, so that it ends with this process where that ends without leaving the block.
        self._process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        self._process.start()
        theirs.close()
        self._lives = True

    def take(self, device: torch.device) -> Batch | None:
        """Return the next of its batches, on a device; None if the process is no more."""
        if not self._lives:
            return None
        try:
            inputs, targets = self._shared.read(self._connection.recv())
        except (EOFError, OSError):
            self._lives = False
            self._process.join()
            if self._process.exitcode:
                logger.warning(
                    "a process that prepares images was ended (exit code %s), perhaps for want of memory; the process "
                    "that trains does its part of this epoch: set fewer `workers` if this comes again",
                    self._process.exitcode,
                )
            return None
        batch = inputs.to(device, copy=True), targets.to(device, copy=True)
        with suppress(OSError):  # it has prepared all it had to, and is gone
            self._connection.send(None)
        return batch

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Leave nothing of it, once it was killed."""
        self._process.join()
        self._process.close()
        self._connection.close()
        self._shared.close()


def _end(processes: Sequence[_Worker]) -> None:
    for process in processes:
        process.kill()  # all first: they take their time to go, but take it together
    for process in processes:
        process.end()


class _SharedMemory:
    """Memory of any size that a forked process has in common with this one. It goes with the two of them."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("batches"), "r+b", buffering=0)
        self._mapped: mmap.mmap | None = None

    def write(self, tensors: Sequence[Tensor]) -> _Layout:
        """Copy tensors into it; return how they lie there."""
        layout: _Layout = []
        size = 0
        for tensor in tensors:
            strides = torch.empty_like(tensor, device="meta").stride()  # as a copy would lie
            layout.append((tensor.dtype, tensor.shape, strides, size))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if os.fstat(self._file.fileno()).st_size < size:
            self._file.truncate(size)
        for target, tensor in zip(self.read(layout), tensors, strict=True):
            target.copy_(tensor)
        return layout

    def read(self, layout: _Layout) -> list[Tensor]:
        """Return the tensors that lie in it, without a copy."""
        dtype, shape, _, start = layout[-1]
        size = start + shape.numel() * dtype.itemsize
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self._file.fileno(), size)
        return [
            torch.frombuffer(self._mapped, dtype=dtype, count=shape.numel(), offset=start).as_strided(shape, strides)
            for dtype, shape, strides, start in layout
        ]

    def close(self) -> None:
        self._file.close()
        if self._mapped is not None:
            with suppress(BufferError):  # a tensor that lies in it, of an error's traceback, goes first
                self._mapped.close()


def _work(
    trainer: int,
    prepare: Callable[[ItemT], Batch],
    items: Sequence[ItemT],
    connection: Connection,
    shared: _SharedMemory,
) -> None:
    """Prepare items; hand each over as soon as the one before was taken, while the process ``trainer`` lives."""
    gc.freeze()  # what the process that trains has, such as memory of its GPU, is not to be freed here
    torch.set_num_threads(1)
    with suppress(Exception):  # the one that trains sees that this one ended, and meets the same error itself
        for number, item in enumerate(items):
            batch = prepare(item)
            while number and not connection.poll(_LOOK_S):
                if os.getppid() != trainer:
                    return
            if number:
                connection.recv()
            connection.send(shared.write(batch))
