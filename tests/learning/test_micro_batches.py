"""Batches that training answers part by part: the step is that of the whole batch, and takes less memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shared.audit.verify import lines, verify
from shared.errors import RejectedError
from shared.exchange.names import METRICS, MessageRef
from shared.exchange.tables import MetricsRow, is_support, read_metrics
from shared.folder.local import LocalFolder
from shared.learning.compute import EXACT, Computing
from shared.learning.data.augmentation import Augmentation
from shared.learning.methods import method_names, open_method
from shared.learning.methods.contract import Local
from shared.learning.models.residual_unet import ResidualUNet
from shared.learning.objectives import CrossEntropy, Evidential, Focal, Objective, Weighted, WithDice
from shared.learning.optimizers import new_optimizer
from shared.learning.processes import Processes
from shared.learning.requirements import requirements
from shared.learning.sharing import build_network, sharing
from shared.learning.training import Epoch, train_epoch
from site_client.configuration import computing_of
from site_client.offer import describe
from studies import daemons
from tests.federation.in_turns import as_before
from tests.federation.running import Setting, make_data, run_configuration
from tests.learning.test_loading import site_of
from tests.learning.together import GRADES, PIXELS, photographs, plain, segmented, train

OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": CrossEntropy(),
    "focal": Focal(),
    "evidential": Evidential(temperature=0.05, kl_weight=0.2, anneal_steps=3),
    "dice": WithDice(CrossEntropy()),
    "by class": Weighted(WithDice(Focal()), (0.3, 3.0)),
}
OPTIMIZERS = {"sgd": {"momentum": 0.9}, "adam": {}, "adamw": {"weight_decay": 0.1}}
ROUNDING = 1e-5


def moved(
    objective: Objective,
    optimizer: str = "sgd",
    network: Callable[[], nn.Module] = plain,
    micro_batch: int | None = None,
) -> list[Tensor]:
    """The parameters after an epoch over masks of several sizes, whose batches are of seven images and filled up."""
    torch.manual_seed(3)
    model = network()
    options = PIXELS.options({"optimizer": optimizer, **OPTIMIZERS[optimizer]})
    train_epoch(
        PIXELS,
        open_method("mean", {}),
        Local(model),
        new_optimizer(model, options, 0.1),
        segmented(equal=False),
        epoch=Epoch(0.1, 7, 5, Augmentation(copies=1), max_grad_norm=0.5),
        objective=objective,
        on_batch=lambda done, total: None,
        computing=Computing(micro_batch=micro_batch),
    )
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_step_is_that_of_the_whole_batch(objective: Objective, optimizer: str) -> None:
    whole = moved(objective, optimizer)
    for micro_batch in (1, 2, 3, 5):  # of seven: the last parts are smaller
        torch.testing.assert_close(moved(objective, optimizer, plain, micro_batch), whole, rtol=ROUNDING, atol=ROUNDING)
    assert all(map(torch.equal, moved(objective, optimizer, plain, 7), whole)), "nothing is divided"


@pytest.mark.parametrize("name", ["mean", "scaffold", "fedprox", "term"])
def test_what_is_told_and_sent_is_the_same_too(name: str) -> None:
    whole, divided = train(name), train(name, Computing(micro_batch=3))
    for told, others in zip(divided["told"], whole["told"], strict=True):
        assert told == pytest.approx(others, rel=1e-3, abs=1e-4)
    for found, expected in zip(divided["sent"].values(), whole["sent"].values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(method_names()))
def test_every_method_takes_the_step_of_the_whole_batch(name: str) -> None:
    def trained(computing: Computing) -> dict[str, Tensor]:
        method = open_method(name, {})
        options = GRADES.options({"encoder": "small", "weights": "random", "image_size": 32})
        network = build_network(GRADES, method, options, 3, run_seed=1, is_private=True)  # without BatchNorm
        for layer in network.modules():
            if isinstance(layer, nn.Dropout | nn.Dropout2d):
                layer.p = 0.0
        listed = sharing(GRADES, method, network)
        groups = method.groups(network, listed)
        zeros = {
            group: {key: torch.full(shape.shape, 0.01) for key, shape in tensors.tensors.items()}
            for group, tensors in {**groups.to_site, **groups.at_site}.items()
        }
        local = Local(network, shared=listed.parameters.tensors, state=zeros, kept=zeros, is_first=False)
        method.begin(local)
        train_epoch(
            GRADES,
            method,
            local,
            torch.optim.SGD(network.parameters(), lr=0.01),
            photographs()[:4],
            epoch=Epoch(0.01, 4, 5, Augmentation()),
            objective=method.objective(1, 2),
            on_batch=lambda done, total: None,
            computing=computing,
        )
        return {key: tensor for key, tensor in network.state_dict().items() if tensor.is_floating_point()}

    torch.testing.assert_close(trained(Computing(micro_batch=3)), trained(EXACT), rtol=1e-3, atol=1e-4)


def test_batch_norm_learns_from_two_images_or_more() -> None:
    assert all(tensor.isfinite().all() for tensor in moved(CrossEntropy(), network=unet, micro_batch=1))


def unet() -> nn.Module:
    return ResidualUNet(widths=(4, 8), dropout=0.0, classes=2)


def test_no_part_is_larger_than_said_and_all_processes_have_as_many() -> None:
    for micro_batch in range(1, 6):
        for count in range(1, 4):
            computing = Computing(micro_batch=micro_batch, processes=Processes(0, count))
            for images in range(count, 20):
                shares = [len(Processes(rank, count).share_of(range(images))) for rank in range(count)]
                parts = computing.parts_of(images, has_norms=False)
                assert 1 <= parts <= min(shares)
                assert -(-max(shares) // parts) <= micro_batch + (micro_batch == 1 and len({*shares}) > 1)
                of_norms = computing.parts_of(images, has_norms=True)
                assert of_norms == 1 or min(shares) // of_norms >= 2
    assert EXACT.parts_of(100, has_norms=False) == 1


def test_fewer_activations_are_kept_at_a_time() -> None:
    whole, divided = (
        peak(lambda size=size: moved(CrossEntropy(), network=unet, micro_batch=size)) for size in (None, 2)
    )
    assert divided < whole / 2


def peak(work: Callable[[], object]) -> int:
    """The most bytes that are kept for gradients at a time."""
    now, most = 0, 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now, most
            self.tensor, self.bytes = tensor, tensor.numel() * tensor.element_size()
            now += self.bytes
            most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.bytes

    with saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        work()
    return most


def test_a_hospital_that_divides_batches_needs_less_memory() -> None:
    run = run_configuration(batch_size=8)
    whole, divided = requirements(run), requirements(run, 2)
    assert divided.memory_bytes < whole.memory_bytes
    assert replace(divided, memory_bytes=whole.memory_bytes) == whole == requirements(run, 8)


def test_a_site_says_it_in_its_settings() -> None:
    assert computing_of(site_of(micro_batch=4)) == Computing(micro_batch=4)
    assert not Computing(micro_batch=4).divides(4)


@pytest.mark.parametrize("cell", ["2.5", "0.0"])
def test_a_micro_batch_is_a_number_of_images(cell: str) -> None:
    table = f"round,epoch,split,images,learning_rate,loss,micro_batch\n1,1,train,10,0.1,0.5,{cell}\n".encode()
    with pytest.raises(RejectedError, match="micro_batch"):
        read_metrics(table, METRICS)


def rows_of(setting: Setting, site: str) -> list[MetricsRow]:
    ref = MessageRef("update", setting.run.run, 1)
    return read_metrics((setting.folder(site) / ref.path / METRICS).read_bytes(), METRICS)


def test_the_signed_table_names_the_size_where_batch_norm_met_it(tmp_path: Path) -> None:
    run = run_configuration(batch_size=4, tolerance=None)
    setting = Setting(tmp_path, run, 20)
    make_data(run, tmp_path / "data", 20)
    data = {site: setting.data_of(site) for site in run.sites}
    with as_before():
        daemons.run_exchange(run, data, tmp_path, computing=Computing(micro_batch=2))
    for site in run.sites:
        told = {row.split: row.scores["micro_batch"] for row in rows_of(setting, site)}
        assert told == {"train": 2.0, "validation": None, "test": None}
        assert is_support("micro_batch")
        assert list(lines(verify(LocalFolder(setting.folder(site))))) == []
        shown = describe(setting.site(site), run.run)
        assert "divided into:       micro-batches of up to 2 images, as site.yaml says; BatchNorm normalises" in shown
