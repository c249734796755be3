"""The private step: which images take part, the gradient of each, clipping and noise. What it is worth: ``privacy.py``.

Noise and the choice of images come from a secret of the site. All else that is random in a run follows from the run's
seed, which lies where everybody reads it; whoever knew the noise could take it off again.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from shared.errors import ActionRequiredError
from shared.exchange.signing import KeptSecret
from shared.folder.durable import read_private
from shared.learning.opacus_import import import_opacus
from shared.learning.privacy import Mechanism
from shared.learning.tasks.contract import SampleT

Rule = Callable[[Any, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]
"""From a layer, its inputs and the gradient of its output: (B, ...) gradients by image for each of its parameters."""


class Secret(KeptSecret):
    """32 bytes that only this site knows, and all random numbers that follow from them.

    A secret always gives the same numbers, so each purpose has its own: ``secret.of("round", 3).of("step", 7)``. The
    numbers are AES-256's key stream: the generators of torch and NumPy were not made to keep secrets, and torch's on
    the CPU starts from 32 bits, few enough to try them all.
    """

    def __init__(self, private: bytes) -> None:
        if len(private) != 32:
            raise ValueError(f"a secret has 32 bytes, not {len(private)}")
        self._key = private

    @classmethod
    def at(cls, path: Path) -> Self:
        """Read the secret at a path; unlike other secrets it is not made anew.

        Raises:
            ActionRequiredError: it is missing, readable by others, or no secret.
        """
        if not path.exists():
            raise ActionRequiredError(
                f"{path} is missing, the secret of a private run's noise: a second one would give away what the first "
                "has hidden, so no round of this run is answered any more; withdraw from it"
            )
        try:
            return cls(bytes.fromhex(read_private(path).decode().strip()))
        except ValueError:
            raise ActionRequiredError(
                f"{path} does not hold a secret of dropfed any more: no round of this run is answered; withdraw from it"
            ) from None

    def of(self, *purpose: int | str | bytes) -> Secret:
        """Return the secret for one purpose, from general to particular; no other can be found from it."""
        code = hmac.new(self._key, digestmod="sha256")
        for part in purpose:
            content = part if isinstance(part, bytes) else str(part).encode()
            code.update(f"{type(part).__name__}:{len(content)}:".encode() + content)
        return Secret(code.digest())

    def uniform(self, count: int) -> Tensor:
        """Return (count,) float64 in [0, 1)."""
        return (self._words(count) >> 10).double() / 2**53

    def normal(self, count: int) -> Tensor:
        """Return (count,) float64, standard normal by the transformation of Box and Muller, within ±9.4."""
        words = self._words(count + count % 2).double()
        first, second = words.chunk(2)
        radius = ((first + 1) / 2**63).log().mul(-2).sqrt()  # 63 bits, or the tails would end too early
        angle = second * (2 * math.pi / 2**63)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]

    def _words(self, count: int) -> Tensor:
        """Return (count,) int64, uniform in [0, 2^63)."""
        stream = bytearray(8 * count + 15)  # the cipher wants room for another block
        Cipher(AES256(self._key), CTR(bytes(16))).encryptor().update_into(bytes(8 * count), stream)
        return torch.frombuffer(stream, dtype=torch.int64, count=count) & (2**63 - 1)


def sampled_batches(samples: Sequence[SampleT], mechanism: Mechanism, secret: Secret) -> Iterator[list[SampleT]]:
    """Yield the batches of a private epoch, of any size, 0 included: in each, every sample is or is not, on its own.

    Args:
        samples: the training images, in an order that never changes.
        secret: of this epoch.

    Raises:
        ValueError: there are more or fewer samples than the mechanism reckons with.
    """
    if len(samples) != mechanism.images:
        raise ValueError(f"the mechanism reckons with {mechanism.images} samples; got {len(samples)}")
    for step in range(mechanism.steps_per_epoch):
        takes_part = secret.of("batch", step).uniform(len(samples)) < mechanism.sampling_rate
        yield [samples[index] for index in takes_part.nonzero().flatten().tolist()]


class PrivateGradients:
    """Puts private gradients on a model, as long as its ``with`` lasts::

        with PrivateGradients(model, mechanism, secret) as gradients:
            for batch in sampled_batches(...):
                gradients.add(losses)  # one of each image; in parts where memory is short, not at all for none
                gradients.release()    # every trainable parameter's .grad is private now
                ...                    # what a method adds to .grad
                optimizer.step()

    The noise of a step follows from the secret, the step's number and the very sum that it hides. So a step repeated
    after a crash repeats its noise; but never do two different sums get the same noise, whose difference would show
    what they are.

    Args:
        model: without BatchNorm.
        secret: of this round.

    Raises:
        ValueError: a layer has no gradients of single images.
    """

    def __init__(self, model: nn.Module, mechanism: Mechanism, secret: Secret) -> None:
        self._model = model
        self._mechanism = mechanism
        self._secret = secret
        self._step = 0
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._of_images = _ImageGradients(model)

    def __enter__(self) -> PrivateGradients:
        return self

    def __exit__(self, *_: object) -> None:
        self._of_images.close()

    def add(self, losses: Tensor) -> None:
        """Clip the gradient of each image's loss, over all trainable parameters, and add it to the step's sum.

        An image whose gradient is not finite adds nothing; else it alone could make the sum so.

        Args:
            losses: (B,) with gradients; each depends on its own image alone.

        Raises:
            ValueError: gradients cannot be told apart by image.
        """
        greatest = self._mechanism.max_grad_norm
        gradients = self._of_images.traced(losses, self._trainable())  # each (B, ...)
        if not gradients:
            return
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)  # (B,)
        counts = norms.isfinite()
        factors = greatest / norms[counts].clamp(min=greatest)  # in (0, 1]
        for parameter, gradient in gradients.items():
            clipped = torch.einsum("b,b...->...", factors, gradient if counts.all() else gradient[counts])
            before = self._sums.get(parameter)
            self._sums[parameter] = clipped if before is None else before + clipped

    def release(self) -> None:
        """Make the step's sum, with its noise, the ``.grad`` of every trainable parameter, and begin another step."""
        sums = [(parameter, self._sums.get(parameter)) for parameter in self._trainable()]
        secret = self._secret.of("step", self._step, _digest(total for _, total in sums))
        deviation = self._mechanism.noise_multiplier * self._mechanism.max_grad_norm
        for number, (parameter, total) in enumerate(sums):
            # In double precision, rounded once at the end: which single numbers a noise in single precision can yield
            # would tell something of the sum.
            noisy = deviation * secret.of("parameter", number).normal(parameter.numel()).view(parameter.shape)
            noisy = noisy.to(parameter.device)
            if total is not None:
                noisy += total
            parameter.grad = (noisy / self._mechanism.batch_size).to(parameter.dtype)
        self._sums.clear()
        self._step += 1

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]


class _ImageGradients:
    """The gradients of single images, by Opacus's rule for each kind of layer.

    Opacus's own way to have its rules applied, hooks on modules, refuses networks that change a layer's output in
    place, as torchvision's ResNets and EfficientNets do. Hooks on the outputs themselves do not.
    """

    def __init__(self, model: nn.Module) -> None:
        general = import_opacus("opacus.grad_sample.functorch")
        self._rules: dict[type[nn.Module], Rule] = import_opacus("opacus.grad_sample").GradSampleModule.GRAD_SAMPLERS
        self._general_rule: Rule = general.ft_compute_per_sample_gradient
        self._found: dict[nn.Parameter, Tensor] = {}
        layers = _layers(model, self._rules)
        self._without_rule = [layer for layer in layers if type(layer) not in self._rules]
        for layer in self._without_rule:
            general.prepare_layer(layer)
        self._handles: list[RemovableHandle] = [layer.register_forward_hook(self._watch) for layer in layers]

    def traced(self, losses: Tensor, trainable: Sequence[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Return the gradients of each of (B,) losses: (B, ...) for each parameter that they depend on.

        ``.grad`` is empty afterwards.

        Raises:
            ValueError: they cannot be told apart by image.
        """
        for parameter in trainable:
            parameter.grad = None
        self._found = {}
        losses.sum().backward()  # type: ignore[no-untyped-call]
        depended_on = [parameter for parameter in trainable if parameter.grad is not None]
        for parameter in trainable:
            parameter.grad = None  # of all images together, and not clipped
        found, self._found = self._found, {}
        if any(len(found.get(parameter, ())) != len(losses) for parameter in depended_on):
            raise ValueError("a layer does not see one input for each loss, so its gradients have no single images")
        return {parameter: found[parameter] for parameter in depended_on}

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        for layer in self._without_rule:
            del layer.ft_compute_sample_grad

    def _watch(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Have the layer's rule applied once the gradient of this output is known."""
        if not output.requires_grad:
            return
        seen = [tensor.detach() for tensor in inputs]

        def gather(gradient: Tensor) -> None:
            rule = self._rules.get(type(layer), self._general_rule)
            for parameter, of_images in rule(layer, seen, gradient).items():
                if parameter.requires_grad:
                    before = self._found.get(parameter)
                    self._found[parameter] = of_images if before is None else before + of_images

        output.register_hook(gather)  # type: ignore[no-untyped-call]


def _layers(model: nn.Module, rules: dict[type[nn.Module], Rule]) -> list[nn.Module]:
    """Return the modules with parameters of their own. What never learns may be of any kind.

    Raises:
        ValueError: there is a BatchNorm, or a layer has no gradients of single images.
    """
    layers = []
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ValueError(f"{path} is a BatchNorm, which mixes the images of a batch: replace_batch_norm first")
        if own := list(module.parameters(recurse=False)):
            if type(module) not in rules and [*module.children(), *module.buffers()]:
                if not any(parameter.requires_grad for parameter in own):
                    continue
                raise ValueError(f"{path} has no gradients of single images: nothing is known of {type(module)}")
            layers.append(module)
    return layers


def _digest(sums: Iterable[Tensor | None]) -> bytes:
    """Return the SHA-256 over tensors; None stands for one without images."""
    digest = hashlib.sha256()
    for total in sums:
        content = b"" if total is None else total.cpu().numpy().tobytes()
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.digest()
