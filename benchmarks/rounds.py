"""A federation's rounds in one process: the daemons' own training, weights and mean, without folders in between.

For comparing methods: what a site trains, sends and keeps, and how the aggregator combines it, is the code that the
daemons run, on the same files; what the run's form of weights rounds is rounded. Left out are transfer, signatures,
consent and the tolerance check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import yaml

from aggregator.combine import combine
from shared.exchange.encoding import decode, encode
from shared.exchange.names import METRICS, RELIABILITY
from shared.exchange.records import PLAIN, RunConfiguration, TensorList, Wire
from shared.exchange.tables import MetricsRow, read_metrics
from shared.learning.methods import method_named
from shared.learning.methods.contract import Contribution
from shared.learning.methods.sharing import sharing
from shared.learning.model_files import round_tensors, save_tensors
from shared.learning.schedules import round_configuration
from shared.learning.seeds import seed_for, split_seed
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Dataset
from site_client.configuration import Policy
from site_client.train import Files, Trainer


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Args:
        chosen: the aggregate with the best mean validation score.
        tests: each site's row on its test images, of that aggregate with the site's own parts.
        thetas: by round and site, where the method has θ sent.
        weights: by round and site.
    """

    chosen: int
    tests: dict[str, MetricsRow]
    thetas: dict[int, dict[str, float]]
    weights: dict[int, dict[str, float]]


def run_rounds(run: RunConfiguration, data: Mapping[str, Path], home: Path) -> Outcome:
    """Plays a run to its end.

    Args:
        data: each site's data folder.
        home: a new folder for the aggregates, ``0001.safetensors``, what each site trained in a round,
            ``SITE.0001.safetensors``, and what stays at the sites.
    """
    task, method = task_named(run.task), method_named(run.method)
    options = task.options(run.task_options)
    model = task.build_model(options, 2, seed_for(run.seed, "initial model"))
    listed = sharing(task, method, model)
    current, start = home / "0000.safetensors", home / "start.safetensors"
    round_tensors(model, listed.shared, run.wire.numbers)
    save_tensors(model, listed.shared, current)
    if listed.start:
        save_tensors(model, listed.beginning, start)
    sites = {name: Trainer(run, listed, folder, Policy(minimum_count=2), device="cpu") for name, folder in data.items()}
    datasets = {name: trainer.open_dataset(split_seed(run.seed, name)) for name, trainer in sites.items()}
    kept: dict[str, Path] = {}
    rows: dict[int, dict[str, list[MetricsRow]]] = {}
    thetas: dict[int, dict[str, float]] = {}
    weights: dict[int, dict[str, float]] = {}
    for round_no in range(1, run.rounds + 2):
        trained: dict[str, Path] = {}
        for name, trainer in sites.items():
            files = Files(
                received=current,
                start=start if listed.start else None,
                personal=kept.get(name),
                trained=home / f"{name}.{round_no:04d}.safetensors",
                kept=home / f"{name}.{round_no:04d}.kept.safetensors",
            )
            configuration = round_configuration(run, round_no, name)
            tables = trainer.work(datasets[name], configuration, files, lambda percent: None).tables
            rows.setdefault(round_no - 1, {})[name] = read_metrics(tables[METRICS], METRICS)
            if RELIABILITY in tables:
                thetas.setdefault(round_no, {})[name] = yaml.safe_load(tables[RELIABILITY])["theta"]
            if configuration.epochs:
                trained[name] = _as_received(files.trained, listed.shared, run.wire, current)
                if files.kept.exists():
                    kept[name] = files.kept
        if trained:
            weights[round_no] = method.weights(
                {name: _contribution(datasets[name], thetas.get(round_no, {}).get(name)) for name in trained}
            )
            current = home / f"{round_no:04d}.safetensors"
            combine(
                current,
                listed.shared,
                {trained[name]: weight for name, weight in weights[round_no].items()},
                run.wire.numbers,
            )
    chosen = max(rows, key=lambda aggregate: (_mean_validation(rows[aggregate], task.selection_score), -aggregate))
    tests = {name: _received(table, "test") for name, table in rows[chosen].items()}
    return Outcome(chosen, tests, thetas, weights)


def _as_received(trained: Path, tensors: TensorList, wire: Wire, received: Path) -> Path:
    """What the aggregator has of a trained model."""
    if wire == PLAIN:
        return trained
    encoded, decoded = trained.with_suffix(".encoded"), trained.with_suffix(".decoded")
    encode(trained, encoded, tensors, wire, received)
    decode(encoded, decoded, tensors, wire, received, shown_as=trained.name)
    return decoded


def _contribution(dataset: Dataset, theta: float | None) -> Contribution:
    return Contribution(images=len(dataset.train), theta=theta)


def _received(table: list[MetricsRow], split: str) -> MetricsRow:
    return next(row for row in table if row.epoch == 0 and row.split == split)


def _mean_validation(tables: dict[str, list[MetricsRow]], score: str) -> float:
    values = [_received(table, "validation").scores[score] for table in tables.values()]
    return fmean(value for value in values if value is not None)
