"""What training begins with where a run names an earlier run's chosen model.

RUN.yaml says its name and its SHA-256, and the sites are offered just that. The files themselves are found here: as
what a run of this work directory has chosen, or in ``WORK/weights/NAME``, where somebody put what ``export`` wrote.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.records.run import Start
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.weights import check_tensors
from shared.folder.durable import hash_file
from shared.learning.model_files import load_tensors


def load_start(model: nn.Module, division: Sharing, start: Start, home: Path, exports: Path) -> None:
    """Put an earlier run's chosen model into a new run's network.

    Args:
        division: what of the network travels, and what comes but once.
        home: where that run would lie in this work directory.
        exports: the folder of exported models.

    Raises:
        ConfigurationError: it is not there, is another than the run names, or has other tensors.
    """
    model_file, start_file = _files(start, home, exports)
    _load(model, division.shared, model_file, "sha256", start.sha256)
    if division.start:
        _load(model, division.beginning, start_file, "start_sha256", start.start_sha256)
    elif start.start_sha256 is not None:
        raise ConfigurationError(["start: start_sha256: nothing of this run comes but once; leave it out"])


def _files(start: Start, home: Path, exports: Path) -> tuple[Path, Path]:
    for model, beside in ((home / "final" / names.FINAL_MODEL, home), (exports / names.FINAL_MODEL, exports)):
        if model.exists():
            return model, beside / names.START
    raise ConfigurationError(
        [
            f"start: {start.name} is no run here that has ended with a model, and {exports} is not there: put into it "
            f"what `dropfed-aggregator export {start.name}` wrote"
        ]
    )


def _load(model: nn.Module, listed: TensorList, file: Path, key: str, sha256: str | None) -> None:
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
    load_tensors(model, listed, file)
