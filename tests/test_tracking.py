"""Curves in TensorBoard and MLflow: each point once, whatever ends when, and no trouble for the run."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aggregator import tracking
from aggregator.cli import main
from aggregator.configuration import AggregatorConfiguration, Tracking
from aggregator.run_view import view_run
from aggregator.setup import initialise
from aggregator.sinks import Mlflow, Settled
from aggregator.site import PUBLISHED, open_ledger
from aggregator.store import RunStore
from aggregator.tracking import Tracker, tracker
from shared.errors import ConfigurationError
from shared.exchange.reading import parse_yaml
from shared.exchange.signing import canonical
from shared.software import installing
from tests.played import RUN, ended_run


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunStore]:
    home = tmp_path_factory.mktemp("played")
    _, store = ended_run(home)
    return home / "aggregator", store


@pytest.fixture
def rounds(ended: tuple[Path, RunStore]) -> list[Settled]:
    return [tracking.settled(each) for each in view_run(*ended).rounds]


def expected(rounds: Sequence[Settled]) -> list[tuple[str, int, float]]:
    return sorted((point.name, point.step, pytest.approx(point.value)) for each in rounds for point in each.points)


def feed(ended: tuple[Path, RunStore], **wanted: str) -> None:
    """What a launch does between its beginning and its end."""
    found = tracker(*ended, Tracking(**wanted), "retina")
    assert found is not None
    with found:
        pass


def test_what_is_drawn(rounds: list[Settled]) -> None:
    assert [each.round_no for each in rounds] == [1, 2]
    first = {(point.name, point.step): point.value for point in rounds[0].points}
    assert {name for name, _ in first} == {
        "score/north",
        "theta/north",
        "weight/north",
        "seconds/north",
        "seconds/round open",
        "bytes_down/north",
        "bytes_up/north",
        "validation_dice_std/north",
        "validation_dice_std/mean over sites",
    }
    assert first["theta/north", 1] == 0.25
    second = {(point.name, point.step): point.value for point in rounds[1].points}
    assert second["validation_dice_mean/north", 1] == second["validation_dice_mean/mean over sites", 1] == 0.5
    assert "weight/north" not in {name for name, _ in second}


# --- TensorBoard -----------------------------------------------------------------------------------------------


def drawn_by_tensorboard(folder: Path) -> list[tuple[str, int, float]]:
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    found = module.EventAccumulator(str(folder))
    found.Reload()
    return sorted((tag, each.step, each.value) for tag in found.Tags()["scalars"] for each in found.Scalars(tag))


def test_tensorboard_reads_every_point_once(
    ended: tuple[Path, RunStore], rounds: list[Settled], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    folder = tmp_path / tracking.folder_name(ended[1])
    feed(ended, tensorboard=str(tmp_path))
    assert drawn_by_tensorboard(folder) == expected(rounds)
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(files) == 2
    feed(ended, tensorboard=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files
    last = max(files)  # and if the power had gone while it was written:
    (folder / "round-0002.begun").write_bytes(last.read_bytes()[:20])
    last.unlink()
    assert drawn_by_tensorboard(folder) == expected(rounds[:1])
    feed(ended, tensorboard=str(tmp_path))
    assert drawn_by_tensorboard(folder) == expected(rounds)
    assert {path.name for path in folder.iterdir()} == {path.name for path in files}


def test_only_settled_rounds_are_drawn(ended: tuple[Path, RunStore], rounds: list[Settled], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    work = tmp_path / "work"
    shutil.copytree(ended[0], work)
    store = RunStore(work, RUN)
    (store.home / "final" / "card.json").rename(tmp_path / "card.json")
    feed((work, store), tensorboard="curves")
    assert drawn_by_tensorboard(work / "curves" / tracking.folder_name(RunStore(work, RUN))) == expected(rounds[:1])
    (tmp_path / "card.json").rename(store.home / "final" / "card.json")
    feed((work, store), tensorboard="curves")
    assert drawn_by_tensorboard(work / "curves" / tracking.folder_name(RunStore(work, RUN))) == expected(rounds)


def test_a_launch_after_the_end_draws_what_is_missing(
    ended: tuple[Path, RunStore], rounds: list[Settled], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    work = tmp_path / "work"
    shutil.copytree(ended[0], work)
    wanted = yaml.safe_load((work / "aggregator.yaml").read_bytes()) | {"track": {"tensorboard": "curves"}}
    (work / "aggregator.yaml").write_text(yaml.safe_dump(wanted))
    ledger = open_ledger(home := work / "sites" / "north")
    assert ledger is not None
    (home / PUBLISHED).write_bytes(canonical(ledger.own_head.model_dump()))  # its hospital has been told
    launched = CliRunner().invoke(main, ["launch", str(work / "runs" / RUN / "run.yaml"), "--work", str(work)])
    assert f"{RUN} has ended already: " in launched.output
    assert drawn_by_tensorboard(work / "curves" / tracking.folder_name(RunStore(work, RUN))) == expected(rounds)


@pytest.fixture
def again(ended: tuple[Path, RunStore], tmp_path: Path) -> tuple[Path, RunStore]:
    """The run once more, by the same ``run.yaml``, begun a day after its rehearsal."""
    work = tmp_path / "again"
    shutil.copytree(ended[0], work)
    store = RunStore(work, RUN)
    (store.home / "begun").write_text(str(store.begun_at + 86400))
    return work, store


def test_tensorboard_draws_a_run_after_its_rehearsal(
    ended: tuple[Path, RunStore], again: tuple[Path, RunStore], rounds: list[Settled], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    for launched in (ended, again):
        feed(launched, tensorboard=str(tmp_path / "curves"))
        assert drawn_by_tensorboard(tmp_path / "curves" / tracking.folder_name(launched[1])) == expected(rounds)
    assert len([*(tmp_path / "curves").iterdir()]) == 2


# --- MLflow ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


def in_mlflow(client: Any) -> tuple[Any, list[tuple[str, int, float]]]:
    """The one run that is there, and its points, but for those that say which rounds are done."""
    experiment = client.get_experiment_by_name("retina")
    (run,) = client.search_runs([experiment.experiment_id])
    history = [each for name in run.data.metrics for each in client.get_metric_history(run.info.run_id, name)]
    assert sorted(each.step for each in history if each.key == "round") == sorted({*(e.step for e in history)} - {0})
    return run, sorted((each.key, each.step, each.value) for each in history if each.key != "round")


def test_mlflow_reads_every_point_once(
    ended: tuple[Path, RunStore], rounds: list[Settled], tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)

    class Cut(Exception):  # noqa: N818
        pass

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with monkeypatch.context() as cutting, pytest.raises(Cut):
        cutting.setattr(mlflow.MlflowClient, "log_metric", cut)  # ends before the first round is known to be done
        Mlflow(uri, "retina", ended[1]).write([rounds[0]._replace(points=rounds[0].points[::2])])
    feed(ended, mlflow=uri)
    run, points = in_mlflow(client)
    assert points == expected(rounds)
    assert (run.info.run_name, run.info.status, run.data.tags["dropfed.chosen_round"]) == (RUN, "FINISHED", "1")
    assert (run.data.params["method"], run.data.params["task_options.image_size"]) == ("mean", "32")
    assert run.info.start_time == int(ended[1].begun_at * 1000)
    assert run.info.end_time == int(rounds[-1].at * 1000)
    client.set_terminated(run.info.run_id, "FINISHED", 7)
    feed(ended, mlflow=uri)
    again, there = in_mlflow(client)
    assert (there, again.info.end_time) == (points, 7)  # what is there stays


def test_mlflow_draws_a_run_after_its_rehearsal(
    ended: tuple[Path, RunStore], again: tuple[Path, RunStore], tmp_path: Path, mlflow: Any
) -> None:
    uri = (tmp_path / "mlruns").as_uri()
    for launched in (ended, again, again):
        feed(launched, mlflow=uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name("retina").experiment_id])
    assert [run.info.run_name for run in found] == [RUN, RUN]
    assert {float(run.data.tags["dropfed.begun"]) for run in found} == {ended[1].begun_at, again[1].begun_at}


# --- trouble ---------------------------------------------------------------------------------------------------


class Broken:
    """Always fails, each time in other words."""

    def __init__(self) -> None:
        self.times = 0

    def write(self, rounds: Sequence[Settled]) -> None:
        self.times += 1
        raise RuntimeError(f"is broken\nfor the {self.times}th time")

    def end(self, chosen_round: int | None, at: float | None) -> None:
        raise AssertionError("nothing was written")


class Whole:
    def __init__(self) -> None:
        self.rounds: Sequence[Settled] = ()
        self.ended: list[tuple[int | None, float | None]] = []

    def write(self, rounds: Sequence[Settled]) -> None:
        self.rounds = rounds

    def end(self, chosen_round: int | None, at: float | None) -> None:
        self.ended.append((chosen_round, at))


def test_a_failing_sink_is_warned_of_once_and_harms_nobody(
    ended: tuple[Path, RunStore],
    rounds: list[Settled],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(tracking, "AFTER_TROUBLE_S", 0.0)
    broken, whole = Broken(), Whole()
    with caplog.at_level(logging.INFO), Tracker(*ended, {"Broken": lambda: broken, "Whole": lambda: whole}):
        while broken.times < 3:
            time.sleep(0.001)
    assert [record.getMessage() for record in caplog.records] == [
        "tracking by Broken: RuntimeError: is broken for the 1th time. Trying again until it works."
    ]
    assert list(whole.rounds) == rounds
    assert set(whole.ended) == {(1, rounds[-1].at)}


def test_a_sink_that_hangs_holds_no_other_up_and_is_told_of_at_the_end(
    ended: tuple[Path, RunStore],
    rounds: list[Settled],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(tracking, "LAST_LOOK_S", 0.01)
    whole, goes_on = Whole(), threading.Event()

    def hangs() -> Whole:
        goes_on.wait()
        return Whole()

    with Tracker(*ended, {"Hanging": hangs, "Whole": lambda: whole}):
        while not whole.ended:
            time.sleep(0.001)
    goes_on.set()
    assert list(whole.rounds) == rounds
    told = [record.getMessage() for record in caplog.records]
    assert "tracking by Hanging is not done yet: `launch` once more writes what is missing" in told


def test_a_missing_extra_is_said_once(
    ended: tuple[Path, RunStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("tensorboard", "mlflow", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    feed(ended, tensorboard=str(tmp_path), mlflow="http://127.0.0.1:1")
    said = sorted(record.getMessage() for record in caplog.records)
    assert [line.partition(" is not installed: ")[2] for line in said] == [
        f"run {installing('mlflow')}, and launch once more. Trying again until it works.",
        f"run {installing('tensorboard')}, and launch once more. Trying again until it works.",
    ]
    assert not list(tmp_path.rglob("*tfevents*"))


def test_an_address_with_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    initialise(tmp_path, "retina", {"north": "http://127.0.0.1/"}, "aggregator")
    path = tmp_path / "aggregator.yaml"
    settings = path.read_text().replace("mlflow: null", "mlflow: http://bob:hunter2@host/")
    with pytest.raises(ConfigurationError, match=r"track\.mlflow: must hold no user or password") as caught:
        parse_yaml(settings.encode(), AggregatorConfiguration, "aggregator.yaml")
    assert "hunter2" not in str(caught.value)


def test_nothing_is_tracked_unless_wanted(ended: tuple[Path, RunStore]) -> None:
    assert tracker(*ended, Tracking(), "retina") is None
