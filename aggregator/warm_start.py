"""What training begins with where a run names an earlier run's chosen model.

RUN.yaml says its name and its SHA-256, and the sites are offered just that. The files themselves are found here: as
what a run of this work directory has chosen, or in ``WORK/weights/NAME``, where somebody put what ``export`` wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from aggregator.configuration import PUBLISHED_WEIGHTS
from aggregator.store import RunStore
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration, Start
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.weights import TensorFile, check_tensors
from shared.folder.durable import hash_file
from shared.learning.methods import open_method
from shared.learning.model_files import load_tensors
from shared.learning.sharing import network_of, sharing
from shared.learning.tasks import task_named


def earlier_run(work: Path, name: str) -> RunConfiguration:
    """Return the settings of the run of which a model comes that training may begin with.

    Raises:
        ConfigurationError: there is no such model.
    """
    model, _ = _files(work, name)
    folder = RunStore(work, name).home if model.parent.name == "final" else model.parent
    path = folder / names.RUN_CONFIGURATION
    if not path.is_file():
        raise ConfigurationError([f"start: {path} is missing; export the model anew"])
    return parse_yaml(path.read_bytes(), RunConfiguration, str(path))


def start_of(work: Path, run: RunConfiguration, name: str) -> Start:
    """Return what a run says of the model that it begins with; hash and structure are checked.

    Raises:
        ConfigurationError: as for ``load_start``.
    """
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    model = network_of(run, task, method)
    division, (model_file, start_file) = sharing(task, method, model), _files(work, name)
    once = hash_file(start_file)[1] if division.start and start_file.exists() else None
    start = Start(name=name, sha256=hash_file(model_file)[1], start_sha256=once)
    load_start(model, division.model_copy(update={"from_file": []}), start, work)  # no published weights are in it yet
    return start


def load_start(model: nn.Module, division: Sharing, start: Start, work: Path) -> None:
    """Put an earlier run's chosen model into a new run's network.

    Args:
        division: what of the network travels, and what comes but once.

    Raises:
        ConfigurationError: it is not there, is another than the run names, or has other tensors.
    """
    model_file, start_file = _files(work, start.name)
    _load(model, division.shared, model_file, "sha256", start.sha256)
    if division.start:
        _load(model, division.beginning, start_file, "start_sha256", start.start_sha256, same=division.from_file)
    elif start.start_sha256 is not None:
        raise ConfigurationError(["start: start_sha256: nothing of this run comes but once; leave it out"])


def _files(work: Path, name: str) -> tuple[Path, Path]:
    home, exports = RunStore(work, name).home, work / PUBLISHED_WEIGHTS / name
    for model, beside in ((home / "final" / names.FINAL_MODEL, home), (exports / names.FINAL_MODEL, exports)):
        if model.exists():
            return model, beside / names.START
    raise ConfigurationError(
        [
            f"start: {name} is no run here that has ended with a model, and {exports} is not there: put into it "
            f"what `dropfed-aggregator export {name} --output DIR` wrote"
        ]
    )


def _load(
    model: nn.Module, listed: TensorList, file: Path, key: str, sha256: str | None, *, same: Sequence[str] = ()
) -> None:
    """Put a file into a model; ``same``: the tensors that must be there already, just as in the file."""
    if not file.exists():
        raise ConfigurationError([f"start: {file} is missing, and this run needs what comes but once; export it anew"])
    if (found := hash_file(file)[1]) != sha256:
        said = f"not {sha256}" if sha256 else "and the run says none"
        raise ConfigurationError([f"start: {key}: {file} has the SHA-256 {found}, {said}; write that if it is the one"])
    try:
        check_tensors(file, listed, file.name)
    except RejectedError as error:
        why = "a run begins with a model of its own task, encoder and train"
        raise ConfigurationError([f"start: {file}: {error.reason}; {why}"]) from None
    state, opened = model.state_dict(), TensorFile(file)
    if any((opened.tensor(name) != state[name].numpy()).any() for name in same):
        why = "has another frozen encoder than the file of weights, from which sites take theirs"
        raise ConfigurationError([f"start: {file}: {why}; name the file that it began with, or leave at_sites out"])
    load_tensors(model, listed, file)
