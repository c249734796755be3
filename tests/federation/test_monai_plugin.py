"""The plug-in of MONAI's networks in configs/: built as a wheel, installed at both ends, trained in a federation."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dropfed
from shared.audit.verify import verify
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.folder.local import LocalFolder
from shared.learning import plugins
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, own_logins, run_configuration, write_data

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "configs" / "monai_networks"
WHEEL = "dropfed-monai"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The wheel, installed for this process and those that it starts; nothing of it is permitted yet."""
    home = tmp_path_factory.mktemp("monai")
    project, place = shutil.copytree(PROJECT, home / "project"), home / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(place), str(project)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(REPOSITORY)]))
        patch.setattr(plugins, "_permitted", set())
        importlib.invalidate_caches()
        yield
    sys.modules.pop("dropfed_monai", None)


def _draw_labelled(root: Path, seed: int) -> None:
    """Bright and dark images, one folder for each label."""
    draw = np.random.default_rng(seed)
    for number in range(16):
        label, level = (("negative", 60), ("positive", 190))[number % 2]
        path = root / label / f"{seed}-{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.normal(level, 20, (32, 32)).clip(0, 255).astype(np.uint8)).save(path)


ENCODER = {"encoder": "monai_densenet121", "weights": "random", "image_size": 32}


@pytest.mark.monai
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_densenet121_trains_in_a_federation(installed: None, tmp_path: Path) -> None:
    for seed, name in enumerate(("heldout", "north")):
        _draw_labelled(tmp_path / "data" / name, seed)
    here = plugins.described(plugins.distributions()[WHEEL])
    allowed = {here.name: here.sha256}
    policy = POLICY.model_copy(update={"plugins": allowed})
    run = run_configuration(
        task="image_classification",
        method="fedavg",
        sites=["north"],
        quorum=1,
        task_options=ENCODER,
        augmentation={},
        tolerance=0.0,
    )
    with FederationInProcess(tmp_path, run, data=tmp_path / "data", policy=policy) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        federation.change(federation.aggregator / "aggregator.yaml", plugins=allowed)
        federation.run_to_the_end()
    folder = federation.folder("north")
    offer = folder / "runs" / run.run / "offer"
    assert parse_yaml((offer / "run.yaml").read_bytes(), RunConfiguration, "run.yaml").plugins == [here]
    assert here.requires.keys() == {"dropfed", "monai"}
    layer = "encoder.network.features.denseblock1.denselayer1.layers.conv1.weight"
    assert layer in parse_yaml((offer / "tensors.yaml").read_bytes(), Sharing, "tensors.yaml").tensors
    assert not verify(LocalFolder(folder)).findings


@pytest.mark.monai
def test_basic_unet_trains_in_a_simulated_federation(installed: None, tmp_path: Path) -> None:
    sites = {"north": tmp_path / "north", "south": tmp_path / "south"}
    for seed, folder in enumerate(sites.values()):
        write_data("octa_segmentation", folder, number=seed, images=8, seed=seed)
    run = {
        "task": "monai_segmentation",
        "method": "fedavg",
        "rounds": 2,
        "batch_size": 4,
        "task_options": {"image_size": 32, "widths": [4, 4, 8, 8, 16], "optimizer": "adam"},
        "learning_rate": {"initial": 0.01, "factor": 1.0},
        "augmentation": {"copies": 1},
    }
    result = dropfed.simulate(run, sites)
    assert "body.down_1.convs.conv_0.conv.weight" in result.model("north").network.state_dict()
    losses = result.metrics().query("split == 'validation' and epoch == 0").groupby("round")["loss"].mean()
    assert losses.iloc[-1] < losses.iloc[0]


def test_the_run_beside_it_is_one() -> None:
    run = parse_yaml((PROJECT / "RUN.yaml").read_bytes(), RunConfiguration, "RUN.yaml")
    assert (run.task, run.task_options["encoder"]) == ("image_classification", "monai_densenet121")
