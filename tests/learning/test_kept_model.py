"""Folders that hold a model are input from outside: what is in them is checked before anything computes with it."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import MAX_RECORD_BYTES
from shared.exchange.records.tensors import TensorList, TensorShape
from shared.exchange.weights import TensorFile, layout_of, write_tensors
from shared.folder.durable import hash_file
from shared.learning.kept_model import MODEL_CARD, NO_THETA, open_model, open_parts, whole
from shared.learning.model_files import save_tensors
from shared.learning.tasks import task_named
from tests.learning.exports import PRIVATE, REFERABLE, SOUNDS, STAGING, VESSELS, write_export

WHOLE = {
    "vessels": VESSELS,
    "calibrated": VESSELS | {"method": "mdt"},
    "private": VESSELS | {"method": "fedavg"} | PRIVATE,
    "ensemble": VESSELS | {"method": "deep_ensembles", "method_options": {"members": 2}},
    "frozen": REFERABLE,
    "sounds": SOUNDS,
}


@pytest.mark.parametrize("case", WHOLE)
def test_an_export_answers_as_the_network_that_it_was_made_of(case: str, tmp_path: Path) -> None:
    network = write_export(tmp_path, **WHOLE[case])
    kept = open_model(tmp_path)
    options = task_named(kept.card.task).options(kept.card.task_options)
    assert tuple(kept.card.classes) == options.class_names
    assert (kept.card.theta, kept.card.theta_status, kept.stays) == (0.5, NO_THETA, [])
    channels, *_ = kept.task.input_shape(kept.options)
    inputs = torch.rand(2, channels, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(kept.model(inputs), network(inputs))


def test_of_a_model_whose_head_stays_at_the_sites_the_shared_part_is_there(tmp_path: Path) -> None:
    network = write_export(tmp_path, **STAGING)
    kept = open_parts(tmp_path)
    assert kept.card.classes == []
    assert {name.partition(".")[0] for name in kept.stays} == {"head"}
    inputs = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(kept.model.features(inputs), network.features(inputs))
    with pytest.raises(ConfigurationError) as refused:
        open_model(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: is not a whole model: head.classify.bias, head.classify.weight and 6 more stay at each site; "
        "use the model in WORK/final/RUN at a site"
    )


def tampered(folder: Path, change: Callable[[dict[str, np.ndarray[Any, Any]]], None]) -> None:
    """The model file, written anew as it should be but for a change of its tensors."""
    path = folder / names.FINAL_MODEL
    file = TensorFile(path)
    arrays = {name: file.tensor(name) for name in layout_of(path, "")}
    change(arrays)
    shapes = {name: TensorShape(dtype="F32", shape=list(array.shape)) for name, array in arrays.items()}
    write_tensors(path, TensorList(tensors=shapes), lambda name: np.ascontiguousarray(arrays[name], np.float32))


BIAS = "classify.bias"
HOSTILE_WEIGHTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a NaN": (lambda arrays: arrays[BIAS].__setitem__(0, np.nan), f"{BIAS} holds a value that is not finite"),
    "infinity": (lambda arrays: arrays[BIAS].__setitem__(1, -np.inf), f"{BIAS} holds a value that is not finite"),
    "another shape": (
        lambda arrays: arrays.update({BIAS: np.zeros(3)}),
        rf"{BIAS} is F32\[3\], not F32\[2\]",
    ),
    "one too many": (lambda arrays: arrays.update(more=np.zeros(1)), "does not hold the run's tensors: more differ"),
    "one missing": (lambda arrays: arrays.pop(BIAS), f"does not hold the run's tensors: {BIAS} differ"),
}


@pytest.mark.parametrize("case", HOSTILE_WEIGHTS)
def test_weights_that_are_not_the_networks_are_refused(case: str, tmp_path: Path) -> None:
    write_export(tmp_path, **VESSELS)
    change, said = HOSTILE_WEIGHTS[case]
    tampered(tmp_path, change)
    with pytest.raises(ConfigurationError, match=f"model.safetensors: {said}; take the folder again"):
        open_model(tmp_path)


def test_a_pickle_is_no_tensor_file_and_is_not_run(tmp_path: Path) -> None:
    write_export(tmp_path, **VESSELS)

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / names.FINAL_MODEL).write_bytes(pickle.dumps(Harm()))
    with pytest.raises(ConfigurationError, match="is not a safetensors file"):
        open_model(tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "../../octa"}, "run.yaml: task: "),
        ({"task": "os"}, "there is no 'os'; the tasks are"),
        ({"method": "os.path"}, "method: "),
        ({"run": "../elsewhere"}, "run.yaml: run: "),
        ({"task_options": {"widths": [8, 4]}}, r"is F32\[4"),
        ({"task_options": {"widths": [2048] * 5}}, "does not hold the run's tensors"),
        ({"task_options": {"file": "/etc/passwd"}}, "file: is not a known key"),
        ({"model": "/etc/passwd"}, "run.yaml: model: is not a known key"),
        ({"rounds": "many"}, "run.yaml: rounds: must be a whole number"),
    ],
)
def test_a_card_that_says_something_else_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_export(tmp_path, **VESSELS)
    path = tmp_path / names.RUN_CONFIGURATION
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    with pytest.raises(ConfigurationError, match=said):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"classes": ["one"]}, "its card names 1 classes, and the model has 2"),
        ({"rounds": -1}, r"card\.yaml: rounds: must be 0 or more"),
        ({"theta": float("nan")}, r"card\.yaml: theta: "),
        ({"method": "feduaa", "classes": ["a", "b", "c"]}, "its card names 3 classes, and the model has 2"),
    ],
)
def test_the_card_of_a_site_is_checked_too(changes: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    network = write_export(tmp_path, **REFERABLE)
    save_tensors(network, whole(network), tmp_path / names.FINAL_MODEL)
    card: dict[str, Any] = {
        **{name: REFERABLE[name] for name in ("task", "task_options", "method")},
        **{"run": "r", "method_options": {}, "privacy": None, "rounds": 3, "classes": ["not referable", "referable"]},
        **{"chosen_round": 2, "personal_round": None, "theta": 0.4, "theta_status": "measured"},
    }
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card | changes))
    if said is None:
        assert open_model(tmp_path).card.theta == 0.4
        return
    with pytest.raises(ConfigurationError, match=said):
        open_model(tmp_path)


def test_a_folder_without_a_card_or_with_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no card\.yaml and no run\.yaml; name WORK/final/RUN"):
        open_model(tmp_path)
    (tmp_path / "card.yaml").write_text("run: [a")
    with pytest.raises(ConfigurationError, match=r"card\.yaml: "):
        open_model(tmp_path)
    (tmp_path / "card.yaml").write_bytes(b"#" * (MAX_RECORD_BYTES + 1))
    with pytest.raises(ConfigurationError, match=r"card\.yaml: "):
        open_model(tmp_path)


@pytest.mark.parametrize("name", [names.FINAL_MODEL, names.START])
def test_an_export_without_one_of_its_files(name: str, tmp_path: Path) -> None:
    write_export(tmp_path, **REFERABLE)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigurationError, match=f"{name}: is missing; take the folder again"):
        open_model(tmp_path)


def test_frozen_layers_are_checked_as_the_others_are(tmp_path: Path) -> None:
    network = write_export(tmp_path, **REFERABLE)
    state = network.state_dict()
    first = next(name for name in state if name.startswith("encoder."))
    state[first].view(-1)[0] = torch.nan
    listed = {name: TensorShape(dtype="F32", shape=list(state[name].shape)) for name in state if "encoder" in name}
    save_tensors(network, TensorList(tensors=listed), tmp_path / names.START)
    with pytest.raises(ConfigurationError, match=f"{names.START}: {first} holds a value that is not finite"):
        open_model(tmp_path)


def test_an_export_is_compared_with_its_card(tmp_path: Path) -> None:
    write_export(tmp_path, **VESSELS)
    files = (names.FINAL_MODEL, names.RUN_CONFIGURATION)
    model, run = (hash_file(tmp_path / name)[1] for name in files)
    card = {"model": {"sha256": model, "bytes": 1}, "inputs": {"sha256": {names.RUN_CONFIGURATION: run}}, "sites": {}}
    path = tmp_path / MODEL_CARD
    path.write_text(json.dumps(card))
    assert open_model(tmp_path).stays == []
    tampered(tmp_path, lambda arrays: arrays[BIAS].__setitem__(0, 1.0))
    with pytest.raises(
        ConfigurationError, match=f"has the SHA-256 .*, and model-card.json says {model}; take the folder"
    ):
        open_model(tmp_path)
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"model-card\.json: is no model card \(.*\); take the folder again"):
        open_model(tmp_path)
