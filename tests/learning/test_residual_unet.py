"""The residual U-Net."""

import pytest
import torch

from shared.learning.models.residual_unet import ResidualUNet


def test_parameter_counts_of_the_paper():
    """Residual U-Net of 32 to 512 channels, one input channel, two classes: 8,120,994 as Keras counts."""
    model = ResidualUNet()
    trainable = sum(parameter.numel() for parameter in model.parameters())
    statistics = sum(buffer.numel() for name, buffer in model.named_buffers() if "running" in name)
    assert (trainable, statistics) == (8_115_106, 5_888)
    assert trainable + statistics == 8_120_994


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (40, 32), (17, 64)])
def test_any_size_comes_back(size):
    model = ResidualUNet(widths=(2, 3, 4), dropout=0.0, classes=3).eval()
    assert model(torch.rand(2, 1, *size)).shape == (2, 3, *size)


def test_padding_is_cut_off_again():
    """What forward fills up is zeros, at the bottom and at the right, and nothing of it is in the answer."""
    model = ResidualUNet(widths=(2, 3), dropout=0.0).eval()
    image = torch.rand(1, 1, 31, 32)
    filled = torch.nn.functional.pad(image, (0, 0, 0, 1))
    assert torch.equal(model(image), model(filled)[..., :31, :])


def test_gradients_reach_every_parameter():
    torch.manual_seed(0)
    model = ResidualUNet(widths=(4, 6, 8), dropout=0.5)
    model(torch.rand(4, 1, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_nothing_follows_the_sum():
    """A block is body plus shortcut; the shortcut is never negative, the body is normalised."""
    model = ResidualUNet(widths=(2, 3), dropout=0.0).eval()
    block = model.down[0]
    image = torch.rand(1, 1, 32, 32)
    assert torch.equal(block(image), block.body(image) + block.shortcut(image))
    kinds = [type(layer).__name__ for layer in block.body]
    assert kinds == ["Conv2d", "ReLU", "BatchNorm2d", "Dropout"] * 2
