"""Where curves can be drawn: TensorBoard's event files, and an MLflow server. Both packages are extras.

Each asks its own files, or its server, what is there already, so that nothing is written twice.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aggregator.store import RunStore
from shared.audit.difference import flat
from shared.exchange import names
from shared.exchange.records.values import decimal_text
from shared.folder.durable import hash_file, write_file

_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE, _LONGEST_PARAMETER = 1000, 100, 6000  # what MLflow takes
_UNLESS_SET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would tell its makers of each use
    # By its own 120 s and 7 retries, nobody hears for 20 minutes that a server hangs; we try again anyway.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
"""MLflow's environment variables."""
_DONE = "round"
"""The curve in MLflow that a round is on once all the others have it."""


class Point(NamedTuple):
    """One number of one curve. ``step``: the round; of a model's scores, the round in which the model was made."""

    name: str
    step: int
    value: float


class Settled(NamedTuple):
    """A round that is settled, what is drawn of it, and when it was settled, in seconds since 1970."""

    round_no: int
    points: Sequence[Point]
    at: float


class Sink(Protocol):
    """Where the curves of one run are drawn."""

    def write(self, rounds: Sequence[Settled]) -> None:
        """Write what is missing here of these rounds: all that are settled, in order."""

    def end(self, chosen_round: int | None, at: float | None) -> None:
        """Record that the run has ended; a second call changes nothing.

        Args:
            chosen_round: whose aggregate was chosen; None if the run never started.
            at: when its last round was settled, in seconds since 1970; None if it had none.
        """


class TensorBoard:
    """A folder with one event file for each settled round; a file that is there is complete.

    Args:
        folder: the run's own below the one that TensorBoard is shown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, rounds: Sequence[Settled]) -> None:
        """Write one file for each round that has none."""
        for settled in rounds:
            path = self._folder / f"events.out.tfevents.{settled.round_no:010d}.dropfed"
            if not path.exists():
                begun = self._folder / f"round-{settled.round_no:04d}.begun"  # no name that TensorBoard looks at
                write_file(begun, _event_file(settled))
                begun.replace(path)

    def end(self, chosen_round: int | None, at: float | None) -> None:
        """Do nothing: event files know no end."""


def _event_file(settled: Settled) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  (an extra)
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

    file = io.BytesIO()
    writer = RecordWriter(file)
    writer.write(Event(wall_time=settled.at, file_version="brain.Event:2").SerializeToString())
    for point in settled.points:
        summary = Summary(value=[Summary.Value(tag=point.name, simple_value=point.value)])
        writer.write(Event(wall_time=settled.at, step=point.step, summary=summary).SerializeToString())
    return file.getvalue()


class Mlflow:
    """One MLflow run in the experiment that is named as the federation.

    It is known by the hash of the ``run.yaml``, and by when the run was begun: a rehearsal may have had the same file.

    Args:
        uri: of a tracking server; who we are there, MLflow's own environment variables say.
    """

    def __init__(self, uri: str, federation: str, store: RunStore) -> None:
        for name, value in _UNLESS_SET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # noqa: PLC0415  (an extra)
        from mlflow.entities import Param  # noqa: PLC0415

        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(federation)
        number = experiment.experiment_id if experiment else self._client.create_experiment(federation)
        sha256, begun = hash_file(store.home / names.RUN_CONFIGURATION)[1], decimal_text(store.begun_at)
        tags = {"dropfed.run_yaml": sha256, "dropfed.begun": begun}
        ours = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        found = self._client.search_runs([number], filter_string=ours, max_results=1)
        start = int(store.begun_at * 1000)
        run = found[0] if found else self._client.create_run(number, start, run_name=store.run, tags=tags)
        self._id: str = run.info.run_id
        self._has_ended = run.info.end_time is not None
        settings = flat("", store.configuration().model_dump(mode="json"))
        parameters = [Param(key, str(value)[:_LONGEST_PARAMETER]) for key, value in settings]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[start : start + _PARAMETERS_AT_ONCE])
        self._done = self._steps(_DONE)
        self._has_written = False  # what was there before may end in the midst of a round

    def write(self, rounds: Sequence[Settled]) -> None:
        """Log the points of each round that is not done; of a round that was begun before, only the missing ones."""
        from mlflow.entities import Metric  # noqa: PLC0415  (an extra)

        for settled in rounds:
            if settled.round_no in self._done:
                continue
            there = {} if self._has_written else self._there()
            self._has_written = True
            missing = [point for point in settled.points if point.step not in there.get(point.name, ())]
            at = int(settled.at * 1000)
            metrics = [Metric(point.name, point.value, at, point.step) for point in missing]
            for start in range(0, len(metrics), _METRICS_AT_ONCE):
                self._client.log_batch(self._id, metrics=metrics[start : start + _METRICS_AT_ONCE])
            self._client.log_metric(self._id, _DONE, settled.round_no, timestamp=at, step=settled.round_no)
            self._done.add(settled.round_no)

    def end(self, chosen_round: int | None, at: float | None) -> None:
        """Record which aggregate was chosen, and that the run is over, unless that is there."""
        if self._has_ended:
            return
        if chosen_round is not None:
            self._client.set_tag(self._id, "dropfed.chosen_round", str(chosen_round))
        status = "FAILED" if chosen_round is None else "FINISHED"
        self._client.set_terminated(self._id, status, None if at is None else int(at * 1000))
        self._has_ended = True

    def _there(self) -> dict[str, set[int]]:
        return {name: self._steps(name) for name in self._client.get_run(self._id).data.metrics}

    def _steps(self, name: str) -> set[int]:
        return {metric.step for metric in self._client.get_metric_history(self._id, name)}
