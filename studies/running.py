"""Playing a study's cells, each in a process of its own; what is finished is never played again."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.folder.durable import disk_trouble, write_file
from shared.folder.lock import work_lock
from shared.learning.compute import require_computing
from shared.software import installing, own_program
from site_client.machine import memory_bytes
from studies.cell import clear, computing_of
from studies.cell import main as play_cell
from studies.data import require_readable
from studies.matrix import Cell
from studies.results import CONFIGURATION, folder_of, result_of, rounds_without_a_model

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

Engine = Literal["local", "ray"]
LOG = "log.txt"
_LOADED_LATE = ("sklearn.metrics", "torch._dynamo")  # for the probe, and for optimizers; a cell would lose seconds
MEMORY_OF_A_CELL_BYTES = 2 << 30
"""What a cell is taken to need where nobody says how many may go on at a time."""


@dataclass(frozen=True)
class Finished:
    """A cell that has ended.

    Args:
        seconds: how long it took.
        trouble: the last line that it said, where it failed.
        rounds_without_a_model: training rounds in which no site's model counted.
    """

    cell: Cell
    seconds: float
    trouble: str | None
    rounds_without_a_model: int = 0


def as_many_as_fit() -> int:
    """Return how many cells this machine bears at a time: one for each core that we may use, while memory allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = memory_bytes()
    return cores if memory is None else max(1, min(cores, memory // MEMORY_OF_A_CELL_BYTES))


def run_cells(
    cells: Sequence[Cell], home: Path, *, engine: Engine, at_a_time: int, on_finished: Callable[[Finished], None]
) -> None:
    """Play what is not finished yet.

    Args:
        home: the study's folder.
        on_finished: told of each cell as it ends.

    Raises:
        ConfigurationError: ``engine`` is not installed, or has no cluster; or folders that cannot be read.
        ActionRequiredError: another process plays this study, or this machine lacks the device that it wants.
    """
    with work_lock(home, "another process plays this study; wait for it, or stop it first"):
        missing = {cell.name: cell for cell in cells if result_of(home, cell) is None}
        if missing and engine == "local":  # Ray's machines may have another
            for computing in {computing_of(cell.configuration) for cell in missing.values()}:
                require_computing(computing)
        require_readable(missing.values())
        for cell in missing.values():
            _begin(cell, folder_of(home, cell) / CONFIGURATION)
        play = _by_ray if engine == "ray" else _by_processes
        for finished in play([*missing.values()], home, at_a_time):
            on_finished(finished)


def _begin(cell: Cell, path: Path) -> None:
    """Write what a cell's process reads; what a process left that was cut off is of no use if its images were moved."""
    content = json.dumps(cell.configuration.model_dump(mode="json"), indent=1).encode()
    if path.exists() and path.read_bytes() != content:
        clear(path.parent)
    write_file(path, content)


def _by_processes(cells: Sequence[Cell], home: Path, at_a_time: int) -> Iterator[Finished]:
    """Run a process for each cell, so that one that fails takes nothing with it; libraries are loaded once, before."""
    os.environ["PYTHONSAFEPATH"] = "1"  # nor do they take any code from the folder that the study was called in
    context: ForkServerContext | SpawnContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *_LOADED_LATE])
        start_forkserver()
    else:  # Windows: each process loads them itself
        context = multiprocessing.get_context("spawn")
    processes: set[BaseProcess] = set()
    stopping = threading.Event()

    def play(cell: Cell) -> Finished | None:
        if stopping.is_set():
            return None
        process, began = context.Process(target=play_logged, args=(folder_of(home, cell),)), time.monotonic()
        process.start()
        processes.add(process)
        if stopping.is_set():  # since just now
            process.kill()
        process.join()
        return finished_of(cell, home, time.monotonic() - began)

    with ThreadPoolExecutor(at_a_time) as pool:
        try:
            for future in as_completed([pool.submit(play, cell) for cell in cells]):
                if (finished := future.result()) is not None:
                    yield finished
        finally:  # Ctrl-C, for instance: a cell that is cut off is played anew
            stopping.set()
            for process in [*processes]:
                process.kill()


def start_forkserver() -> None:
    """Start the process that loads the libraries; Ctrl-C, which the terminal sends to it too, is for us alone.

    It begins with the signal blocked, and so do its cells; we block it meanwhile, so that it reaches us afterwards.
    """
    resource_tracker.ensure_running()  # what it starts first, and unblocks the signal after
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def play_logged(folder: Path) -> NoReturn:
    """Play the cell of a folder in this process, which ends with it; all that it says goes into its log."""
    _end_with_parent()
    gc.freeze()  # what was loaded before the fork stays shared, and out of every collection
    with (folder / LOG).open("wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        sys.exit(play_cell(str(folder)))
    except OSError as error:
        sys.exit(str(disk_trouble(error, folder)))


def _end_with_parent() -> None:
    """End this process once the study's process is gone, even if that was killed."""
    if (parent := multiprocessing.parent_process()) is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)  # without waiting for threads at work; what a cell leaves is whole at any time

    threading.Thread(target=wait, daemon=True).start()


def _by_ray(cells: Sequence[Cell], home: Path, at_a_time: int) -> Iterator[Finished]:
    try:
        import ray  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ConfigurationError([f"--engine ray: ray is not installed; {installing('ray')} brings it"]) from None
    cluster = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(
            ignore_reinit_error=True,
            num_cpus=None if cluster else at_a_time,
            include_dashboard=None if cluster else False,  # which would open a port
            log_to_driver=False,
        )
    except (ValueError, RuntimeError, OSError) as error:
        reason = escape(str(error).splitlines()[0])
        where = f"RAY_ADDRESS is {escape(cluster)}, where no cluster answers" if cluster else "Ray cannot start here"
        what_to_do = "correct it, or unset it to have Ray on this machine" if cluster else "play it with --engine local"
        raise ConfigurationError([f"--engine ray: {where} ({reason}); {what_to_do}"]) from None

    @ray.remote(num_cpus=1, max_retries=0)
    def play(folder: str) -> float:
        began = time.monotonic()
        with (Path(folder) / LOG).open("wb") as log:
            command = [*own_program("studies.cell"), folder]
            subprocess.run(command, stdout=log, stderr=log, check=False)
        return time.monotonic() - began

    try:
        waiting = {
            play.options(num_gpus=int(cell.configuration.device == "cuda")).remote(str(folder_of(home, cell))): cell
            for cell in cells
        }
        while waiting:
            (done,), _ = ray.wait([*waiting], num_returns=1)
            yield finished_of(waiting.pop(done), home, ray.get(done))
    finally:
        ray.shutdown()


def finished_of(cell: Cell, home: Path, seconds: float) -> Finished:
    """Return how a cell ended, by what it left."""
    if (result := result_of(home, cell)) is not None:
        return Finished(cell, seconds, None, rounds_without_a_model(result))
    log = folder_of(home, cell) / LOG
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return Finished(cell, seconds, lines[-1] if lines else "it ended without a word, as where memory or disk is full")
