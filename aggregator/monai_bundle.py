"""The chosen model as a MONAI bundle: settings, weights and a page to read; no code.

Its network is made by a function of dropfed, which the bundle names with plain arguments, and which whoever opens the
bundle has installed. The weights are checked against that network before it computes with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shared.errors import ConfigurationError
from shared.folder.durable import write_file
from shared.learning.kept_model import KeptModel, few, untrained_network, whole, with_weights
from shared.learning.model_files import save_tensors
from shared.learning.models.ensembles import answers_of
from shared.learning.tasks.inputs import input_of, input_text

FOLDER = "monai"
MONAI_VERSION = "1.6.1"
"""What bundles were opened with."""

_WEIGHTS = "models/model.safetensors"
_SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"


def write_bundle(kept: KeptModel, folder: Path, intended_use: str, caution: str) -> None:
    """Write a whole model as a bundle.

    Raises:
        ConfigurationError: part of it stays at the sites.
    """
    if kept.stays:
        raise ConfigurationError(
            [f"--monai: a bundle holds a whole model, and {few(kept.stays)} stay at each site: leave --monai out"]
        )
    save_tensors(kept.model, whole(kept.model), folder / _WEIGHTS)
    _write_json(folder / "configs" / "metadata.json", _metadata(kept, intended_use))
    _write_json(folder / "configs" / "inference.json", _inference(kept))
    write_file(folder / "docs" / "README.md", _readme(kept, intended_use, caution).encode())


def _inference(kept: KeptModel) -> dict[str, Any]:
    card = kept.card
    return {
        "bundle_root": ".",
        "network_def": {
            "_target_": _path_of(untrained_network),
            "task": card.task,
            "task_options": card.task_options,
            "method": card.method,
            "method_options": card.method_options,
            "classes": len(card.classes),
            "is_private": card.privacy is not None,
            **({"plugins": [each.model_dump(mode="json") for each in card.plugins]} if card.plugins else {}),
        },
        "network": {
            "_target_": _path_of(with_weights),
            "network": "@network_def",
            "weights": f"$@bundle_root + '/{_WEIGHTS}'",
        },
        "inferer": {"_target_": "monai.inferers.SimpleInferer"},
    }


def _metadata(kept: KeptModel, intended_use: str) -> dict[str, Any]:
    channels, *sides = kept.task.input_shape(kept.options)
    given = input_of(kept.task, kept.options)
    members = answers_of(kept.model)
    answers = [f"member {number}" for number in range(members)] if members > 1 else kept.card.classes
    return {
        "schema": _SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": "as it was exported"},
        "monai_version": MONAI_VERSION,
        "pytorch_version": version("torch").partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {
            **{name: version(name) for name in ("dropfed", "torchvision")},
            **{each.name: each.version for each in kept.card.plugins},
        },
        "name": kept.card.run,
        "task": kept.card.task,
        "description": f"The model of the federated run {kept.card.run}, by {kept.card.method}.",
        "authors": "the federation that trained it; see model-card.md beside the bundle",
        "copyright": "see model-card.md beside the bundle",
        "intended_use": intended_use,
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "series" if len(sides) == 1 else "image",
                    "format": "sequence" if len(sides) == 1 else "magnitude",
                    "num_channels": channels,
                    "spatial_shape": ["*"] * len(sides) if kept.task.labels_pixels else sides,
                    "dtype": "float32",
                    "value_range": given.bounds,
                    "is_patch_data": False,
                    "channel_def": {str(number): name for number, name in enumerate(given.channels)},
                }
            },
            "outputs": {
                "pred": {
                    "type": "logits",
                    "format": "logits",
                    "num_channels": len(answers),
                    "spatial_shape": ["*"] * len(sides) if kept.task.labels_pixels else [],
                    "dtype": "float32",
                    "value_range": [],
                    "is_patch_data": False,
                    "channel_def": {str(number): name for number, name in enumerate(answers)},
                }
            },
        },
    }


def _readme(kept: KeptModel, intended_use: str, caution: str) -> str:
    wheels = "".join(f", the wheel {each.name} {each.version}" for each in kept.card.plugins)
    return f"""# {kept.card.run}

{intended_use} {caution}

This bundle holds settings and weights, and no code. Its network is made by dropfed, so install it from a clone, as
`'.[learning]'`, of the version in `configs/metadata.json`{wheels} beside MONAI, and open it so:

    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config("configs/inference.json")
    parser["bundle_root"] = "."
    network = parser.get_parsed_content("network")

The network takes inputs as dropfed's task `{kept.card.task}` prepares them, and yields logits of the classes
{", ".join(kept.card.classes)}. One input:

    {input_text(kept.task, kept.options)}

`dropfed-aggregator predict IMAGES --model DIR` reads images, asks the model and tells
what it says, where DIR is the folder that this bundle lies in.
"""


def _path_of(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_file(path, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
