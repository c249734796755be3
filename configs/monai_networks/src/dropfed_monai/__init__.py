"""Two networks of MONAI: an encoder for any images with labels, and a task for images with masks."""

from __future__ import annotations

from monai.networks.nets import BasicUNet, DenseNet121
from torch import Tensor, nn, random

import dropfed


def densenet121(image_size: int) -> nn.Module:
    """Return MONAI's DenseNet-121 without its last layer: (B, 3, S, S) -> (B, 1024), S at least 32."""
    network = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1)
    network.class_layers.out = nn.Identity()
    return network


class UNet(nn.Module):
    """MONAI's BasicUNet, whose last layer stands apart as the head.

    Args:
        classes: of a pixel.
        widths: channels of its five levels, from the full resolution down.
    """

    def __init__(self, classes: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.classes = classes
        self.body = BasicUNet(spatial_dims=2, in_channels=1, features=(*widths, widths[0]))
        self.body.final_conv = nn.Identity()
        self.classify = nn.Conv2d(widths[0], classes, kernel_size=1)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What turns features into logits."""
        return (self.classify,)

    def features(self, images: Tensor) -> Tensor:
        """(B, 1, H, W) -> (B, widths[0], H, W)."""
        features: Tensor = self.body(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each pixel: (B, 1, H, W) -> (B, classes, H, W)."""
        logits: Tensor = self.classify(self.features(images))
        return logits


class MonaiOptions(dropfed.SegmentationOptions):
    """What a run may choose, beside all that it may choose about any images with masks."""

    widths: tuple[int, int, int, int, int] = (32, 32, 64, 128, 256)


class MonaiSegmentation(dropfed.Segmentation):
    """The task ``segmentation`` with a network of MONAI."""

    name = "monai_segmentation"
    form = MonaiOptions

    def build_model(self, options: MonaiOptions, classes: int, seed: int) -> nn.Module:
        """Return the network with random weights, which the seed alone decides."""
        with random.fork_rng(devices=[]):
            random.manual_seed(seed)
            return UNet(len(options.class_names), options.widths)
