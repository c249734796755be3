"""Differential privacy at a site: training whose result hardly depends on any one image (DP-SGD, Abadi et al. 2016).

    each step   every training image takes part with probability q, on its own (Poisson sampling; none at all may)
                its gradient is clipped to norm C; the sum of them gets noise of deviation σ·C, σ the noise multiplier
                g = (Σ clip(gradient, C) + σ·C·z) / (q·n)        z: standard normal numbers, n: training images

The steps themselves are in ``private_gradients.py``; here is what a run says about them and what they cost. What is
learnt from g and from what was sent before costs nothing more: a method may correct g by anything that follows from
these alone (a proximal term, a control variate), and any optimizer may step by it.

What is guaranteed: take two sites that are alike, but that in one of them one image of the train split adds nothing
wherever it is drawn. Whoever sees all that the site sends in a run, and knows everything but its secret, can hardly
tell the one from the other, in the sense of (ε, δ); also an aggregator that chooses what models it sends.

What is not:

- one image, not one patient: a patient with k images has about k times ε;
- one run: the ε of several runs on the same images add up, and a hospital's policy bounds their sum;
- how many training images there are, which q needs, and what their classes are called, are no secret;
- validation and test images: scores over them leave as ever, without noise, rounded and over whole blocks alone, and so
  may a θ, the uncertainties and the counts measured on them; an image that is trained on in one run may be one of these
  in another;
- images unlike the site's own: how well a model tells them from its own leaves without noise;
- how many images a site has in each set, and whether it could take part at all;
- how long a step takes, which tells about how many images took part in it;
- what stays at the site, as its log with the scores of its training images.

So under privacy ``metrics.csv`` has no rows of the train split, but the one that tells ε in a round that is not scored,
and nothing else is sent that was measured on it (protocol 8.3).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from shared.errors import ConfigurationError
from shared.exchange.records.run import Privacy
from shared.learning.data.augmentation import Augmentation
from shared.learning.opacus_import import import_opacus

# Opacus's orders, and higher ones: without these, little spent would look like more.
_ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + [*range(11, 64), 72, 80, 96, 128, 192, 256, 384, 512, 1024]


class Spent(NamedTuple):
    """So many private steps of one kind."""

    noise_multiplier: float
    sampling_rate: float
    steps: int


@dataclass(frozen=True)
class Mechanism:
    """What each private step of a site does.

    Args:
        max_grad_norm: C > 0.
        noise_multiplier: σ > 0.
        images: n >= 1.
        batch_size: how many of them take part in a step on average, in 1 to n: q·n.
    """

    max_grad_norm: float
    noise_multiplier: float
    images: int
    batch_size: int

    @property
    def sampling_rate(self) -> float:
        """q in (0, 1]."""
        return self.batch_size / self.images

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each image takes part once on average, or a little more often."""
        return math.ceil(self.images / self.batch_size)

    def spent(self, epochs: int) -> Spent:
        """Return what so many epochs spend."""
        return Spent(self.noise_multiplier, self.sampling_rate, self.steps_per_epoch * epochs)


def mechanism(privacy: Privacy, *, images: int, batch_size: int, epochs: int) -> Mechanism:
    """Return what a site's steps must do for a run to keep its promise.

    Args:
        images: n, the site's training images.
        batch_size: the run's; where it is more than there are images, all take part in every step.
        epochs: of the whole run: its rounds, times the epochs of each, times the models that a method trains.

    Raises:
        ConfigurationError: δ is too great for so few images, or no noise keeps so small an ε.
    """
    if privacy.delta * images >= 1:
        raise ConfigurationError(
            [
                f"privacy: delta: {privacy.delta:g} is not below 1 / n, of this site's n training images, so that one "
                "of them may be given away whole; lower it"
            ]
        )
    plain = Mechanism(privacy.max_grad_norm, privacy.noise_multiplier or math.inf, images, min(batch_size, images))
    if privacy.target_epsilon is None:
        return plain
    _, rate, steps = plain.spent(epochs)
    noise = _noise_for(privacy.target_epsilon, privacy.delta, rate, steps)
    return Mechanism(plain.max_grad_norm, noise, plain.images, plain.batch_size)


def epsilon(spent: Iterable[Spent], delta: float) -> float:
    """Return ε of all these steps together: an upper bound, by Opacus's Rényi accountant.

    Its bounds of single steps add up exactly, over steps as over rounds, so more steps never seem to cost less, and
    thousands of them take milliseconds. Opacus's other accountant, PRV, finds that less noise would do: 3 to 8 % less
    in a run of 100 rounds, a third where an image is drawn about once. But it takes up to minutes where ε is large, and
    is exact to a tolerance only.
    """
    accountant = import_opacus("opacus.accountants").RDPAccountant()
    accountant.history = [tuple(kind) for kind in spent if kind.steps]
    return _quietly(accountant.get_epsilon, delta=delta)


def objections(
    method: str,
    *,
    keeps_batch_norm: bool,
    sends_features: bool,
    theta_from: Literal["train", "validation"] | None,
    augmentation: Augmentation,
    balances: bool = False,
    weighs_classes: bool = False,
    clips: bool = False,
    tells_images_apart: bool = True,
) -> list[str]:
    """Return why a run cannot be private: each reason a sentence with its remedy; none if it can.

    Args:
        method: its name.
        keeps_batch_norm: whether the method has a site keep its BatchNorm, or measure something there.
        sends_features: whether the method has a site send sums over features of its images.
        theta_from: the split that θ is measured on, where the method sends one.
        augmentation: how images are varied.
        balances: whether images of rarer classes are taken more often.
        weighs_classes: whether a site counts its classes to weigh them.
        clips: whether the gradient of a step is clipped.
        tells_images_apart: whether the gradients of single images are known of all that learns.
    """
    reasons = []
    if keeps_batch_norm:
        reasons.append(
            f"method: {method} is about each site's BatchNorm, and private training has none, because it makes one "
            "image's gradient depend on the others of its batch; choose another method, as fedavg"
        )
    if sends_features:
        reasons.append(
            f"method: {method} sends sums over the features of validation images, to which no noise is added; choose "
            "another method, as fedavg"
        )
    if theta_from == "train":
        reasons.append(
            "method_options: theta_from: θ measured on training images would leave without noise; say validation"
        )
    if augmentation.views != 1:
        reasons.append(
            f"augmentation: shows each image {augmentation.views} times in an epoch, and ε is counted for once; "
            "say copies: 1, originals: false and crops: null, or one crop per_image"
        )
    if balances:
        reasons.append(
            "task_options: balance: takes some images more than once in an epoch, and ε is counted for once; say false"
        )
    if weighs_classes:
        reasons.append(
            "method_options: class_weights: balanced counts a site's images of each class, and no noise hides how many "
            "they are; say none"
        )
    if clips:
        reasons.append(
            "task_options: max_grad_norm: private training clips the gradient of each image; leave it out there"
        )
    if not tells_images_apart:
        reasons.append(
            "task_options: train: the gradients of single images are not known of low-rank updates, nor of all of this "
            "encoder's layers; train the head alone, or all of resnet18, resnet34, resnet50, vgg19 or efficientnet_b0"
        )
    return [f"privacy: {reason}" for reason in reasons]


@lru_cache  # a run asks for the same in every round, and the search takes seconds
def _noise_for(target_epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return the least σ, to a thousandth of ε, with which these steps keep within ε.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return _quietly(
            import_opacus("opacus.accountants.utils").get_noise_multiplier,
            target_epsilon=target_epsilon,
            target_delta=delta,
            sample_rate=sampling_rate,
            steps=steps,
            accountant="rdp",
            epsilon_tolerance=target_epsilon / 1000,
        )
    except ValueError:
        raise ConfigurationError(
            [f"privacy: target_epsilon: no noise keeps {steps} steps within {target_epsilon:g}; raise it"]
        ) from None


def _quietly(reckon: Callable[..., Any], **values: Any) -> float:
    """Return what Opacus reckons with our orders; that a tighter bound might be had is no warning for a hospital."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(reckon(**values, alphas=_ORDERS))
