"""What a federated method is: both halves of one algorithm in one class, in a file of its own in this folder.

A class derives from ``Method``, or from the method that it extends, and says only what is different. Before that it
derives from its terms, which ``terms.py`` holds. The hooks, in the order in which a round meets them:

    network      both ends       the network that is trained: the task's own, or several, or one with more outputs
    stays        both ends       which modules stay at their site, but begin everywhere as the aggregator's
    personal     both ends       which modules never leave a site, nor come to it
    groups       both ends       which tensors there are beside the model's, and where each is
    measure      site            what is measured with the received model, before it is trained
    begin        site            what training needs beside the network
    phases       site            which parameters each epoch moves
    objective    site            what training makes small
    answer       site            a batch's logits, and what is added to its loss
    correction   site            what is added to its gradients
    finish       site            what is sent beside the model, and what stays for the next round
    weights      aggregator      each accepted site's weight in the aggregate
    implausible  aggregator      whether what was sent beside the model can follow from the model that was sent
    combine      aggregator      the next global model, and the aggregator's other tensors
    rows         aggregator      where each site has an aggregate of its own, whom it is made of
    settle       aggregator      what goes with the chosen model
    ready        site            the chosen model as it is used
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shared.exchange.encoding import rounded
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.wire import Numbers
from shared.learning.losses import annealing
from shared.learning.methods import terms
from shared.learning.objectives import CrossEntropy, Evidential, Focal, Objective, WithDice

Tensors = dict[str, Tensor]
Array = NDArray[np.float64]
TensorLists = Mapping[str, TensorList]
MODEL = "model"
"""The group of the model's own tensors."""


@dataclass(frozen=True)
class Groups:
    """The tensors that a method has beside the model's, by group; all are 0 in the beginning. A group is called by a
    lower-case word, and not ``model``.

    Args:
        to_site: made by ``combine``; come with every round.
        measured: made by ``measure``; leave with every answer, also to the closing round.
        trained: made by ``finish``; leave with every answer to a round that trains.
        at_site: made by ``finish``; stay at the site with every answer that was accepted.
        at_aggregator: made by ``combine``; never travel.
        with_final: made by ``settle``; come with the chosen model.
    """

    to_site: TensorLists = field(default_factory=dict)
    measured: TensorLists = field(default_factory=dict)
    trained: TensorLists = field(default_factory=dict)
    at_site: TensorLists = field(default_factory=dict)
    at_aggregator: TensorLists = field(default_factory=dict)
    with_final: TensorLists = field(default_factory=dict)

    @property
    def are_counted(self) -> bool:
        """Whether the aggregator may count what stays at the sites: no site that lost its part may begin it anew."""
        return bool(self.at_site and self.at_aggregator)


Batches = Callable[[Literal["train", "validation"]], Iterator[tuple[Tensor, Tensor]]]
"""A split's inputs and targets in batches, as they are, on the network's device."""


class Local:
    """A site's work in one round, as its method sees it.

    Args:
        network: in training.
        received: w: the shared parameters as they came, by name.
        state: what came beside them, by group.
        kept: what stayed at the site, by group; ``finish`` replaces it.
        is_first: whether nothing had stayed yet.
        round_no: 1-based.
        batches: the site's images.
        minimum_count: the fewest images that the site lets any number be about.
        images: on how many the site trains, as it has reported.
        numbers: what the run rounds models to before they travel.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        shared: Iterable[str] = (),
        state: Mapping[str, Tensors] | None = None,
        kept: Mapping[str, Tensors] | None = None,
        is_first: bool = True,
        round_no: int = 1,
        batches: Batches | None = None,
        minimum_count: int = 1,
        images: int = 1,
        numbers: Numbers = "float32",
    ) -> None:
        own = dict(network.named_parameters())
        self.network = network
        self.x: Tensors = {name: own[name] for name in shared}
        """The shared parameters as training moves them, by name."""
        self.received: Tensors = {name: parameter.detach().clone() for name, parameter in self.x.items()}
        self.state = dict(state or {})
        self.kept = dict(kept or {})
        self.sent: dict[str, Tensors] = {}
        self.is_first = is_first
        self.round_no = round_no
        self.beside: dict[str, nn.Module] = {}
        """Networks that a method has beside the one in training; gone with the round."""
        self.minimum_count = minimum_count
        self.images = images
        self.step_sizes = 0.0
        """Σ over the gradients met so far of how far each has moved x, in units of the gradient: K·η for plain SGD."""
        self._velocity = 0.0
        self._batches = batches
        self._numbers = numbers

    def moved(self) -> Tensors:
        """Return w − x by name: how far training has moved the shared parameters."""
        return {name: w - self.x[name].detach() for name, w in self.received.items()}

    def moved_as_sent(self) -> Tensors:
        """Return w − x as the aggregator, who has x in the run's form, will see it: both ends must sum up the same."""
        return {name: w - self._as_sent(self.x[name].detach()) for name, w in self.received.items()}

    def _as_sent(self, tensor: Tensor) -> Tensor:
        if self._numbers == "float32":
            return tensor
        return torch.from_numpy(rounded(tensor.cpu().numpy(), self._numbers)).to(tensor.device)

    def batches(self, split: Literal["train", "validation"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a split's inputs, (B, C, ...), and targets, (B, ...), in batches, as they are, on the network's device.

        Raises:
            ValueError: there are no images here.
        """
        if self._batches is None:
            raise ValueError("there are no images here")
        return self._batches(split)

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step that an optimizer has taken: what a gradient of 1 in every step so far would have moved.

        With momentum a gradient goes on moving x in later steps, and the sum of the step sizes is larger than K·η.
        """
        group = optimizer.param_groups[0]
        self._velocity = group.get("momentum", 0.0) * self._velocity + 1
        self.step_sizes += group["lr"] * self._velocity


@dataclass(frozen=True)
class Contribution:
    """What the aggregator knows of one accepted answer beside its model.

    Args:
        images: the site's training images.
        theta: the site's θ in (0, 1], where the method has it sent.
        sent: reads a group that the answer brought, by name.
    """

    images: int
    theta: float | None = None
    sent: Callable[[str], Mapping[str, Array]] = lambda group: {}


class Part(Protocol):
    """The same stretch of one tensor of everything that a round brought: (n,) float64 each."""

    @property
    def accepted(self) -> int:
        """|S|: the accepted sites."""
        ...

    @property
    def agreed(self) -> int:
        """N: all sites that have agreed to the run so far, those that have trained nothing yet too."""
        ...

    def before(self, group: str = MODEL) -> Array:
        """Return what the sites had received, or the aggregator kept: (n,) float64."""
        ...

    def mean(self, group: str = MODEL) -> Array:
        """Return what the accepted sites sent, combined by the run's rule: (n,) float64.

        By default that is their weighted mean.
        """
        ...


class Sent(Protocol):
    """The same stretch of one parameter of everything that one site received and sent: (n,) float64 each."""

    @property
    def rate(self) -> float:
        """η: the round's learning rate, > 0."""
        ...

    @property
    def images(self) -> int:
        """n_k: on how many images the site has said that it trains."""
        ...

    def before(self, group: str = MODEL) -> Array:
        """Return what the site had received: (n,) float64."""
        ...

    def sent(self, group: str = MODEL) -> Array:
        """Return what the site sent: (n,) float64."""
        ...

    def moved(self) -> Array:
        """Return the most that training can have moved the model: (n,) float64, >= 0.

        It is |w − x|, and what rounding to the run's numbers hides.
        """
        ...


class Method(terms.Terms):
    """One federated algorithm, both halves. As it stands here: the plain mean of networks that are trained plainly."""

    name: ClassVar[str]
    about_batch_norm: ClassVar[bool] = False
    """Whether it is about each site's BatchNorm, which private training has none of."""
    compares_features: ClassVar[bool] = False
    """Whether training moves features towards other models', for which something before the heads must learn."""
    sends_features: ClassVar[bool] = False
    """Whether it sends sums over the features of validation images, to which no noise is added."""
    needs_sgd: ClassVar[bool] = False
    """Whether it computes with step sizes, which SGD alone has."""
    networks_beside: ClassVar[int] = 0
    """How many networks like the one in training ``begin`` puts beside it."""
    largest: ClassVar[Mapping[str, float]] = {}
    """The greatest magnitude of a number that a site may send, by group, where it is not that of a model's."""
    reference: ClassVar[Literal["", "alone", "pooled"]] = ""
    """Not federated, but what a federation is compared with on one machine: each site alone, or all images pooled."""

    # --- both ends -----------------------------------------------------------------------------------------

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the ``Network`` that is trained; ``build`` gives the task's own, with random weights by number."""
        return build(0)

    def stays(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return the modules that stay at each site, but begin as the aggregator's."""
        return ()

    def personal(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return the modules that never leave a site, and whose shapes may be its own."""
        return ()

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return the tensors beside the model's."""
        return Groups()

    @property
    def measures_received(self) -> bool:
        """Whether ``measure`` is to see a model just as it came, before BatchNorm is measured on the site's images."""
        return False

    # --- the site ------------------------------------------------------------------------------------------

    def measure(self, local: Local) -> None:
        """Put into ``local.sent`` what is measured with the received model."""

    def begin(self, local: Local) -> None:
        """Make what training needs beside the network, in a round that trains, with the network as it was received."""

    def phases(self, network: nn.Module, epochs: int) -> list[list[nn.Parameter]]:
        """Return the parameters that each epoch of a round moves; nothing else moves, not by its momentum either.

        Args:
            epochs: what the run asks for; what there are is ``Terms.epochs`` of it.
        """
        return [list(network.parameters())] * epochs

    def objective(self, round_no: int, rounds: int) -> Objective:
        """Return the local objective of a round (1-based) of a run of so many rounds, before the site's first step."""
        objective = self._of_each_target(round_no, rounds)
        return WithDice(objective) if self.options.dice else objective

    def _of_each_target(self, round_no: int, rounds: int) -> Objective:
        if self.options.objective == "cross_entropy":
            return CrossEntropy()
        if self.options.objective == "focal":
            return Focal()
        steps = self.options.anneal_steps
        # A run that trains nothing is read as by its first round.
        kl_weight = 0.0 if steps else annealing(max(round_no, 1) - 1, self.options.anneal_rounds or max(rounds, 1))
        return Evidential(self.options.temperature, kl_weight, steps, tempered=self.options.tempered)

    def answer(self, local: Local, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits of a batch in training, (B, K, ...), and a term to add to its loss, or None.

        The term is a mean over images of what follows from each image alone.
        """
        return local.network(inputs), None

    def correction(self, local: Local) -> Tensors:
        """Return what is added to the gradients of shared parameters before each step, by name."""
        return {}

    def finish(self, local: Local) -> None:
        """Put into ``local.sent`` and ``local.kept`` what a round's training came to."""

    def ready(self, network: nn.Module, state: Mapping[str, Tensors]) -> None:
        """Make the chosen model, with this site's own parts, ready for use.

        Args:
            state: what came with it, by group.
        """

    # --- the aggregator ------------------------------------------------------------------------------------

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        """Return each accepted site's weight in the aggregate, in [0, 1], summing to 1."""
        return {site: 1 / len(accepted) for site in accepted}

    def implausible(self, sent: Sent) -> str | None:
        """Return the group of what a site sent that cannot follow from the model that it sent, or None."""
        return None

    def combine(self, part: Part) -> dict[str, Array]:
        """Return a stretch of the next global model and of what goes with it, by group: (n,) float64 each.

        It is asked for every tensor of the model that training moves. BatchNorm's statistics are always averaged.
        """
        return {MODEL: part.mean()}

    def rows(self, round_no: int, accepted: Mapping[str, Contribution]) -> dict[str, dict[str, float]]:
        """Return, by site, the accepted sites' weights in its own aggregate, > 0, summing to 1.

        It is empty if all sites share one aggregate.
        """
        return {}

    def settle(self, answers: Mapping[str, Contribution]) -> dict[str, Mapping[str, Array]]:
        """Return what comes with the chosen model, by group and tensor, in the shapes of ``Groups.with_final``.

        Args:
            answers: to the round with which the chosen aggregate was measured, by site.
        """
        return {}


class Over(terms.Over, Method):
    """A method that goes with another, its base, which the run names: each ``super()`` is the base."""
