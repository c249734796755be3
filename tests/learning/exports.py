"""Folders as ``export`` writes them, of networks that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from shared.exchange import names
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.weights import write_zeros
from shared.folder.durable import write_file
from shared.learning.kept_card import CARD, KeptCard
from shared.learning.kept_model import whole
from shared.learning.methods import open_method
from shared.learning.model_files import save_tensors
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from tests.federation.running import run_configuration

VESSELS: dict[str, Any] = {"task": "octa_segmentation", "method": "mean", "task_options": {"widths": [4, 8]}}
REFERABLE: dict[str, Any] = {
    "task": "rdr_classification",
    "method": "fedavg",
    "task_options": {"encoder": "plain", "image_size": 64, "weights": "random", "hidden": [16]},
}
DISEASES: dict[str, Any] = REFERABLE | {"task": "fundus_disease"}
UPDATES: dict[str, Any] = {
    "task": "fundus_disease",
    "method": "fedavg",
    "task_options": {
        "encoder": "timm:test_vit",
        "train": {"lora": {"rank": 2}},
        "image_size": 32,
        "weights": "random",
        "hidden": [8],
    },
}
SOUNDS: dict[str, Any] = {
    "task": "spectrograms",
    "method": "fedavg",
    "task_options": {"encoder": "small", "segment_seconds": 2.0, "image_size": 32},
}
STAGING: dict[str, Any] = {
    "task": "dr_staging",
    "method": "fedavg",
    "task_options": {"encoder": "small", "image_size": 64, "weights": "random"},
}
PRIVATE: dict[str, Any] = {"privacy": {"max_grad_norm": 1.0, "delta": 1e-5, "noise_multiplier": 1.0}}


def write_export(folder: Path, **settings: Any) -> nn.Module:
    """Write what ``export`` writes of a run whose model is the initial one; return that model."""
    run = run_configuration(**({"augmentation": {}} | settings))
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options = task.options(run.task_options)
    classes, is_private = len(options.class_names or "ab"), run.privacy is not None
    network = build_network(task, method, options, classes, run_seed=run.seed, is_private=is_private)
    listed = sharing(task, method, network)
    write_file(folder / names.RUN_CONFIGURATION, dump_yaml(run))
    save_tensors(network, listed.shared, folder / names.FINAL_MODEL)
    if listed.frozen:
        frozen = TensorList(tensors={name: listed.start[name] for name in listed.frozen})
        save_tensors(network, frozen, folder / names.START)
    for group, tensors in listed.with_final.items():
        write_zeros(folder / names.state_file(group), TensorList(tensors=tensors))
    return network.eval()


def write_kept(folder: Path, classes: list[str], theta_status: str = "measured", **settings: Any) -> None:
    """Write what a site keeps of a run whose model is the initial one, of two classes."""
    network = write_export(folder, **settings)
    run = parse_yaml((folder / names.RUN_CONFIGURATION).read_bytes(), RunConfiguration, names.RUN_CONFIGURATION)
    save_tensors(network, whole(network), folder / names.FINAL_MODEL)
    card = KeptCard.of_run(
        run, classes=classes, chosen_round=1, personal_round=None, theta=0.5, theta_status=theta_status
    )
    write_file(folder / CARD, dump_yaml(card))
