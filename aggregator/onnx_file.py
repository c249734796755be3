"""The chosen model as ONNX: what a program without PyTorch computes with. It is compared before it is kept.

A whole model answers with probabilities and their uncertainty, read as its method reads them; of one whose heads stay
at the sites, it yields the features that a head sees. The number of images is free, and of images whose pixels are
labelled height and width are too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.onnx.utils import register_custom_op_symbolic, unregister_custom_op_symbolic

from shared.errors import ActionRequiredError, ConfigurationError
from shared.folder.durable import hash_file
from shared.learning.kept_model import KeptModel, few
from shared.learning.models.ensembles import DropoutPasses
from shared.learning.objectives import Objective, by_target
from shared.learning.tasks.contract import Network
from shared.software import installing

FILE = "model.onnx"
TOLERANCE = 1e-3
"""The most by which a number may differ from PyTorch's, absolutely, and of features relatively besides."""

_OPSET = 18
_BATCHES = (1, 4, 5)  # inputs in each: ten in all
_SMALLEST_CHECKED, _LARGEST_CHECKED = 64, 256  # pixels, where height and width are free


@dataclass(frozen=True)
class OnnxFile:
    """The file, what goes in and comes out, and how it was compared.

    Args:
        input: shape by axis; a word where it is free.
        outputs: by name, what each is.
        inputs_compared: random inputs on which onnxruntime and PyTorch were compared.
        largest_difference: between their numbers.
    """

    file: str
    bytes: int
    sha256: str
    input: list[str | int]
    outputs: Mapping[str, str]
    inputs_compared: int
    largest_difference: float
    tolerance: float


class _Reading(nn.Module):
    """A network and how its answers are read: (B, C, ...) -> (B, K, ...) probabilities and (B, ...) uncertainty."""

    outputs: Mapping[str, str] = {
        "probabilities": "of each class, (batch, classes, ...)",
        "uncertainty": "from 0, sure, to 1, (batch, ...)",
    }

    def __init__(self, model: nn.Module, objective: Objective, *, labels_pixels: bool) -> None:
        super().__init__()
        self.model, self._objective, self._labels_pixels = model, objective, labels_pixels

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        targets = inputs[:, 0] if self._labels_pixels else inputs.flatten(1)[:, 0]  # (B, ...), for their shape
        flat = by_target(self.model(inputs), targets).flatten(0, targets.ndim - 1)  # (B, K, ...) -> (P, K)
        probabilities = self._objective.probabilities(flat).reshape(*targets.shape, -1).movedim(targets.ndim, 1)
        return probabilities, self._objective.uncertainty(flat).reshape(targets.shape)


class _Features(nn.Module):
    """What the heads of a network see: (B, C, ...) -> (B, D, ...)."""

    outputs: Mapping[str, str] = {"features": "what a head sees, (batch, features, ...)"}

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor]:
        return (cast(Network, self.model).features(inputs),)


def write_onnx(kept: KeptModel, path: Path) -> OnnxFile:
    """Write a model as ONNX, and compare what onnxruntime makes of it with PyTorch.

    Raises:
        ConfigurationError: the model cannot be written so, or the two do not agree; then there is no file.
        ActionRequiredError: the packages that this needs are not installed.
    """
    _require_packages()
    module = _module(kept)
    axes = {0: "batch"} | ({2: "height", 3: "width"} if kept.task.labels_pixels else {})
    example = next(_inputs(kept))
    try:
        _export(module, example, path, axes)
        compared, difference = _compare(module, kept, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    size, sha256 = hash_file(path)
    shape: list[str | int] = [axes.get(axis, length) for axis, length in enumerate(example.shape)]
    return OnnxFile(path.name, size, sha256, shape, module.outputs, compared, difference, TOLERANCE)


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401, PLC0415  (an extra, which PyTorch writes with)
        import onnxruntime  # noqa: F401, PLC0415
    except ImportError as error:
        raise ActionRequiredError(
            f"--onnx needs {error.name}, which is not installed here: run {installing('onnx')}"
        ) from None


def _module(kept: KeptModel) -> _Reading | _Features:
    """Return what is written.

    Raises:
        ConfigurationError: it would draw by chance, or needs tensors that stay at the sites.
    """
    if any(isinstance(module, DropoutPasses) for module in kept.model.modules()):
        raise ConfigurationError([f"--onnx: {kept.card.method} draws what it drops, and ONNX cannot: leave --onnx out"])
    if not kept.stays:
        return _Reading(kept.model, kept.objective, labels_pixels=kept.task.labels_pixels).eval()
    features = _Features(kept.model).eval()
    with torch.inference_mode():
        if not features(next(_inputs(kept)))[0].isfinite().all():  # what stays at the sites is no number here
            raise ConfigurationError([f"--onnx: no features come without {few(kept.stays)}, which stay at each site"])
    return features


def _export(module: nn.Module, example: Tensor, path: Path, axes: Mapping[int, str]) -> None:
    """Have PyTorch write it, by the exporter that needs no more than ``onnx``.

    Raises:
        ConfigurationError: the network does something that ONNX cannot.
    """
    outputs = [*cast(_Reading, module).outputs]
    register_custom_op_symbolic("aten::xlogy", _xlogy, _OPSET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which exporter is newer, and that a trace is of one input: it is compared
        try:
            torch.onnx.export(
                module,
                (example,),
                str(path),
                input_names=["inputs"],
                output_names=outputs,
                dynamic_axes={"inputs": dict(axes), **{name: {0: "batch"} for name in outputs}},
                opset_version=_OPSET,
                dynamo=False,
            )
        except Exception as error:  # whatever PyTorch's exporter raises over an operation that it does not know
            raise ConfigurationError(
                [f"--onnx: PyTorch cannot write this network as ONNX ({type(error).__name__}): leave --onnx out"]
            ) from error
        finally:
            unregister_custom_op_symbolic("aten::xlogy", _OPSET)


def _xlogy(graph: Any, factor: Any, of: Any) -> Any:
    """Return x · log y, and 0 where x is 0: an operation of the entropy that PyTorch's exporter does not know."""
    zero = graph.op("Constant", value_t=torch.tensor(0.0))
    return graph.op("Where", graph.op("Equal", factor, zero), zero, graph.op("Mul", factor, graph.op("Log", of)))


def _compare(module: nn.Module, kept: KeptModel, path: Path) -> tuple[int, float]:
    """Return how many inputs were compared, and the largest difference.

    Raises:
        ConfigurationError: it is beyond the tolerance.
    """
    import onnxruntime  # noqa: PLC0415  (an extra)

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    compared, largest = 0, 0.0
    for inputs in _inputs(kept):
        with torch.inference_mode():
            expected = module(inputs)
        for right, found in zip(expected, session.run(None, {"inputs": inputs.numpy()}), strict=True):
            difference = (
                (torch.from_numpy(found) - right).abs() if found.shape == right.shape else torch.tensor(torch.inf)
            )
            scale = 1 + right.abs() * bool(kept.stays)  # features are of any size
            largest = max(largest, (difference / scale).max().nan_to_num(torch.inf).item())
        compared += len(inputs)
    if largest > TOLERANCE:
        raise ConfigurationError(
            [f"--onnx: onnxruntime and PyTorch differ by {largest:.3g}, beyond {TOLERANCE:g}: leave --onnx out"]
        )
    return compared, largest


def _inputs(kept: KeptModel) -> Iterator[Tensor]:
    """Yield random inputs, the same ones each time, in batches; where their height and width are free, of several."""
    chance = torch.Generator().manual_seed(0)
    channels, *sides = kept.task.input_shape(kept.options)
    for number, count in enumerate(_BATCHES):
        if kept.task.labels_pixels:
            sides = [_SMALLEST_CHECKED + 37 * number, _LARGEST_CHECKED - 51 * number]
        yield torch.rand(count, channels, *sides, generator=chance)
