"""Networks of torchvision and timm by their names, without their classifiers, and published weights from a file."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from shared.errors import ConfigurationError
from shared.learning.models import IMAGENET
from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import GradingNetwork, learning
from shared.learning.models.options import WeightsFile, WithLowRank
from shared.learning.models.torchvision_import import import_models
from shared.learning.models.weights import load_weights, positions_resized
from shared.learning.models.whole_networks import Renormalise, published_side

VIT = "timm:test_vit"
WIDTHS = {
    "alexnet": 256,
    "squeezenet1_1": 512,
    "mobilenet_v3_small": 576,
    "shufflenet_v2_x0_5": 1024,
    "mnasnet0_5": 1280,
    "regnet_x_400mf": 400,
    "convnext_tiny": 768,
    "swin_t": 768,
    "vit_b_32": 768,
}
"""A network of each family; the others differ in how often, and how wide."""


def seeded(name, seed=1, side=64, **more):
    torch.manual_seed(seed)
    return build_encoder(name, side, **more)


@pytest.mark.parametrize(("name", "width"), WIDTHS.items())
def test_a_classifier_of_torchvision_yields_what_it_classifies_by(name, width):
    with torch.device("meta"):
        encoder = build_encoder(name, 64)
        features = encoder.eval()(torch.zeros(2, 3, 64, 64))
    assert encoder.width == width == features.shape[1]
    assert features.shape == (2, width)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "regnet_x_400mf"])
def test_features_are_those_of_torchvision(name):
    encoder = seeded(name).eval()
    network = getattr(import_models(), name)()
    assert not network.load_state_dict(encoder.network.state_dict(), strict=False).unexpected_keys
    *_, (classifier, _) = network.named_children()
    setattr(network, classifier, nn.Identity())
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(encoder(images), network.eval()(images))


def test_the_seed_alone_decides_the_weights_of_a_network_of_timm():
    first, again, other = (seeded(VIT, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert seeded(VIT)(torch.rand(2, 3, 64, 64)).shape == (2, 64)


@pytest.mark.parametrize("levels", [IMAGENET, ((0.0,) * 3, (1.0,) * 3)])
def test_a_network_of_timm_sees_images_with_the_mean_and_deviation_that_it_was_published_with(levels):
    encoder = seeded(VIT, levels=levels)  # published with 0.5 and 0.5
    images = torch.rand(2, 3, 8, 8)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in levels)
    assert torch.allclose(encoder.renormalise((images - mean) / std), (images - 0.5) / 0.5, atol=1e-6)
    assert not any(name.startswith("renormalise") for name in encoder.state_dict())
    as_imagenet = seeded("timm:test_byobnet", levels=IMAGENET)
    assert not any(isinstance(module, Renormalise) for module in as_imagenet.modules())


@pytest.mark.parametrize(
    ("name", "side", "sentence"),
    [
        ("resnet51", 64, "there is no 'resnet51'"),
        ("fasterrcnn_resnet50_fpn", 64, "there is no 'fasterrcnn_resnet50_fpn'"),
        ("timm:resnet51", 64, "timm [0-9.]+ has no model resnet51"),
        ("vit_b_32", 100, "vit_b_32 takes no images of 100 × 100 pixels"),
        ("timm:test_vit", 100, "takes no images of 100 × 100 pixels"),
    ],
)
def test_what_cannot_be_built_is_explained(name, side, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build_encoder(name, side)


# weights from a file


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Saves tensors here, and names the file as a run would."""
    monkeypatch.chdir(tmp_path)

    def save(content, name="base.safetensors"):
        path = tmp_path / name
        if name.endswith(".safetensors"):
            save_file(content, path, metadata={"format": "pt"})
        else:
            torch.save(content, path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return WeightsFile(file=name, sha256=sha256, source="https://example.org/base", licence="CC BY 4.0")

    return save


def published(side=64, seed=3):
    """A network's tensors as somebody would publish them, with a classifier."""
    state = seeded(VIT, seed, side).network.state_dict()
    return {**state, "head.weight": torch.rand(1000, 64), "head.bias": torch.rand(1000)}


@pytest.mark.parametrize("name", ["base.safetensors", "base.pth"])
def test_a_file_is_loaded_without_what_the_encoder_has_no_place_for(named, tmp_path, name):
    state = published()
    content = {"model": state, "epoch": 3} if name.endswith(".pth") else state
    weights, encoder = named(content, name), seeded(VIT)
    assert load_weights(encoder, VIT, weights, [tmp_path / "nothing", tmp_path]) == weights.sha256
    assert all(torch.equal(tensor, state[key]) for key, tensor in encoder.network.state_dict().items())


@pytest.mark.parametrize("train", ["head", WithLowRank(lora={"rank": 2})])
def test_a_frozen_encoder_and_one_with_updates_take_the_same_file(named, tmp_path, train):
    state = published()
    encoder = learning(GradingNetwork(seeded(VIT), 3, "linear"), train).encoder
    load_weights(encoder, VIT, named(state), [tmp_path])
    plain = seeded(VIT)
    plain.network.load_state_dict(state, strict=False)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(encoder(images), plain.eval()(images), atol=1e-6)


def test_a_frozen_batch_norm_takes_the_statistics_of_a_file(named, tmp_path):
    torch.manual_seed(3)
    state = import_models().mobilenet_v3_small().state_dict()
    state["features.0.1.running_mean"].fill_(0.25)
    network = learning(GradingNetwork(seeded("mobilenet_v3_small"), 3, "linear"), "head")
    load_weights(network.encoder, "mobilenet_v3_small", named(state), [tmp_path])
    assert (network.encoder.network.features[0][1].running_mean == 0.25).all()


def test_positions_of_another_image_size_are_resized(named, tmp_path):
    state, encoder = published(side=64), seeded(VIT, side=32)
    load_weights(encoder, VIT, named(state), [tmp_path])
    before, after = state["pos_embed"], encoder.network.pos_embed
    assert before.shape == (1, 17, 64)
    assert after.shape == (1, 5, 64)
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(positions_resized(before, 17), before)
    assert torch.allclose(positions_resized(torch.ones(1, 17, 2), 101), torch.ones(1, 101, 2))


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (
            lambda: {"a": torch.zeros(1)},
            "base.safetensors",
            r"does not hold the tensors of timm:test_vit: \S+ is missing",
        ),
        (
            lambda: published() | {"norm.weight": torch.zeros(2)},
            "base.pt",
            r"norm\.weight has the shape \[2\] there, and",
        ),
        (lambda: published() | {"norm.weight": torch.full((64,), torch.nan)}, "base.pt", "is not finite"),
        (lambda: published() | {"optimizer": Bomb()}, "base.pth", "cannot be read as tensors alone"),
        (lambda: [1, 2], "base.bin", "it is not a table of tensors"),
    ],
)
def test_a_file_with_other_contents(named, content, name, sentence):
    weights = named(content(), name)
    with pytest.raises(ConfigurationError, match=sentence):
        load_weights(seeded(VIT), VIT, weights, [Path()])
    assert not Path("exploded").exists()


def test_a_file_that_is_another_or_nowhere(named, tmp_path):
    weights = named(published())
    asked = (
        rf"base\.safetensors, whose SHA-256 is {weights.sha256}, is not in .*; get it from https://example\.org/base"
    )
    with pytest.raises(ConfigurationError, match=asked):
        load_weights(seeded(VIT), VIT, weights, [tmp_path / "nothing"])
    (tmp_path / weights.file).write_bytes(b"another")
    with pytest.raises(ConfigurationError, match=r"is another file than the run names, its SHA-256 is [0-9a-f]{64}"):
        load_weights(seeded(VIT), VIT, weights, [tmp_path])
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 100)
    broken = weights.model_copy(update={"file": "broken.safetensors", "sha256": hashlib.sha256(b"x" * 100).hexdigest()})
    with pytest.raises(ConfigurationError, match="cannot be read as tensors alone"):
        load_weights(seeded(VIT), VIT, broken, [tmp_path])


@pytest.mark.parametrize(
    ("name", "side"), [("vit_b_16", 224), ("efficientnet_v2_s", 384), (VIT, 160), ("small", None), ("plain", None)]
)
def test_for_which_size_a_network_was_published(name, side):
    assert published_side(name) == side
