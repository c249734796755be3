"""FedProx, SCAFFOLD, FedDyn, FedDC and DataWeightedFed: gradients, state, weights, and what others got wrong.

Whole runs that are worked out by hand are in ``test_quadratics.py``.
"""

import copy
import math
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from aggregator.rounds import OpenRound, RunFacts, SiteFacts, decide
from aggregator.store import RunStore
from shared.errors import ConfigurationError
from shared.exchange.weights import TensorFile, write_tensors
from shared.learning.combine import Combined, Weighed
from shared.learning.data.augmentation import Augmentation
from shared.learning.methods import method_names, open_method
from shared.learning.methods.contract import MODEL, Contribution, Local
from shared.learning.objectives import CrossEntropy
from shared.learning.schedules import order_of_asking
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from shared.learning.training import Epoch, plan_batches, train_epoch
from studies.simulation import open_sites, run_rounds
from tests.learning.dealt import check_offer
from tests.learning.quadratic import Point, Quadratic, know_the_task, run_of, sites_of, w_of

OPTIONS = {
    "fedprox": {"mu": 0.3},
    "scaffold": {},
    "feddyn": {"alpha": 0.3},
    "feddc": {"alpha": 0.3},
    "dataweightedfed": {},
}
WITH_STATE = ("scaffold", "feddyn", "feddc")
EPOCH = Epoch(learning_rate=0.05, batch_size=4, seed=1, augmentation=Augmentation(copies=0))


@pytest.fixture(autouse=True)
def quadratic(monkeypatch):
    know_the_task(monkeypatch)


def opened(name, **options):
    return open_method(name, {**OPTIONS[name], **options})


# --- what a run may choose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_each_is_a_method_whose_wrong_options_are_named(name):
    assert name in method_names()
    assert opened(name).name == name
    with pytest.raises(ConfigurationError) as caught:
        open_method(name, {"mu": -1, "alpha": -1, "server_rate": 0})
    assert len(caught.value.problems) == 3


def test_feddyn_divides_by_its_strength_so_it_has_one():
    assert open_method("feddyn", {}).options.alpha == 0.01
    with pytest.raises(ConfigurationError, match="alpha: "):
        open_method("feddyn", {"alpha": 0})


@pytest.mark.parametrize("name", ["scaffold", "feddc"])
def test_what_computes_with_step_sizes_is_refused_where_there_are_none(name, tmp_path):
    """Adam's step sizes are each number's own, and momentum that is kept brings in steps of an earlier round."""
    with pytest.raises(ConfigurationError, match="keep_optimizer: "):
        open_method(name, {"keep_optimizer": True})
    data = sites_of(tmp_path, [1.0], [0.0])
    check_offer(open_sites(run_of(name, ["0"]), data, tmp_path)[1]["0"].trainer)
    adam = run_of(name, ["0"], task_options={"optimizer": "adam"})
    with pytest.raises(ConfigurationError, match=f"{name} computes with step sizes.*set `optimizer: sgd`"):
        check_offer(open_sites(adam, data, tmp_path)[1]["0"].trainer)


@pytest.mark.parametrize("name", ["fedprox", "feddyn", "dataweightedfed"])
def test_the_others_take_any_optimizer(name, tmp_path):
    run = run_of(name, ["0", "1"], task_options={"optimizer": "adam"}, method_options={"keep_optimizer": True})
    assert run_rounds(run, sites_of(tmp_path, [1.0, 2.0], [0.0, 2.0]), tmp_path / "home").weights[4]


# --- the gradient ----------------------------------------------------------------------------------------------


class Recording(torch.optim.SGD):
    """Remembers what each step began with."""

    def __init__(self, network, **settings):
        super().__init__(network.parameters(), **settings)
        self.network, self.met = network, []

    def step(self, closure=None):
        self.met.append(
            (
                copy.deepcopy(self.network.state_dict()),
                {name: parameter.grad.clone() for name, parameter in self.network.named_parameters()},
            )
        )
        super().step(closure)


def small_network():
    """(B, 2) -> (B, 2), with a BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def points(count):
    draw = np.random.default_rng(5)
    return [Point(f"p{number}", float(draw.normal()), float(draw.normal())) for number in range(count)]


def random_like(tensors):
    return {name: torch.randn(tensor.shape, generator=torch.manual_seed(7)) for name, tensor in tensors.items()}


def local_of(method, network, task="quadratic"):
    """A site's half, with random state."""
    listed = sharing(task_named(task), method, network)
    groups = method.groups(network, listed)
    own = dict(network.named_parameters())
    draw = torch.Generator().manual_seed(11)

    def drawn(of_kind):
        return {
            group: {name: torch.randn(own[name].shape, generator=draw) for name in tensors.tensors}
            for group, tensors in of_kind.items()
        }

    return Local(
        network,
        shared=listed.parameters.tensors,
        state=drawn(groups.to_site),
        kept=drawn(groups.at_site),
        is_first=False,
    )


def added(name, local, x, w):
    """What the paper adds to the gradient of one parameter, called ``of`` here."""

    def addend(of):
        strength, pull = 0.3, x[of] - w[of]
        if name == "fedprox":
            return strength * pull
        if name == "feddyn":
            return strength * pull - local.kept["tilt"][of]
        control = local.state["control"][of] - local.kept["control"][of]
        return control if name == "scaffold" else control + strength * (pull + local.kept["drift"][of])

    return addend


@pytest.mark.parametrize("name", ["fedprox", *WITH_STATE])
def test_the_gradient_of_every_step_is_the_papers(name):
    """Two epochs of two batches each, momentum beside: on the first batch, where x = w, and on those after it."""
    method, network, samples = opened(name), small_network(), points(8)
    local = local_of(method, network)
    w = {of: tensor.clone() for of, tensor in network.state_dict().items()}
    optimizer = Recording(network, lr=0.05, momentum=0.9)
    batches = []
    for number in (1, 2):
        epoch = Epoch(0.05, 4, number, EPOCH.augmentation)
        batches += [[sample for sample, _ in batch] for batch in plan_batches(samples, epoch)]
        train_epoch(
            Quadratic(),
            method,
            local,
            optimizer,
            samples,
            epoch=epoch,
            objective=CrossEntropy(),
            on_batch=lambda done, total: None,
        )
    assert len(optimizer.met) == len(batches) == 4
    for batch, (x, gradients) in zip(batches, optimizer.met, strict=True):
        plain = small_network()
        plain.load_state_dict(x)
        inputs, targets = Quadratic().collate(batch)
        functional.cross_entropy(plain(inputs), targets).backward()
        addend = added(name, local, x, w)
        for of, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[of], parameter.grad + addend(of))
    moved = max(float((x[of] - w[of]).abs().max()) for x, _ in optimizer.met for of in local.x)
    assert moved > 0.01  # so that a term of x − w is seen at all


# --- K · η -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_sum_of_step_sizes_is_how_far_a_gradient_of_one_moves(momentum):
    """With a rate that changes from step to step."""
    network = nn.Linear(1, 1, bias=False)
    local = Local(network, shared=["weight"])
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=momentum)
    for rate in (0.1, 0.1, 0.05, 0.2, 0.01, 0.01):
        optimizer.param_groups[0]["lr"] = rate
        network.weight.grad = torch.ones(1, 1)
        optimizer.step()
        local.note_step(optimizer)
    assert local.step_sizes == pytest.approx(local.moved()["weight"].item(), rel=1e-6)
    if not momentum:
        assert local.step_sizes == pytest.approx(0.47)


def test_the_sum_of_step_sizes_counts_every_epoch_at_its_rate():
    network, samples = small_network(), points(8)
    local, optimizer = Local(network), torch.optim.SGD(network.parameters(), lr=1.0)
    for rate in (0.1, 0.02):
        train_epoch(
            Quadratic(),
            open_method("mean", {}),
            local,
            optimizer,
            samples,
            epoch=Epoch(rate, 4, 1, EPOCH.augmentation),
            objective=CrossEntropy(),
            on_batch=lambda done, total: None,
        )
    assert local.step_sizes == pytest.approx(2 * 0.1 + 2 * 0.02)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["scaffold", "feddc"])
def test_a_control_variate_is_the_gradient_that_was_met(name, momentum):
    """Where the gradient is the same everywhere, whatever was known before, the momentum and the rate."""
    method, network = opened(name, **({"alpha": 0} if name == "feddc" else {})), small_network()
    local = local_of(method, network)
    gradients = random_like(local.x)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=momentum)
    before = local.kept["control"]
    for rate in (0.1, 0.05, 0.1, 0.025):
        optimizer.param_groups[0]["lr"] = rate
        for of, addend in method.correction(local).items():
            local.x[of].grad = gradients[of] + addend
        optimizer.step()
        local.note_step(optimizer)
    method.finish(local)
    for of, gradient in gradients.items():
        torch.testing.assert_close(local.kept["control"][of], gradient, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(local.sent["control"][of], local.kept["control"][of] - before[of])


# --- what an optimizer remembers -------------------------------------------------------------------------------

OPTIMIZERS = {"momentum": {"momentum": 0.9}, "adam": {"optimizer": "adam"}}


def ended(tmp_path, name, options, *, rounds, epochs, keeps=False):
    """Where one site alone ends, and what stays there."""
    home = tmp_path / name
    home.mkdir()
    told = {"task_options": options, "method_options": {"keep_optimizer": keeps}, "rounds": rounds, "epochs": epochs}
    run = run_of("fedavg", ["0"], **told)
    run_rounds(run, sites_of(home, [1.0], [3.0]), home)
    store = RunStore(home, run.run)
    return w_of(store.aggregate_path(rounds)), sorted((store.home / "sites" / "0").glob("*.kept.*"))


@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_that_is_kept_goes_on_as_if_rounds_were_one(options, tmp_path):
    whole, _ = ended(tmp_path, "whole", options, rounds=1, epochs=6)
    parts, kept = ended(tmp_path, "parts", options, rounds=3, epochs=2, keeps=True)
    assert parts == whole
    assert len(kept) == 3
    assert ended(tmp_path, "anew", options, rounds=3, epochs=2)[0] != whole


@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_begins_each_round_anew_unless_it_is_kept(options, tmp_path):
    w = 1.0
    for number in range(3):
        w, _ = ended(tmp_path, f"alone-{number}", {**options, "w0": w}, rounds=1, epochs=2)
    together, kept = ended(tmp_path, "together", options, rounds=3, epochs=2)
    assert together == w
    assert kept == []


# --- randomness ------------------------------------------------------------------------------------------------


def test_no_two_copies_of_an_image_are_alike_in_any_epoch_round_or_site(tmp_path):
    data = sites_of(tmp_path, [1.0, 2.0], [0.0, 1.0], [3, 5])
    run = run_of("fedavg", list(data), rounds=2, epochs=2, augmentation={"copies": 2})
    found = []
    for home in ("one", "other"):
        Quadratic.varied.clear()
        run_rounds(run, data, tmp_path / home)
        found.append(list(Quadratic.varied))
    assert len(found[0]) == (3 + 5) * 2 * 2 * 2
    assert len(set(found[0])) == len(found[0])
    assert found[1] == found[0]


# --- what travels, and BatchNorm -------------------------------------------------------------------------------

TASKS = {"dr_staging": {"encoder": "small"}, "octa_segmentation": {"widths": (4, 8)}}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("task", TASKS)
def test_batchnorms_statistics_are_in_no_regulariser_and_no_state(task, name):
    method, found = opened(name), task_named(task)
    network = found.build_model(found.options(TASKS[task]), 2, 1)
    listed = sharing(found, method, network)
    assert any("running_" in tensor for tensor in listed.tensors)  # they do travel
    groups = method.groups(network, listed)
    kinds = (groups.to_site, groups.measured, groups.trained, groups.at_site, groups.at_aggregator, groups.with_final)
    lists = [tensors.tensors for kind in kinds for tensors in kind.values()]
    assert bool(lists) is (name in WITH_STATE)
    trained = {of for of, _ in network.named_parameters() if of in listed.tensors}
    assert all(set(tensors) == trained for tensors in lists)
    local = local_of(method, network, task)
    assert set(local.x) == trained
    assert set(method.correction(local)) == (trained if name != "dataweightedfed" else set())


@pytest.mark.parametrize("name", [*OPTIONS, "fedap", "moon"])
def test_a_site_may_not_begin_anew_what_the_aggregator_has_the_sum_of(name):
    method, found = open_method(name, OPTIONS.get(name, {})), task_named("octa_segmentation")
    network = found.build_model(found.options(TASKS["octa_segmentation"]), 2, 1)
    groups = method.groups(network, sharing(found, method, network))
    assert groups.are_counted is (name in WITH_STATE)


@pytest.mark.parametrize("name", OPTIONS)
def test_batchnorms_statistics_are_averaged_plainly(name, tmp_path):
    """Beside the parameters of the same network, which with a drift on record are not."""
    method, network = opened(name), small_network()
    listed = sharing(task_named("quadratic"), method, network)
    groups = method.groups(network, listed)
    made = {**groups.to_site, **groups.at_aggregator}

    def written(path, tensors, value):
        write_tensors(path, tensors, lambda of: np.full(tensors.tensors[of].shape, value, dtype=np.float32))
        return path

    before = {group: written(tmp_path / f"before-{group}", tensors, 2.0) for group, tensors in made.items()}
    before[MODEL] = written(tmp_path / "before", listed.shared, 0.0)
    files = {
        site: {
            MODEL: written(tmp_path / f"{site}-model", listed.shared, value),
            **{group: written(tmp_path / f"{site}-{group}", of, 1.0) for group, of in groups.trained.items()},
        }
        for site, value in (("north", 1.0), ("south", 3.0))
    }
    combination = Combined(
        method,
        {MODEL: listed.shared, **made},
        before=before,
        updates=Weighed(files, {"north": 0.5, "south": 0.5}, agreed=4),
        buffers=frozenset(listed.buffers),
    )
    combination.write({group: tmp_path / f"after-{group}" for group in (MODEL, *made)})
    after = {of: float(TensorFile(tmp_path / f"after-{MODEL}").tensor(of).flat[0]) for of in listed.tensors}
    assert {of: after[of] for of in listed.buffers} == {"1.running_mean": 2.0, "1.running_var": 2.0}
    # H = 2 − α · 2 · (2 − 0) of FedDyn, w ← 2 − H / (α · 4); H = 2 + 2 · (2 − 0) of FedDC, w ← 2 + H / 4
    expected = {"feddyn": 2 - (2 - 0.3 * 4) / (0.3 * 4), "feddc": 2 + 6 / 4}.get(name, 2.0)
    assert {of: after[of] for of in listed.parameters.tensors} == pytest.approx(
        dict.fromkeys(listed.parameters.tensors, expected), rel=1e-6
    )


# --- what both ends remember of each other ---------------------------------------------------------------------


class InMemory:
    """A ``Part``: three numbers of each group and site, all sites alike."""

    def __init__(self, before, sent, agreed):
        self._before, self._sent = before, sent
        self.accepted, self.agreed = len(sent), agreed

    def before(self, group=MODEL):
        return self._before[group]

    def mean(self, group=MODEL):
        return np.mean([groups[group] for groups in self._sent], axis=0)


@st.composite
def participations(draw):
    """For each round, how many of six sites have agreed so far, who of them trains, and whose answers count."""
    rounds, agreed = [], draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 6))):
        agreed = min(6, agreed + draw(st.integers(0, 2)))
        train = draw(st.sets(st.integers(0, agreed - 1), min_size=1))
        count = draw(st.sets(st.sampled_from(sorted(train)), min_size=1))
        rounds.append((agreed, sorted(train), count))
    return rounds


class ThreeNumbers(nn.Module):
    """w, in double precision."""

    heads = ()

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))


@pytest.mark.parametrize("name", WITH_STATE)
@given(rounds=participations(), seed=st.integers(0, 1000))
def test_the_aggregator_holds_the_mean_of_what_the_sites_hold(name, rounds, seed):
    """Over all that have agreed, whoever trains, joins later, or has an answer that does not count."""
    method = opened(name)
    draw = np.random.default_rng(seed)
    a, b = draw.uniform(0.5, 3, (6, 3)), draw.normal(0, 2, (6, 3))
    groups = method.groups(model := ThreeNumbers(np.ones(3)), sharing(task_named("quadratic"), method, model))
    held = {group: np.zeros(3) for group in (*groups.to_site, *groups.at_aggregator)} | {MODEL: np.ones(3)}
    zeros = {group: {"w": torch.zeros(3, dtype=torch.float64)} for group in groups.at_site}
    kept = [dict(zeros) for _ in range(6)]
    for agreed, train, count in rounds:
        sent = []
        for site in train:
            network = ThreeNumbers(held[MODEL])
            state = {group: {"w": torch.from_numpy(held[group])} for group in groups.to_site}
            local = Local(network, shared=["w"], state=state, kept=dict(kept[site]))
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range(3):
                gradient = torch.from_numpy(a[site]) * (network.w.detach() - torch.from_numpy(b[site]))
                network.w.grad = gradient + method.correction(local)["w"]
                optimizer.step()
                local.note_step(optimizer)
            method.finish(local)
            if site in count:
                kept[site] = local.kept
                own = {group: tensors["w"].numpy() for group, tensors in local.sent.items()}
                sent.append({MODEL: network.w.detach().numpy(), **own})
        held = method.combine(InMemory(held, sent, agreed))
        mean = {group: np.mean([of[group]["w"].numpy() for of in kept[:agreed]], axis=0) for group in zeros}
        for group, expected in mean.items():
            np.testing.assert_allclose(held[f"total-{group}"] / agreed, expected, rtol=1e-9, atol=1e-9)
        if "control" in held:
            np.testing.assert_allclose(held["control"], mean["control"], rtol=1e-9, atol=1e-9)
    absent = set(range(6)) - {site for _, _, count in rounds for site in count}
    assert all(kept[site] == zeros for site in absent)


def test_who_has_agreed_is_counted_from_the_first_yes_on_also_once_withdrawn(tmp_path):
    store = RunStore(tmp_path, "run")
    store.ask(1, ("north",), ("north", "south"))
    assert store.agreed(1) == 2
    store.ask(1, ("west",), ("north", "south", "west"))  # joins while the round is open, and is asked besides
    assert store.agreed(1) == 3
    store.ask(2, ("north",), ("north", "west"))  # south has withdrawn; its c_k is part of C for good
    assert store.agreed(2) == 3
    store.ask(3, ("east", "west"), ("east", "west"))
    assert store.agreed(3) == 4


# --- a few sites for each round --------------------------------------------------------------------------------


@given(
    images=st.lists(st.integers(1, 10**6), min_size=2, max_size=9),
    seed=st.integers(0, 2**62),
    data=st.data(),
)
def test_the_weights_of_a_rounds_sites_sum_to_one_whoever_joins_late(images, seed, data):
    """Of each round that the aggregator would open, and of every part of it that would answer."""
    method = open_method("dataweightedfed", {})
    of_site = {f"site-{number}": count for number, count in enumerate(images)}
    k = data.draw(st.integers(1, len(images)))
    agreed = data.draw(st.integers(1, len(images)))
    for round_no in range(1, 5):
        agreed = data.draw(st.integers(agreed, len(images)))
        facts = RunFacts(
            rounds=9,
            quorum=1,
            consent_deadline_s=0,
            round_deadline_s=1,
            sites=tuple(
                SiteFacts(site, enrolled=True, offered=True, consent=True if number < agreed else None)
                for number, site in enumerate(of_site)
            ),
            seed=seed,
            sites_per_round=k,
            round_no=round_no - 1,
            closed=True,
            aggregated=True,
        )
        (round_opened,) = decide(facts)
        assert isinstance(round_opened, OpenRound)
        drawn = round_opened.participants
        assert len(drawn) == min(k, agreed)
        assert set(drawn) <= set(list(of_site)[:agreed])
        answered = data.draw(st.sets(st.sampled_from(drawn), min_size=1))
        weights = method.weights({site: Contribution(of_site[site]) for site in sorted(answered)})
        assert set(weights) == answered
        assert math.fsum(weights.values()) == pytest.approx(1, abs=1e-12)
        total = sum(of_site[site] for site in answered)
        assert all(weights[site] == of_site[site] / total for site in answered)


def test_k_of_m_sites_by_the_runs_seed_each_counted_by_its_images(tmp_path):
    a, b, n = [1.0, 4.0, 2.0, 1.5], [0.0, 3.0, -1.0, 2.0], [3, 5, 9, 4]
    data = sites_of(tmp_path, a, b, n)
    run = run_of("dataweightedfed", list(data), sites_per_round=2, seed=4, rounds=5)
    outcome = run_rounds(run, data, tmp_path / "home")
    w, drawn = 1.0, []
    for round_no, weights in outcome.weights.items():
        sites = [int(site) for site in weights]
        drawn.append(sorted(order_of_asking(4, round_no, data)[:2]))
        assert list(weights) == drawn[-1]
        images = sum(n[site] for site in sites)
        assert weights == {str(site): n[site] / images for site in sites}
        # Three steps of 0.1 leave 0.7 or so of what there is to b: (1 − 0.1 a)³.
        w = sum(n[site] / images * (b[site] + (1 - 0.1 * a[site]) ** 3 * (w - b[site])) for site in sites)
        found = w_of(RunStore(tmp_path / "home", run.run).aggregate_path(round_no))
        assert found == pytest.approx(w, rel=2e-6)
    assert len({tuple(sites) for sites in drawn}) > 1


def test_equal_weights_are_not_those_of_dataweightedfed(tmp_path):
    data = sites_of(tmp_path, [1.0, 1.0], [0.0, 3.0], [2, 6])
    ends = {}
    for name in ("dataweightedfed", "mean"):
        run = run_of(name, list(data), run=name, rounds=1)
        run_rounds(run, data, tmp_path / "home")
        ends[name] = w_of(RunStore(tmp_path / "home", name).aggregate_path(1))
    left = 0.9**3
    ends_of_sites = (left * 1.0, 3 + left * (1.0 - 3))
    assert ends["mean"] == pytest.approx(fmean(ends_of_sites), rel=1e-6)
    assert ends["dataweightedfed"] == pytest.approx(0.25 * ends_of_sites[0] + 0.75 * ends_of_sites[1], rel=1e-6)
