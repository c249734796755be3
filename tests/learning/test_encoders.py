"""Encoders: their shapes and names, where their numbers come from, and ImageNet's weights from a checked file."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from shared.errors import ConfigurationError
from shared.learning.models import encoders
from shared.learning.models.encoders import ENCODERS, IMAGENET_FILES, build_encoder, load_imagenet_weights
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.torchvision_import import import_models

WIDTHS = {
    "resnet18": 512,
    "resnet34": 512,
    "resnet50": 2048,
    "vgg19": 512,
    "efficientnet_b0": 1280,
    "small": 128,
}


def seeded(name, seed=1):
    torch.manual_seed(seed)
    return build_encoder(name)


@pytest.mark.parametrize("name", ENCODERS)
def test_shapes_and_numbers_that_the_seed_alone_decides(name):
    encoder = seeded(name)
    assert encoder.width == WIDTHS[name]
    before = encoder.state_dict()
    assert all(tensor.device.type == "cpu" and torch.isfinite(tensor).all() for tensor in before.values())
    again, other = seeded(name).state_dict(), seeded(name, seed=2).state_dict()
    assert all(torch.equal(before[key], again[key]) for key in before)
    assert not all(torch.equal(before[key], other[key]) for key in before)
    for size in ((64, 64), (32, 48)):
        with torch.no_grad():
            features = encoder.eval()(torch.rand(2, 3, *size))
        assert features.shape == (2, encoder.width)
        assert torch.isfinite(features).all()


def test_unknown_name():
    with pytest.raises(ConfigurationError, match=r"there is no 'resnet51'; take small, .*vit_b_16 or swin_t, or timm:"):
        build_encoder("resnet51")


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "efficientnet_b0"])
def test_names_features_and_spread_are_those_of_torchvision(name):
    torch.manual_seed(3)
    network = getattr(import_models(), name)()
    network.fc = network.classifier = nn.Identity()
    encoder = build_encoder(name)
    for key, tensor in network.state_dict().items():
        ours = encoder.state_dict()[key]
        if tensor.dim() == 4 and tensor.numel() > 5000:
            assert ours.std().item() == pytest.approx(tensor.std().item(), rel=0.1)
        elif tensor.dim() < 4:
            assert torch.equal(ours, tensor)
    encoder.load_state_dict(network.state_dict())
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(encoder.eval()(images), network.eval()(images), atol=1e-5)


def test_vgg_is_averaged_over_all_positions():
    encoder = seeded("vgg19").eval()
    assert [name for name, _ in encoder.named_children()] == ["features"]
    images = torch.rand(1, 3, 96, 64)
    with torch.no_grad():
        positions = encoder.features(images)  # (1, 512, 3, 2)
        assert torch.allclose(encoder(images), positions.mean(dim=(2, 3)))


def test_small_has_four_levels():
    encoder = seeded("small")
    assert list(encoder.state_dict())[:4] == [
        "stage1.conv.weight",
        "stage1.norm.weight",
        "stage1.norm.bias",
        "stage1.norm.running_mean",
    ]
    assert [layer.out_channels for layer in encoder.modules() if isinstance(layer, nn.Conv2d)] == [16, 32, 64, 128]
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 97_680


def test_the_name_of_a_batch_norm_does_not_tell_that_it_is_one():
    """FedUAA's released code keeps a tensor local where 'bn' is in its name; its encoder has torchvision's layers
    unnamed in a row, so the stem's BatchNorm and the four of the shortcuts are averaged after all.
    """
    encoder = seeded("resnet50")

    def norms(network):
        return [name for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d)]

    assert len(norms(encoder)) == 53
    assert [name for name in norms(encoder) if "bn" not in name] == [f"layer{i}.0.downsample.1" for i in range(1, 5)]
    in_a_row = nn.Sequential(*encoder.children())
    assert [name for name in norms(in_a_row) if "bn" not in name] == [
        "1", "4.0.downsample.1", "5.0.downsample.1", "6.0.downsample.1", "7.0.downsample.1",
    ]  # fmt: skip


@pytest.mark.parametrize(("head", "names"), [("released", {"hidden", "norm", "classify"}), ("linear", {"classify"})])
def test_grading_network(head, names):
    torch.manual_seed(5)
    network = GradingNetwork("small", 6, head)
    images = torch.rand(3, 3, 40, 40)
    assert network(images).shape == (3, 6)
    assert network.eval().features(images).shape == (3, 128)
    assert torch.equal(network(images), network.head(network.features(images)))
    keys = [key.split(".") for key in network.state_dict()]
    assert {key[0] for key in keys} == {"encoder", "head"}
    assert {key[1] for key in keys if key[0] == "head"} == names
    torch.manual_seed(5)
    again = GradingNetwork("small", 6, head).state_dict()
    torch.manual_seed(5)
    assert all(torch.equal(again[key], value) for key, value in GradingNetwork("small", 6, head).state_dict().items())


def test_the_released_head_is_the_default():
    sizes = [tuple(layer.weight.shape) for layer in GradingNetwork("small", 5).head if hasattr(layer, "weight")]
    assert sizes == [(512, 128), (512,), (5, 512)]


# ImageNet's weights


@pytest.fixture(autouse=True)
def no_downloads(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *_, **__: pytest.fail("it must not download"))


@pytest.fixture
def save_weights(tmp_path, monkeypatch):
    """Saves what it is given as the weight file of resnet18, named by its own hash."""

    def save(content, folder=tmp_path / "weights"):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "new.pth"
        torch.save(content, path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        name = f"resnet18-{sha256[:8]}.pth"
        monkeypatch.setitem(IMAGENET_FILES, "resnet18", name)
        return path.rename(folder / name), sha256

    return save


def state_of(seed=7, **changes):
    torch.manual_seed(seed)
    return dict(import_models().resnet18().state_dict()) | changes


def test_files_are_those_that_torchvision_names():
    models = import_models()
    assert set(IMAGENET_FILES) == set(ENCODERS) - {"small"}
    for name, file_name in IMAGENET_FILES.items():
        assert models.get_model_weights(name).IMAGENET1K_V1.url == encoders._IMAGENET_URL + file_name


@pytest.mark.parametrize("old", [False, True])
def test_a_file_is_loaded_without_its_classifier(save_weights, old):
    state = state_of()
    if old:  # files from before PyTorch 0.4.1 lack these
        state = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    path, sha256 = save_weights(state)
    encoder = seeded("resnet18")
    assert load_imagenet_weights(encoder, "resnet18", [path.parent / "nothing", path.parent]) == sha256
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, state.get(key, torch.tensor(0)))


def test_torchvisions_own_folder_comes_last(save_weights):
    path, sha256 = save_weights(state_of(), Path(os.environ["TORCH_HOME"]) / "hub" / "checkpoints")
    assert load_imagenet_weights(seeded("resnet18"), "resnet18", []) == sha256
    nearer = path.parent.parent / path.name
    nearer.write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="is damaged"):
        load_imagenet_weights(seeded("resnet18"), "resnet18", [nearer.parent])


def test_no_file(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        load_imagenet_weights(seeded("resnet18"), "resnet18", [tmp_path / "weights"])
    (sentence,) = caught.value.problems
    for part in (
        "resnet18-f37072fd.pth is in none of",
        f"download https://download.pytorch.org/models/resnet18-f37072fd.pth and put it into {tmp_path / 'weights'}",
        "`weights: random`",
    ):
        assert part in sentence


def test_no_such_weights(tmp_path):
    with pytest.raises(ConfigurationError, match="no ImageNet weights for the encoder 'small'; use `weights: random`"):
        load_imagenet_weights(seeded("small"), "small", [tmp_path])


def test_a_damaged_file_is_not_even_opened(save_weights, monkeypatch):
    path, _ = save_weights(state_of())
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("its hash was wrong"))
    with pytest.raises(ConfigurationError, match=r"is damaged or not what its name says, its SHA-256 is [0-9a-f]{64};"):
        load_imagenet_weights(seeded("resnet18"), "resnet18", [path.parent])


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize(
    "content",
    [
        lambda: state_of(extra=torch.zeros(1)),
        lambda: {key: value for key, value in state_of().items() if key != "conv1.weight"},
        lambda: state_of(**{"conv1.weight": torch.zeros(64, 1, 7, 7)}),
        lambda: state_of(**{"conv1.weight": "text"}),
        lambda: [1, 2],
        lambda: {1: torch.zeros(1)},
        lambda: {"conv1.weight": Bomb()},
    ],
)
def test_a_file_with_other_contents(save_weights, monkeypatch, tmp_path, content):
    path, _ = save_weights(content())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"does not hold the tensors of resnet18; download https:\S+ again"):
        load_imagenet_weights(seeded("resnet18"), "resnet18", [path.parent])
    assert not (tmp_path / "exploded").exists()
