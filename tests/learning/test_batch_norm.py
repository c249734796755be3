"""What scoring measures in a network, and leaves in it."""

from __future__ import annotations

import torch
from torch import nn

from shared.learning.batch_norm import buffers_kept


def test_statistics_that_were_measured_are_put_back() -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with buffers_kept(network):
        network.train()(torch.randn(8, 5))
        assert not torch.equal(network[1].running_mean, before["1.running_mean"])
    after = network.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
