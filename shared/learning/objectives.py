"""What a site's training makes small, and how a model's answer is read: plainly, or as evidence.

An objective sees flat answers: N images of a classification, or N pixels of a segmentation, alike. Where a network has
several members that answer together, (N, M, K) stands for (N, K).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shared.learning.losses import annealing, dirichlet, evidence, evidential_terms, tempered_belief

LOSS = "loss"
IGNORED = 255
"""The class of targets that only fill a batch up; neither the loss nor a score counts them."""
_SMOOTH = 1e-5  # of the Dice loss, in pixels


@dataclass(frozen=True)
class Share:
    """What part of a batch some of its images are: of its targets that count, and of its images.

    As processes average their gradients, a share is times their number.
    """

    targets: float = 1.0
    images: float = 1.0


WHOLE = Share()


class Objective(Protocol):
    """One local objective. ``logits`` is (N, K), ``targets`` (N,) int64 classes."""

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return ``LOSS`` and what it is made of by name, each (N,), with gradients."""

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what the loss of one image has besides, scalars by name, with gradients; all its logits are here."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return (N, K) probabilities in [0, 1], rows summing to 1; the greatest is the predicted class."""

    def uncertainty(self, logits: Tensor) -> Tensor:
        """Return the (N,) uncertainty in [0, 1]; 1 knows nothing."""


class _OfTargets:
    """Of an objective that is about each target by itself."""

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class CrossEntropy(_OfTargets):
    """Cross-entropy in nats; uncertainty is the entropy of the softmax over its greatest, log K."""

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {LOSS: functional.cross_entropy(logits, targets, reduction="none")}

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def uncertainty(self, logits: Tensor) -> Tensor:
        logarithms = logits.log_softmax(dim=1)  # (N, K)
        entropy = -(logarithms.exp() * logarithms).sum(dim=1)  # (N, K) -> (N,)
        return (entropy / math.log(logits.shape[1])).clamp(0, 1)


@dataclass(frozen=True)
class Focal(CrossEntropy):
    """Cross-entropy that counts less the surer an answer is of its target: −(1 − p)² log p (Lin et al. 2017, γ = 2)."""

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        loss = super().terms(logits, targets)[LOSS]
        return {LOSS: (1 - (-loss).exp()) ** 2 * loss}


@dataclass(frozen=True)
class Evidential(_OfTargets):
    """The evidential objective of FedUAA (Wang et al. 2023, Eq. 5 to 8).

    Args:
        temperature: τ > 0 of the tempered belief.
        kl_weight: λ in [0, 1].
        anneal_steps: a site's steps in which λ goes from 0 to 1, where it goes by steps; see ``annealed``.
        tempered: whether L_Tce is a part of the loss, and probabilities are the tempered belief; else the loss is
            L_Uce = L_Ice + λ · L_KL, the paper's "EU", and probabilities are the Dirichlet's mean, α / S.
    """

    temperature: float
    kl_weight: float
    anneal_steps: int | None = None
    tempered: bool = True

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        parts = evidential_terms(logits, targets, temperature=self.temperature)
        tempered = {"loss_tce": parts.tempered_cross_entropy} if self.tempered else {}
        return {
            LOSS: parts.total(self.kl_weight, tempered=self.tempered),
            "loss_ice": parts.integrated_cross_entropy,
            "loss_kl": parts.kl_to_uniform,
            **tempered,
        }

    def probabilities(self, logits: Tensor) -> Tensor:
        opinion = dirichlet(evidence(logits))
        if not self.tempered:
            return opinion.alpha / opinion.strength[:, None]
        return tempered_belief(opinion.belief, self.temperature)

    def uncertainty(self, logits: Tensor) -> Tensor:
        return dirichlet(evidence(logits)).uncertainty


@dataclass(frozen=True)
class _Around:
    """Another objective, but for what a subclass says.

    Args:
        of: what each target is learnt by.
    """

    of: Objective

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return self.of.terms(logits, targets)

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return self.of.image_terms(logits, targets)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.of.probabilities(logits)

    def uncertainty(self, logits: Tensor) -> Tensor:
        return self.of.uncertainty(logits)


@dataclass(frozen=True)
class WithDice(_Around):
    """An objective, and beside it the soft Dice loss of each image: 1 − (2 Σ p g + s) / (Σ p + Σ g + s), mean over all
    classes, the background too, with s = 1e-5; p are the probabilities, g the targets, 0 or 1.

    Source: Milletari et al. 2016, V-Net; with plain sums as in MONAI's DiceLoss, and added as in its DiceCELoss.
    """

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        probabilities = self.probabilities(logits)  # (N, K)
        truth = functional.one_hot(targets, probabilities.shape[1])  # (N,) -> (N, K)
        both = (probabilities * truth).sum(dim=0)  # (N, K) -> (K,)
        all_of_either = probabilities.sum(dim=0) + truth.sum(dim=0)
        return {"loss_dice": 1 - ((2 * both + _SMOOTH) / (all_of_either + _SMOOTH)).mean()}


@dataclass(frozen=True)
class Weighted(_Around):
    """An objective in which each target's terms count by the weight of its class.

    Args:
        weights: of the classes, each > 0.
    """

    weights: tuple[float, ...]

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        of_targets = torch.tensor(self.weights, device=logits.device)[targets]  # (N,)
        return {name: of_targets * term for name, term in self.of.terms(logits, targets).items()}


def unweighted(objective: Objective) -> Objective:
    """Return an objective by which each target counts alike, as where a model is scored: two runs that weigh classes
    otherwise would tell of the images of one.
    """
    return objective.of if isinstance(objective, Weighted) else objective


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """Return N / (K · n_c) for each of the K classes that are there; their mean over all N targets is
    1. A class that is not there has 1.

    Args:
        counts: n_c, how many targets are of each class.
    """
    there = sum(1 for count in counts if count)
    return tuple(sum(counts) / (there * count) if count else 1.0 for count in counts)


@dataclass(frozen=True)
class Ensemble:
    """Members that answer together (Zhang et al., FedEE): each learns by itself, and their probabilities are averaged.

    The loss is the sum of the members' losses, not the mean: early exits and the last one count the same.

    Args:
        of: each member's own objective.
    """

    of: Objective

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return ``LOSS`` and what it is made of, each (N,), summed over members; ``logits`` is (N, M, K)."""
        return _summed([self.of.terms(member, targets) for member in logits.unbind(dim=1)])

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the terms about whole images, summed over members; ``logits`` is (N, M, K)."""
        return _summed([self.of.image_terms(member, targets) for member in logits.unbind(dim=1)])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the mean over members: (N, M, K) -> (N, K)."""
        return torch.stack([self.of.probabilities(member) for member in logits.unbind(dim=1)]).mean(dim=0)

    def uncertainty(self, logits: Tensor) -> Tensor:
        """Return the entropy of the mean of the members' probabilities, over its greatest, log K: (N, M, K) -> (N,)."""
        mean = self.probabilities(logits)
        return (entropy(mean) / math.log(mean.shape[1])).clamp(0, 1)


def _summed(of_members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([terms[name] for terms in of_members]).sum(dim=0) for name in of_members[0]}


def annealed(objective: Objective, steps: int) -> Objective:
    """Return an objective as it is after so many of a site's steps, >= 0: the same, unless it is annealed by steps."""
    match objective:
        case Evidential(anneal_steps=int(until)):
            return replace(objective, kl_weight=annealing(steps, until))
        case _Around() | Ensemble():
            return replace(objective, of=annealed(objective.of, steps))
        case _:
            return objective


def entropy(probabilities: Tensor) -> Tensor:
    """Return Shannon's entropy in nats, in [0, log K], of rows that sum to 1, as (p, 1 − p) does: (..., K) -> (...)."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)  # 0 · log 0 is 0


def by_target(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the logits, of members likewise, in the order of their targets: (B, K, ...) -> (B, ..., K).

    Args:
        targets: (B, ...).
    """
    own = 1 + logits.ndim - targets.ndim  # dimensions that are an answer's own, after the batch's
    return logits.movedim(tuple(range(1, own)), tuple(range(1 - own, 0)))


def image_losses(
    objective: Objective, logits: Tensor, targets: Tensor, share: Share = WHOLE
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch, and each of its terms for each image.

    Args:
        logits: (B, K) or (B, K, H, W); of an ensemble (B, M, K) or (B, M, K, H, W).
        targets: (B,) or (B, H, W) int64 classes, or ``IGNORED``.
        share: what part of a batch these images are; the losses of all its parts sum to that of the batch.

    Returns:
        The mean of the loss over all targets that count, with the mean of what images have besides, each times its
        share, a scalar with gradients; and each term of each image, (B,), without: the mean over its targets, or its
        own.
    """
    terms, own = _terms(objective, logits, targets)
    besides = [term.mean() * share.images for term in own.values()]
    of_images = {name: _means_of_images(term.detach(), targets) for name, term in terms.items()}
    of_images |= {name: term.detach() for name, term in own.items()}
    of_images[LOSS] = sum((of_images[name] for name in own), start=of_images[LOSS])
    return sum(besides, start=terms[LOSS].mean() * share.targets), of_images


def loss_of_each_image(objective: Objective, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over the targets of each image, (B,), with gradients; arguments as for ``image_losses``."""
    terms, own = _terms(objective, logits, targets)
    return sum(own.values(), start=_means_of_images(terms[LOSS], targets))


def _terms(objective: Objective, logits: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each term of the N targets that count, (N,), and each of the images themselves, (B,)."""
    counts = targets != IGNORED
    answers, counted = by_target(logits, targets)[counts], targets[counts]
    of_each = counts.reshape(len(counts), -1).sum(dim=1).tolist()
    own = list(map(objective.image_terms, answers.split_with_sizes(of_each), counted.split_with_sizes(of_each)))
    return objective.terms(answers, counted), {name: torch.stack([terms[name] for terms in own]) for name in own[0]}


def _means_of_images(values: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the (N,) targets of each image that count: (B,)."""
    image_of = (targets != IGNORED).nonzero()[:, 0]  # (N,) which image each target that counts is of
    number = torch.bincount(image_of, minlength=len(targets))  # (B,)
    return torch.zeros(len(targets), device=values.device, dtype=values.dtype).index_add(0, image_of, values) / number
