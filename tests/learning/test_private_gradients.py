"""The private step: who takes part, clipping, noise, and the secret that both come from."""

import copy
import math
import stat

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, kstest
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from shared.errors import ActionRequiredError
from shared.learning.batch_norm import replace_batch_norm
from shared.learning.models.early_exits import EarlyExits
from shared.learning.models.encoders import ENCODERS
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.models.residual_unet import ResidualUNet
from shared.learning.models.signal_encoder import build_signal_encoder
from shared.learning.opacus_import import import_opacus
from shared.learning.privacy import Mechanism
from shared.learning.private_gradients import PrivateGradients, Secret, sampled_batches
from tests.at_length import shown_by

SECRET = Secret(bytes(range(32)))
OTHER = Secret(bytes(range(1, 33)))
SILENT = 1e-12  # a noise multiplier that leaves the clipped sums to be seen
NETWORKS = (*ENCODERS, "unet", "signal")
ALIKE = ("resnet34", "vgg19")  # deeper than resnet18 and small, of the same layers
SHOWN = [name for name in NETWORKS if name not in (*ALIKE, "resnet50")]  # they have every kind of layer that it has


def how(noise=SILENT, *, greatest=1.0, images=12, batch_size=4):
    return Mechanism(max_grad_norm=greatest, noise_multiplier=noise, images=images, batch_size=batch_size)


def network(name):
    """A network of the product without anything random in it, and three images, or time series, for it."""
    torch.manual_seed(1)
    if name == "signal":
        return EarlyExits(GradingNetwork(build_signal_encoder(2), 3, "linear")).train(), torch.rand(3, 2, 32)
    model = ResidualUNet(widths=(8, 16, 32)) if name == "unet" else GradingNetwork(name, 3)
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0
    return model.train(), torch.rand(3, 1 if name == "unet" else 3, 32, 32)


def losses_of(logits):
    """(B, ...) logits to one loss of each image."""
    return functional.softplus(logits).flatten(1).mean(dim=1)


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def grads(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def flat(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def released(model, inputs, mechanism, secret=SECRET):
    """The private gradients of one step."""
    with PrivateGradients(model, mechanism, secret) as gradients:
        if len(inputs):
            gradients.add(losses_of(model(inputs)))
        gradients.release()
    return grads(model)


# What takes the place of BatchNorm


@pytest.mark.parametrize("name", NETWORKS)
def test_group_norm_takes_the_place_of_every_batch_norm_and_tensors_keep_their_names(name):
    model, images = network(name)
    norms = [path for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
    for path in norms:
        nn.init.uniform_(model.get_submodule(path).weight)  # as if from a file
    before = model.state_dict()
    by_opacus = import_opacus("opacus.validators").ModuleValidator.fix(model)
    replace_batch_norm(model)
    after = model.state_dict()
    statistics = [key for key in before if key.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert len(statistics) == 3 * len(norms)
    assert list(after) == [key for key in before if key not in statistics]
    assert all(torch.equal(after[key], before[key]) for key in after)
    assert [module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)] == [
        module.num_groups for module in by_opacus.modules() if isinstance(module, nn.GroupNorm)
    ]
    assert not import_opacus("opacus.validators").ModuleValidator.validate(model)
    with torch.no_grad():
        assert torch.allclose(model(images)[:1], model(images[:1]), atol=1e-5)  # whoever else is in the batch


def test_the_variance_keeps_its_constant_and_a_frozen_norm_stays_frozen():
    model, _ = network("unet")
    model.requires_grad_(False)
    replace_batch_norm(model.eval())
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert {norm.eps for norm in norms} == {1e-3}
    assert not any(norm.weight.requires_grad or norm.training for norm in norms)


# The gradient of each image


@pytest.mark.parametrize("name", shown_by(SHOWN, [name for name in NETWORKS if name not in ALIKE]))
def test_the_sum_is_that_of_each_images_own_clipped_gradient(name):
    model, images = network(name)
    model, images = model.double(), images.double()  # in floats a rounding that passes a ReLU's kink grows with depth
    replace_batch_norm(model)
    singles = []
    for image in images:
        model.zero_grad()
        losses_of(model(image[None])).sum().backward()
        singles.append(grads(model))
    norms = [math.sqrt(sum(float(gradient.square().sum()) for gradient in single.values())) for single in singles]
    greatest = sorted(norms)[1] * 1.0001  # one is clipped, or two
    found = released(model, images, how(greatest=greatest, batch_size=4))
    wanted = {
        key: sum(min(1, greatest / norm) * single[key] for norm, single in zip(norms, singles, strict=True)) / 4
        for key in found
    }
    error = math.sqrt(sum(float((found[key] - wanted[key]).square().sum()) for key in found))
    assert error < 1e-4 * greatest


def test_by_hand():
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    inputs = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    with PrivateGradients(model, how(greatest=1.0, batch_size=4), SECRET) as gradients:
        gradients.add(model(inputs)[:, 0])  # the gradient of each is its input: norms 5, 0.5 and 0
        gradients.release()
    assert torch.allclose(model.weight.grad, torch.tensor([[(0.6 + 0.3) / 4, (0.8 + 0.4) / 4]]), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.lists(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=4, max_size=4), min_size=1, max_size=4),
    greatest=st.floats(1e-3, 1e3),
)
def test_no_image_moves_the_sum_by_more_than_the_norm(inputs, greatest):
    model = small_network()
    mechanism = how(greatest=greatest, batch_size=1)
    images = torch.tensor(inputs)
    whole = released(model, images, mechanism)
    for left_out in range(len(images)):
        rest = released(model, torch.cat([images[:left_out], images[left_out + 1 :]]), mechanism)
        moved = math.sqrt(sum(float((whole[key] - rest[key]).square().sum()) for key in whole))
        assert moved <= greatest * 1.0001


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_an_image_without_a_finite_gradient_adds_nothing(broken):
    model = small_network()
    images = torch.rand(3, 4)
    sound = released(model, images[1:], how())
    images[0, 1] = broken
    for key, gradient in released(model, images, how()).items():
        assert torch.allclose(gradient, sound[key], atol=1e-7)


def test_a_batch_in_parts_is_the_batch():
    model = small_network()
    images = torch.rand(5, 4)
    whole = released(model, images, how(greatest=0.1))
    with PrivateGradients(model, how(greatest=0.1), SECRET) as gradients:
        for part in images.split(2):
            gradients.add(losses_of(model(part)))
        gradients.release()
    for key, gradient in grads(model).items():
        assert torch.allclose(gradient, whole[key], atol=1e-7)


def test_a_layer_used_twice_counts_both_times():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, inputs):
            return self.layer(self.layer(inputs).relu())

    torch.manual_seed(0)
    model, images = Twice(), torch.rand(2, 3)
    losses_of(model(images)).sum().backward()
    wanted = grads(model)
    for key, gradient in released(model, images, how(greatest=100.0, batch_size=1)).items():
        assert torch.allclose(gradient, wanted[key], atol=1e-6)


def test_what_is_frozen_gets_no_gradient_and_counts_for_no_norm():
    model = small_network()
    model[0].requires_grad_(False)
    images = torch.rand(3, 4)
    with PrivateGradients(model, how(noise=1.0, greatest=0.1, batch_size=1), SECRET) as gradients:
        gradients.add(losses_of(model(images)))
        gradients.release()
        assert model[0].weight.grad is None
        assert model[2].weight.grad is not None
        model[0].requires_grad_(True)  # as FedRep does halfway
        gradients.add(losses_of(model(images)))
        gradients.release()
        assert model[0].weight.grad is not None


def test_a_look_at_other_images_between_the_steps_leaves_no_trace():
    model = small_network()
    images = torch.rand(3, 4)
    wanted = released(model, images, how())
    with PrivateGradients(model, how(), SECRET) as gradients:
        losses = losses_of(model(images))
        model(torch.rand(7, 4))  # with gradients, never traced back
        with torch.no_grad():
            model.eval()(torch.rand(9, 4))
        model.train()
        gradients.add(losses)
        gradients.release()
    assert all(torch.equal(gradient, wanted[key]) for key, gradient in grads(model).items())


def test_afterwards_the_model_is_as_before():
    model, images = network("unet")
    replace_batch_norm(model)
    before = {module: set(vars(module)) for module in model.modules()}
    for _ in range(2):
        with pytest.raises(KeyError), PrivateGradients(model, how(), SECRET) as gradients:
            gradients.add(losses_of(model(images)))
            gradients.release()
            raise KeyError
    assert not any(module._forward_hooks for module in model.modules())
    assert {module: set(vars(module)) for module in model.modules()} == before
    copy.deepcopy(model)
    model.zero_grad()
    losses_of(model(images)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_model_that_mixes_its_images_is_refused():
    with pytest.raises(ValueError, match=r"encoder\.stage1\.norm is a BatchNorm"):
        PrivateGradients(network("small")[0], how(), SECRET)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 4))
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs):
            return functional.linear(self.layer(inputs), self.weight)

    with pytest.raises(ValueError, match=r"nothing is known of .*Own"):
        PrivateGradients(Own(), how(), SECRET)


def test_gradients_that_cannot_be_told_apart_are_refused():
    model = small_network()
    images = torch.rand(3, 4)
    with PrivateGradients(model, how(), SECRET) as gradients:
        hidden = model[0](images).tanh()
        with pytest.raises(ValueError, match="one input for each loss"):
            gradients.add(losses_of(functional.linear(hidden, model[2].weight)))  # past the layer
        with pytest.raises(ValueError, match="one input for each loss"):
            gradients.add(losses_of(model(images)).mean()[None])
        assert all(parameter.grad is None for parameter in model.parameters())


# Noise


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_clipping_and_noise_are_those_of_opacus(monkeypatch):
    """The same numbers in place of random ones, in both."""

    def numbers(count):
        return torch.linspace(-2, 2, count, dtype=torch.float64).square()

    monkeypatch.setattr(Secret, "normal", lambda self, count: numbers(count))
    optimizers = import_opacus("opacus.optimizers.optimizer")
    monkeypatch.setattr(
        optimizers,
        "_generate_noise",
        lambda std, reference, **_: (std * numbers(reference.numel())).view(reference.shape).float(),
    )
    model, images = small_network(), torch.rand(6, 4)
    mechanism = how(noise=0.7, greatest=0.3, batch_size=5)
    theirs = copy.deepcopy(model)
    wrapped = import_opacus("opacus.grad_sample").GradSampleModule(theirs, loss_reduction="mean")
    optimizer = optimizers.DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=1.0), noise_multiplier=0.7, max_grad_norm=0.3, expected_batch_size=5
    )
    losses_of(wrapped(images)).mean().backward()
    optimizer.step()
    ours = torch.optim.SGD(model.parameters(), lr=1.0)
    released(model, images, mechanism)
    ours.step()
    for mine, yours in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, yours, atol=1e-6)


def test_without_images_a_step_is_noise_of_the_right_spread_and_shape():
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 300))
    released(model, [], how(noise=1.5, greatest=0.2, batch_size=10))
    found = (flat(model) * 10 / (1.5 * 0.2)).double().numpy()
    assert kstest(found, "norm").pvalue > 0.01
    assert abs(found.std() - 1) < 5 / math.sqrt(2 * len(found))
    first, second = (layer.weight.grad.flatten() for layer in model)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / math.sqrt(len(first))


def test_the_noise_does_not_lean_on_the_images():
    model = nn.Linear(500, 200, bias=False)
    images = torch.rand(8, 500, generator=torch.Generator().manual_seed(3))
    clipped = released(model, images, how(greatest=1.0, batch_size=1))["weight"]
    noisy = released(model, images, how(noise=2.0, greatest=1.0, batch_size=1))["weight"]
    noise = ((noisy - clipped) / 2.0).flatten().double()
    assert kstest(noise.numpy(), "norm").pvalue > 0.01
    along = float(noise @ clipped.flatten().double()) / float(clipped.double().norm())
    assert abs(along) < 5


def test_the_noise_follows_from_the_secret_alone():
    model, images, mechanism = small_network(), torch.rand(3, 4), how(noise=1.0)
    torch.manual_seed(1)
    first = released(model, images, mechanism)
    torch.manual_seed(2)
    again = released(model, images, mechanism)
    other = released(model, images, mechanism, OTHER)
    next_round = released(model, images, mechanism, SECRET.of("round", 2))
    for key in first:
        assert torch.equal(first[key], again[key])
        assert not torch.isclose(first[key], other[key]).any()
        assert not torch.isclose(first[key], next_round[key]).any()


def test_every_step_has_noise_of_its_own_and_a_repeated_round_repeats_it():
    def steps(count):
        model, found = small_network(), []
        with PrivateGradients(model, how(noise=1.0), SECRET) as gradients:
            for _ in range(count):
                gradients.release()
                found.append(flat(model))
        return found

    first, again = steps(4), steps(4)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    for one in range(4):
        for two in range(one):
            assert not torch.isclose(first[one], first[two]).any()


def test_two_sums_never_have_the_same_noise():
    """Were an image changed between two attempts at a round, their difference would else show it bare."""
    model = nn.Linear(50, 40)
    images = torch.rand(3, 50)
    changed = images.clone()
    changed[2] += 1e-3
    mechanism = how(noise=1.0, greatest=0.01, batch_size=1)
    released(model, images, mechanism)
    first = flat(model)
    released(model, changed, mechanism)
    difference = (first - flat(model)) / (0.01 * math.sqrt(2))
    assert kstest(difference.double().numpy(), "norm").pvalue > 0.01


def test_what_a_method_adds_afterwards_and_any_optimizer_compose_with_it():
    model, mechanism = small_network(), how(noise=0.5)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.rand(3, 4), torch.empty(0, 4), torch.rand(5, 4)]
    by_hand = {name: tensor.clone() for name, tensor in start.items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    with PrivateGradients(model, mechanism, SECRET) as gradients:
        for batch in batches:
            if len(batch):
                gradients.add(losses_of(model(batch)))
            gradients.release()
            for name, private in grads(model).items():
                velocity[name] = 0.9 * velocity[name] + private + 0.01 * (by_hand[name] - start[name])
                by_hand[name] -= 0.1 * velocity[name]
            for name, parameter in model.named_parameters():
                parameter.grad.add_(parameter.detach() - start[name], alpha=0.01)  # FedProx
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, by_hand[name], atol=1e-6)


def test_it_learns_in_spite_of_the_noise():
    torch.manual_seed(4)
    images = torch.randn(400, 4)
    samples = [(image, int(image[0] > 0)) for image in images]
    model, mechanism = small_network(), how(noise=1.0, images=400, batch_size=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with PrivateGradients(model, mechanism, SECRET) as gradients:
        for epoch in range(5):
            for batch in sampled_batches(samples, mechanism, SECRET.of("epoch", epoch)):
                logits = model(torch.stack([image for image, _ in batch]))
                targets = torch.tensor([target for _, target in batch])
                gradients.add(functional.cross_entropy(logits, targets, reduction="none"))
                gradients.release()
                optimizer.step()
    right = model(images).argmax(dim=1) == torch.tensor([target for _, target in samples])
    assert float(right.float().mean()) > 0.9


# Who takes part


def test_each_image_takes_part_on_its_own_and_as_often_as_it_should():
    mechanism = how(images=60, batch_size=6)
    epochs = [list(sampled_batches(range(60), mechanism, SECRET.of("epoch", epoch))) for epoch in range(200)]
    batches = [batch for epoch in epochs for batch in epoch]
    assert len(batches) == 200 * 10
    counts = np.bincount([image for batch in batches for image in batch], minlength=60)
    assert (np.abs(counts - 200) < 5 * math.sqrt(2000 * 0.1 * 0.9)).all()
    sizes = np.bincount([len(batch) for batch in batches], minlength=20)
    expected = 2000 * binom.pmf(np.arange(20), 60, 0.1)
    assert (np.abs(sizes - expected) < 5 * np.sqrt(expected) + 2).all()
    together = sum(1 for batch in batches if 7 in batch and 8 in batch)
    assert abs(together - 20) < 5 * math.sqrt(20)


def test_few_images_make_empty_batches_and_a_whole_batch_takes_all():
    sparse = list(sampled_batches("abcd", how(images=4, batch_size=1), SECRET))
    assert len(sparse) == 4
    assert [] in [*sparse, *sampled_batches("abcd", how(images=4, batch_size=1), OTHER)]
    assert list(sampled_batches("abcd", how(images=4, batch_size=4), SECRET)) == [["a", "b", "c", "d"]]


def test_who_takes_part_follows_from_the_secret():
    def chosen(secret):
        return list(sampled_batches(range(100), how(images=100, batch_size=10), secret))

    assert chosen(SECRET) == chosen(SECRET)
    assert chosen(SECRET) != chosen(OTHER)
    with pytest.raises(ValueError, match="reckons with 100 samples; got 3"):
        list(sampled_batches("abc", how(images=100), SECRET))


# The secret


def test_a_secret_is_made_once_and_read_by_its_owner_only(tmp_path):
    path = tmp_path / "noise.key"
    made = Secret.made_at(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Secret.made_at(path)
    assert torch.equal(made.uniform(9), again.uniform(9))
    assert not torch.equal(made.uniform(9), Secret.made_at(tmp_path / "other.key").uniform(9))
    assert bytes.fromhex(path.read_text()).hex() not in repr(made) + str(vars(made.of("x")))
    path.chmod(0o644)
    with pytest.raises(ActionRequiredError, match=r"noise\.key"):
        Secret.made_at(path)


@pytest.mark.parametrize("content", ["", "00" * 31, "secret"])
def test_a_damaged_secret_is_named(tmp_path, content):
    path = tmp_path / "noise.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ActionRequiredError, match="does not hold a secret of dropfed any more: no round of this"):
        Secret.made_at(path)


parts = st.lists(st.integers(0, 99) | st.text(max_size=3) | st.binary(max_size=3), max_size=3)


@given(one=parts, two=parts)
def test_each_purpose_has_numbers_of_its_own(one, two):
    alike = [(type(part), part) for part in one] == [(type(part), part) for part in two]
    assert torch.equal(SECRET.of(*one).uniform(4), SECRET.of(*two).uniform(4)) == alike


def test_the_numbers_are_uniform_and_normal():
    uniform = SECRET.of("uniform").uniform(200_000)
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    assert kstest(uniform.numpy(), "uniform").pvalue > 0.01
    normal = SECRET.of("normal").normal(200_001)
    assert normal.shape == (200_001,)
    assert kstest(normal.numpy(), "norm").pvalue > 0.01
    assert abs(int((normal.abs() > 3).sum()) - 540) < 5 * math.sqrt(540)
    halves = torch.stack([normal[:100_000], normal[100_001:]])  # made in pairs
    assert abs(float(torch.corrcoef(halves)[0, 1])) < 5 / math.sqrt(100_000)


def test_the_tails_reach_as_far_as_sixty_three_bits_do(monkeypatch):
    monkeypatch.setattr(Secret, "_words", lambda self, count: torch.zeros(count, dtype=torch.int64))
    assert float(SECRET.normal(2)[0]) == pytest.approx(math.sqrt(2 * 63 * math.log(2)))
    monkeypatch.setattr(Secret, "_words", lambda self, count: torch.full((count,), 2**63 - 1))
    assert SECRET.normal(2).isfinite().all()
    assert float(SECRET.uniform(1)[0]) < 1
