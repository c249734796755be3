"""What no site may do to the aggregate, or to the round: send numbers beyond all bounds, or answers that raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.store import RunStore
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.wire import Numbers
from shared.exchange.weights import LARGEST, check_tensors, write_tensors, write_zeros
from shared.learning.aggregation import Aggregation, Update
from shared.learning.answers import ClosedRound, decide, without_spoilers
from shared.learning.combine import implausible
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL, Groups, Local
from shared.learning.methods.scaffold import CONTROL, TOTAL
from shared.learning.run_files import Scored
from shared.learning.spoilers import spoilers
from tests.federation.running import run_configuration

W = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[2])})
SITES = ("east", "north", "south")
UPDATE = MessageRef("update", "test-run", 1)


def scaffold(home: Path, numbers: Numbers = "float32", **options: object) -> tuple[Aggregation, RunConfiguration]:
    """A run of one tensor of two numbers that has begun."""
    run = run_configuration(method="scaffold", sites=list(SITES), method_options=options, wire={"numbers": numbers})
    group = {CONTROL: W.tensors}
    sharing = Sharing(tensors=W.tensors, start={}, personal=[], to_site=group, trained=group)
    store = RunStore(home, run.run)
    store.begin(run, sharing)
    store.ask(1, SITES, SITES)
    groups = Groups(to_site={CONTROL: W}, trained={CONTROL: W}, at_aggregator={TOTAL: W})
    for name, listed in (("aggregate", W), (f"state-{CONTROL}", W), (f"state-{TOTAL}", W)):
        write_zeros(store.home / "rounds" / "0000" / f"{name}.safetensors", listed)
    return Aggregation(store, open_method("scaffold", options), groups), run


def update(home: Path, site: str, model: float, control: float) -> Update:
    files = {MODEL: home / f"{site}-model", CONTROL: home / f"{site}-control"}
    for group, value in ((MODEL, model), (CONTROL, control)):
        write_tensors(files[group], W, lambda _, value=value: np.full(2, value, np.float32))
    return Update(files, 10)


SOUND = Scored(score="0.9", theta=None, reason="")


# --- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [LARGEST * 1.001, -LARGEST * 1.001, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan])
def test_a_number_beyond_what_any_network_has_is_poison(value: float, tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", W, lambda _: np.array([0, value], np.float32))
    with pytest.raises(RejectedError, match=r"no number may be beyond 16777216|holds a value that is not"):
        check_tensors(tmp_path / "x", W, "x")
    write_tensors(tmp_path / "x", W, lambda _: np.array([LARGEST, -LARGEST], np.float32))
    check_tensors(tmp_path / "x", W, "x")


@pytest.mark.parametrize(("control", "holds"), [(-5.0, True), (4.9, True), (5.2, False), (1e5, False), (-5.2, False)])
def test_a_control_variate_of_any_size_names_its_site(control: float, holds: bool, tmp_path: Path) -> None:
    """With w = 0, c = 0 and η = 0.1, a model at 0.5 can come with no change beyond 5."""
    aggregation, _ = scaffold(tmp_path / "work")
    sent = update(tmp_path, "north", 0.5, control)
    if holds:
        aggregation.require_plausible(UPDATE, "north", sent.files, 1)
    else:
        with pytest.raises(
            RejectedError, match="w holds numbers that cannot follow from how far training has moved the"
        ):
            aggregation.require_plausible(UPDATE, "north", sent.files, 1)


def test_a_weighted_sites_control_variate_may_be_as_much_larger(tmp_path: Path) -> None:
    aggregation, _ = scaffold(tmp_path / "work", weighted=True, mean_images=10)
    aggregation.require_plausible(UPDATE, "north", update(tmp_path, "north", 0.5, -9.9).files, 20)
    for images, control in ((20, -10.4), (10, -9.9)):
        with pytest.raises(RejectedError, match="w holds numbers that cannot follow"):
            sent = update(tmp_path, "north", 0.5, control)
            aggregation.require_plausible(UPDATE, "north", sent.files, images)


@dataclass(frozen=True)
class Training:
    """How an honest site trains 40 numbers."""

    seed: int
    rate: float
    steps: int
    gradients: float
    momentum: float
    numbers: Numbers


trainings = st.builds(
    Training,
    seed=st.integers(0, 2**31),
    rate=st.sampled_from([1e-4, 0.01, 1.0]),
    steps=st.integers(1, 50),
    gradients=st.sampled_from([1e-6, 1.0, 1e3]),
    momentum=st.sampled_from([0.0, 0.9]),
    numbers=st.sampled_from(["float32", "bfloat16", "float16"]),
)


@settings(max_examples=60, deadline=None)
@given(trainings)
def test_what_an_honest_site_sends_is_plausible(tmp_path_factory: pytest.TempPathFactory, training: Training) -> None:
    """Whatever gradients it meets, whatever variates it begins with, and whatever the run rounds models to."""
    random, scale = torch.Generator().manual_seed(training.seed), training.gradients
    method, network = open_method("scaffold", {}), torch.nn.Linear(40, 1, bias=False)
    with torch.no_grad():
        network.weight.normal_(generator=random)
    c, c_k = ({"weight": scale * torch.randn(1, 40, generator=random)} for _ in range(2))
    local = Local(network, shared=["weight"], state={CONTROL: c}, kept={CONTROL: c_k}, numbers=training.numbers)
    optimizer = torch.optim.SGD(network.parameters(), lr=training.rate, momentum=training.momentum)
    for _ in range(training.steps):
        network.weight.grad = scale * torch.randn(1, 40, generator=random) + method.correction(local)["weight"]
        optimizer.step()
        local.note_step(optimizer)
    method.finish(local)
    x = local.received["weight"] - local.moved_as_sent()["weight"]
    listed = TensorList(tensors={"weight": TensorShape(dtype="F32", shape=[1, 40])})
    home = tmp_path_factory.mktemp("honest")
    tensors = {"w": local.received["weight"], "x": x, "c": c["weight"], "d": local.sent[CONTROL]["weight"]}
    for name, tensor in tensors.items():
        write_tensors(home / name, listed, lambda _, tensor=tensor: tensor.numpy())
    assert x.isfinite().logical_not().any() or not implausible(
        method,
        listed,
        before={MODEL: home / "w", CONTROL: home / "c"},
        sent={MODEL: home / "x", CONTROL: home / "d"},
        rate=training.rate,
        images=1,
        numbers=training.numbers,
    )


def test_what_cannot_be_sent_names_the_site_without_whom_it_can(tmp_path: Path) -> None:
    """Each number alone holds; with a server rate of 10 the next model would be beyond all bounds."""
    aggregation, run = scaffold(tmp_path / "work", server_rate=10.0)
    updates = {
        site: update(tmp_path, site, model, 0.0) for site, model in (("east", 1.0), ("north", 1.6e7), ("south", 2.0))
    }
    scored = dict.fromkeys(SITES, SOUND)
    closed = ClosedRound(1, scored, run.tolerance, updates.__getitem__)
    found = without_spoilers(run, closed, aggregation)
    assert [site for site, each in found.checked.items() if each and each.reason] == ["north"]
    verdicts = decide(run, found, aggregation)
    assert {site: (verdict.status, verdict.weight) for site, verdict in verdicts.items()} == {
        "east": ("accepted", "0.5"),
        "north": ("omitted", None),
        "south": ("accepted", "0.5"),
    }
    assert (
        "the answers cannot be worked on together with this one by scaffold: w of what goes on as"
        in verdicts["north"].reason
    )
    assert not (tmp_path / "work" / "runs" / run.run / "rounds" / "0001" / "aggregate.safetensors").exists()
    aggregation.aggregate(1, {site: updates[site] for site in ("east", "south")}, {"east": 0.5, "south": 0.5})


# --- who it is --------------------------------------------------------------------------------------------------


def failing(*bad: frozenset[str]) -> Callable[[Sequence[str]], None]:
    def work(sites: Sequence[str]) -> None:
        for spoilt in bad:
            if spoilt <= set(sites):
                raise ZeroDivisionError(f"{sorted(spoilt)}")

    return work


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([], []),
        ([{"a"}], ["a"]),
        ([{"a"}, {"c"}], ["a", "c"]),
        ([{"a", "b"}], ["a"]),  # the first without whom it goes
        ([{"b"}, {"c", "d"}], ["b", "c"]),
        ([{"a", "b"}, {"c", "d"}], ["a", "b", "c", "d"]),
        ([set()], ["a", "b", "c", "d"]),  # a mistake of ours
    ],
)
def test_the_sites_without_which_it_goes_are_named(bad: list[set[str]], named: list[str]) -> None:
    found = spoilers("abcd", "mean", failing(*map(frozenset, bad)))
    assert sorted(found) == named
    assert all(
        "the answers cannot be worked on together with this one by mean: " in reason for reason in found.values()
    )


@given(bad=st.lists(st.frozensets(st.sampled_from("abcde"), max_size=3), max_size=4))
def test_what_is_left_can_always_be_worked_on_and_is_at_last(bad: list[frozenset[str]]) -> None:
    """What goes with the aggregate is what the last work has written."""
    work, tried = failing(*bad), list[list[str]]()

    def noted(sites: Sequence[str]) -> None:
        tried.append([*sites])
        work(sites)

    found = spoilers("abcde", "mean", noted)
    left = [site for site in "abcde" if site not in found]
    if left:
        work(left)
        assert tried[-1] == left


@pytest.mark.parametrize("error", [ActionRequiredError("correct weights()"), OSError("the disk"), MemoryError()])
def test_what_is_nobodys_fault_is_held_against_nobody(error: Exception) -> None:
    def work(_: Sequence[str]) -> None:
        raise error

    with pytest.raises(type(error)):
        spoilers("ab", "mean", work)
