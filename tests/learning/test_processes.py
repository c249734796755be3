"""Several processes train one network: what they come to is what one alone comes to, whatever their number."""

import pytest
import torch

from shared.errors import ActionRequiredError
from shared.learning.processes import Processes
from tests.federation.forked import Forked
from tests.learning.together import train

WAIT_S = 240.0


def start_together(name, folder, count, *micro_batch):
    """So many processes that train together."""
    return [
        Forked(
            ["tests.learning.together", name, str(rank), str(count), str(folder), *map(str, micro_batch)],
            folder / "output.txt",
        )
        for rank in range(count)
    ]


def train_together(name, folder, count, *micro_batch):
    """What each of so many processes comes to."""
    started = start_together(name, folder, count, *micro_batch)
    assert [process.wait(WAIT_S) for process in started] == [0] * count, (folder / "output.txt").read_text()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def assert_same(one, other):
    """What trainings come to, but for rounding; BatchNorm's step counters, which nothing reads, aside."""
    for told, others in zip(one["told"], other["told"], strict=True):
        assert {name for name in told if told[name] is None} == {name for name in others if others[name] is None}
        known = {name: value for name, value in others.items() if value is not None}
        assert {name: told[name] for name in known} == pytest.approx(known, rel=1e-3, abs=1e-4)
    for found, expected in zip(tensors_of(one), tensors_of(other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def tensors_of(came_to):
    named = [came_to["network"], *came_to["sent"].values()]
    tensors = [tensors[name] for tensors in named for name in sorted(tensors) if "num_batches" not in name]
    return [*tensors, came_to["uncertainty"]]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mean", 3),
        ("scaffold", 2),
        ("fedprox", 2),
        ("term", 2),
        ("unet", 2),
        ("unet", 3),
        ("grading", 2),
        ("followed", 2),
    ],
)
def test_together_they_come_to_what_one_comes_to(name, count, tmp_path):
    alone = train(name)
    for together in train_together(name, tmp_path, count):
        assert_same(together, alone)


def test_each_divides_its_share_into_micro_batches(tmp_path):
    alone = train("mean")
    for together in train_together("mean", tmp_path, 2, 1):
        assert_same(together, alone)


def test_each_draws_a_dropout_of_its_own_and_all_move_alike(tmp_path):
    alone, (first, second) = train("dropout"), train_together("dropout", tmp_path, 2)
    draws = [came_to["sent"].pop("draw")["draw"].tolist() for came_to in (alone, first, second)]
    assert draws[0] == draws[1] != draws[2]
    assert_same(first, second)
    assert first["told"][3]["loss"] < first["told"][1]["loss"]


def test_shares_are_all_of_a_batch_in_order():
    for count in range(1, 6):
        shares = [Processes(rank, count).share_of("abcde") for rank in range(count)]
        assert "".join(shares) == "abcde"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(ActionRequiredError, match="a batch of 5 images cannot be shared by 6"):
        Processes(0, 6).share_of("abcde")


def test_the_end_of_another_process_is_told_as_what_it_is(tmp_path):
    """As no fault of the code that worked meanwhile, which may be a plug-in's."""
    first, second = start_together("ends", tmp_path, 2)
    assert (first.wait(WAIT_S), second.wait(WAIT_S)) == (1, 9)
    assert "ProcessLostError: another training process ended" in (tmp_path / "output.txt").read_text()
