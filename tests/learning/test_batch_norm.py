"""What scoring measures in a network, and leaves in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from shared.learning.batch_norm import buffers_kept
from shared.learning.training import measure_statistics
from studies.simulation import run_rounds
from tests.federation.running import run_configuration, write_data


def test_statistics_that_were_measured_are_put_back() -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with buffers_kept(network):
        network.train()(torch.randn(8, 5))
        assert not torch.equal(network[1].running_mean, before["1.running_mean"])
    after = network.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("when", ["after_training", "on_arrival"])
def test_on_arrival_a_site_measures_with_its_own_images(tmp_path: Path, when: str) -> None:
    """What it scores, trains and keeps is the model so measured; the weights are everybody's."""
    run = run_configuration(method_options={"refresh_batch_norm": when, "refresh_images": 3})
    data = {site: tmp_path / site for site in run.sites}
    for number, folder in enumerate(data.values()):
        write_data(run.task, folder, number, 8, seed=number)
    outcome = run_rounds(run, data, tmp_path / "home")
    states = []
    for site, final in outcome.finals.items():
        network = final.network()
        states.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        (tested,) = (row for row in outcome.rows[outcome.chosen[site]][site] if row.split == "test")
        assert tested.scores["dice_mean"] == pytest.approx(outcome.tests[site].scores["dice_mean"].value, abs=1e-4)
        measure_statistics(final.task, network, final.dataset.train, most=3)
        measured = network.state_dict()
        assert all(torch.equal(tensor, measured[name]) for name, tensor in states[-1].items()) == (when == "on_arrival")
    (one, other), buffers = states, {name for name, _ in network.named_buffers()}
    assert all(torch.equal(one[name], other[name]) for name in one.keys() - buffers)
    assert any("running_mean" in name for name in buffers)
    shared = [torch.equal(one[name], other[name]) for name in buffers if "running" in name]
    assert all(shared) if when == "after_training" else not any(shared)
