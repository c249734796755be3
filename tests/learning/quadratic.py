"""A task of one number, so that methods can be worked out by hand and played by the very code that trains networks.

A site's images are all alike: its curvature a and its optimum b. The network holds w, and gives an image's class the
likelihood of a Gaussian: p = exp(−q) / 2 with q = ½ a (w − b)². So the cross-entropy is q + log 2, and its gradient is
a (w − b), whatever the batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from shared.exchange.reading import check_record
from shared.exchange.records.run import Range, RunConfiguration
from shared.exchange.weights import TensorFile
from shared.learning import tasks
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.sets import Members
from shared.learning.data.units import Unit
from shared.learning.metrics import Score
from shared.learning.objectives import Objective
from shared.learning.tasks.contract import Collection, Dataset, Scoring
from shared.learning.tasks.terms import Options, Terms

TASK = "quadratic"
SITE_FILE = "quadratic.json"


class QuadraticOptions(Options):
    """Where w begins, and what moves it."""

    w0: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.0


@dataclass(frozen=True)
class Point:
    """An "image": a and b."""

    id: str
    a: float
    b: float


class QuadraticNetwork(nn.Module):
    """(B, 2) of a and b -> (B, 2) logarithms of probabilities."""

    classes = 2
    heads = ()

    def __init__(self, w0: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w0]))

    def forward(self, inputs: Tensor) -> Tensor:
        q = 0.5 * inputs[:, 0] * (self.w - inputs[:, 1]) ** 2
        return torch.stack([-q - math.log(2), torch.log1p(-torch.exp(-q) / 2)], dim=1)

    def features(self, inputs: Tensor) -> Tensor:
        return inputs


class LikelihoodScoring(Scoring[list[float]]):
    """The mean likelihood."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def look(self, logits: Tensor, targets: Tensor) -> list[float]:
        likelihoods: list[float] = self._objective.probabilities(logits)[:, 0].tolist()
        return likelihoods

    def scores(self, looks: Sequence[list[float]]) -> dict[str, Score]:
        found = [likelihood for look in looks for likelihood in look]
        return {"likelihood": Score(math.fsum(found) / len(found), len(found))}


class Quadratic:
    """See above."""

    name = TASK
    selection_score = "likelihood"
    tolerance_scores = main_scores = ("likelihood",)
    advice = ""
    labels_pixels = head_is_local = False
    scores: Mapping[str, Range] = {}
    varied: list[int] = []
    """The seeds of all augmented copies that were made."""

    def options(self, raw: Mapping[str, object]) -> QuadraticOptions:
        return check_record(raw, QuadraticOptions, "task_options")

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        return check_record({"copies": 0, **raw}, Augmentation, "augmentation")

    def build_model(self, options: QuadraticOptions, classes: int, seed: int) -> nn.Module:
        return QuadraticNetwork(options.w0)

    def load_initial_weights(self, model: nn.Module, options: QuadraticOptions, folders: Sequence[Path]) -> None:
        return None  # w0

    def units(self, root: Path) -> list[Unit]:
        return [Unit(name, (hashlib.sha256(name.encode()).hexdigest(),), "") for name in ("a", "b", "c")]

    def input_shape(self, options: QuadraticOptions) -> tuple[int, ...]:
        return (2,)

    def open_dataset(self, root: Path, options: QuadraticOptions, members: Members) -> Dataset[Point]:
        """The file says itself how many images are in the training set."""
        told = json.loads((root / SITE_FILE).read_text())
        train, *others = (
            tuple(Point(f"{name}-{number}", told["a"], told["b"]) for number in range(count))
            for name, count in (("train", told["n"]), ("validation", 2), ("test", 2))
        )
        return Dataset(train, *others, ("target", "other"))

    def unlabelled_units(self, path: Path) -> list[Unit]:
        raise NotImplementedError

    def open_images(self, root: Path, options: QuadraticOptions) -> Collection[Point]:
        raise NotImplementedError

    def open_unlabelled(self, path: Path, options: QuadraticOptions) -> list[Point]:
        raise NotImplementedError

    def optimizer(self, model: nn.Module, options: QuadraticOptions, learning_rate: float) -> torch.optim.Optimizer:
        if options.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=learning_rate)
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=options.momentum)

    def vary(self, sample: Point, augmentation: Augmentation, seed: int) -> Point:
        self.varied.append(seed)
        return sample

    def collate(self, samples: Sequence[Point]) -> tuple[Tensor, Tensor]:
        return torch.tensor([[point.a, point.b] for point in samples]), torch.zeros(len(samples), dtype=torch.int64)

    def batches(self, samples: Sequence[Point]) -> list[Sequence[Point]]:
        return [samples]

    def scoring(self, objective: Objective) -> LikelihoodScoring:
        return LikelihoodScoring(objective)


def know_the_task(monkeypatch) -> None:
    """Have configurations call it by its name, for one test."""
    monkeypatch.setitem(tasks.TERMS, TASK, Terms)
    monkeypatch.setitem(sys.modules, f"{tasks.__name__}.{TASK}.task", sys.modules[__name__])
    monkeypatch.setattr(Quadratic, "varied", [])


def sites_of(home: Path, a: Sequence[float], b: Sequence[float], n: Sequence[int] = ()) -> dict[str, Path]:
    """Data folders of sites 0, 1, ... with these curvatures, optima and numbers of training images, 4 by default."""
    folders = {}
    for number, (curvature, optimum, images) in enumerate(zip(a, b, n or [4] * len(a), strict=True)):
        folder = home / f"data-{number}"
        folder.mkdir()
        (folder / SITE_FILE).write_text(json.dumps({"a": curvature, "b": optimum, "n": images}))
        folders[str(number)] = folder
    return folders


def run_of(method: str, sites: Sequence[str], **further: object) -> RunConfiguration:
    """Four rounds of three steps of 0.1 each, all images at once, but for what is told otherwise."""
    plain = {"rounds": 4, "epochs": 3, "batch_size": 4096, "learning_rate": {"initial": 0.1, "period": 1}}
    told = {"run": "quadratic", "task": TASK, "method": method, "sites": list(sites)}
    return RunConfiguration.model_validate({**told, **plain, **further})


def w_of(path: Path, name: str = "w") -> float:
    """The number in a file."""
    return float(TensorFile(path).tensor(name)[0])
