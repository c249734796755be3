"""The benchmarks that no other file plays reach their end: here on a few images, once, and nothing is recorded.

What is not played is made at least: the runs of every arm, and what stands in for training where bytes are measured.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    cross_tested,
    dr_methods,
    exchange,
    exchange_idle,
    memory,
    methods,
    partial_training,
    tolerance,
    training,
    training_choices,
    vessel_objectives,
    wire,
)
from benchmarks.exchange_federation import Home
from benchmarks.exchange_servers import embedded
from benchmarks.figures import FIGURES, Figure
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.wire import Wire
from shared.learning.methods import open_method
from shared.learning.run_checks import check_together
from shared.learning.tasks import task_named

SITES = ("rossa_manual", "rossa_semiautomatic")


def check_playable(run: RunConfiguration) -> None:
    """Demand that a run can be played: by a method that is a reference, on one machine."""
    task_named(run.task).options(run.task_options)
    if not open_method(run.method, run.method_options).reference:
        check_together(run)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_measures_a_figure_is_there(figure: Figure) -> None:
    assert find_spec(figure.command.split()[0])


@pytest.mark.parametrize(
    ("benchmark", "arguments"),
    [
        (dr_methods, []),
        (methods, ["grading"]),
        (methods, ["vessels", "DIR"]),
        (training_choices, ["octa", "DIR"]),
        (training_choices, ["staging"]),
        (vessel_objectives, ["octa", "DIR", *SITES]),
        (cross_tested, ["exudates", "DIR"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.__name__.rpartition(".")[2],
)
def test_every_arm_of_a_comparison_is_a_run_of_its_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, arguments: list[str]
) -> None:
    """On images that nobody draws here."""
    for number, (site, kind) in enumerate((site, kind) for site in SITES for kind in ("images", "masks")):
        (tmp_path / "DIR" / site / kind).mkdir(parents=True)
        for image in range(14):
            (tmp_path / "DIR" / site / kind / f"{number // 2}-{image:02d}.png").touch()
    played: list[str] = []

    def play(run: RunConfiguration, data: Mapping[str, Path], heldout: Path | None = None) -> None:
        check_playable(run)
        assert sorted(run.sites) == sorted(data)
        assert heldout is None or list((heldout / "images").iterdir())
        played.append(run.run)

    def compare(
        name: str, command: str, arms: Mapping[str, Callable[[int], None]], *, seeds: Sequence[int], **_: object
    ) -> None:
        assert name in {figure.name for figure in FIGURES}
        assert command == f".venv/bin/python -m {benchmark.__name__} {' '.join(arguments)}".strip()
        for arm in arms.values():
            arm(seeds[0])
        assert len(played) == len(arms) > 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploy.local.synthetic_fundus.write_graded_site", lambda *_, **__: None)
    monkeypatch.setattr(benchmark, "play_run" if benchmark is cross_tested else "play", play)
    monkeypatch.setattr(benchmark, "compare", compare)
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    benchmark.main()
    assert played


def test_every_federation_of_the_tolerances_and_of_the_forms_is_a_run() -> None:
    for case in tolerance.CASES.values():
        check_playable(tolerance.run_of(case, 1, ["east", "north", "south"]))
    for model in wire.MODELS.values():
        for numbers in wire.NUMBERS:
            check_playable(wire.run_of(model, Wire.model_validate({"numbers": numbers}), 1))


def test_a_large_networks_updates_are_weighed() -> None:
    of_all, of_updates = (partial_training.sizes("vit_b_16", train) for train in ("all", {"lora": {"rank": 8}}))
    assert of_all["bytes_once"] == 0 < of_updates["bytes_each_way"] < of_updates["bytes_once"]


@pytest.mark.parametrize(
    ("benchmark", "measuring"),
    [(exchange_idle, "idle"), (memory, "measure"), (partial_training, "table")],
    ids=["exchange-idle", "memory", "partial-training"],
)
def test_a_benchmark_that_is_ended_ends_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, measuring: str
) -> None:
    """By leaving the blocks in which daemons and servers run, as at Ctrl-C."""

    def end(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it went on")

    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(benchmark, measuring, end)
    try:
        with pytest.raises(SystemExit):
            benchmark.main()
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_record_of_the_exchange_names_the_sizes_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(exchange, "end_all_when_ended", lambda: None)
    monkeypatch.setattr(exchange, "compare", lambda *_, **__: {})
    monkeypatch.setattr(exchange, "PEERS", {})
    monkeypatch.setattr(memory, "measure", dict)
    monkeypatch.setattr(exchange, "markdown", lambda _: "")
    monkeypatch.setattr(exchange, "RESULTS", tmp_path)
    monkeypatch.setattr(exchange, "record", lambda name, command, figures: recorded.append(command))
    exchange.main([])
    exchange.main(["1", "98"])
    assert recorded == ["python -m benchmarks.exchange", "python -m benchmarks.exchange 1 98"]


@pytest.mark.long
def test_daemons_that_learn_nothing_exchange_rounds(tmp_path: Path) -> None:
    """What memory, and the requests of an idle hour, are measured with too."""
    rests: list[int] = []
    with embedded(tmp_path / "server", exchange.SITES) as served:
        (played,), peak_mb = exchange.dropfed(Home(tmp_path), served, 10**6, lambda: rests.append(1), measured=1)
    assert len(rests) == 2 and peak_mb > 0
    assert played.steps.keys() == set(exchange.SITES)
    assert all(list(ends) == sorted(ends) and ends[-1] <= played.seconds for ends in played.steps.values())


@pytest.mark.long
def test_forms_of_weights_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    name, numbers = "small encoder", "bfloat16"
    monkeypatch.setattr(wire, "NUMBERS", (numbers,))
    monkeypatch.setitem(wire.MODELS, name, replace(wire.MODELS[name], rounds=1, seeds=(1,)))
    found = json.loads(json.dumps(wire.measure(name)))["numbers"][numbers]
    (scores,) = found["test_auroc_by_seed"]
    assert all(0 <= score <= 1 for score in scores.values())
    assert [form["to_sites_mb"] > 0 for form in found["forms"].values()] == [True] * 4


def test_training_is_measured_as_a_site_computes() -> None:
    """On a GPU too, where there is one."""
    assert {(case.task, case.computing.precision) for case in training.cases() if case.computing.device == "cpu"} == {
        (task, precision) for task in training.NETS for precision in ("float32", "bfloat16")
    }


@pytest.mark.long
def test_a_sites_training_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in training.cases() if case.task == "octa_segmentation")
    monkeypatch.setattr(training, "REPEATS", {"cpu": 1})
    found = training.measure(replace(case, views=1))
    assert json.loads(json.dumps(found)) == found
    assert all(float(str(found[speed])) > 0 for speed in ("images_per_s", "bare_images_per_s"))
    assert str(found["net"]) in training.markdown([found])
