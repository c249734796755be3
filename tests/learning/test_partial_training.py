"""A frozen encoder, with the head alone in training or with updates of low rank: what travels, and that it is exact."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.partial_training import sizes
from shared.errors import ConfigurationError
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.weights import TensorFile
from shared.learning.batch_norm import FrozenBatchNorm, batch_norms, replace_batch_norm
from shared.learning.combine import distances
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.models.encoders import build_encoder
from shared.learning.models.lora import LowRankUpdate, add_low_rank
from shared.learning.privacy import Mechanism
from shared.learning.private_gradients import PrivateGradients, Secret
from shared.learning.run_checks import check_together
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from shared.learning.training import evaluate
from studies.simulation import run_rounds
from tests.at_length import shown_by
from tests.learning.small_sites import write_small

VIT = "timm:test_vit"
RANK = 4
LORA = {"lora": {"rank": RANK}}
SMALL = {"weights": "random", "image_size": 32, "hidden": [8]}
ATTENTION_OF_VIT = 6 * (192 + 64) * RANK  # six blocks: queries, keys and values in one of 192 rows, and a projection
HEAD = 64 * 8 + 8 + 8 * 3 + 3
SITES = ("north", "south")


def network_of(task="fundus_disease", seed=1, **options):
    chosen = task_named(task)
    return chosen.build_model(chosen.options({**SMALL, **options} if task != "dr_staging" else options), 3, seed)


def listed_of(network, method="fedavg", task="fundus_disease"):
    return sharing(task_named(task), open_method(method, {}), network)


def numbers(tensors):
    return sum(int(np.prod(tensor.shape)) for tensor in tensors.values())


def moved(network, seed):
    """A copy whose updates and head are others: what training at a site might have come to."""
    torch.manual_seed(seed)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return other


def updated(network):
    """The matrices with an update, as the network computes with them."""
    return {
        path: module[0](module.original).detach()
        for path, module in network.named_modules()
        if isinstance(module, nn.utils.parametrize.ParametrizationList)
    }


def test_the_rows_of_a_are_orthonormal_b_is_zero_and_the_seed_decides_both():
    found = [module for module in network_of(encoder=VIT, train=LORA).modules() if isinstance(module, LowRankUpdate)]
    again = [module for module in network_of(encoder=VIT, train=LORA).modules() if isinstance(module, LowRankUpdate)]
    other = [m for m in network_of(encoder=VIT, train=LORA, seed=2).modules() if isinstance(m, LowRankUpdate)]
    assert len(found) == 12
    for one, same, different in zip(found, again, other, strict=True):
        assert torch.allclose(one.a @ one.a.T, torch.eye(RANK), atol=1e-6)
        assert not one.b.any()
        assert torch.equal(one.a, same.a)
        assert not torch.equal(one.a, different.a)


@pytest.mark.parametrize("task", ["fundus_disease", "dr_staging"])
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedprox", "feduaa", "fedrep"])
def test_only_b_and_a_head_that_is_shared_travel(task, method):
    options = {"encoder": VIT, "train": LORA, "image_size": 32, "weights": "random"}
    network = network_of(task, **options)
    found = listed_of(network, method, task)
    own_head = task == "dr_staging" or method == "fedrep"
    assert numbers(found.tensors) == ATTENTION_OF_VIT + (0 if own_head else HEAD)
    assert {name.rpartition(".")[2] for name in found.tensors if name.startswith("encoder.")} == {"b"}
    assert found.buffers == []
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    assert set(found.frozen) == frozen
    assert {name.rpartition(".")[2] for name in frozen} >= {"a", "original"}
    assert set(found.start) - frozen == (
        {name for name in found.start if name.startswith("head.")} - set(found.tensors)
    )


def test_the_mean_of_b_is_the_mean_of_the_whole_updates():
    network = network_of(encoder=VIT, train=LORA)
    sites = [moved(network, seed) for seed in (1, 2, 3)]
    weights = (0.5, 0.3, 0.2)
    shared = listed_of(network).parameters.tensors
    states = [dict(site.named_parameters()) for site in sites]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in shared:
                parameter.copy_(sum(weight * state[name] for weight, state in zip(weights, states, strict=True)))
    wholes = [updated(site) for site in sites]
    for path, matrix in updated(network).items():
        whole = sum(weight * found[path] for weight, found in zip(weights, wholes, strict=True))
        assert torch.allclose(matrix, whole, atol=1e-6)
        assert not torch.allclose(matrix, network.get_submodule(path).original, atol=1e-3)


def test_distances_of_b_are_those_of_the_whole_updates(tmp_path):
    network = network_of(encoder=VIT, train=LORA)
    sites = {name: moved(network, seed) for seed, name in enumerate(SITES)}
    listed = listed_of(network)
    updates = TensorList(tensors={name: shape for name, shape in listed.tensors.items() if name.endswith(".b")})
    files = {name: {MODEL: tmp_path / name} for name in SITES}
    for name, site in sites.items():
        save_tensors(site, updates, tmp_path / name)
    apart = distances(files, {MODEL: updates})
    north, south = (updated(site) for site in sites.values())
    whole = sum((north[path] - south[path]).double().square().sum().item() for path in north)
    assert apart["north", "south"] == pytest.approx(whole, rel=1e-5)


def test_norms_of_b_are_those_of_the_whole_updates():
    """So what is clipped to a norm, or compared with one, is the same."""
    network = network_of(encoder=VIT, train=LORA)
    site = moved(network, 1)
    of_b = [module.b.detach().norm() for module in site.modules() if isinstance(module, LowRankUpdate)]
    before = updated(network)
    of_whole = [(matrix - before[path]).norm() for path, matrix in updated(site).items()]
    assert len(of_b) == 12 and all(norm > 0.1 for norm in of_b)
    assert torch.allclose(torch.stack(of_b), torch.stack(of_whole), rtol=1e-5)


def test_a_network_with_updates_answers_as_one_whose_matrices_are_the_updated_ones():
    """torchvision's attention takes its matrices without asking their layers; in evaluation, on a path of its own."""
    from torchvision.models.vision_transformer import VisionTransformer

    torch.manual_seed(1)
    plain = VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=3)
    network = copy.deepcopy(plain)
    add_low_rank(network.requires_grad_(False), 2, ["attention"])
    network = moved(network, 1)
    with torch.no_grad():
        for path, matrix in updated(network).items():
            layer, _, name = path.partition(".parametrizations.")
            getattr(plain.get_submodule(layer), name).copy_(matrix)
    images = torch.rand(2, 3, 32, 32)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            assert torch.allclose(network.train(mode)(images), plain.train(mode)(images), atol=1e-5)


def test_layers_are_chosen_by_the_end_of_their_path():
    def updates(*on, rank=2):
        network = network_of(encoder=VIT, train={"lora": {"rank": rank, "on": list(on)}})
        return sum(isinstance(module, LowRankUpdate) for module in network.modules())

    assert updates("attn.qkv") == 6
    assert updates("mlp.fc1", "attention", "attn.proj") == 18
    with pytest.raises(
        ConfigurationError, match=r"on: qvk is no linear layer of this encoder; it has attn\.proj, attn"
    ):
        updates("qvk")
    with pytest.raises(ConfigurationError, match=r"blocks\.0\.attn\.\w+ has 64 inputs; set rank to that or less"):
        updates("attention", rank=65)
    with pytest.raises(ConfigurationError, match="no linear layer at all"):
        network_of(encoder="small", train=LORA)


@pytest.mark.parametrize("encoder", ["small", "timm:test_vit"])
def test_with_the_head_alone_in_training_nothing_of_the_encoder_changes_or_travels(encoder):
    network = network_of(encoder=encoder, train="head")
    assert batch_norms(network) == []
    found = listed_of(network, "fedbn")
    assert all(name.startswith("head.") for name in found.tensors)
    before = copy.deepcopy(network.encoder.state_dict())
    assert set(found.frozen) == {f"encoder.{name}" for name in before}
    network.train()
    assert not any(module.training for module in network.encoder.modules())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        network(torch.rand(4, 3, 32, 32)).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.encoder.state_dict().items())


def test_a_frozen_batch_norm_normalises_as_in_evaluation():
    torch.manual_seed(1)
    encoder = build_encoder("small")
    images = torch.rand(4, 3, 32, 32)
    encoder.train()(images)  # statistics that are not those of the beginning
    with torch.no_grad():
        expected = encoder.eval()(images)
        encoder.freeze()
        assert torch.allclose(encoder.train()(images), expected, atol=1e-6)


def test_a_head_that_stays_is_not_all_that_may_train():
    with pytest.raises(ConfigurationError, match="each head stays there, and with head nothing would travel"):
        task_named("dr_staging").options({"train": "head"})


def test_private_training_of_a_head_leaves_a_frozen_batch_norm_alone():
    torch.manual_seed(1)
    network = network_of(encoder="small", train="head")
    replace_batch_norm(network)
    assert any(isinstance(module, FrozenBatchNorm) for module in network.modules())
    how = Mechanism(images=4, batch_size=4, noise_multiplier=0.1, max_grad_norm=1.0)
    with PrivateGradients(network, how, Secret(bytes(32))) as gradients:
        gradients.add(network(torch.rand(4, 3, 32, 32)).square().sum(dim=1))
        gradients.release()
    assert {name for name, parameter in network.named_parameters() if parameter.grad is not None} == {
        name for name, _ in network.named_parameters() if name.startswith("head.")
    }


@pytest.mark.parametrize("options", [{"encoder": VIT, "train": LORA}, {"encoder": "swin_t", "train": "all"}])
def test_private_training_says_what_it_cannot_do(options):
    run = run_of("fedavg", **options).model_dump() | {
        "privacy": {"max_grad_norm": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
        "augmentation": {"copies": 1, "originals": False},
    }
    with pytest.raises(ConfigurationError, match="train the head alone, or all of resnet18"):
        check_together(RunConfiguration.model_validate(run))


def test_exits_need_an_encoder_with_a_place_for_them():
    task, method = task_named("dr_staging"), open_method("fedee", {})
    options = task.options({"encoder": VIT, "image_size": 32, "weights": "random"})
    with pytest.raises(ConfigurationError, match="this network has no place for one"):
        method.network(lambda number: task.build_model(options, 3, number))


def test_the_guides_bytes_are_those_of_the_networks():
    guide = (Path(__file__).parents[2] / "docs" / "foundation-models.md").read_text()
    rows = re.findall(r"\| `(\w+)` \| (`all`|`head`|rank \d+) \| ([\d,]+) \| ([\d,]+) \|", guide)
    assert len(rows) == 9
    for encoder, trained, each_way, once in rows:
        train = {"lora": {"rank": int(trained.split()[1])}} if trained.startswith("rank") else trained.strip("`")
        if encoder == "vit_b_16":  # the larger one takes as long as all else here
            found = sizes(encoder, train)
            assert (f"{found['bytes_each_way']:,}", f"{found['bytes_once']:,}") == (each_way, once)


def run_of(method, **options):
    return RunConfiguration(
        run="partial",
        task="fundus_disease",
        method=method,
        sites=list(SITES),
        rounds=1,
        batch_size=8,
        learning_rate={"initial": 0.05, "period": 1},
        task_options={**SMALL, **options},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("partial")
    for number, site in enumerate(SITES):
        write_small("fundus_disease", root / site, images=12, size=40, seed=number, site=number)
    return {site: root / site for site in SITES}


@pytest.mark.parametrize("method", shown_by(["fedavg", "feduaa"], ["fedavg", "fedbn", "fedprox", "feduaa", "moon"]))
def test_two_sites_train_updates_together(method, data, tmp_path):
    outcome = run_rounds(run_of(method, encoder=VIT, train=LORA), data, tmp_path)
    home = tmp_path / "runs" / "partial"
    first, last = (TensorFile(home / "rounds" / number / "aggregate.safetensors") for number in ("0000", "0001"))
    assert sum(first.tensor(name).size for name in first.names) == ATTENTION_OF_VIT + HEAD
    learnt = [name for name in last.names if name.endswith(".b")]
    assert learnt
    assert not any(first.tensor(name).any() for name in learnt)
    assert all(last.tensor(name).any() for name in learnt)
    start = TensorFile(home / "start.safetensors")
    for final in outcome.finals.values():
        state = final.network().state_dict()
        assert all(np.array_equal(state[name].numpy(), start.tensor(name)) for name in start.names)


def test_a_mean_of_b_scores_as_a_mean_of_the_whole_matrices(data, tmp_path):
    """Two sites train updates; their answers are combined once as they came, and once as whole networks, W + B·A."""
    outcome = run_rounds(run_of("fedavg", encoder=VIT, train=LORA), data, tmp_path)
    home, final = tmp_path / "runs" / "partial", outcome.finals["north"]
    whole = network_of(encoder=VIT, train="all")

    def answered(file):
        network = network_of(encoder=VIT, train=LORA)
        listed = listed_of(network)
        load_tensors(network, listed.beginning, home / "start.safetensors")
        load_tensors(network, listed.shared, file)
        return network

    def as_whole(network):
        matrices = {path.replace(".parametrizations.", "."): matrix for path, matrix in updated(network).items()}
        state = network.state_dict() | matrices
        return {name: state[name] for name in whole.state_dict()}

    states = {site: as_whole(answered(home / "sites" / site / "0001.trained.safetensors")) for site in SITES}
    shares = {site: float(outcome.verdicts[1][site].weight) for site in SITES}
    mean = {
        name: sum(shares[site] * states[site][name].double() for site in SITES).float() for name in whole.state_dict()
    }
    whole.load_state_dict(mean)
    by_b = answered(home / "rounds" / "0001" / "aggregate.safetensors")
    assert all(torch.allclose(tensor, mean[name], atol=1e-6) for name, tensor in as_whole(by_b).items())
    for dataset in (each.dataset for each in outcome.finals.values()):
        images = [*dataset.train, *dataset.validation, *dataset.test]
        of_b, of_whole = (
            {name: score.value for name, score in evaluate(final.task, network, images, final.objective).scores.items()}
            for network in (by_b, whole)
        )
        assert {"auroc", "accuracy", "calibration_error"} <= of_b.keys()
        assert of_b == pytest.approx(of_whole, abs=1e-5, nan_ok=True)
