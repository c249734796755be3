"""FedEE, deep ensembles, Monte Carlo dropout, temperature scaling: their networks, their rules, and who reads them."""

import copy
import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from shared.errors import ConfigurationError
from shared.exchange.reading import dump_yaml
from shared.exchange.records.tensors import TensorList
from shared.exchange.weights import TensorFile
from shared.folder.durable import write_file
from shared.learning.compute import EXACT
from shared.learning.kept_card import CARD, KeptCard
from shared.learning.kept_model import open_model
from shared.learning.methods import method_names, open_method, usual_options
from shared.learning.methods.contract import Contribution, Local
from shared.learning.methods.fedprox import FedProx
from shared.learning.methods.mdt import solve
from shared.learning.model_files import save_tensors
from shared.learning.models.early_exits import EarlyExits, exit_block, hidden_widths
from shared.learning.models.encoders import ENCODERS, build_encoder
from shared.learning.models.ensembles import DropoutPasses
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.temperature import HIGHEST, LOWEST, best_temperature
from shared.learning.objectives import CrossEntropy, image_losses
from shared.learning.optimizers import new_optimizer
from shared.learning.predictions import evaluate_labelled, predict
from shared.learning.reliability import measure_uncertainty
from shared.learning.requirements import requirements
from shared.learning.run_checks import check_together
from shared.learning.schedules import round_configuration
from shared.learning.sharing import build_network, sharing, staying
from shared.learning.tasks import task_named
from shared.learning.tolerance import HeldOutSet
from shared.learning.training import Epoch, evaluate, measure_statistics, take_step, train_epoch
from shared.learning.uncertainty import youden_threshold
from site_client.configuration import Policy
from site_client.train import Files, Trainer
from studies.simulation import open_sites, run_rounds
from tests.federation.running import POLICY, run_configuration, staging_run, write_data
from tests.learning.dealt import check_offer
from tests.learning.fixtures_file import cases

BASES = tuple(name for name in ("fedavg", "fedprox", "fedbn", "fedap") if name in method_names())
RAW = {
    "dr_staging": {"encoder": "small", "weights": "random", "image_size": 32},
    "octa_segmentation": {"image_size": 32, "widths": [4, 8]},
}
MEMBERS = {"fedee": 4, "deep_ensembles": 3, "mc_dropout": 5, "mdt": None}
OPTIONS = {"deep_ensembles": {"members": 3}}
PAIRS = [(task, name) for task in RAW for name in MEMBERS if (task, name) != ("octa_segmentation", "fedee")]


def opened(name, **raw):
    return open_method(name, OPTIONS.get(name, {}) | raw)


def built(task_name, method, classes=4, seed=1, **changes):
    task = task_named(task_name)
    return build_network(task, method, task.options(RAW[task_name] | changes), classes, run_seed=seed)


def parameters(*modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def batch(count=3, seed=1):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two sites' folders of each task."""
    root = tmp_path_factory.mktemp("data")
    for task in RAW:
        for number, site in enumerate(("north", "south")):
            write_data(task, root / task / site, number, 24, seed=number)
    return {task: {site: root / task / site for site in ("north", "south")} for task in RAW}


# --- the networks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("fedee_exit_sizes"))
def test_worked_sizes_of_exits(case):
    width = {"resnet18": 512, "efficientnet_b0": 1280, "pamap2_cnn": 64}
    outputs = {"resnet18": 1, "efficientnet_b0": 8, "pamap2_cnn": 8}
    for name, expected in case["expected"].items():
        channels, classes = expected["channels"], expected.get("out", outputs[name])
        hidden = hidden_widths(len(channels), width[name])
        assert hidden == expected["hidden"]
        blocks = [exit_block(*sizes, classes) for sizes in zip(channels, hidden, strict=True)]
        assert parameters(*blocks) == expected["exit_params"]
        if name in ENCODERS:
            encoder = build_encoder(name)
            assert (encoder.width, list(encoder.exits.values())) == (width[name], channels)


@pytest.mark.parametrize("case", cases("fedee_exit_sizes"))
def test_worked_size_of_the_whole_network(case):
    expected = case["expected"]["resnet18"]
    network = GradingNetwork("resnet18", expected["out"], "linear")
    network.encoder.conv1 = nn.Conv2d(expected["in_ch"], 64, kernel_size=7, stride=2, padding=3, bias=False)
    whole = EarlyExits(network)
    assert parameters(whole.exits) == expected["exit_params"]
    assert parameters(network) == expected["backbone"]
    assert parameters(whole) == expected["total"]


@pytest.mark.parametrize(
    ("encoder", "block", "numbers"),
    [
        ("resnet18", "BasicBlock", (1, 3, 5, 7)),
        ("resnet34", "BasicBlock", (2, 6, 12, 15)),
        ("resnet50", "Bottleneck", (2, 6, 12, 15)),
        ("efficientnet_b0", "MBConv", (4, 7, 10, 14)),
        ("vgg19", "MaxPool2d", (0, 1, 2, 3)),
    ],
)
def test_exits_follow_the_blocks_of_the_released_code(encoder, block, numbers):
    """Counted from 0: the last of each stage. Runs that are older than the choice counted them from 1."""
    with torch.device("meta"):
        network = build_encoder(encoder)
    blocks = [path for path, module in network.named_modules() if type(module).__name__ == block]
    assert tuple(blocks.index(path) for path in network.exits) == numbers
    network.leave_earlier()
    before = {"resnet18": (0, 2, 4, 6), "efficientnet_b0": (3, 6, 9, 13), "vgg19": numbers}
    assert tuple(blocks.index(path) for path in network.exits) == before.get(encoder, (0, 3, 7, 13))


def test_a_new_run_has_its_exits_behind_the_last_block_of_each_stage():
    def exits(**options):
        with torch.device("meta"):
            network = open_method("fedee", options).network(lambda _: GradingNetwork("resnet18", 3))
        return [*network.network.encoder.exits]

    assert exits(**usual_options("fedee")) == ["layer1.1", "layer2.1", "layer3.1", "layer4.1"]
    assert exits() == ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_has_exits_and_the_head_is_the_last_member(encoder):
    torch.manual_seed(1)
    plain = GradingNetwork(encoder, 5)
    whole = EarlyExits(plain).eval()
    with torch.no_grad():
        logits, images = whole(batch()), batch()
        assert logits.shape == (3, len(plain.encoder.exits) + 1, 5)
        assert torch.equal(logits[:, -1], plain(images))
        assert torch.equal(plain.encoder(images), whole.features(images))
    assert [tuple(leave[2].weight.shape)[1] for leave in whole.exits] == list(plain.encoder.exits.values())


def test_no_exit_trains_what_comes_after_it():
    whole = built("dr_staging", opened("fedee"))
    whole(batch())[:, 1].sum().backward()
    moved = {".".join(name.split(".")[:3]) for name, each in whole.named_parameters() if each.grad.any()}
    assert moved == {"network.encoder.stage1", "network.encoder.stage2", "exits.1.2", "exits.1.4"}


def test_the_loss_of_exits_and_head_is_their_sum():
    method = opened("fedee")
    whole, targets = built("dr_staging", method), torch.tensor([0, 3, 2])
    logits = whole(batch())
    loss, _ = image_losses(method.objective(1, 2), logits, targets)
    alone = [nn.functional.cross_entropy(member, targets) for member in logits.unbind(dim=1)]
    assert len(alone) == 4
    assert loss.item() == pytest.approx(math.fsum(each.item() for each in alone), rel=1e-6)


def test_members_begin_differently_and_the_first_as_the_network_alone():
    method = opened("deep_ensembles")
    whole, alone = built("dr_staging", method), built("dr_staging", open_method("fedavg", {}))
    first, *others = (member.state_dict() for member in whole.members)
    assert all(torch.equal(first[name], each) for name, each in alone.state_dict().items())
    weights = [each["encoder.stage1.conv.weight"] for each in (first, *others)]
    assert not any(torch.equal(weights[i], weights[j]) for i in range(3) for j in range(i))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_member_learns_as_if_it_were_alone(data, optimizer):
    task, trained = task_named("dr_staging"), []
    options = task.options(RAW["dr_staging"] | {"optimizer": optimizer})
    made = task.open_images(data["dr_staging"]["north"], options)
    for method in (opened("deep_ensembles"), open_method("fedavg", {})):
        network = built("dr_staging", method)
        trained.append(network)
        epoch = Epoch(0.01, 8, 1, task.augmentation({}))
        steps = new_optimizer(network, options, 0.01)
        objective = method.objective(1, 1)
        train_epoch(
            task,
            method,
            Local(network),
            steps,
            made.samples,
            epoch=epoch,
            objective=objective,
            on_batch=lambda *_: None,
        )
    ensemble, alone = trained
    for name, each in alone.state_dict().items():
        assert torch.allclose(ensemble.members[0].state_dict()[name], each, atol=1e-6), name


def test_members_with_batches_of_their_own_learn_one_after_the_other(data):
    """Each ends where it would alone, trained with the seed of its epoch; the others do not move meanwhile."""
    task = task_named("dr_staging")
    options = task.options(RAW["dr_staging"])
    made = task.open_images(data["dr_staging"]["north"], options).samples

    def train(method, network, seed):
        steps, epoch = new_optimizer(network, options, 0.01), Epoch(0.01, 8, seed, task.augmentation({}))
        kwargs = {"epoch": epoch, "objective": method.objective(1, 1), "on_batch": lambda *_: None}
        train_epoch(task, method, Local(network), steps, made, **kwargs)

    method = opened("deep_ensembles", members=2, batches="own")
    network, plain = built("dr_staging", method), open_method("fedavg", {})
    apart = [copy.deepcopy(member) for member in network.members]
    phases = method.phases(network, 2)
    assert len(phases) == method.epochs(2) == 4
    for seed, moving in enumerate(phases[:2]):
        for parameter in network.parameters():
            parameter.requires_grad_(any(parameter is each for each in moving))
        train(method, network, seed)
        train(plain, apart[seed], seed)
    for member, alone in zip(network.members, apart, strict=True):
        for name, each in alone.named_parameters():
            assert torch.allclose(member.get_parameter(name), each, atol=1e-6), name
    run = staging_run(method="deep_ensembles", method_options={"members": 2, "batches": "own"})
    shared = staging_run(method="deep_ensembles", method_options={"members": 2})
    assert requirements(run).views == requirements(shared).views
    assert requirements(run).epochs == 2 * requirements(shared).epochs


# --- dropout ----------------------------------------------------------------------------------------------


def test_a_grading_network_gets_one_dropout_before_its_last_layer_and_no_other_tensor():
    method = opened("mc_dropout", dropout=0.25)
    network = built("dr_staging", method).network
    assert list(dict(network.head.named_children())) == ["hidden", "norm", "relu", "dropout", "classify"]
    assert network.head.dropout.p == 0.25
    plain = built("dr_staging", open_method("fedavg", {}))
    assert list(network.state_dict()) == list(plain.state_dict())
    network.eval(), plain.eval()
    assert torch.equal(network(batch()), plain(batch()))


def test_passes_differ_repeat_and_do_not_depend_on_the_batch():
    network = built("dr_staging", opened("mc_dropout")).eval()
    before = torch.get_rng_state()
    with torch.no_grad():
        logits, again, first = network(batch()), network(batch()), network(batch()[:1])
    assert logits.shape == (3, 5, 4)
    assert torch.equal(logits, again)
    assert torch.allclose(logits[:1], first, atol=1e-6)
    assert torch.equal(before, torch.get_rng_state())
    assert all(not torch.allclose(logits[:, i], logits[:, j]) for i in range(5) for j in range(i))
    assert not any(module.training for module in network.modules())


def test_images_have_what_is_dropped_drawn_each_for_itself_unless_the_run_is_older():
    """Of equal images the same; of one and its negative other values are dropped in each pass."""
    images = torch.cat([batch()[:1], batch()[:1], -batch()[:1]])
    for options, alike in ((usual_options("mc_dropout"), False), ({}, True)):
        network = built("dr_staging", open_method("mc_dropout", options), head="linear").eval()
        seen = []
        network.network.head.classify.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            network(images)
            dropped = torch.stack(seen) == 0  # (passes, B, D)
            there = network.features(images) != 0
        assert torch.equal(dropped[:, 0], dropped[:, 1])
        both = there[0] & there[2]
        assert torch.equal(dropped[:, 0][:, both], dropped[:, 2][:, both]) == alike


def test_windows_of_an_image_have_the_same_values_dropped():
    """Networks of windows see each image's, one after the other, as a batch."""

    class Windows(nn.Module):
        classes, heads = 2, ()

        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, inputs):  # (B, W, D) -> (B, W, D)
            return self.dropout(inputs.flatten(0, 1)).view_as(inputs)

    network = DropoutPasses(Windows(), 3).eval()
    images = torch.ones(2, 4, 50) * torch.tensor([1.0, 2.0])[:, None, None]
    dropped = network(images) == 0  # (B, passes, W, D)
    assert (dropped == dropped[:, :, :1]).all()
    assert not torch.equal(dropped[0], dropped[1]) and not torch.equal(dropped[:, 0], dropped[:, 1])


def test_a_pass_keeps_or_drops_whole_values_and_their_mean():
    """Before the last layer of a linear head: each feature is 0 or twice itself, and on average itself."""
    network = built("dr_staging", opened("mc_dropout", passes=100), head="linear").eval()
    seen = []
    network.network.head.classify.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        network(batch())
        features = network.features(batch())
    shares = torch.stack(seen) / features
    assert set(shares[shares.isfinite()].round(decimals=4).tolist()) == {0.0, 2.0}
    assert shares.nanmean().item() == pytest.approx(1, abs=0.05)


def test_batchnorm_answers_as_ever_while_values_are_dropped():
    network = built("dr_staging", opened("mc_dropout")).eval()
    before = {name: each.clone() for name, each in network.state_dict().items()}
    with torch.no_grad():
        network(batch())
    assert all(torch.equal(before[name], each) for name, each in network.state_dict().items())


def test_in_training_there_is_one_pass_with_pytorchs_own_dropout():
    network = built("dr_staging", opened("mc_dropout")).train()
    torch.manual_seed(5)
    logits = network(batch())
    torch.manual_seed(5)
    assert torch.equal(logits, network.network.train()(batch())[:, None])


def test_the_loss_of_passes_is_that_of_one_pass():
    objective, plain = opened("mc_dropout").objective(1, 1), CrossEntropy()
    logits, targets = torch.randn(6, 1, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    alone = plain.terms(logits[:, 0], targets)["loss"]
    assert torch.allclose(objective.terms(logits, targets)["loss"], alone)
    assert torch.allclose(objective.terms(logits.expand(6, 5, 4), targets)["loss"], alone)


def test_a_networks_own_dropout_is_used_and_one_without_any_is_refused():
    network = built("octa_segmentation", opened("mc_dropout"), 2).eval()
    with torch.no_grad():
        logits = network(torch.rand(1, 1, 20, 24))
    assert logits.shape == (1, 5, 2, 20, 24)
    assert not torch.allclose(logits[:, 0], logits[:, 1])
    with pytest.raises(ConfigurationError, match="mc_dropout needs a network that drops something out"):
        built("octa_segmentation", opened("mc_dropout"), 2, dropout=0.0)


# --- over a base ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
def test_exits_never_travel_and_all_else_is_as_the_base_has_it(base):
    task, method, plain = task_named("dr_staging"), opened("fedee", base=base), open_method(base, {})
    found = sharing(task, method, built("dr_staging", method))
    expected = sharing(task, plain, built("dr_staging", plain))
    assert [name for name in found.personal if name.startswith("exits.")] == [
        f"exits.{number}.{layer}.{kind}" for number in range(3) for layer in (2, 4) for kind in ("weight", "bias")
    ]
    for kind in ("tensors", "start"):
        assert getattr(found, kind) == {f"network.{name}": each for name, each in getattr(expected, kind).items()}
    assert {name for name in found.personal if name.startswith("network.")} == {
        f"network.{name}" for name in expected.personal
    }
    six = sharing(task, method, built("dr_staging", method, 6))
    assert six == found


@pytest.mark.parametrize("name", ["fedee", "deep_ensembles", "mc_dropout"])
def test_the_bases_options_and_rules_are_there(name):
    over = open_method(name, {"base": "fedprox", "mu": 0.5, "fine_tuning_epochs": 3})
    assert isinstance(over, FedProx)
    assert (over.name, over.options.mu, over.options.fine_tuning_epochs) == (name, 0.5, 3)
    local = Local(nn.Linear(2, 1), shared=("weight", "bias"))
    with torch.no_grad():
        local.x["weight"].add_(2.0)
    assert torch.allclose(over.correction(local)["weight"], torch.ones(1, 2))
    again = open_method(name, over.options.model_dump(mode="json"))  # as an offer has them: in full
    assert again.options.model_dump() == over.options.model_dump()
    with pytest.raises(ConfigurationError, match="mu: is not a known key"):
        open_method(name, {"mu": 0.5})
    with pytest.raises(ConfigurationError, match="base: "):
        open_method(name, {"base": "scaffold"})


@pytest.mark.parametrize("name", ["fedee", "deep_ensembles", "mc_dropout", "mdt"])
def test_the_number_of_images_weighs(name):
    told = {"north": Contribution(images=30), "south": Contribution(images=10)}
    assert opened(name).weights(told) == {"north": 0.75, "south": 0.25}


def test_what_an_optimizer_remembers_lasts_under_fedee():
    assert opened("fedee").options.keep_optimizer
    assert not opened("fedee", keep_optimizer=False).options.keep_optimizer


def test_a_head_that_answers_once_for_many_places_is_refused_by_mdt():
    with pytest.raises(ConfigurationError, match="take head: layers"):
        build_network(
            task := task_named("rdr_classification"),
            open_method("mdt", {}),
            task.options({"encoder": "small", "weights": "random", "image_size": 32, "head": "released"}),
            2,
            run_seed=1,
        )


def test_each_member_is_clipped_alone(data):
    """The gradients of one that explodes hold the others back no more."""
    steps = []
    for method in (opened("deep_ensembles"), open_method("fedavg", {})):
        network = built("dr_staging", method)
        members = network.members if method.name == "deep_ensembles" else [network]
        for number, member in enumerate(members):
            for parameter in member.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + 1e3 * number)
        before = next(members[0].parameters()).clone()
        take_step(method, Local(network), torch.optim.SGD(network.parameters(), lr=1.0), max_grad_norm=0.5)
        steps.append(next(members[0].parameters()) - before)
    assert torch.allclose(*steps) and steps[0].abs().max() > 0


def test_a_task_without_an_encoder_is_refused_in_one_sentence(tmp_path):
    """By the aggregator, which builds the network before it offers anything, and by a site that is offered it."""
    with pytest.raises(ConfigurationError, match="fedee puts exits into an encoder") as caught:
        built("octa_segmentation", opened("fedee"), 2)
    assert len(caught.value.problems) == 1
    plain = built("octa_segmentation", open_method("fedavg", {}), 2)
    listed = sharing(task_named("octa_segmentation"), open_method("fedavg", {}), plain)
    with pytest.raises(ConfigurationError, match="fedee puts exits into an encoder"):
        check_offer(Trainer(run_configuration(method="fedee"), listed, tmp_path, POLICY, EXACT, tmp_path / "noise"))


# --- all that reads an answer -----------------------------------------------------------------------------


@pytest.mark.parametrize(("task_name", "name"), PAIRS)
def test_everything_that_reads_answers_reads_these(task_name, name, data, tmp_path):
    """Training, scores, θ, the tolerance check, a kept model, and what it says of images."""
    task, method = task_named(task_name), opened(name)
    options = task.options(RAW[task_name])
    folder = data[task_name]["north"]
    images = task.open_images(folder, options)
    network = built(task_name, method, len(images.classes))
    objective, listed = method.objective(1, 1), sharing(task, method, network)

    epoch = Epoch(0.001, 8, 1, task.augmentation({"copies": 1}))
    trained = train_epoch(
        task,
        method,
        Local(network),
        new_optimizer(network, options, 0.001),
        images.samples,
        epoch=epoch,
        objective=objective,
        on_batch=lambda *_: None,
    )
    evaluation = evaluate(task, network, images.samples, objective)
    assert math.isfinite(trained.loss)
    assert trained.scores.keys() == evaluation.scores.keys()
    if MEMBERS[name] is not None:
        inputs = task.collate(images.samples[:2])[0]
        with torch.no_grad():
            assert network.eval()(inputs).shape[:3] == (2, MEMBERS[name], len(images.classes))

    found = measure_uncertainty(task, network, images.samples, objective, seed=3)
    assert 0 < youden_threshold(found.uncertainty, found.wrong).theta <= 1
    save_tensors(network, listed.shared, tmp_path / "sent.safetensors")
    score = task.tolerance_scores[0]
    held_out = HeldOutSet(task, network, images, listed, score, objective, seed=1)
    assert 0 <= held_out.score(tmp_path / "sent.safetensors", "sent") <= 1

    measure_statistics(task, network, images.samples)  # the probe did, of its own
    if name == "mdt":
        network.temperature.coefficients.uniform_(-0.1, 0.1)
    home = tmp_path / "final"
    whole = TensorList(tensors=listed.tensors | staying(listed, network).tensors)
    save_tensors(network, whole, home / "model.safetensors")
    card = KeptCard(
        run="run",
        task=task_name,
        task_options=options.model_dump(mode="json"),
        method=name,
        method_options=method.options.model_dump(mode="json"),
        rounds=1,
        classes=list(images.classes),
        chosen_round=1,
        personal_round=1,
        theta=0.5,
        theta_status="measured",
    )
    write_file(home / CARD, dump_yaml(card))
    kept = open_model(home)
    again = evaluate_labelled(kept, folder)
    assert again == evaluate(task, network, images.samples, objective)
    table, count, problems = predict(kept, folder / "images", tmp_path / "out")
    assert (count, problems) == (len(images.samples), [])
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    for row in rows:
        shares = [float(value) for key, value in row.items() if key.startswith(("probability_", "share_"))]
        if task_name == "dr_staging":
            assert math.fsum(shares) == pytest.approx(1, abs=1e-3)
        assert 0 <= float(row["uncertainty"]) <= 1


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        *(
            pytest.param("fedee", {"base": base, "fine_tuning_epochs": int(base == "fedbn")}, marks=pytest.mark.long)
            for base in BASES
        ),
        ("deep_ensembles", {"members": 2}),
        pytest.param("mc_dropout", {}, marks=pytest.mark.long),
        ("mdt", {}),
    ],
)
def test_a_federation_comes_to_an_end(name, raw, data, tmp_path):
    run = staging_run(method=name, method_options=raw)
    outcome = run_rounds(run, data["dr_staging"], tmp_path / "home")
    assert sorted(outcome.rows) == [0, 1, 2]
    for of_round in outcome.weights.values():
        assert math.fsum(of_round.values()) == pytest.approx(1)
    for evaluation in outcome.tests.values():
        assert math.isfinite(evaluation.loss)
        assert 0 <= evaluation.scores["auroc"].value <= 1
    validation = {
        number: np.mean([row.loss for table in tables.values() for row in table if row.split == "validation"])
        for number, tables in outcome.rows.items()
    }
    assert len(set(validation.values())) == 3, "every round has made another model"


# --- temperature ------------------------------------------------------------------------------------------


class Domain(nn.Module):
    """A network whose one feature beside its logits tells where an image is from."""

    classes = 3

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(3, 4))

    @property
    def heads(self):
        return (self.head,)

    def features(self, inputs):
        return inputs

    def forward(self, inputs):
        return self.head(inputs)


def site_of(place, temperature, count=4000):
    """(N, 4) inputs whose logits are too sure by a factor, and targets."""
    rng = np.random.default_rng(place)
    logits = rng.normal(0, 2, size=(count, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    targets = [rng.choice(3, p=row) for row in shares]
    inputs = np.hstack([temperature * logits, np.full((count, 1), float(place))])
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)


def measured(method, network, inputs, targets, **told):
    local = Local(network, batches=lambda split: iter([(inputs, targets)]), **told)
    method.measure(local)
    return local.sent["equations"]


def contribution(sent):
    return Contribution(images=1, sent=lambda group: {name: each.numpy() for name, each in sent.items()})


@pytest.mark.parametrize(("said", "expected"), [(1.0, 1.0), (3.0, 3.0), (0.5, 0.5)])
def test_the_temperature_of_a_site_undoes_what_it_is_too_sure_of(said, expected):
    inputs, targets = site_of(0, said)
    found = best_temperature(inputs[:, :3], targets)
    assert found == pytest.approx(expected, rel=0.05)

    def likelihood(temperature):
        return nn.functional.cross_entropy(inputs[:, :3].double() / temperature, targets).item()

    assert all(likelihood(found) <= likelihood(found * factor) for factor in (0.9, 0.999, 1.001, 1.1))


def test_no_temperature_is_out_of_bounds():
    sure = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    assert best_temperature(sure, torch.tensor([0, 1])) == pytest.approx(LOWEST)
    assert best_temperature(sure, torch.tensor([1, 0])) == pytest.approx(HIGHEST)
    method = opened("mdt")
    network = method.network(lambda number: Domain())
    for shift, bound in ((100.0, HIGHEST), (-100.0, LOWEST)):
        network.temperature.coefficients[-1] = shift
        assert network.temperature(torch.zeros(2, 4, 5)).eq(bound).all()


def test_before_it_is_measured_nothing_is_tempered():
    tempered, plain = built("dr_staging", opened("mdt")), built("dr_staging", open_method("fedavg", {}))
    assert torch.equal(tempered.eval()(batch()), plain.eval()(batch()))
    opened("mdt").ready(tempered, {"temperature": {"coefficients": torch.zeros(129)}})
    assert torch.equal(tempered(batch()), plain(batch()))


def test_two_domains_get_back_their_temperatures():
    method = opened("mdt", ridge=1e-6)
    network = method.network(lambda number: Domain())
    sites = {"north": site_of(0, 2.0), "south": site_of(1, 4.0)}
    told = {site: contribution(measured(method, network, *made)) for site, made in sites.items()}
    settled = method.settle(told)["temperature"]["coefficients"]
    method.ready(network, {"temperature": {"coefficients": torch.from_numpy(settled).float()}})
    for (inputs, targets), expected in zip(sites.values(), (2.0, 4.0), strict=True):
        temperatures = network.temperature(inputs)
        assert temperatures.shape == (len(inputs), 1)
        assert temperatures.mean().item() == pytest.approx(expected, rel=0.05)
        assert torch.allclose(network(inputs), inputs[:, :3] / temperatures)
        plain, tempered = (nn.functional.cross_entropy(each, targets) for each in (inputs[:, :3], network(inputs)))
        assert tempered < plain


def test_the_sums_of_the_sites_give_what_all_their_images_together_would():
    """Ridge regression on the stacked features themselves, the shift without a penalty."""
    method, network = opened("mdt", ridge=0.01), opened("mdt").network(lambda number: Domain())
    sites = [site_of(place, 1.5 + place, count=50 * (place + 1)) for place in range(3)]
    told = {str(number): contribution(measured(method, network, *made)) for number, made in enumerate(sites)}
    phi = np.vstack([np.hstack([inputs.double().numpy(), np.ones((len(inputs), 1))]) for inputs, _ in sites])
    wanted = np.concatenate(
        [np.full(len(inputs), best_temperature(inputs[:, :3], targets) - 1) for inputs, targets in sites]
    )
    penalty = 0.01 * np.mean((phi[:, :-1] ** 2).sum(axis=0))
    rows = math.sqrt(penalty) * np.eye(5)[:4]
    expected, *_ = np.linalg.lstsq(np.vstack([phi, rows]), np.concatenate([wanted, np.zeros(4)]))
    assert method.settle(told)["temperature"]["coefficients"] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("ridge", [1e-8, 1e-6, 1e-3])
def test_fewer_images_than_features_are_solved_as_well_as_by_a_library(ridge):
    """Rounded to float32 as they are sent, the sums have eigenvalues below 0."""
    drawn = np.random.default_rng(1)
    features = np.hstack([np.abs(drawn.normal(size=(60, 512))) * np.exp(drawn.normal(size=512)), np.ones((60, 1))])
    matrix = (features.T @ features).astype(np.float32).astype(np.float64)
    right = features.T @ drawn.normal(size=60)
    penalised = matrix + ridge * matrix.diagonal()[:-1].mean() * np.diag([1.0] * 512 + [0.0])
    expected, *_ = np.linalg.lstsq(penalised, right)
    assert solve(penalised, right) == pytest.approx(expected, rel=1e-3, abs=1e-6 * np.abs(expected).max())


def test_a_site_with_few_images_tells_nothing_and_nothing_told_is_a_temperature_of_one():
    method, network = opened("mdt"), opened("mdt").network(lambda number: Domain())
    inputs, targets = site_of(0, 3.0, count=4)
    assert measured(method, network, inputs, targets, minimum_count=4)["matrix"].any()
    sent = measured(method, network, inputs, targets, minimum_count=5)
    assert not any(each.any() for each in sent.values())
    assert not method.settle({"north": contribution(sent)})["temperature"]["coefficients"].any()


@pytest.mark.parametrize(("minimum_count", "tells"), [(2, True), (1000, False)])
def test_how_few_images_tell_nothing_is_the_sites_policy(minimum_count, tells, data, tmp_path):
    run = staging_run(method="mdt", rounds=1)
    network, sites = open_sites(run, data["dr_staging"], tmp_path)
    site = sites["north"]
    trainer = replace(site.trainer, policy=Policy(minimum_count=minimum_count, minimum_training_images=1))
    save_tensors(network, trainer.sharing.shared, tmp_path / "received")
    files = Files(
        received=tmp_path / "received",
        state={},
        start=None,
        personal=None,
        accepted=None,
        trained=tmp_path / "trained",
        sent={"equations": tmp_path / "equations"},
        kept=tmp_path / "kept",
    )
    closing = round_configuration(run, 2, "north")
    assert closing.epochs == 0
    trainer.work(site.dataset, closing, files, lambda percent: None)
    matrix = TensorFile(tmp_path / "equations").tensor("matrix")
    assert matrix.shape == (129, 129)
    assert matrix[-1, -1] == (len(site.dataset.validation) if tells else 0)
    assert matrix.any() == tells


def test_of_a_segmentation_each_image_gives_some_pixels():
    method = opened("mdt")
    network = built("octa_segmentation", method, 2)
    images, masks = torch.rand(5, 1, 32, 32), torch.randint(0, 2, (5, 32, 32))
    sent = measured(method, network, images, masks, minimum_count=5)
    assert sent["matrix"].shape == (5, 5)
    assert sent["matrix"][-1, -1] == 5 * 256
    assert not any(each.any() for each in measured(method, network, images, masks, minimum_count=6).values())


def test_what_has_diverged_tells_nothing():
    method, network = opened("mdt"), opened("mdt").network(lambda number: Domain())
    inputs, targets = site_of(0, 3.0, count=20)
    inputs[3, 3] = math.inf
    assert not any(each.any() for each in measured(method, network, inputs, targets).values())


def test_what_all_sites_tell_goes_with_no_rule_that_leaves_some_out():
    sites = ["north", "south", "west"]
    check_together(staging_run(method="mdt", sites=sites, quorum=3))
    with pytest.raises(ConfigurationError, match="mdt adds up what all sites tell, and median leaves no liar out"):
        check_together(staging_run(method="mdt", sites=sites, quorum=3, combination={"rule": "median"}))
