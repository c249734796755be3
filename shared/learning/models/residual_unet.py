"""The residual U-Net of the OCT study (Lo et al. 2021): 8,115,106 trainable parameters for one grey channel.

Two choices differ from a plain PyTorch layer and follow the original's framework instead: convolutions start from
Glorot's uniform distribution with biases at 0, and BatchNorm adds 1e-3 to the variance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two times (3×3 convolution, ReLU, BatchNorm, dropout), plus a 1×1 shortcut with ReLU; nothing after the sum."""

    def __init__(self, channels_in: int, channels_out: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (channels_in, channels_out):
            layers += [
                nn.Conv2d(channels, channels_out, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.BatchNorm2d(channels_out, eps=1e-3),
                nn.Dropout(dropout),
            ]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels_out, kernel_size=1), nn.ReLU())

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's features: (B, channels_in, H, W) -> (B, channels_out, H, W)."""
        total: Tensor = self.body(features) + self.shortcut(features)
        return total


class ResidualUNet(nn.Module):
    """U-Net of residual blocks.

    Args:
        widths: channels of each level, from the full resolution down; each level halves height and width.
        dropout: probability in [0, 1) that a value is dropped after each BatchNorm.
        channels: channels of the image.
        classes: classes of a pixel.
    """

    def __init__(
        self,
        widths: Sequence[int] = (32, 64, 128, 256, 512),
        dropout: float = 0.5,
        channels: int = 1,
        classes: int = 2,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.multiple = 2 ** (len(widths) - 1)
        self.down = nn.ModuleList(
            ResidualBlock(above, width, dropout) for above, width in zip((channels, *widths), widths, strict=False)
        )
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(below, width, kernel_size=2, stride=2)
            for below, width in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.up = nn.ModuleList(ResidualBlock(2 * width, width, dropout) for width in widths[-2::-1])
        self.classify = nn.Conv2d(widths[0], classes, kernel_size=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What turns features into logits."""
        return (self.classify,)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel.

        Args:
            images: (B, channels, H, W) in [0, 1], of any H and W.

        Returns:
            (B, classes, H, W).
        """
        logits: Tensor = self.classify(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return what the last layer sees of each pixel: (B, widths[0], H, W)."""
        height, width = images.shape[-2:]
        below, right = -height % self.multiple, -width % self.multiple
        features = functional.pad(images, (0, right, 0, below))  # H, W -> multiples of 2^(levels - 1)
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            if level > 0:
                skips.append(features)
                features = functional.max_pool2d(features, 2)  # (B, C, h, w) -> (B, C, h/2, w/2)
            features = block(features)
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            features = enlarge(features)  # (B, 2C, h, w) -> (B, C, 2h, 2w)
            features = block(torch.cat([features, skips.pop()], dim=1))  # (B, 2C, 2h, 2w) -> (B, C, 2h, 2w)
        return features[..., :height, :width]
