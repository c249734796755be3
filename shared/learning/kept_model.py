"""A trained model in a folder, opened: what a site keeps of a run, and what a PI hands on. Both are input from outside.

    WORK/final/RUN   card.yaml  model.safetensors                                    whole, with the site's own parts
    an export        run.yaml  model.safetensors  [start.safetensors]  [state-GROUP.safetensors]    what travelled
                     model-card.json     says the SHA-256 of the first two, which are compared if the card is there

Nothing in a folder is taken for a path or for code. Before anything computes with a tensor file, its names, shapes,
dtypes and numbers have been checked against what the described network has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from pydantic import ConfigDict
from torch import Tensor, nn

from shared.doors import Refusal
from shared.doors.schema import fill_json
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import MAX_RECORD_BYTES, RUN_CONFIGURATION
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.run import Plugin, RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.values import Digest, Record
from shared.exchange.weights import TensorFile, check_tensors
from shared.folder.durable import hash_file
from shared.learning.apart import WITH_PLUGINS
from shared.learning.kept_card import CARD, KeptCard
from shared.learning.methods import open_method
from shared.learning.methods.contract import Method
from shared.learning.model_files import load_tensors
from shared.learning.objectives import Objective
from shared.learning.plugins import permit, unpermitted
from shared.learning.sharing import ANY_CLASSES, build_network, sharing, staying
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Network, Task
from shared.learning.tasks.terms import EXTERNAL, Options
from shared.learning.uncertainty import FALLBACK_THETA

MODEL_CARD = "model-card.json"
NO_THETA = "an export has none: it is measured at a site"

_LARGEST_MODEL_CARD = 100_000_000  # bytes: it tells of each site
_AGAIN = "take the folder again from where the model was kept"


class _Hashed(Record):
    model_config = ConfigDict(extra="ignore")

    sha256: Digest


class _Inputs(Record):
    model_config = ConfigDict(extra="ignore")

    sha256: dict[str, Digest]


class _ModelCard(Record):
    """What is compared of ``model-card.json``."""

    model_config = ConfigDict(extra="ignore")

    model: _Hashed
    inputs: _Inputs


@dataclass(frozen=True)
class KeptModel:
    """A kept model, opened, on the CPU and in evaluation.

    Args:
        home: the folder.
        stays: the tensors that the folder does not hold, because each site has its own; not numbers, here.
    """

    home: Path
    card: KeptCard
    task: Task
    options: Options
    objective: Objective
    model: nn.Module
    stays: Sequence[str] = ()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of ``model.safetensors``."""
        return hash_file(self.home / names.FINAL_MODEL)[1]


def open_model(folder: Path) -> KeptModel:
    """Open a model that can be asked.

    Args:
        folder: where it lies, ``WORK/final/RUN`` or an export; or ``WORK/final``: the newest below it.

    Raises:
        ConfigurationError: it is not there, not whole, not what its card says, or of a plug-in that this process may
            not import.
    """
    kept = open_parts(folder)
    if kept.card.task == EXTERNAL:
        raise ConfigurationError(
            [f"{folder}: dropfed does not know this network; ask it by the program that trains it"]
        )
    if kept.stays:
        raise ConfigurationError(
            [
                f"{folder}: is not a whole model: {few(kept.stays)} stay at each site; "
                "use the model in WORK/final/RUN at a site"
            ]
        )
    told, has = len(kept.card.classes), cast(Network, kept.model).classes
    if told != has:
        raise ConfigurationError(
            [f"{folder}: its card names {told} classes, and the model has {has}; correct the card"]
        )
    return kept


def open_parts(folder: Path) -> KeptModel:
    """Open what a folder holds of a model, which need not be whole: parts of it may stay at the sites.

    Args:
        folder: where it lies, ``WORK/final/RUN`` or an export; or ``WORK/final``: the newest below it.

    Raises:
        ConfigurationError: it is not there, not what its card says, or of a plug-in that this process may not import.
    """
    home, card = described(folder)
    try:
        task, method = task_named(card.task), open_method(card.method, card.method_options)
        options: Options = task.options(card.task_options)
    except ConfigurationError as error:
        needed = unpermitted(card.plugins)
        lacking = [f"needs the plug-in {each}; install its wheel, and pass {WITH_PLUGINS} to run it" for each in needed]
        problems = lacking or error.problems
        raise ConfigurationError([f"{home}: {problem}" for problem in problems]) from None
    if not (home / CARD).exists():
        card = card.model_copy(update={"classes": [*(options.class_names or ())]})
    with torch.device("meta"):  # shapes without values: the files are checked before they cost any memory
        sketch = _network(card, task, method, options)
    parts, state = _files(home, sharing(task, method, sketch), sketch)
    for name, tensors in (parts | {names.state_file(group): listed for group, listed in state.items()}).items():
        _check(home / name, tensors)
    model = _network(card, task, method, options)
    _fill(model, method, home, parts, state)
    stays = sorted(name for name, tensor in _floats(model).items() if tensor.isnan().any())
    return KeptModel(home, card, task, options, method.objective(card.rounds, card.rounds), model.eval(), stays)


def untrained_network(
    task: str,
    task_options: Mapping[str, object],
    method: str,
    method_options: Mapping[str, object],
    *,
    classes: int,
    is_private: bool,
    plugins: Sequence[Mapping[str, object]] = (),
) -> nn.Module:
    """Return the network of a run, untrained, from plain values; a ``Network``.

    Args:
        plugins: the wheels that the run needs, as its offer names them; they are imported, if the same files are
            installed here.

    Raises:
        ConfigurationError: there is no such task, method or option, or such a wheel is not installed.
    """
    needed = [check_record(plugin, Plugin, "plugins") for plugin in plugins]
    permit(needed, {each.name: each.sha256 for each in needed}, "the bundle")
    found = task_named(task)
    method_found, options = open_method(method, method_options), found.options(task_options)
    return build_network(found, method_found, options, classes, run_seed=0, is_private=is_private)


def with_weights(network: nn.Module, weights: str) -> nn.Module:
    """Return a network in evaluation with the weights of a file that holds all of its tensors.

    Raises:
        RejectedError: the file holds others, or a number that is not finite.
    """
    path, listed = Path(weights), whole(network)
    check_tensors(path, listed, weights, largest=math.inf)
    load_tensors(network, listed, path)
    return network.eval()


def whole(network: nn.Module) -> TensorList:
    """Return all tensors of a network but BatchNorm's step counters, which nothing reads."""
    own = Sharing(tensors={}, start={}, personal=[*_floats(network)])
    return staying(own, network)


def described(folder: Path) -> tuple[Path, KeptCard]:
    """Return where the model lies and its card; of an export, as far as the run says it.

    Args:
        folder: the model's, or one that holds the folder of one model.

    Raises:
        ConfigurationError: there is none, there are several, or it is not well-formed.
    """
    cards = [path for path in (folder / CARD, *sorted(folder.glob(f"*/{CARD}"))) if path.exists()]
    if len(cards) > 1:  # when a file was written does not tell which is meant: a copy or a restored backup is newer
        found = ", ".join(path.parent.name for path in cards)
        raise ConfigurationError([f"{folder}: holds several models ({found}); name one of them, as {folder}/RUN"])
    if cards:
        (card,) = cards
        return card.parent, parse_yaml(_beginning(card), KeptCard, str(card))
    path = folder / RUN_CONFIGURATION
    if path.exists() and (folder / MODEL_CARD).exists():
        _compare(folder)
    if not path.exists():
        raise ConfigurationError(
            [
                f"{folder}: holds no {CARD} and no {RUN_CONFIGURATION}; name WORK/final/RUN, where a site keeps a "
                "model when its run has ended, or a folder that `dropfed-aggregator export` made"
            ]
        )
    run = parse_yaml(_beginning(path), RunConfiguration, str(path))
    return folder, KeptCard.of_run(
        run,
        classes=[],
        chosen_round=None,
        personal_round=None,
        theta=FALLBACK_THETA,
        theta_status=NO_THETA,
    )


def _compare(export: Path) -> None:
    """Compare what was exported with the hashes in its card.

    Raises:
        ConfigurationError: a file is another, or the card cannot be read.
    """
    try:
        content = _beginning(export / MODEL_CARD, _LARGEST_MODEL_CARD)
        card = fill_json(_ModelCard, content, _LARGEST_MODEL_CARD)
    except Refusal as error:
        raise ConfigurationError([f"{export / MODEL_CARD}: is no model card ({error}); {_AGAIN}"]) from None
    said = {names.FINAL_MODEL: card.model.sha256, RUN_CONFIGURATION: card.inputs.sha256.get(RUN_CONFIGURATION)}
    for name, sha256 in said.items():
        path = export / name
        if sha256 and path.is_file() and (found := hash_file(path)[1]) != sha256:
            raise ConfigurationError([f"{path}: has the SHA-256 {found}, and {MODEL_CARD} says {sha256}; {_AGAIN}"])


def _beginning(path: Path, most: int = MAX_RECORD_BYTES) -> bytes:
    """Return no more of a file than shows that it is too large.

    Raises:
        ConfigurationError: it is no plain file, which might never end.
    """
    if not path.is_file():
        raise ConfigurationError([f"{path}: is no file that can be read; {_AGAIN}"])
    with path.open("rb") as file:
        return file.read(most + 1)


def _files(home: Path, listed: Sharing, network: nn.Module) -> tuple[dict[str, TensorList], dict[str, TensorList]]:
    """Return which files hold a model's tensors, and what a method has besides, by group; a site's file holds all."""
    if (home / CARD).exists():
        return {names.FINAL_MODEL: all_tensors(listed, staying(listed, network))}, {}
    frozen = TensorList(tensors={name: listed.start[name] for name in listed.frozen})
    state = {group: TensorList(tensors=tensors) for group, tensors in listed.with_final.items()}
    return {names.FINAL_MODEL: listed.shared} | ({names.START: frozen} if frozen.tensors else {}), state


def _fill(
    model: nn.Module, method: Method, home: Path, parts: Mapping[str, TensorList], state: Mapping[str, TensorList]
) -> None:
    """Put checked files into a network; what none of them brings is no number afterwards."""
    with torch.no_grad():
        for tensor in _floats(model).values():
            tensor.fill_(math.nan)
        for name, tensors in parts.items():
            load_tensors(model, tensors, home / name)
        if state:
            method.ready(model, {group: _read(home / names.state_file(group)) for group in state})


def all_tensors(listed: Sharing, stays: TensorList) -> TensorList:
    """Return what the file of a whole model holds."""
    return TensorList(tensors=listed.tensors | listed.start | stays.tensors)


def _network(card: KeptCard, task: Task, method: Method, options: Options) -> nn.Module:
    """Return the network that a card tells of, untrained."""
    classes, is_private = len(card.classes) or ANY_CLASSES, card.privacy is not None
    return build_network(task, method, options, classes, run_seed=0, is_private=is_private)


def _check(path: Path, tensors: TensorList) -> None:
    """Check a tensor file of a folder.

    Raises:
        ConfigurationError: it is not there, or does not hold what the network has.
    """
    if not path.is_file():
        raise ConfigurationError([f"{path}: is missing; {_AGAIN}"])
    try:
        check_tensors(path, tensors, str(path), largest=math.inf)
    except RejectedError as error:
        raise ConfigurationError([f"{error}; {_AGAIN}"]) from None


def _read(path: Path) -> dict[str, Tensor]:
    file = TensorFile(path)
    return {name: torch.from_numpy(file.tensor(name)) for name in file.names}


def _floats(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def few(stays: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return ", ".join(stays[:2]) + (f" and {len(stays) - 2} more" if len(stays) > 2 else "")
