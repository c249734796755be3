"""The weights that an encoder begins from: random ones, ImageNet's, or those of a file that somebody published.

Nothing is ever fetched. A file's SHA-256 is compared before anything reads it, and no code in it is run.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from shared.errors import ConfigurationError
from shared.learning.models.encoders import Encoder, load_imagenet_weights
from shared.learning.models.lora import published_name
from shared.learning.models.options import Weights, WeightsFile

_WRAPPERS = ("model", "state_dict")  # what people put a network's state under, beside an optimizer's
_POSITIONS = ("pos_embed", "pos_embedding")
_MOST_TOKENS = 6  # before those of an image's patches


def load_weights(encoder: Encoder, name: str, weights: Weights, folders: Sequence[Path]) -> str | None:
    """Fill an encoder with the weights that a run begins from.

    Args:
        name: the encoder's.
        folders: where files may lie, in this order.

    Returns:
        The file's SHA-256; None of random weights.

    Raises:
        ConfigurationError: the file is not there, is another, or does not fit.
    """
    if weights == "random":
        return None
    if weights == "imagenet":
        return load_imagenet_weights(encoder, name, folders)
    return _load_published(encoder, name, weights, folders)


def _load_published(encoder: Encoder, name: str, weights: WeightsFile, folders: Sequence[Path]) -> str:
    path = weights.found(folders)
    try:
        problem = _put(encoder, _read(path))
    except (OSError, ValueError, RuntimeError, EOFError, TypeError, SafetensorError, pickle.UnpicklingError) as error:
        told = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            [f"weights: {path} cannot be read as tensors alone ({told}); convert it to .safetensors, or take another."]
        ) from error
    if problem:
        raise ConfigurationError([f"weights: {path} does not hold the tensors of {name}: {problem}."])
    return weights.sha256


def _read(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file by name, on the CPU.

    Raises:
        ValueError: it is not a table of tensors.
    """
    if path.suffix == ".safetensors":
        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for key in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise ValueError("it is not a table of tensors")
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _put(encoder: Encoder, state: Mapping[str, Tensor]) -> str | None:
    """Copy the tensors of a published network into an encoder; what it has no place for, as a classifier, is left.

    Returns:
        What keeps it from fitting, in which case the encoder is spoilt; or None.
    """
    for own_name, own in encoder.state_dict().items():
        # Kept whole, a network's tensors have its own names behind "network."; those of integers were never learnt.
        name = published_name(own_name.removeprefix("network."))
        if name is None or not own.is_floating_point():
            continue
        if name not in state:
            return f"{name} is missing"
        tensor = state[name]
        if name.endswith(_POSITIONS) and tensor.shape != own.shape:
            tensor = positions_resized(tensor, own.shape[1])
        if tensor.shape != own.shape:
            return f"{name} has the shape {list(tensor.shape)} there, and {list(own.shape)} at this image_size"
        if not tensor.isfinite().all():
            return f"{name} holds a value that is not finite"
        own.copy_(tensor)
    return None


def positions_resized(positions: Tensor, count: int) -> Tensor:
    """Return the embeddings of the positions of another number of patches, as between pixels of an image (bicubic).

    Args:
        positions: (1, N, D), of some tokens and a square of patches.
        count: N of what is wanted.

    Returns:
        (1, count, D); what came, where it is no such square.
    """
    for tokens in range(min(_MOST_TOKENS, count)):
        before, after = math.isqrt(max(positions.shape[1] - tokens, 0)), math.isqrt(count - tokens)
        if before and before**2 + tokens == positions.shape[1] and after**2 + tokens == count:
            patches = positions[:, tokens:].float()  # (1, before², D)
            grid = patches.movedim(1, 2).reshape(1, -1, before, before)
            resized = functional.interpolate(grid, size=(after, after), mode="bicubic", antialias=True)
            return torch.cat([positions[:, :tokens].float(), resized.flatten(2).movedim(1, 2)], dim=1)
    return positions
