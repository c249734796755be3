"""``export --onnx --monai``: what other programs make of the model is what PyTorch makes of it, or there is no file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from aggregator.cli import main
from aggregator.monai_bundle import write_bundle
from aggregator.onnx_file import TOLERANCE, write_onnx
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.folder.durable import hash_file
from shared.learning.kept_model import KeptModel, open_model, open_parts
from shared.learning.methods import open_method
from shared.learning.models.encoders import IMAGENET_FILES, base_weights
from shared.learning.models.lora import LowRankUpdate
from shared.learning.objectives import by_target
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.inputs import input_of, input_text
from shared.software import installing
from site_client.cli import main as site
from tests.federation.running import TINY
from tests.learning.exports import PRIVATE, REFERABLE, SOUNDS, STAGING, UPDATES, VESSELS, write_export
from tests.learning.small_sites import LABELS, SIGNALS, write_small
from tests.played import RUN, ended_run

UNEVEN = (1, 1, 53, 37)  # pixels that no level of the network halves evenly


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes of a run whose model is a small U-Net."""
    home = tmp_path_factory.mktemp("run")
    network = write_export(home / "model", task="octa_segmentation", method="mean", task_options=TINY)
    listed = sharing(task_named("octa_segmentation"), open_method("mean", {}), network)
    ended_run(home, chosen=(listed, home / "model" / names.FINAL_MODEL))
    output = home / "exported"
    asked = ["export", RUN, "--output", str(output), "--work", str(home / "aggregator"), "--onnx", "--monai"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [f"wrote {path}" for path in sorted(output.iterdir())]
    return output


def test_the_card_says_how_the_onnx_file_was_compared(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == {
        "model-card.json",
        "model-card.md",
        "model.onnx",
        "model.safetensors",
        "monai",
        "run.yaml",
        "tensors.yaml",
    }
    card = json.loads((exported / "model-card.json").read_text(encoding="utf-8"))
    size, sha256 = hash_file(exported / "model.onnx")
    told = card["onnx"]
    assert (told["file"], told["bytes"], told["sha256"]) == ("model.onnx", size, sha256)
    assert told["input"] == ["batch", 1, "height", "width"]
    assert (told["inputs_compared"], told["tolerance"]) == (10, TOLERANCE)
    assert 0 < told["largest_difference"] < TOLERANCE
    assert card["base_weights"] is None
    assert card["input"].startswith("1 × height × width: green, from 0 to 1; ")
    text = (exported / "model-card.md").read_text(encoding="utf-8")
    assert "onnxruntime differs from PyTorch over 10 random inputs by at most" in text
    assert "none: training began from random weights" in text


def test_onnxruntime_answers_as_pytorch_on_images_of_any_size(exported: Path) -> None:
    kept, inputs = open_model(exported), torch.rand(UNEVEN, generator=torch.Generator().manual_seed(2))
    probabilities, uncertainty = asked_with_onnx(exported / "model.onnx", inputs)
    with torch.no_grad():
        flat = by_target(kept.model(inputs), inputs[:, 0])  # (1, H, W, K)
    expected = kept.objective.probabilities(flat.flatten(0, 2)).reshape(flat.shape).movedim(3, 1)
    assert probabilities.shape == (1, 2, 53, 37) and uncertainty.shape == (1, 53, 37)
    assert np.abs(probabilities - expected.numpy()).max() < TOLERANCE
    assert uncertainty.min() >= 0 and uncertainty.max() <= 1


def asked_with_onnx(path: Path, inputs: Tensor) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    answers: list[Any] = session.run(None, {"inputs": inputs.numpy()})
    return answers


def test_both_daemons_open_an_export_and_say_the_same(exported: Path, tmp_path: Path) -> None:
    write_small("octa_segmentation", tmp_path / "data", images=3, size=64)
    tables, scores = [], []
    for program in (main, site):
        output = tmp_path / program.name.replace(" ", "-")
        asked = ["predict", str(tmp_path / "data" / "images"), "--model", str(exported), "--output", str(output)]
        result = CliRunner().invoke(program, asked)
        assert result.exit_code == 0, result.output
        assert "warning: θ could not be measured here (an export has none: it is measured at a site)" in result.output
        tables.append((output / "predictions.csv").read_bytes())
        result = CliRunner().invoke(program, ["evaluate", str(tmp_path / "data"), "--model", str(exported), "--json"])
        assert result.exit_code == 0, result.output
        scores.append(json.loads(result.output))
        page = ["--page", str(tmp_path / "page.html")]
        shown = CliRunner().invoke(program, ["evaluate", str(tmp_path / "data"), "--model", str(exported), *page])
        warned = "warning: θ could not be measured here (an export has none: it is measured at a site); advice is given"
        assert warned in shown.stderr and warned not in result.stderr
    assert tables[0] == tables[1]
    assert scores[0] == scores[1] and scores[0]["images"] == 3


@pytest.mark.parametrize(
    "settings",
    [
        VESSELS | {"method": "deep_ensembles", "method_options": {"members": 2}},
        VESSELS | {"method": "fedavg"} | PRIVATE,
        SOUNDS,
        UPDATES,
    ],
    ids=["ensemble", "private", "sounds", "updates of low rank"],
)
def test_other_networks_are_written_as_onnx(settings: dict[str, Any], tmp_path: Path) -> None:
    write_export(tmp_path, **settings)
    kept = open_model(tmp_path)
    for update in (module for module in kept.model.modules() if isinstance(module, LowRankUpdate)):
        nn.init.normal_(update.b)  # as training leaves it; in the beginning it is 0
    found = write_onnx(kept, tmp_path / "model.onnx")
    assert [*found.outputs] == ["probabilities", "uncertainty"]
    assert found.largest_difference < TOLERANCE


def test_of_a_model_whose_head_stays_the_features_are_written(tmp_path: Path) -> None:
    network = write_export(tmp_path, **STAGING)
    found = write_onnx(open_parts(tmp_path), tmp_path / "model.onnx")
    assert ([*found.outputs], found.input) == (["features"], ["batch", 3, 64, 64])
    inputs = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = network.features(inputs)
    (features,) = asked_with_onnx(tmp_path / "model.onnx", inputs)
    assert np.abs(features - expected.numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (STAGING | {"method": "feduaa"}, "no features come without encoder.stage1.norm.bias, .* and 22 more"),
        (VESSELS | {"method": "mc_dropout"}, "mc_dropout draws what it drops, and ONNX cannot"),
    ],
)
def test_what_cannot_be_onnx_is_refused_in_a_sentence(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_export(tmp_path, **settings)
    with pytest.raises(ConfigurationError, match=f"--onnx: {said}"):
        write_onnx(open_parts(tmp_path), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


class Moody(nn.Module):
    """Answers dark images otherwise, by a branch that no trace holds."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits if inputs.shape[0] == 1 else -logits


class Strange(nn.Module):
    """Does what ONNX has no operation for."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.special.bessel_j0(inputs).expand(-1, 2, -1, -1)


def with_network(folder: Path, network: nn.Module) -> KeptModel:
    return replace(open_model(folder), model=network)


def test_a_file_that_answers_otherwise_is_not_kept(tmp_path: Path) -> None:
    network = write_export(tmp_path, **VESSELS)
    with pytest.raises(ConfigurationError, match=r"--onnx: onnxruntime and PyTorch differ by .*, beyond 0\.001:"):
        write_onnx(with_network(tmp_path, Moody(network)), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_network_that_onnx_has_no_words_for(tmp_path: Path) -> None:
    write_export(tmp_path, **VESSELS)
    with pytest.raises(ConfigurationError, match="--onnx: PyTorch cannot write this network as ONNX"):
        write_onnx(with_network(tmp_path, Strange()), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_an_export_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    ended_run(tmp_path)
    asked = ["export", RUN, "--work", str(tmp_path / "aggregator"), "--output", str(tmp_path / "out" / "model")]
    result = CliRunner().invoke(main, [*asked, "--onnx"])
    assert result.exit_code == 2
    assert "model.safetensors: does not hold the run's tensors" in result.output
    assert not any((tmp_path / "out").iterdir())


def test_without_the_packages_a_sentence_says_what_to_install(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    asked = ["export", RUN, "--work", str(exported.parent / "aggregator"), "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(main, [*asked, "--onnx"])
    said = f"--onnx needs onnxruntime, which is not installed here: run {installing('onnx')}\n"
    assert (result.exit_code, result.output) == (1, said)
    assert not (tmp_path / "model").exists()


@pytest.mark.monai
def test_monai_opens_the_bundle_and_its_network_answers_alike(exported: Path) -> None:
    from monai import bundle

    kept, root = open_model(exported), exported / "monai"
    parser = bundle.ConfigParser()
    parser.read_config(root / "configs" / "inference.json")
    parser.read_meta(root / "configs" / "metadata.json")
    parser["bundle_root"] = str(root)
    network, inferer = parser.get_parsed_content("network"), parser.get_parsed_content("inferer")
    inputs = torch.rand(UNEVEN, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.equal(inferer(inputs, network), kept.model(inputs))
    described = {"meta_file": root / "configs" / "metadata.json", "config_file": root / "configs" / "inference.json"}
    paths = {name: str(path) for name, path in described.items()}
    bundle.verify_net_in_out(net_id="network", device="cpu", bundle_root=str(root), any=32, **paths)


def test_a_bundle_holds_no_code_and_names_what_it_needs(exported: Path) -> None:
    root = exported / "monai"
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert files == {"configs/inference.json", "configs/metadata.json", "docs/README.md", "models/model.safetensors"}
    assert "are not anonymous" in (root / "docs" / "README.md").read_text(encoding="utf-8")
    metadata = json.loads((root / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert {"dropfed", "torchvision"} == metadata["required_packages_version"].keys()
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "background", "1": "vessel"}


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("octa_segmentation", {"image_size": 32}, "1 × height × width: green, from 0 to 1; an image has 32 pixels"),
        (
            "segmentation",
            {"colour": True},
            "3 × height × width: red, green, blue, from 0 to 1; an image keeps its size",
        ),
        (
            "dr_staging",
            {"image_size": 32},
            "3 × 32 × 32: red, green, blue, from -2.12 to 2.64; an image is scaled into",
        ),
        ("fundus_disease", {"image_size": 32, "labels": LABELS}, "a photograph is cropped to the square around the"),
        ("rdr_classification", {"image_size": 32}, "3 × 32 × 32: superficial, deep, the greater of both structural"),
        (
            "time_series",
            SIGNALS["time_series"],
            "2 × 32: x, y; 32 rows, 20 a second; each channel less the recording's",
        ),
        ("spectrograms", SIGNALS["spectrograms"], "3 × 32 × 32: power, the same, the same, from -4 to 4; 2 s of sound"),
    ],
)
def test_what_is_said_of_an_input_is_what_the_task_makes(
    task: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = task_named(task)
    chosen = found.options(options)
    write_small(task, tmp_path, images=8, size=96)
    inputs, _ = found.collate(found.open_images(tmp_path, chosen).samples)
    told = input_of(found, chosen)
    assert said in input_text(found, chosen)
    assert len(told.channels) == inputs.shape[1]
    assert not told.bounds or told.bounds[0] <= inputs.min() + 1e-5 < inputs.max() <= told.bounds[1] + 1e-5
    assert bool(told.bounds) == (task != "time_series")


def test_a_bundle_of_signals_says_that_they_are_signals(tmp_path: Path) -> None:
    write_export(tmp_path, task="time_series", method="fedavg", task_options=SIGNALS["time_series"])
    write_bundle(open_parts(tmp_path), tmp_path / "monai", "", "")
    metadata = json.loads((tmp_path / "monai" / "configs" / "metadata.json").read_text(encoding="utf-8"))
    given = metadata["network_data_format"]["inputs"]["image"]
    told = {name: given[name] for name in ("type", "format", "spatial_shape", "value_range", "channel_def")}
    assert told == {
        "type": "series",
        "format": "sequence",
        "spatial_shape": [32],
        "value_range": [],
        "channel_def": {"0": "x", "1": "y"},
    }
    assert "2 × 32: x, y; 32 rows, 20 a second" in (tmp_path / "monai" / "docs" / "README.md").read_text("utf-8")


@pytest.mark.monai
def test_a_bundle_with_other_weights_is_refused_where_it_is_opened(exported: Path, tmp_path: Path) -> None:
    from monai import bundle

    write_export(tmp_path, **REFERABLE)
    parser = bundle.ConfigParser()
    parser.read_config(exported / "monai" / "configs" / "inference.json")
    (tmp_path / "models").mkdir()
    (tmp_path / names.FINAL_MODEL).rename(tmp_path / "models" / names.FINAL_MODEL)
    parser["bundle_root"] = str(tmp_path)
    with pytest.raises(RuntimeError, match="Failed to instantiate") as refused:
        parser.get_parsed_content("network")
    assert "does not hold the run's tensors" in str(refused.value.__cause__)


def test_a_bundle_of_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    write_export(tmp_path, **STAGING)
    with pytest.raises(ConfigurationError, match=r"--monai: a bundle holds a whole model, and head\."):
        write_bundle(open_parts(tmp_path), tmp_path / "monai", "", "")
    assert not (tmp_path / "monai").exists()


@pytest.mark.parametrize("encoder", IMAGENET_FILES)
def test_published_weights_are_named_with_their_licence(encoder: str) -> None:
    options = task_named("dr_staging").options({"encoder": encoder})
    base = base_weights(options)
    assert base is not None
    assert base.file.endswith(f"{base.sha256_begins}.pth") and base.source.endswith(base.file)
    assert "ImageNet-1k, whose terms allow non-commercial research" in base.licence
    assert ("Apache 2.0" in base.licence) == (encoder == "efficientnet_b0")


def test_random_weights_have_no_licence_but_their_own() -> None:
    for name, raw in (("dr_staging", {"weights": "random"}), ("octa_segmentation", {})):
        assert base_weights(task_named(name).options(raw)) is None
