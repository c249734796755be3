"""The evidential loss of FedUAA: a classifier's answer read as evidence, and what it costs to be wrong or too sure.

Source: Wang et al. 2023, Federated Uncertainty-Aware Aggregation for fundus diabetic retinopathy staging, Eq. 5 to 8
(protocol 7.4).

    e = softplus(logits), α = e + 1, S = Σ α, b = e / S, u = K / S, b_T = softmax(b / τ)
    L = [ψ(S) − ψ(α_y)] + λ · KL(Dir(α̃) ‖ Dir(1)) + CE(b / τ, y),   α̃ = y + (1 − y) ⊙ α

Eq. 6 prints a sum of gammas in the KL term. The Dirichlet's normaliser is their product, so the product it is here;
with the sum the "divergence" would fall below zero.
The terms are differences of large numbers: lgamma(5e6) is near 7e7, where float32 steps by 8. They are therefore
computed in float64, whatever the logits are in, and only the results are cast back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 0.05
"""τ of the paper."""


@dataclass(frozen=True)
class Dirichlet:
    """A Dirichlet distribution over K classes for each of N answers, and the opinion it stands for.

    Args:
        evidence: (N, K), e >= 0.
        alpha: (N, K), α = e + 1 >= 1.
        strength: (N,), S = Σ α >= K.
        belief: (N, K), b = e / S in [0, 1); with the uncertainty each row sums to 1.
        uncertainty: (N,), u = K / S in (0, 1]; 1 is no evidence at all.
    """

    evidence: Tensor
    alpha: Tensor
    strength: Tensor
    belief: Tensor
    uncertainty: Tensor


@dataclass(frozen=True)
class EvidentialTerms:
    """What the evidential loss is made of, each (N,) and >= 0 up to rounding."""

    integrated_cross_entropy: Tensor
    kl_to_uniform: Tensor
    tempered_cross_entropy: Tensor

    def total(self, kl_weight: float, *, tempered: bool = True) -> Tensor:
        """Return (N,) L_Ice + λ·L_KL + L_Tce, or without the last.

        Args:
            kl_weight: λ in [0, 1].

        Raises:
            ValueError: λ is outside its range.
        """
        if not 0 <= kl_weight <= 1:
            raise ValueError(f"kl_weight must be in [0, 1], got {kl_weight}")
        untempered = self.integrated_cross_entropy + kl_weight * self.kl_to_uniform
        return untempered + self.tempered_cross_entropy if tempered else untempered


def evidence(logits: Tensor) -> Tensor:
    """Return (N, K) e = softplus(logits) >= 0, from any real logits of that shape."""
    return functional.softplus(logits)


def dirichlet(evidence: Tensor) -> Dirichlet:
    """Return the Dirichlet distributions of some evidence (Wang et al. 2023, Eq. 1 to 3).

    Args:
        evidence: (N, K) with K >= 2, >= 0.

    Raises:
        ValueError: the shape is another.
    """
    if evidence.ndim != 2 or evidence.shape[1] < 2:
        raise ValueError(f"expected evidence of shape (N, K) with K >= 2, got {tuple(evidence.shape)}")
    # e → α → S → b and u, where Σ b + u = 1.
    alpha = evidence + 1
    strength = alpha.sum(dim=1)  # (N, K) -> (N,)
    return Dirichlet(
        evidence=evidence,
        alpha=alpha,
        strength=strength,
        belief=evidence / strength[:, None],  # (N, K) / (N, 1)
        uncertainty=evidence.shape[1] / strength,
    )


def integrated_cross_entropy(opinion: Dirichlet, targets: Tensor) -> Tensor:
    """Return (N,) L_Ice = ψ(S) − ψ(α_y), the cross-entropy expected under the Dirichlet (Wang et al. 2023, Eq. 5).

    Args:
        opinion: over K classes.
        targets: (N,) int64, 0 <= y < K.

    Raises:
        ValueError: there is not one target for each answer.
    """
    index = _index(opinion, targets)
    alpha = opinion.alpha.double()
    of_target = alpha.gather(1, index).squeeze(1)  # (N, K) -> (N, 1) -> (N,)
    return (torch.digamma(alpha.sum(dim=1)) - torch.digamma(of_target)).to(opinion.alpha.dtype)


def kl_to_uniform(opinion: Dirichlet, targets: Tensor) -> Tensor:
    """Return (N,) L_KL = KL(Dir(α̃) ‖ Dir(1)): what evidence for the wrong classes costs (Wang et al. 2023, Eq. 6).

    Evidence for the right class costs nothing: α̃ is α with α_y = 1.

    Args:
        opinion: over K classes.
        targets: (N,) int64, 0 <= y < K.

    Raises:
        ValueError: there is not one target for each answer.
    """
    index = _index(opinion, targets)
    alpha = opinion.alpha.double().scatter(1, index, 1.0)  # (N, K) α̃
    strength = alpha.sum(dim=1, keepdim=True)  # (N, 1) S̃
    # ln Γ(S̃) − Σ ln Γ(α̃_i) − ln Γ(K): the ratio of the two normalisers.
    normaliser = torch.lgamma(strength.squeeze(1)) - torch.lgamma(alpha).sum(dim=1) - math.lgamma(alpha.shape[1])
    # Σ (α̃_i − 1)·(ψ(α̃_i) − ψ(S̃)): what is expected under Dir(α̃) of the rest.
    expected = ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(strength))).sum(dim=1)  # (N, K) -> (N,)
    return (normaliser + expected).to(opinion.alpha.dtype)


def tempered_belief(belief: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return (N, K) b_T = softmax(b / τ), rows summing to 1 (Wang et al. 2023, Eq. 8).

    The greatest b stays the greatest, but where all evidence is next to nothing, rounding makes different b equal.

    Args:
        belief: (N, K) in [0, 1].
        temperature: τ > 0.

    Raises:
        ValueError: τ is not positive.
    """
    return _tempered(belief, temperature).softmax(dim=1)


def tempered_cross_entropy(opinion: Dirichlet, targets: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return (N,) L_Tce = CE(b / τ, y) = −log b_T,y (Wang et al. 2023, Eq. 8).

    It is never below log(1 + (K − 1)·exp(−1 / τ)).

    Args:
        opinion: over K classes.
        targets: (N,) int64, 0 <= y < K.
        temperature: τ > 0.

    Raises:
        ValueError: there is not one target for each answer, or τ is not positive.
    """
    _index(opinion, targets)
    tempered = _tempered(opinion.belief.double(), temperature)
    return functional.cross_entropy(tempered, targets, reduction="none").to(opinion.belief.dtype)


def evidential_terms(logits: Tensor, targets: Tensor, temperature: float = TEMPERATURE) -> EvidentialTerms:
    """Return the three terms of the evidential loss, in the logits' own type.

    Args:
        logits: (N, K) with K >= 2; finite.
        targets: (N,) int64, 0 <= y < K.
        temperature: τ > 0.

    Raises:
        ValueError: a shape is another, or τ is not positive.
    """
    # The opinion first (Eq. 1 to 3), in float64; each term then follows from it alone (Eq. 5, 6 and 8).
    opinion = dirichlet(evidence(logits.double()))
    return EvidentialTerms(
        integrated_cross_entropy=integrated_cross_entropy(opinion, targets).to(logits.dtype),
        kl_to_uniform=kl_to_uniform(opinion, targets).to(logits.dtype),
        tempered_cross_entropy=tempered_cross_entropy(opinion, targets, temperature).to(logits.dtype),
    )


def annealing(done: int, until: int) -> float:
    """Return λ = min(1, done / until): 0 in the beginning, 1 once ``until`` steps, or rounds, are over.

    The paper says "from 0, gradually to 1"; its code takes t / (T + 1) of round t of T, which is neither 0 nor 1. A
    round may be four steps or four hundred. With nothing learnt yet λ = 1 is made small by evidence for no class at
    all, u = 0.85, from where softplus hardly moves: λ that grows faster than a network learns keeps it from learning.

    Args:
        done: steps, or rounds, that are over.
        until: >= 1.

    Raises:
        ValueError: an argument is outside its range.
    """
    if done < 0 or until < 1:
        raise ValueError(f"annealing needs done >= 0 and until >= 1, got {done} and {until}")
    return min(1.0, done / until)


def _tempered(belief: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return belief / temperature


def _index(opinion: Dirichlet, targets: Tensor) -> Tensor:
    """Return (N, 1) targets to pick each row's own class with; picking alone would not notice that some are missing."""
    if targets.shape != opinion.strength.shape:
        raise ValueError(f"expected targets of shape {tuple(opinion.strength.shape)}, got {tuple(targets.shape)}")
    return targets[:, None]
