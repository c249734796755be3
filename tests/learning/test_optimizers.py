"""The optimizer is the run's choice, for every task."""

import pytest
import torch
from torch import nn

from shared.errors import ConfigurationError
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.optimizers import new_optimizer, read_memory, remembered, restore_memory
from shared.learning.run_checks import check_together
from shared.learning.tasks import TASK_NAMES, task_named
from shared.learning.training import take_step
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


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_of_what_is_frozen(kind):
    network = nn.Linear(2, 2)
    network.weight.requires_grad_(False)
    optimizer = new_optimizer(network, task_named("octa_segmentation").options({"optimizer": kind}), 0.1)
    network(torch.ones(1, 2)).square().sum().backward()
    optimizer.step()
    memory = read_memory(optimizer, network, frozen=["weight"])
    assert memory and all(name.endswith("/bias") for name in memory)
    assert memory.keys() == remembered(optimizer, network, frozen=["weight"]).tensors.keys()
    restore_memory(
        new_optimizer(network, task_named("octa_segmentation").options({"optimizer": kind}), 0.1), network, memory
    )


def test_a_method_that_computes_with_step_sizes_needs_sgd():
    check_together(run_configuration(method="scaffold", task_options={"weight_decay": 0.01}))
    with pytest.raises(ConfigurationError, match=r"scaffold computes with step sizes.*set `optimizer: sgd`"):
        check_together(run_configuration(method="scaffold", task_options={"optimizer": "adamw"}))
    with pytest.raises(ConfigurationError, match=r"scaffold computes with step sizes.*leave max_grad_norm out"):
        check_together(run_configuration(method="scaffold", task_options={"max_grad_norm": 1.0}))


@pytest.mark.parametrize("norm", [0.001, 1e6])
def test_the_gradient_of_a_step_is_clipped(norm):
    """What a method adds to it, too; and one that is small enough stays as it is."""
    network = nn.Linear(3, 2)
    optimizer = new_optimizer(network, task_named("dr_staging").options({}), 1.0)
    local = Local(network, shared=["weight"])
    method = open_method("fedprox", {"mu": 10.0})
    local.received["weight"] += 1.0
    before = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    network(torch.ones(1, 3)).square().sum().backward()
    whole = [tensor.grad.clone() for tensor in network.parameters()]
    whole[0] += method.correction(local).get("weight", 0)
    take_step(method, local, optimizer, norm)
    moved = torch.cat([(before[name] - tensor).flatten() for name, tensor in network.named_parameters()])
    whole = torch.cat([gradient.flatten() for gradient in whole])
    torch.testing.assert_close(moved, whole * min(1.0, norm / float(whole.norm())), rtol=1e-4, atol=1e-6)
