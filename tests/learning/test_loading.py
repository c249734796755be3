"""Batches prepared by other processes: the same numbers with any number of them, and none is ever left behind."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from shared.errors import ActionRequiredError, DataError, Stopped
from shared.learning.compute import EXACT, Computing, prepare_compute, require_computing
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import SegmentedImage
from shared.learning.loading import prepared
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.objectives import Evidential
from shared.learning.optimizers import new_optimizer
from shared.learning.tasks.contract import Evaluation, Task
from shared.learning.tasks.dr_staging.task import DrStaging
from shared.learning.tasks.dr_staging.terms import DrOptions
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation
from shared.learning.tasks.octa_segmentation.terms import OctaOptions
from shared.learning.training import Epoch, evaluate, train_epoch
from site_client.configuration import MOST_WORKERS_UNASKED, SiteConfiguration, computing_of
from tests import SOME_KEY
from tests.federation.in_process import FederationInProcess
from tests.federation.running import Federation, own_logins, run_configuration

CPU = torch.device("cpu")
OBJECTIVE = Evidential(temperature=0.05, kl_weight=0.2)
WAIT_S = 60.0
ROUNDING = 0.2  # of losses in 16 bits: each step adds to the last one's, by another amount on every kind of processor


def photographs(count: int = 13) -> list[GradedImage]:
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return [GradedImage(f"eye-{number:02d}", image, number % 4) for number, image in enumerate(images)]


def vessels(count: int = 5) -> list[SegmentedImage]:
    """Of different sizes: a batch is filled up to its largest."""
    rng = np.random.default_rng(count)
    made = []
    for number in range(count):
        image = rng.random((32 + 5 * number, 40)).astype(np.float32)
        made.append(SegmentedImage(f"s{number}", image, (image > 0.7).astype(np.uint8)))
    return made


@dataclass(frozen=True)
class Problem:
    """A task with a few images and a small net."""

    task: Task
    samples: list
    options: DrOptions | OctaOptions
    augmentation: Augmentation

    def model(self, computing: Computing = EXACT) -> nn.Module:
        return computing.place(self.task.build_model(self.options, 4 if isinstance(self.task, DrStaging) else 2, 1))

    def trained(self, computing: Computing = EXACT, on_batch=lambda done, total: None) -> tuple[str, list[Evaluation]]:
        """The hash of all state after two epochs, and what was scored in them and afterwards."""
        model = self.model(computing)
        optimizer = new_optimizer(model, self.options, 0.01)
        found = [
            train_epoch(
                self.task,
                open_method("mean", {}),
                Local(model),
                optimizer,
                self.samples,
                epoch=Epoch(0.01, 4, seed, self.augmentation),
                objective=OBJECTIVE,
                on_batch=on_batch,
                computing=computing,
            )
            for seed in (1, 2)
        ]
        found.append(evaluate(self.task, model, self.samples, OBJECTIVE, computing))
        digest = hashlib.sha256()
        for name, value in model.state_dict().items():
            digest.update(name.encode() + value.cpu().numpy().tobytes())
        return digest.hexdigest(), found


STAGING = Problem(
    DrStaging(),
    photographs(),
    DrOptions(encoder="small", weights="random", image_size=32),
    DrStaging().augmentation({"pixel_dropout": (0.0, 0.1)}),
)
SEGMENTATION = Problem(OctaSegmentation(), vessels(), OctaOptions(widths=(4, 8), dropout=0.2), Augmentation(copies=2))
BOTH = pytest.mark.parametrize(
    "problem", [STAGING, pytest.param(SEGMENTATION, marks=pytest.mark.long)], ids=["staging", "segmentation"]
)


@contextmanager
def none_left() -> Iterator[None]:
    """No process and no open file is left when the block ends."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    files = psutil.Process().num_fds()
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert psutil.Process().num_fds() <= files  # fewer, where others' were collected meanwhile


@BOTH
def test_the_number_of_workers_changes_nothing(problem: Problem) -> None:
    with none_left():
        first = problem.trained()
        for workers in (1, 2, 4):
            assert problem.trained(Computing(workers=workers)) == first


def item(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Larger from one to the next, so that the shared memory has to grow; colours lie together."""
    images = torch.full((2, 5 + number, 4, 3), float(number)).movedim(3, 1)
    return images, torch.arange(number + 1)


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_every_item_comes_once_in_order_as_it_is_made(workers: int) -> None:
    with none_left():
        for count in (0, 1, 7):
            with prepared(item, range(count), workers, CPU) as coming:
                batches = list(coming)
            assert len(batches) == count
            for number, (inputs, targets) in enumerate(batches):
                expected = item(number)
                assert torch.equal(inputs, expected[0]) and torch.equal(targets, expected[1])
                assert inputs.stride() == expected[0].stride()  # which decides how a convolution sums


def test_a_batch_is_its_receivers_own() -> None:
    with prepared(item, range(4), 1, CPU) as coming:
        inputs, _ = next(coming)
        inputs.fill_(-1.0)
        assert all((later[0] >= 1).all() for later in coming)
        assert (inputs == -1.0).all()


def only_two(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    if number == 2:
        raise DataError([f"image {number}: is torn;", "copy it again"])
    return item(number)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_in_a_worker_is_met_as_itself_in_its_turn(workers: int) -> None:
    seen = []
    with none_left(), pytest.raises(DataError) as caught, prepared(only_two, range(6), workers, CPU) as coming:
        seen += [int(inputs[0, 0, 0, 0]) for inputs, _ in coming]
    assert caught.value.problems == ("image 2: is torn;", "copy it again")
    with prepared(only_two, range(6), workers, CPU) as coming:
        assert [int(next(coming)[0].max()) for _ in range(2)] == [0, 1]


@BOTH
def test_stopping_in_between_leaves_no_worker(problem: Problem) -> None:
    def stop(done: int, total: int) -> None:
        assert multiprocessing.active_children()
        raise Stopped("asked to stop")

    with none_left(), pytest.raises(Stopped):
        problem.trained(Computing(workers=3), stop)


@BOTH
def test_what_a_killed_worker_leaves_undone_is_done_all_the_same(
    problem: Problem, caplog: pytest.LogCaptureFixture
) -> None:
    def kill(done: int, total: int) -> None:
        if done == 1:
            workers = multiprocessing.active_children()
            os.kill(workers[0].pid or 0, signal.SIGKILL)

    with none_left():
        assert problem.trained(Computing(workers=2), kill) == problem.trained()
    assert "was ended (exit code -9)" in caplog.text


LONG = """
import os, sys, time, torch, multiprocessing
from shared.learning.loading import prepared

def item(number):
    return torch.zeros(4), torch.zeros(4)

with prepared(item, range(10**6), 2, torch.device("cpu")) as coming:
    next(coming)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


def test_workers_end_with_the_process_that_trains() -> None:
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 2
        trainer.kill()
    deadline = time.monotonic() + WAIT_S
    while any(is_at_work(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived the process that trained"
        time.sleep(0.05)


def is_at_work(process: psutil.Process) -> bool:
    """Whether it lives; one that nobody has buried does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_has_the_images_without_a_copy() -> None:
    images = np.ones((200, 1 << 20), np.uint8)  # 200 MiB

    def look(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(images[number, :1000].copy()), torch.tensor([int(images[number].sum())])

    with prepared(look, range(200), 2, CPU) as coming:
        assert all(int(targets) == 1 << 20 for _, targets in (next(coming) for _ in range(150)))
        own = [psutil.Process(child.pid).memory_full_info().uss for child in multiprocessing.active_children()]
        assert len(own) == 2 and max(own) < 50 * 2**20


def final_model(federation: FederationInProcess | Federation, workers: int) -> str:
    """The final model's hash, after every site trained with so many workers."""
    for site in federation.run.sites:
        federation.change(federation.site(site) / "site.yaml", workers=workers)
    federation.run_to_the_end()
    return federation.final_sha256()


@pytest.mark.long
def test_daemons_have_workers_whether_they_are_threads_or_were_forked_themselves(tmp_path: Path) -> None:
    found = []
    for workers in (0, 2):
        with FederationInProcess(tmp_path / f"threads-{workers}", run_configuration()) as threads:
            logins = own_logins(threads.run.sites, f"http://127.0.0.1:{threads.server.port}")
            threads.set_up(logins, poll_seconds=0.05)
            found.append(final_model(threads, workers))
            assert not multiprocessing.active_children()
    with Federation(tmp_path / "processes", run_configuration()) as processes:
        found.append(final_model(processes, 2))
        processes.stop_all()
        for site in processes.run.sites:
            assert "was ended" not in processes.output(processes.site(site))
    assert len(set(found)) == 1


# --- precision, and what a site says of itself -------------------------------------------------------------


@BOTH
def test_mixed_precision_keeps_weights_in_32_bits_and_repeats(problem: Problem) -> None:
    mixed = Computing(precision="bfloat16")
    first = problem.trained(mixed)
    assert first == problem.trained(mixed) == problem.trained(Computing(workers=2, precision="bfloat16"))
    digest, exact = problem.trained()
    assert first[0] != digest
    for one, other in zip(first[1], exact, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=ROUNDING)
    model = problem.model(mixed)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    kernels = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@BOTH
@pytest.mark.parametrize("workers", [0, 3])
def test_a_gpu_trains_alike(problem: Problem, workers: int) -> None:
    _, exact = problem.trained()
    with none_left():
        _, found = problem.trained(Computing("cuda", workers, "bfloat16"))
    for one, other in zip(found, exact, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=ROUNDING)
        assert one.scores.keys() == other.scores.keys()


def site_of(**settings: object) -> SiteConfiguration:
    required = {"federation": "retina", "site": "north", "url": "https://x.example/", "user": "north"}
    return SiteConfiguration.model_validate(required | {"aggregator_key": SOME_KEY} | settings)


def test_a_gpu_has_workers_unasked_and_a_cpu_none() -> None:
    assert computing_of(site_of()) == EXACT
    unasked = computing_of(site_of(device="cuda:1", precision="bfloat16"))
    assert unasked == Computing("cuda:1", min(len(os.sched_getaffinity(0)) - 1, MOST_WORKERS_UNASKED), "bfloat16")
    assert computing_of(site_of(workers=3)).workers == 3
    assert computing_of(site_of(device="cuda", workers=0)).workers == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_of_a_gpu_no_more_is_taken_than_the_site_allows() -> None:
    prepare_compute(computing_of(site_of(device="cuda", gpu_memory_gb=0.5)), threads=1)
    try:
        torch.empty(200_000_000, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(600_000_000, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_without_a_gpu_nothing_of_it_is_bounded() -> None:
    with pytest.raises(ValueError, match="gpu_memory_gb: `device: cpu` uses no GPU"):
        site_of(gpu_memory_gb=8)
    assert computing_of(site_of(device="cuda", gpu_memory_gb=8)).gpu_memory_gb == 8
    assert computing_of(site_of(device="cuda")).gpu_memory_gb is None


def test_a_machine_that_cannot_compute_so_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    require_computing(Computing(workers=2))
    with pytest.raises(ActionRequiredError, match="device: cuda:99 is not on this machine; set `device: cpu`"):
        require_computing(Computing("cuda:99"))
    monkeypatch.delattr(os, "memfd_create")  # as on Windows
    require_computing(EXACT)
    with pytest.raises(ActionRequiredError, match=r"workers: .*set `workers: 0`"):
        require_computing(Computing(workers=2))
