"""Trainings of a round, by one process or by several:

python -m tests.learning.together NAME RANK COUNT FOLDER [MICRO_BATCH]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import FileStore, get_rank

from shared.learning.compute import EXACT, Computing
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import SegmentedImage
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local, Method
from shared.learning.methods.terms import MethodOptions
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.residual_unet import ResidualUNet
from shared.learning.objectives import CrossEntropy
from shared.learning.processes import joined
from shared.learning.reliability import measure_uncertainty
from shared.learning.tasks import task_named
from shared.learning.training import Epoch, evaluate, train_epoch

PIXELS, GRADES = task_named("octa_segmentation"), task_named("dr_staging")


@dataclass(frozen=True)
class Training:
    """Two epochs of a network.

    Args:
        equal: images are of one size.
        refreshes: BatchNorm's statistics are measured anew after each epoch.
    """

    network: Callable[[], nn.Module]
    method: Callable[[], Method]
    grades: bool = False
    equal: bool = True
    rate: float = 0.1
    copies: int = 0
    refreshes: bool = True


def plain() -> nn.Module:
    """No BatchNorm, no dropout, and nothing that sees how far a batch is filled up."""
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1))


class WithTerm(Method):
    """Asks the network twice, part by part, for a term that is a mean over images; moves one layer in each epoch."""

    name = "with_term"

    def answer(self, local: Local, inputs: Tensor) -> tuple[Tensor, Tensor]:
        first, between, last = local.network.children()
        return last(between(first(inputs))), local.network(inputs / 2).square().flatten(1).mean(dim=1).mean()

    def phases(self, network: nn.Module, epochs: int) -> list[list[nn.Parameter]]:
        first, _, last = network.children()
        return [list(first.parameters()), list(last.parameters())]


class TellsDraw(Method):
    """Tells what the last step drew at random."""

    name = "tells_draw"

    def answer(self, local: Local, inputs: Tensor) -> tuple[Tensor, None]:
        local.sent["draw"] = {"draw": torch.rand(4)}
        return local.network(inputs), None


class Ends(Method):
    """Ends the second process at its first batch, as a full memory does."""

    name = "ends"

    def answer(self, local: Local, inputs: Tensor) -> tuple[Tensor, None]:
        if get_rank() == 1:
            os._exit(9)
        return local.network(inputs), None


TRAININGS = {
    "mean": Training(plain, lambda: open_method("mean", {}), equal=False),
    "scaffold": Training(plain, lambda: open_method("scaffold", {}), equal=False),
    "fedprox": Training(plain, lambda: open_method("fedprox", {"mu": 0.5}), equal=False, copies=1),
    "term": Training(plain, lambda: WithTerm(MethodOptions())),
    "ends": Training(plain, lambda: Ends(MethodOptions())),
    "unet": Training(
        lambda: ResidualUNet(widths=(4, 8), dropout=0.0, classes=2), lambda: open_method("mean", {}), copies=1
    ),
    "grading": Training(
        lambda: GradingNetwork("small", 3, "released"), lambda: open_method("fedbn", {}), grades=True, rate=0.01
    ),
    "followed": Training(
        lambda: ResidualUNet(widths=(4, 8), dropout=0.0, classes=2), lambda: open_method("mean", {}), refreshes=False
    ),
    "dropout": Training(
        lambda: ResidualUNet(widths=(4, 8), dropout=0.5, classes=2), lambda: TellsDraw(MethodOptions())
    ),
}


def photographs() -> list[GradedImage]:
    levels = torch.randint(0, 256, (7, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return [GradedImage(f"eye-{index}", image.numpy(), index % 3) for index, image in enumerate(levels)]


def segmented(equal: bool) -> list[SegmentedImage]:
    made = []
    for index in range(7):
        side = 16 if equal else 16 + 16 * (index % 2) - index
        image = torch.rand(side, side, generator=torch.Generator().manual_seed(index))
        made.append(SegmentedImage(f"eye-{index}", image.numpy(), (image > 0.6).byte().numpy()))
    return made


def train(name: str, computing: Computing = EXACT) -> dict[str, Any]:
    """What a training comes to: all tensors of the network, what was told of each epoch, the uncertainties."""
    training = TRAININGS[name]
    task: Any = GRADES if training.grades else PIXELS
    samples: Any = photographs() if training.grades else segmented(training.equal)
    torch.manual_seed(3)
    network, method, objective = training.network(), training.method(), CrossEntropy()
    shared = [name for name, _ in network.named_parameters()]
    control = {name: torch.full_like(parameter, 0.01) for name, parameter in network.named_parameters()}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in control.items()}
    local = Local(network, shared=shared, state={"control": control}, kept={"control": zeros})
    optimizer = torch.optim.SGD(network.parameters(), lr=training.rate, momentum=0.5)
    augmentation = Augmentation(copies=training.copies, originals=True)
    told = []
    for number, moving in enumerate(method.phases(network, 2)):
        for parameter in network.parameters():
            parameter.requires_grad_(any(parameter is other for other in moving))
            parameter.grad = None
        trained = train_epoch(
            task,
            method,
            local,
            optimizer,
            samples,
            epoch=Epoch(training.rate, 4, 5 + number, augmentation, refreshes=training.refreshes),
            objective=objective,
            on_batch=lambda done, total: None,
            computing=computing,
        )
        told += [trained, evaluate(task, network, samples, objective, computing)]
    method.finish(local)
    return {
        "network": network.state_dict(),
        "sent": local.sent,
        "told": [
            {"images": one.images, "loss": one.loss, **{name: score.value for name, score in one.scores.items()}}
            for one in told
        ],
        "uncertainty": torch.from_numpy(
            measure_uncertainty(task, network, samples, objective, 1, computing=computing).uncertainty
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    (wanted, folder), (own, of) = (sys.argv[1], Path(sys.argv[4])), map(int, sys.argv[2:4])
    with joined(own, of, FileStore(str(folder / "store"), of), gpu=False) as all_of_us:
        micro_batch = int(sys.argv[5]) if sys.argv[5:] else None
        computing = Computing(processes=all_of_us, micro_batch=micro_batch)
        torch.save(train(wanted, computing), folder / f"{own}.pt")
