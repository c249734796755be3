"""FedRep, MOON, FedAP, cyclic weight transfer and the references: the algorithms' boxes, and the traps beside them."""

import math

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.numpy import load_file
from torch import nn

from aggregator.cli import main as aggregator
from aggregator.setup import initialise
from shared.errors import ConfigurationError
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import Median
from shared.learning.batch_norm import batch_norms
from shared.learning.compute import EXACT
from shared.learning.methods import open_method
from shared.learning.methods.contract import Contribution, Local
from shared.learning.methods.fedap import STATISTICS, distance, row, statistics
from shared.learning.methods.fedrep import FedRep
from shared.learning.methods.moon import PREVIOUS, RECEIVED, contrast
from shared.learning.model_files import save_tensors
from shared.learning.run_checks import check_together
from shared.learning.schedules import round_configuration
from shared.learning.sharing import build_network, learns_features, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation
from shared.learning.training import evenly
from site_client.configuration import Policy
from site_client.train import Files, Trainer
from studies.simulation import POOLED, open_public, open_sites, pooled, run_rounds
from tests.federation.running import TINY, make_data, run_configuration, staging_run
from tests.learning.dealt import check_offer

STILL = {"copies": 1, "pixel_dropout": [0, 0]}


def octa_run(method, **changes):
    """Two sites, the tiny U-Net without dropout."""
    changes["task_options"] = {**TINY, "dropout": 0.0}
    return run_configuration(**{"method": method, "quorum": 1, "rounds": 2, **changes})


def played(run, folder, images=12):
    data, home = folder / "data", folder / f"home-{run.method}-{len(list(folder.iterdir()))}"
    if not data.exists():
        make_data(run, data, images)
    outcome = run_rounds(run, {site: data / site for site in run.sites}, home)
    return outcome, home / "runs" / run.run


def trained(home, round_no, site):
    return load_file(home / "sites" / site / f"{round_no:04d}.trained.safetensors")


def kept(home, round_no, site):
    return load_file(home / "sites" / site / f"{round_no:04d}.kept.safetensors")


def sent(home, round_no, site, group):
    return load_file(home / "sites" / site / f"{round_no:04d}.{group}.safetensors")


def aggregate(home, round_no, site=None):
    own = home / "rounds" / f"{round_no:04d}" / "own" / f"{site}.safetensors"
    return load_file(own if site and own.exists() else home / "rounds" / f"{round_no:04d}" / "aggregate.safetensors")


def same(first, second):
    assert set(first) == set(second)
    return all(np.array_equal(first[name], second[name]) for name in first)


def network_of(run, classes=2):
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    return build_network(task, method, task.options(run.task_options), classes, run_seed=run.seed)


def trainer_of(run, data, **policy):
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    return Trainer(
        run,
        sharing(task, method, network_of(run)),
        data,
        Policy(minimum_count=2, minimum_training_images=1, **policy),
        EXACT,
        data / "noise",
    )


class Work:
    """A site that works through rounds, its tensors as files."""

    def __init__(self, run, folder):
        make_data(run, folder / "data", 12)
        self.run, self.folder = run, folder
        self.trainer = trainer_of(run, folder / "data" / run.sites[0])
        self.dataset = open_public(task_named(run.task), self.trainer.data, run, run.sites[0])
        self.received = folder / "received.safetensors"
        save_tensors(network_of(run), self.trainer.sharing.shared, self.received)
        if self.trainer.sharing.start:
            save_tensors(network_of(run), self.trainer.sharing.beginning, folder / "start.safetensors")

    def round(self, round_no, personal=None, accepted=None):
        own = self.folder / f"{round_no}"
        listed = self.trainer.sharing
        files = Files(
            received=self.received,
            state={},
            start=self.folder / "start.safetensors" if listed.start else None,
            personal=personal,
            accepted=accepted,
            trained=own / "trained.safetensors",
            sent={group: own / f"{group}.safetensors" for group in listed.groups("update")},
            kept=own / "kept.safetensors",
        )
        configuration = round_configuration(self.run, round_no, self.run.sites[0])
        self.trainer.work(self.dataset, configuration, files, lambda percent: None)
        return files


# --- FedRep -----------------------------------------------------------------------------------------------------


class Watched(FedRep):
    """FedRep that notes head and body before every step."""

    def __init__(self, options):
        super().__init__(options)
        self.seen = []

    def answer(self, local, inputs):
        in_head = {parameter for head in local.network.heads for parameter in head.parameters()}
        parts = {"head": {}, "body": {}}
        for name, parameter in local.network.named_parameters():
            parts["head" if parameter in in_head else "body"][name] = parameter.detach().numpy().copy()
        self.seen.append(parts)
        return super().answer(local, inputs)


class Decaying(OctaSegmentation):
    """The task with an optimizer that would move whatever it may: by momentum, and by weight decay."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def optimizer(self, model, options, learning_rate):
        if self._optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=0.1)
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_part_at_rest_is_moved_neither_by_momentum_nor_by_weight_decay(optimizer, tmp_path):
    """Also in a round that goes on with the momenta of the last."""
    run = octa_run("fedrep", epochs=2, method_options={"head_epochs": 2, "keep_optimizer": True})
    work = Work(run, tmp_path)
    method = Watched(open_method("fedrep", run.method_options).options)
    work.trainer.__dict__.update(method=method, task=Decaying(optimizer))
    steps = len(work.dataset.train) * 2 // run.batch_size  # of an epoch: each image and its copy
    assert steps > 1
    before = None
    for round_no in (1, 2):
        method.seen.clear()
        files = work.round(round_no, personal=before, accepted=before)
        end = load_file(files.trained) | load_file(files.kept)
        names = {part: list(method.seen[0][part]) for part in ("head", "body")}
        method.seen.append({part: {name: end[name] for name in names[part]} for part in names})
        assert len(method.seen) == 4 * steps + 1
        for number, (now, then) in enumerate(zip(method.seen, method.seen[1:], strict=False)):
            moving, still = ("head", "body") if number < 2 * steps else ("body", "head")
            assert same(now[still], then[still]), (round_no, number)
            assert not any(np.array_equal(now[moving][name], then[moving][name]) for name in names[moving])
        memory = {name for name in end if name.startswith("optimizer/") and end[name].any()}
        assert any("classify" in name for name in memory) and any("down" in name for name in memory)
        before = files.kept


@pytest.mark.parametrize("run", [octa_run("fedrep"), staging_run(method="fedrep")], ids=lambda run: run.task)
def test_fedreps_head_stays_and_all_else_travels(run):
    network = network_of(run)
    task, method = task_named(run.task), open_method("fedrep", {})
    listed = sharing(task, method, network)
    (head,) = network.heads
    (prefix,) = (path for path, module in network.named_modules() if module is head)
    in_head = {f"{prefix}.{name}" for name in head.state_dict() if not name.endswith("num_batches_tracked")}
    assert in_head == {*listed.start, *listed.personal}
    assert set(listed.personal) == (in_head if task.head_is_local else set())
    assert set(dict(network.named_parameters())) <= {*listed.tensors, *in_head}
    head_first = method.phases(network, 3)
    assert [len(phase) for phase in head_first[:1]] == [len(list(head.parameters()))]
    assert len(head_first) == 4 and head_first[1] is head_first[3]
    assert {*head_first[0], *head_first[1]} == set(network.parameters())
    assert not {*head_first[0]} & {*head_first[1]}


def test_fedreps_sites_share_a_body_and_have_heads_of_their_own(tmp_path):
    _, home = played(octa_run("fedrep"), tmp_path)
    heads = [kept(home, 2, site) for site in ("north", "south")]
    assert set(heads[0]) == {"classify.weight", "classify.bias"}
    assert not np.array_equal(heads[0]["classify.weight"], heads[1]["classify.weight"])
    assert not any(name.startswith("classify") for name in trained(home, 1, "north"))
    mean = {
        name: (trained(home, 1, "north")[name] + trained(home, 1, "south")[name]) / 2 for name in aggregate(home, 1)
    }
    assert all(np.allclose(tensor, mean[name], atol=1e-6) for name, tensor in aggregate(home, 1).items())


def test_a_hospital_counts_the_epochs_of_the_head_too(tmp_path):
    run = octa_run("fedrep", epochs=2)
    check_offer(trainer_of(run, tmp_path, max_epochs=3))
    with pytest.raises(ConfigurationError, match="3 epochs per round, with the method's own, are more"):
        check_offer(trainer_of(run, tmp_path, max_epochs=2))
    check_offer(trainer_of(octa_run("fedavg", epochs=2), tmp_path, max_epochs=2))


# --- MOON -------------------------------------------------------------------------------------------------------


def test_the_contrast_is_that_of_the_paper():
    """By hand: cosines 1 and 0, then 0.8 and 0.6; −log(e^2 / (e^2 + e^0)), −log(e^1.6 / (e^1.6 + e^1.2))."""
    features = torch.tensor([[2.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    received = torch.tensor([[5.0, 0.0], [0.0, 7.0]], dtype=torch.float64)
    previous = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    of_rows = [
        -math.log(math.exp(2) / (math.exp(2) + math.exp(0))),
        -math.log(math.exp(1.6) / (math.exp(1.6) + math.exp(1.2))),
    ]
    assert of_rows == pytest.approx([0.1269280110, 0.5130152523])
    assert contrast(features, received, previous, 0.5).item() == pytest.approx(sum(of_rows) / 2, rel=1e-12)
    assert contrast(features, received, received, 0.5).item() == pytest.approx(math.log(2), rel=1e-12)
    # Whatever the scale, and however sure: nothing overflows.
    assert contrast(-received, received, previous, 0.001).isfinite()


def moon_local(run, *, is_first):
    """A site in its second round: received model and model of before are others than the one in training."""
    torch.manual_seed(0)
    network, previous = network_of(run), network_of(run)
    for module in (network, previous):
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor + 0.1 * torch.rand_like(tensor))
    task, method = task_named(run.task), open_method("moon", run.method_options)
    listed = sharing(task, method, network)
    state = previous.state_dict()
    own = {PREVIOUS: {name: state[name].clone() for name in listed.tensors}}
    return method, Local(network.train(), shared=listed.parameters.tensors, kept=own, is_first=is_first), previous


@pytest.mark.parametrize(
    "run",
    [
        octa_run("moon", method_options={"mu": 0.7, "contrast_temperature": 0.25}),
        staging_run(method="moon", method_options={"mu": 0.7, "contrast_temperature": 0.25}),
        staging_run(method="moon", method_options={"mu": 0.7, "contrast_temperature": 0.25, "projection": 6}),
    ],
    ids=lambda run: run.task,
)
def test_moon_compares_with_both_models_in_eval_mode_and_without_gradients(run):
    method, local, previous = moon_local(run, is_first=False)
    received = network_of(run)
    received.load_state_dict(local.network.state_dict())
    inputs = torch.rand(3, 3 if run.task == "dr_staging" else 1, 32, 32)

    def averaged(network):
        features = network.features(inputs)
        return features.mean(dim=(2, 3)) if features.ndim == 4 else features  # (B, D, ...) -> (B, D)

    method.begin(local)
    before = {name: tensor.clone() for name, tensor in local.beside[RECEIVED].state_dict().items()}
    optimizer = torch.optim.SGD(local.network.parameters(), lr=0.5)
    for _ in range(2):  # the second time the model in training is another than the received one
        with torch.no_grad():
            z, z_w, z_p = averaged(local.network), averaged(received.eval()), averaged(previous.eval())
            logits_before = local.network(inputs)
        logits, term = method.answer(local, inputs)
        assert torch.equal(logits, logits_before)
        cosine = nn.CosineSimilarity(dim=1)
        away, towards = cosine(z, z_p), cosine(z, z_w)
        by_hand = -(torch.exp(towards / 0.25) / (torch.exp(towards / 0.25) + torch.exp(away / 0.25))).log().mean()
        assert term.item() == pytest.approx(0.7 * by_hand.item(), rel=1e-4)
        optimizer.zero_grad()
        term.backward()
        in_head = {parameter for head in local.network.heads for parameter in head.parameters()}
        for parameter in local.network.parameters():
            assert (parameter.grad is None) == (parameter in in_head)
        optimizer.step()
    for network in local.beside.values():
        assert not network.training
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in local.beside[RECEIVED].state_dict().items())
    for name, tensor in local.kept[PREVIOUS].items():  # statistics too
        assert torch.equal(local.beside[PREVIOUS].state_dict()[name], tensor)


def test_without_a_model_of_before_there_is_no_contrast():
    method, local, _ = moon_local(octa_run("moon"), is_first=True)
    method.begin(local)
    inputs = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        expected = local.network(inputs)
    logits, term = method.answer(local, inputs)
    assert term is None and local.beside == {}
    assert torch.equal(logits, expected)


def test_moons_projection_is_the_released_ones_and_travels():
    """Two layers with ReLU between them, and one layer on what they yield; a head of grades stays at its site."""
    run = staging_run(method="moon", method_options={"projection": 6})
    network = network_of(run)
    shapes = {name: tuple(each.shape) for name, each in network.named_parameters() if not name.startswith("encoder.")}
    assert {name: shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "projection.first.weight": (128, 128),
        "projection.second.weight": (6, 128),
        "head.weight": (2, 6),
    }
    listed = sharing(task_named(run.task), open_method("moon", run.method_options), network)
    assert "projection.second.weight" in listed.tensors and listed.personal == ["head.weight", "head.bias"]
    own = run.model_copy(
        update={
            "task": "image_classification",
            "task_options": {"encoder": "small", "weights": "random", "image_size": 32, "labels": "own", "hidden": []},
        }
    )
    listed = sharing(task_named(own.task), open_method("moon", own.method_options), network_of(own))
    assert listed.personal == ["head.classify.weight", "head.classify.bias"]
    with pytest.raises(ConfigurationError, match="projection needs an encoder"):
        network_of(octa_run("moon", method_options={"projection": 6}))


@pytest.mark.parametrize(
    ("train", "projection", "learns"), [("head", None, False), ("head", 6, True), ("all", None, True)]
)
def test_where_only_a_head_learns_no_features_do(train, projection, learns):
    options = {"encoder": "small", "weights": "random", "image_size": 32, "labels": ["a", "b"], "train": train}
    run = staging_run(task="image_classification", task_options=options)
    network = network_of(run.model_copy(update={"method": "moon", "method_options": {"projection": projection}}))
    assert learns_features(network) == learns


def test_moon_is_fedavg_in_its_first_round_and_keeps_the_whole_shared_model(tmp_path):
    _, plain = played(octa_run("fedavg"), tmp_path)
    _, moon = played(octa_run("moon"), tmp_path)
    _, off = played(octa_run("moon", method_options={"mu": 0.0}), tmp_path)
    for site in ("north", "south"):
        assert same(trained(moon, 1, site), trained(plain, 1, site))
        assert not same(trained(moon, 2, site), trained(plain, 2, site))
        assert same(trained(off, 2, site), trained(plain, 2, site))
        for round_no in (1, 2):
            own = kept(moon, round_no, site)
            assert same(own, {f"{PREVIOUS}/{name}": array for name, array in trained(moon, round_no, site).items()})
        assert any(name.endswith("running_var") for name in own)


# --- FedAP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [octa_run("fedap"), staging_run(method="fedap")], ids=lambda run: run.task)
def test_the_statistics_are_those_of_what_each_batchnorm_receives_in_eval_mode(run):
    network = network_of(run).train()
    for norm in batch_norms(network):  # so that train mode would give others
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    batches = [torch.rand(size, 3 if run.task == "dr_staging" else 1, 32, 32) for size in (1, 3, 2)]
    local = Local(network, batches=lambda split: ((inputs, torch.zeros(0)) for inputs in batches if split == "train"))
    found = statistics(local)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())

    paths = [path for path, module in network.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    outside = [path for path in paths if not path.startswith("head.")]
    assert set(found) == {f"{path}/{what}" for path in outside for what in ("mean", "deviation")}
    assert len(outside) == (4 if run.task == "dr_staging" else 6)
    for path in outside:
        inputs = []
        handle = network.get_submodule(path).register_forward_hook(lambda _, given, out, to=inputs: to.append(given[0]))
        with torch.no_grad():
            network.eval()(torch.cat(batches))
        handle.remove()
        of_channel = inputs[0].movedim(1, 0).flatten(1).double().numpy()  # (B, C, H, W) -> (C, B·H·W)
        assert np.allclose(found[f"{path}/mean"], of_channel.mean(axis=1), rtol=1e-4, atol=1e-6)
        assert np.allclose(found[f"{path}/deviation"], of_channel.std(axis=1), rtol=1e-4, atol=1e-6)
        assert found[f"{path}/mean"].dtype == torch.float32
    few = Local(network, batches=lambda split: ((inputs, torch.zeros(0)) for inputs in batches), minimum_count=7)
    assert not any(vector.any() for vector in statistics(few).values())


def test_the_distance_is_a_sum_of_roots_over_layers():
    first = {
        "one/mean": np.array([0.0, 0.0]),
        "one/deviation": np.array([1.0, 1.0]),
        "two/mean": np.array([2.0]),
        "two/deviation": np.array([3.0]),
    }
    second = first | {
        "one/mean": np.array([3.0, 0.0]),
        "one/deviation": np.array([1.0, 5.0]),
        "two/mean": np.array([4]),
    }
    assert distance(first, second) == distance(second, first) == 5.0 + 2.0
    assert distance(first, first) == 0.0


def test_half_of_a_row_is_the_sites_own_and_the_rest_goes_by_nearness():
    assert row("a", {"b": 1.0, "c": 3.0}) == pytest.approx({"a": 0.5, "b": 0.375, "c": 0.125})
    assert row("a", {"b": 7.0}) == {"a": 0.5, "b": 0.5}
    assert row("a", {}) == {"a": 1.0}
    assert row("a", {"b": 0.0, "c": 0.0, "d": 2.0}) == {"a": 0.5, "b": 0.25, "c": 0.25}
    for apart in ({"b": 5e-324, "c": 1e308}, {"b": 1e-300, "c": 2e-300}, {"b": 1e308, "c": 1e308}):
        assert math.fsum(row("a", apart).values()) == pytest.approx(1, abs=1e-15)
        assert all(weight > 0 for weight in row("a", apart).values())


def test_rows_come_after_the_rounds_of_fedbn():
    def told(mean):
        return Contribution(10, sent=lambda group: {"n/mean": np.array([mean]), "n/deviation": np.array([1.0])})

    accepted = {"north": told(0.0), "south": told(1.0), "west": told(3.0)}
    method = open_method("fedap", {"pretrain_rounds": 2})
    assert method.rows(1, accepted) == method.rows(2, accepted) == {}
    rows = method.rows(3, accepted)
    assert rows["north"] == pytest.approx({"north": 0.5, "south": 0.375, "west": 0.125})
    assert rows["south"] == pytest.approx({"south": 0.5, "north": 1 / 3, "west": 1 / 6})
    assert rows["west"] == pytest.approx({"west": 0.5, "north": 0.2, "south": 0.3})
    assert method.rows(3, {"north": told(0.0)}) == {"north": {"north": 1.0}}
    silent = Contribution(3, sent=lambda group: {"n/mean": np.zeros(1), "n/deviation": np.zeros(1)})
    assert method.rows(3, accepted | {"small": silent}) == rows


def test_fedap_through_a_run_of_sites_with_other_grades(tmp_path):
    """Measured once, in round 2; the same from then on; each site gets its own mean of what all sent."""
    sites = ["north", "south", "west"]
    run = staging_run(method="fedap", sites=sites, rounds=3, quorum=1, method_options={"pretrain_rounds": 1})
    outcome, home = played(run, tmp_path, images=40)
    told = {round_no: {site: sent(home, round_no, site, STATISTICS) for site in sites} for round_no in (1, 2, 3, 4)}
    for site in sites:
        assert not any(vector.any() for vector in told[1][site].values())
        assert set(told[1][site]) == set(told[2]["north"])
        assert all(vector.any() for vector in told[2][site].values())
        assert same(told[2][site], told[3][site]) and same(told[3][site], told[4][site])
        assert not same(told[2][site], told[2]["north"]) or site == "north"
        assert not (home / "rounds" / "0001" / "own").exists()
    for round_no in (2, 3):
        models = {site: trained(home, round_no, site) for site in sites}
        for site in sites:
            weights = row(site, {other: distance(told[2][site], told[2][other]) for other in sites if other != site})
            expected = {name: sum(weights[k] * models[k][name] for k in sites) for name in models[site]}
            found = aggregate(home, round_no, site)
            assert all(np.allclose(found[name], expected[name], atol=1e-6) for name in expected)
            assert not same(found, aggregate(home, round_no))
        assert not any("norm" in name for name in found)
        mean = {name: sum(models[k][name] for k in sites) / 3 for name in models["north"]}
        common = aggregate(home, round_no)
        assert all(np.allclose(common[name], mean[name], atol=1e-6) for name in mean)
    assert set(outcome.tests) == set(sites)


def test_with_one_common_model_sites_measure_in_round_1_just_what_came(tmp_path):
    """Whenever a site measures its BatchNorm, and however long FedBN lasts; older runs measured what that had made."""

    def told(name, **options):
        work = Work(octa_run("fedap", method_options=options), tmp_path / name)
        return load_file(work.round(1).sent[STATISTICS])

    plain = told("plain")
    assert same(told("common", common_model=True, refresh_batch_norm="on_arrival", pretrain_rounds=2), plain)
    assert not same(told("older", refresh_batch_norm="on_arrival"), plain)
    assert not any(vector.any() for vector in told("after", pretrain_rounds=2).values())


def test_who_was_not_in_the_round_gets_the_common_model(tmp_path):
    run = octa_run("fedap", sites=["north", "south", "west"], sites_per_round=2)
    outcome, home = played(run, tmp_path)
    for round_no in (1, 2):
        own = {path.stem for path in (home / "rounds" / f"{round_no:04d}" / "own").iterdir()}
        assert own == set(outcome.weights[round_no]) and len(own) == 2


def test_a_site_measures_again_only_until_an_answer_is_accepted(tmp_path):
    """What no aggregate was made of counts for nothing; a model that was received later does not count again."""
    run = octa_run("fedap", rounds=4)
    work = Work(run, tmp_path)
    first = work.round(1)
    measured = load_file(first.sent[STATISTICS])
    save_tensors(network_of(run.model_copy(update={"seed": 99})), work.trainer.sharing.shared, work.received)
    refused = load_file(work.round(2, personal=first.kept).sent[STATISTICS])
    assert not same(refused, measured)
    accepted = work.round(3, personal=first.kept, accepted=first.kept)
    assert same(load_file(accepted.sent[STATISTICS]), measured)
    closing = work.round(5, personal=accepted.kept, accepted=accepted.kept)
    assert same(load_file(closing.sent[STATISTICS]), measured) and not closing.kept.exists()


def test_what_was_kept_before_the_statistics_were_measured_is_zeros(tmp_path):
    run = octa_run("fedap", method_options={"pretrain_rounds": 1})
    work = Work(run, tmp_path)
    first = work.round(1)
    assert not any(array.any() for name, array in load_file(first.kept).items() if name.startswith(STATISTICS))
    second = work.round(2, personal=first.kept, accepted=first.kept)
    assert all(array.any() for name, array in load_file(second.kept).items() if name.startswith(STATISTICS))


# --- cyclic weight transfer -------------------------------------------------------------------------------------


def test_the_model_goes_from_site_to_site(tmp_path):
    """In the order of their names, whatever the order in RUN.yaml; it ends with the last, not with the best."""
    run = octa_run("sequential", sites=["south", "west", "north"], rounds=4)
    outcome, home = played(run, tmp_path)
    turns = [list(outcome.weights[round_no].items()) for round_no in (1, 2, 3, 4)]
    assert turns == [[("north", 1.0)], [("south", 1.0)], [("west", 1.0)], [("north", 1.0)]]
    for round_no, ((site, _),) in enumerate(turns, 1):
        assert same(aggregate(home, round_no), trained(home, round_no, site))
        assert not same(aggregate(home, round_no), aggregate(home, round_no - 1))
    assert set(outcome.chosen.values()) == {4}
    assert set(outcome.rows[4]) == set(run.sites)
    last = load_file(home / "final" / "model.safetensors")
    assert same(last, aggregate(home, 4))


def test_the_model_is_never_a_mean():
    weights = open_method("sequential", {}).weights({"south": Contribution(9), "north": Contribution(1)})
    assert weights == {"south": 0.0, "north": 1.0}


# --- references -------------------------------------------------------------------------------------------------


def test_a_single_site_is_a_federation_of_one(tmp_path):
    run = octa_run("single_site", quorum=2)
    outcome, _ = played(run, tmp_path)
    by_median, _ = played(run.model_copy(update={"combination": Median(rule="median")}), tmp_path)
    assert outcome.sent_bytes == 0
    for site in run.sites:
        alone, _ = played(octa_run("fedavg", sites=[site]), tmp_path)
        assert by_median.tests[site] == outcome.tests[site] == alone.tests[site]
        assert outcome.chosen[site] == alone.chosen[site]
        assert {number: rows[site] for number, rows in outcome.rows.items()} == {
            number: rows[site] for number, rows in alone.rows.items()
        }
        assert [weights[site] for weights in outcome.weights.values()] == [1.0, 1.0]


def test_centralised_trains_on_all_images_and_scores_each_sites_own(tmp_path):
    run = octa_run("centralised")
    outcome, home = played(run, tmp_path)
    assert set(outcome.tests) == set(run.sites)
    assert [outcome.tests[site].images for site in run.sites] == [3, 3]
    assert outcome.tests["north"] != outcome.tests["south"]
    (rows,) = (table for name, table in outcome.rows[0].items() if name == POOLED)
    assert {row.split: row.images for row in rows} == {"validation": "6", "test": "6"}
    _, sites = open_sites(run, {site: tmp_path / "data" / site for site in run.sites}, tmp_path)
    whole = pooled(sites)
    ids = [sample.id for sample in whole.dataset.train]
    assert ids == [f"{name}/{sample.id}" for name, site in sites.items() for sample in site.dataset.train]
    assert len(set(ids)) == 12
    assert not set(ids) & {sample.id for sample in (*whole.dataset.validation, *whole.dataset.test)}
    assert len({whole.dataset.groups[image] for image in ids}) == 12  # nor is anybody taken for another
    some = [sample.id.split("/")[0] for sample in evenly(whole.dataset.train, 6, whole.dataset.blocks)]
    assert set(some) == {"north", "south"} and len(some) < len(ids)
    twins = pooled({"north": sites["north"], "twin": sites["north"]})  # sites may name their images alike
    assert len({sample.id for sample in twins.dataset.train}) == 12
    for site in run.sites:
        _, apart = played(octa_run("fedavg", sites=[site]), tmp_path)
        assert not same(aggregate(home, 1), aggregate(apart, 1))


def test_other_grades_are_not_pooled(tmp_path):
    run = staging_run(method="centralised", quorum=1)
    with pytest.raises(ConfigurationError, match="images of different classes cannot be pooled") as caught:
        played(run, tmp_path, images=40)
    assert len(caught.value.problems) == 1


# --- what does not fit together ---------------------------------------------------------------------------------

ADAM = {"encoder": "small", "weights": "random", "image_size": 32, "optimizer": "adam"}
UNFIT = {
    "single_site": (octa_run("single_site"), "method: single_site is a reference for comparisons on one machine"),
    "centralised": (octa_run("centralised"), "method: centralised is a reference for comparisons on one machine"),
    "scaffold by adam": (
        staging_run(method="scaffold", task_options=ADAM),
        "task_options: scaffold computes with step sizes, which SGD alone has: set `optimizer: sgd`",
    ),
    "sequential, two needed": (
        octa_run("sequential", quorum=2),
        "quorum: sequential asks one site a round, and 2 never answer; set it to 1",
    ),
    "sequential, two asked": (
        octa_run("sequential", sites_per_round=2),
        "sites_per_round: sequential asks one site a round, not 2; leave it out",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused_at_launch_in_a_sentence(name, tmp_path):
    run, sentence = UNFIT[name]
    work = tmp_path / "aggregator"
    initialise(work, "retina", {site: f"http://127.0.0.1:9/{site}" for site in run.sites}, "aggregator")
    settings = yaml.safe_load((work / "aggregator.yaml").read_bytes())
    (work / "aggregator.yaml").write_bytes(yaml.safe_dump(settings | {"heldout": {run.task: "heldout"}}).encode())
    (tmp_path / "RUN.yaml").write_bytes(dump_yaml(run))
    result = CliRunner().invoke(aggregator, ["launch", str(tmp_path / "RUN.yaml"), "--work", str(work)])
    assert result.exit_code == 2
    assert f"RUN.yaml: {sentence}" in result.output
    assert sum(line.startswith(str(tmp_path / "RUN.yaml")) for line in result.output.splitlines()) == 1, result.output
    assert not (work / "runs").exists()


@pytest.mark.parametrize("name", UNFIT)
def test_a_site_agrees_to_none_of_it(name, tmp_path):
    run, sentence = UNFIT[name]
    with pytest.raises(ConfigurationError) as caught:
        check_offer(trainer_of(run, tmp_path))
    assert [problem.startswith(sentence) for problem in caught.value.problems] == [True]


@pytest.mark.parametrize(
    "run",
    [
        octa_run("sequential"),
        octa_run("sequential", sites_per_round=1),
        octa_run("scaffold"),
        staging_run(method="scaffold", task_options=ADAM | {"optimizer": "sgd"}),
        staging_run(method="fedavg", task_options=ADAM),
    ],
    ids=lambda run: run.method,
)
def test_what_fits_is_agreed_to(run, tmp_path):
    check_together(run)
    check_offer(trainer_of(run, tmp_path))
