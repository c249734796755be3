"""Images per second of a site's training, and of the bare step of the model on the same batches.

    .venv/bin/python -m benchmarks.training

ResNet-50 at 256² and the residual U-Net at 304², with the batch sizes and augmentations of ``configs/``: on the CPU
with one thread, in float32 and in mixed precision; and on the GPU in mixed precision, where there is one. The training
is ``train_epoch``, as the daemon calls it: copies varied anew, batches made and moved, loss, step, every answer scored.
The bare step is forward, cross-entropy, backward and optimizer on batches that are made already and lie where the model
is. Told, but not counted in either: BatchNorm's statistics, measured anew after each epoch. Floor: 0.9 of the bare
step. Writes benchmarks/results/training.json and training.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from timeit import repeat
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.record import RESULTS, record, take_no_arguments
from deploy.local import synthetic_fundus, synthetic_octa
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.learning import training
from shared.learning.compute import Computing, prepare_compute
from shared.learning.loading import Batch
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.objectives import IGNORED, CrossEntropy
from shared.learning.optimizers import new_optimizer
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Task
from shared.learning.training import Epoch, plan_batches, train_epoch, view_of
from site_client.configuration import SiteConfiguration, computing_of

COMMAND = ".venv/bin/python -m benchmarks.training"
FLOOR = 0.9
THREADS = 1
"""As a site has by default. Where other programs run, two that wait for each other would measure those."""
DRAWN = 10
REPEATS = {"cpu": 2, "cuda": 3}
"""Each is done so often, in turn; the quickest counts."""
MOST_KEPT = 8
"""Batches that the bare step goes round, at most: they lie in the GPU's memory."""
CONFIGS = Path(__file__).parent.parent / "configs"
RATE = 0.001
KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
"""A public key, of a federation that there is not."""
CLASSES = {"dr_staging": 5, "octa_segmentation": 2}
UNTRAINED = {"dr_staging": {"weights": "random"}}
NETS = {"dr_staging": "ResNet-50, 256²", "octa_segmentation": "residual U-Net, 304²"}


@dataclass(frozen=True)
class Case:
    """One network on one device.

    Args:
        views: of one epoch, or a few more: a whole number for each image.
    """

    task: str
    computing: Computing
    views: int


def cases() -> list[Case]:
    """Return what can be measured on this machine, computing as a site does that leaves `workers` to us."""
    found = [
        Case(task, computing("cpu", precision), views)
        for precision in ("float32", "bfloat16")
        for task, views in (("dr_staging", 64), ("octa_segmentation", 12))
    ]
    if torch.cuda.is_available():
        gpu = computing("cuda", "bfloat16")
        found += [Case("dr_staging", gpu, 8192), Case("octa_segmentation", gpu, 2400)]
    return found


def computing(device: str, precision: str) -> Computing:
    """Return how the daemon computes with these settings in ``site.yaml``."""
    needed = {"federation": "f", "site": "s", "url": "https://localhost/", "user": "s", "aggregator_key": KEY}
    return computing_of(SiteConfiguration.model_validate(needed | {"device": device, "precision": precision}))


class Site:
    """A site's images, network and optimizer for one case."""

    def __init__(self, case: Case, root: Path) -> None:
        run = parse_yaml((CONFIGS / f"run.{case.task}.yaml").read_bytes(), RunConfiguration, case.task)
        self.computing = case.computing
        self.device = torch.device(case.computing.device)
        self.task: Task = task_named(case.task)
        self.options = self.task.options(run.task_options | UNTRAINED.get(case.task, {}))
        augmentation = self.task.augmentation(run.augmentation)
        of_image = augmentation.views
        self.samples = drawn(self.task, self.options, root, -(-case.views // of_image))
        self.epoch = Epoch(RATE, run.batch_size, 1, augmentation)
        model = self.task.build_model(self.options, CLASSES[case.task], seed=1)
        self.model: nn.Module = case.computing.place(model)
        self.optimizer = new_optimizer(self.model, self.options, RATE)
        self.views = len(self.samples) * of_image
        self.statistics_s = 0.0

    # --- the whole training, and the bare step -------------------------------------------------------------

    def train(self) -> float:
        """Return the seconds of one epoch, without measuring the statistics anew."""
        measure = training._measure

        def timed(*arguments: Any) -> None:
            self.wait()
            begun = time.perf_counter()
            measure(*arguments)
            self.wait()
            self.statistics_s = time.perf_counter() - begun

        begun = time.perf_counter()
        with mock.patch.object(training, "_measure", timed):
            train_epoch(
                self.task,
                open_method("mean", {}),
                Local(self.model),
                self.optimizer,
                self.samples,
                epoch=self.epoch,
                objective=CrossEntropy(),
                on_batch=lambda done, total: None,
                computing=self.computing,
            )
        self.wait()
        return time.perf_counter() - begun - self.statistics_s

    def step(self, batches: Iterable[Batch]) -> float:
        """Return the seconds of as many bare steps as there are batches."""
        self.model.train()
        self.wait()
        begun = time.perf_counter()
        for inputs, targets in batches:
            with self.computing.arithmetic():
                logits = self.model(inputs).float()
            loss = functional.cross_entropy(logits, targets, ignore_index=IGNORED)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        self.wait()
        return time.perf_counter() - begun

    def batches(self) -> tuple[int, list[Batch]]:
        """Return how many batches the epoch has, and the first of them, where the model is."""
        plan = plan_batches(self.samples, self.epoch)
        made = [
            self.task.collate([view_of(self.task, sample, copy, self.epoch) for sample, copy in batch])
            for batch in plan[:MOST_KEPT]
        ]
        return len(plan), [(inputs.to(self.device), targets.to(self.device)) for inputs, targets in made]

    def wait(self) -> None:
        """Let the GPU finish what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- where the time goes -------------------------------------------------------------------------------

    def milliseconds(self, batch: Batch) -> dict[str, float]:
        """Return the milliseconds that workers and scoring take for an image on a core; import what the first epoch
        would.
        """
        views = [view_of(self.task, self.samples[0], copy, self.epoch) for copy in range(1, self.epoch.batch_size + 1)]
        inputs, targets = batch
        with torch.no_grad(), self.computing.arithmetic():
            logits: Tensor = self.model(inputs).float()
        scoring = self.task.scoring(CrossEntropy())
        scoring.scores([scoring.look(logits, targets)])
        return {
            "vary": quickest(lambda: view_of(self.task, self.samples[0], 1, self.epoch)),
            "make a batch": round(quickest(lambda: self.task.collate(views)) / len(views), 3),
            "score": round(quickest(lambda: scoring.look(logits, targets)) / len(targets), 3),
        }


def drawn(task: Task, options: Any, root: Path, images: int) -> list[Any]:
    """Return synthetic images, read as a site reads them; a few are drawn, and repeated under other names."""
    if task.name == "dr_staging":
        style = synthetic_fundus.STYLES[0]
        synthetic_fundus.write_graded_site(root, style=style, images=DRAWN, size=256, seed=1, grades=5)
    else:
        synthetic_octa.write_site(root, style=synthetic_octa.STYLES[0], images=DRAWN, size=304, seed=1)
    read = cycle(task.open_images(root, options).samples)
    return [replace(deepcopy(next(read)), id=f"{number:05d}") for number in range(images)]


def quickest(do: Callable[[], object]) -> float:
    """Return the milliseconds of this thread's own time, the least of ten."""
    return round(1000 * min(repeat(do, timer=time.thread_time, number=1, repeat=10)), 3)


def measure(case: Case) -> dict[str, object]:
    """Measure the images per second of both, in turn."""
    prepare_compute(case.computing, THREADS)
    with tempfile.TemporaryDirectory(prefix="dropfed-training-") as root:
        site = Site(case, Path(root))
    count, kept = site.batches()
    of_one_image = site.milliseconds(kept[0])
    if site.device.type == "cuda":  # the first of all takes much longer
        site.step(kept)
        site.train()
    bare_s, full_s = [], []
    for _ in range(REPEATS[site.device.type]):
        bare_s.append(site.step(islice(cycle(kept), count)))
        full_s.append(site.train())
    ratio = min(bare_s) / min(full_s)
    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name(site.device) if site.device.type == "cuda" else "CPU",
        "net": NETS[case.task],
        "precision": case.computing.precision,
        "threads": THREADS,
        "workers": case.computing.workers,
        "batch_size": site.epoch.batch_size,
        "images_of_an_epoch": site.views,
        "bare_images_per_s": round(site.views / min(bare_s), 2),
        "images_per_s": round(site.views / min(full_s), 2),
        "ratio": round(ratio, 3),
        "floor": FLOOR,
        "held": ratio >= FLOOR,
        "bare_s": [round(seconds, 3) for seconds in bare_s],
        "seconds": [round(seconds, 3) for seconds in full_s],
        "statistics_s": round(site.statistics_s, 3),
        "ms_of_one_image": of_one_image,
    }
    print(figures, flush=True)
    return figures


def markdown(found: list[dict[str, object]]) -> str:
    """Return the figures as tables."""
    columns = ("device", "net", "precision", "batch_size", "threads", "workers", "bare_images_per_s", "images_per_s")
    lines = [
        "# training",
        "",
        f"`{COMMAND}`; machine, date and commit in `training.json`. Images per second of training as a site",
        "does it, and of the model's bare step on the same batches; the quickest of several, in turn. The floor of the",
        f"ratio is {FLOOR}.",
        "",
        "| device | net | precision | batch | threads | workers | bare step | training | ratio | held |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in found:
        shown = [str(row[column]) for column in (*columns, "ratio")]
        lines.append(f"| {' | '.join([*shown, 'yes' if row['held'] else '**no**'])} |")
    lines += [
        "",
        "BatchNorm's statistics, measured anew after each epoch, are not in these. For as many images they take:",
        "",
    ]
    lines += [
        "| device | net | precision | images of an epoch | training, s | statistics, s |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in found:
        least = min(cast(list[float], row["seconds"]))
        shown = [str(row[column]) for column in (*columns[:3], "images_of_an_epoch")]
        lines.append(f"| {' | '.join([*shown, str(least), str(row['statistics_s'])])} |")
    lines += ["", "Milliseconds of one core for one image; workers vary and make batches, threads score:", ""]
    lines += ["| device | net | precision | vary | make a batch | score |", "|---|---|---|---:|---:|---:|"]
    for row in found:
        shown = [str(row[column]) for column in columns[:3]]
        parts = cast(Mapping[str, float], row["ms_of_one_image"])
        lines.append(f"| {' | '.join([*shown, *map(str, parts.values())])} |")
    if not torch.cuda.is_available():
        lines += ["", "**Not measured on a GPU: this machine has none.** Where there is one, the same command does."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and record."""
    found = [measure(case) for case in cases()]
    print(record("training", COMMAND, {"gpu_measured": torch.cuda.is_available(), "cases": found}))
    (RESULTS / "training.md").write_text(text := markdown(found))
    print(text)


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
