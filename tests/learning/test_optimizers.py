"""The optimizer is the run's choice, for every task."""

import pytest
import torch
from torch import nn

from shared.errors import ConfigurationError
from shared.learning.optimizers import new_optimizer, read_memory, remembered, restore_memory
from shared.learning.run_checks import check_together
from shared.learning.tasks import TASK_NAMES, task_named
from tests.federation.running import run_configuration

NEEDED = {
    "time_series": {"labels": ["a", "b"], "channels": ["x"], "rate_hz": 1.0, "window": 8, "stride": 8},
    "spectrograms": {"labels": ["a", "b"]},
    "fundus_disease": {"labels": ["a", "b"]},
}
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_task_trains_with_each(task, kind):
    raw = NEEDED.get(task, {}) | {"optimizer": kind, "momentum": 0.3, "weight_decay": 0.02}
    optimizer = new_optimizer(nn.Linear(2, 2), task_named(task).options(raw), 0.05)
    assert type(optimizer) is KINDS[kind]
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group.get("momentum", 0.3)) == (0.05, 0.02, 0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_one_goes_on_from_what_another_remembers(kind):
    options = task_named("octa_segmentation").options({"optimizer": kind, "weight_decay": 0.1})

    def step(network, optimizer):
        optimizer.zero_grad()
        network(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()

    torch.manual_seed(1)
    network, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = new_optimizer(network, options, 0.1)
    step(network, optimizer)
    other.load_state_dict(network.state_dict())
    goes_on = new_optimizer(other, options, 0.1)
    memory = {name: tensor.clone() for name, tensor in read_memory(optimizer, network).items()}
    assert memory.keys() == remembered(optimizer, network).tensors.keys()
    restore_memory(goes_on, other, memory)
    step(network, optimizer)
    step(other, goes_on)
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_a_method_that_computes_with_step_sizes_needs_sgd():
    check_together(run_configuration(method="scaffold", task_options={"weight_decay": 0.01}))
    with pytest.raises(ConfigurationError, match=r"scaffold computes with step sizes.*set `optimizer: sgd`"):
        check_together(run_configuration(method="scaffold", task_options={"optimizer": "adamw"}))
