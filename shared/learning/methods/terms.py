"""Each method's terms: what a run may choose about it, and what its messages hold then.

They are what a folder can be checked for without computing, so that whoever only verifies needs no PyTorch. A method's
class derives from its terms. A method that somebody adds may say its terms in its own class instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from shared.learning.younger import Now

Base = Literal["fedavg", "fedprox", "fedbn", "fedap"]


class MethodOptions(BaseModel):
    """What a run may choose about every method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Literal["cross_entropy", "focal", "evidential"] = "cross_entropy"
    dice: bool = False
    """Whether the soft Dice loss of each image is made small besides; of segmentations alone."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether a site's classes count alike in its loss, however many of its images, or pixels, are of each."""
    temperature: Annotated[float, Field(ge=0.001, le=10)] = 0.05
    """τ of the evidential objective."""
    tempered: bool = True
    """Whether the evidential objective has the cross-entropy of the belief at τ; else it is L_Uce alone."""
    anneal_steps: Annotated[int | None, Field(ge=1), Now(1000, unless="anneal_rounds")] = None
    """A site's steps until the weight λ of the evidential objective's KL term reaches 1; None: λ goes by rounds."""
    anneal_rounds: Annotated[int | None, Field(ge=1)] = None
    """Rounds until λ reaches 1, where it goes by rounds; None: all rounds of the run."""
    theta_from: Literal["train", "validation"] = "train"
    """The split that a site measures its θ on."""
    keep_optimizer: bool = False
    """Whether an optimizer goes on in the next round with the momenta of the last, or begins anew."""
    refresh_batch_norm: Literal["never", "after_training", "on_arrival"] = "after_training"
    """When a site measures BatchNorm's statistics on its own training images: after each epoch; on arrival of a model,
    too; or never, and training leaves them as it met them.
    """
    refresh_images: Annotated[int | None, Field(ge=1)] = None
    """Of how many of these images at most, taken evenly in the order of their names; None: of all."""
    fine_tuning_epochs: Annotated[int, Field(ge=0, le=1000)] = 0
    """Epochs that each site trains the chosen model on its own images, in the end; the result stays there."""

    @model_validator(mode="after")
    def _anneals_in_one_way(self) -> Self:
        if self.anneal_steps is not None and self.anneal_rounds is not None:
            raise ValueError("anneal_steps, anneal_rounds: give one of them and leave the other null")
        return self


class Terms:
    """The terms of a method that says nothing of its own.

    Args:
        options: what the run has chosen.
    """

    sends_reliability: ClassVar[bool] = False
    """Whether θ travels, in ``reliability.yaml``."""
    in_turn: ClassVar[bool] = False
    """Whether a round asks one site, each in its turn."""
    Options: ClassVar[type[MethodOptions]] = MethodOptions

    def __init__(self, options: MethodOptions) -> None:
        self.options: Any = options

    @classmethod
    def chosen(cls, options: Mapping[str, object], class_of: Callable[[str], type[Terms]]) -> type[Self]:
        """Return the class that a run's options, unchecked yet, ask for: this one.

        Args:
            class_of: gives the class of another method by its name.
        """
        return cls

    def epochs(self, of_run: int) -> int:
        """Return how many epochs a site trains in a round, as its table counts them, where a run asks for so many."""
        return of_run


class Over(Terms):
    """Of a method that goes with another, its base, which the run names: what it does not say is the base's."""

    class Options(MethodOptions):
        """What a run may choose: all that it may choose about the base, too."""

        base: Base = "fedavg"
        """The method that this one is over."""

    @classmethod
    def chosen(cls, options: Mapping[str, object], class_of: Callable[[str], type[Terms]]) -> type[Self]:
        """Return a class of this method and the base that the options name: each ``super()`` here is the base."""
        named = options.get("base", cls.Options.model_fields["base"].default)
        if named not in get_args(Base):
            return cls  # whose options say so
        base = class_of(str(named))
        both = create_model(f"{cls.__name__}Options", __base__=(cls.Options, base.Options))
        return cast(type[Self], type(cls.__name__, (cls, base), {"Options": both}))


class Weighted(Terms):
    """Of a method whose sites may count by their images: w_k = n_k / n̄, as the code released with FedDC has it.

    n̄ is a number that the run says, the same for all, so that no site learns how many images others have. It is the
    unit of α, which counts whole at a site of n̄ images; from the control variates it cancels.
    """

    class Options(MethodOptions):
        """What a run may choose."""

        weighted: bool = False
        """Whether a site counts by its images."""
        mean_images: Annotated[int, Field(ge=1, le=10_000_000)] = 100
        """n̄; with the mean over the sites all is as in the released code."""

    def size(self, images: int) -> float:
        """Return w_k of a site that trains on so many images; 1 where the run does not weigh."""
        return max(images, 1) / self.options.mean_images if self.options.weighted else 1.0


class DeepEnsembles(Over):
    """See ``deep_ensembles.py``."""

    class Options(Over.Options):
        """What a run may choose."""

        members: Annotated[int, Field(ge=2, le=20)] = 5
        """M."""
        batches: Literal["shared", "own"] = "shared"
        """Whether members learn side by side from the same batches, or one after the other, each from its own: then a
        round has M times as many epochs.
        """

    def epochs(self, of_run: int) -> int:
        """Return the epochs of a round, of all members: one after the other if each learns from its own batches."""
        return of_run * (self.options.members if self.options.batches == "own" else 1)


class FedAP(Terms):
    """See ``fedap.py``."""

    class Options(MethodOptions):
        """What a run may choose."""

        pretrain_rounds: Annotated[int, Field(ge=0)] = 0
        """Rounds of FedBN in the beginning; 0: sites measure with the initial model."""
        common_model: Annotated[bool, Now(True)] = False
        """Whether sites measure with the first model that they receive, just as it came; else with that after the
        rounds of FedBN, in which each site's BatchNorm has become another.
        """


class FedDyn(Weighted):
    """See ``feddyn.py``."""

    class Options(Weighted.Options):
        """What a run may choose."""

        alpha: Annotated[float, Field(gt=0, le=1000)] = 0.01
        """α: how strongly a site is held near the model that it received."""


class FedEE(Over):
    """See ``fedee.py``."""

    class Options(Over.Options):
        """What a run may choose."""

        keep_optimizer: bool = True
        """Whether an optimizer goes on in the next round with the momenta of the last, or begins anew."""
        exits: Annotated[Literal["last_block", "one_earlier"], Now("last_block")] = "one_earlier"
        """What the exits of a ResNet or EfficientNet follow: each stage's last block, as the released code has it; or
        an earlier one, as in runs that are older than this choice.
        """


class FedProx(Terms):
    """See ``fedprox.py``."""

    class Options(MethodOptions):
        """What a run may choose."""

        mu: Annotated[float, Field(ge=0, le=1000)] = 0.01
        """μ: how strongly."""


class FedRep(Terms):
    """See ``fedrep.py``."""

    class Options(MethodOptions):
        """What a run may choose."""

        head_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
        """Epochs of the head in each round, before those of the body."""

    def epochs(self, of_run: int) -> int:
        """Return the epochs of a round: those of the head, and those of the body."""
        return cast(int, self.options.head_epochs) + of_run


class FedUAA(Terms):
    """See ``feduaa.py``."""

    sends_reliability = True

    class Options(MethodOptions):
        """What a run may choose: always evidential."""

        objective: Literal["evidential"] = "evidential"


class McDropout(Over):
    """See ``mc_dropout.py``."""

    class Options(Over.Options):
        """What a run may choose."""

        passes: Annotated[int, Field(ge=2, le=100)] = 5
        """M."""
        masks: Annotated[Literal["of_image", "of_pass"], Now("of_image")] = "of_pass"
        """Whether each image has what is dropped drawn for itself in each pass, or all of a pass have it alike."""
        dropout: Annotated[float, Field(gt=0, lt=1)] = 0.5
        """Probability that a value before the last layer is dropped, in a network that has no dropout of its own."""


class Mdt(Terms):
    """See ``mdt.py``."""

    class Options(MethodOptions):
        """What a run may choose."""

        objective: Literal["cross_entropy"] = "cross_entropy"
        """Evidence has no logits to be divided."""
        ridge: Annotated[float, Field(gt=0, le=1)] = 1e-3
        """The penalty, in units of the mean over features of Σ φ²."""


class Moon(Terms):
    """See ``moon.py``."""

    class Options(MethodOptions):
        """What a run may choose."""

        mu: Annotated[float, Field(ge=0, le=1000)] = 1.0
        """μ: how much the contrast counts."""
        contrast_temperature: Annotated[float, Field(ge=0.001, le=10)] = 0.5
        """τ of the contrast."""
        projection: Annotated[int | None, Field(ge=2, le=4096)] = None
        """Width of z behind a projection of two layers, on which the last layer stands, as in the released code: 256;
        None: features are compared as they are.
        """


class Scaffold(Weighted):
    """See ``scaffold.py``."""

    class Options(Weighted.Options):
        """What a run may choose."""

        server_rate: Annotated[float, Field(gt=0, le=10)] = 1.0
        """η_g."""
        keep_optimizer: Literal[False] = False


class FedDC(Scaffold):
    """See ``feddc.py``."""

    class Options(Weighted.Options):
        """What a run may choose: by default as its paper's code has it."""

        weighted: Annotated[bool, Now(True)] = False
        """Whether a site counts by its images."""
        alpha: Annotated[float, Field(ge=0, le=1000)] = 0.01
        """α: how strongly a site is held near where it would not drift."""
        keep_optimizer: Literal[False] = False


class Sequential(Terms):
    """See ``sequential.py``."""

    in_turn = True


TERMS: Mapping[str, type[Terms]] = {
    "centralised": Terms,
    "dataweightedfed": Terms,
    "deep_ensembles": DeepEnsembles,
    "fedap": FedAP,
    "fedavg": Terms,
    "fedbn": Terms,
    "feddc": FedDC,
    "feddyn": FedDyn,
    "fedee": FedEE,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "feduaa": FedUAA,
    "mc_dropout": McDropout,
    "mdt": Mdt,
    "mean": Terms,
    "moon": Moon,
    "scaffold": Scaffold,
    "sequential": Sequential,
    "single_site": Terms,
}
"""By name, the terms of each method of this package."""
