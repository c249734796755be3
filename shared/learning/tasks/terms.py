"""Each task's terms: what a run may say about it, and the score by which its best model is chosen.

They are what a run can be checked for without images or a model, so that whoever only verifies needs no PyTorch. A
task's class derives from its terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Generic, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypeVar

from shared.errors import ConfigurationError
from shared.exchange.reading import check_record
from shared.exchange.records.run import Range
from shared.learning.data import SMALLEST_SIDE
from shared.learning.data.augmentation import Augmentation
from shared.learning.models.options import EncoderName, Train, Weights, tells_images_apart
from shared.learning.younger import Now

FLIPPED_AND_TURNED: Mapping[str, object] = {
    "copies": 1,
    "originals": False,
    "pixel_dropout": (0.0, 0.0),
    "contrast": (1.0, 1.0),
    "gamma": (1.0, 1.0),
    "rotation_degrees": (-30.0, 30.0),
    "horizontal_flip": 0.5,
    "vertical_flip": 0.0,
}
"""Each image once an epoch, turned by up to 30 degrees and perhaps flipped."""

AS_SCANS_VARY: Mapping[str, object] = {
    **FLIPPED_AND_TURNED,
    "pixel_dropout": (0.05, 0.10),
    "contrast": (0.9, 1.1),
    "rotation_degrees": (-10.0, 10.0),
    "vertical_flip": 0.5,
}
"""Each image once an epoch, as in Lo et al. 2021 for referable retinopathy, and in the code released with it."""

AS_THEY_ARE: Mapping[str, object] = {
    "copies": 0,
    "originals": True,
    "pixel_dropout": (0.0, 0.0),
    "contrast": (1.0, 1.0),
    "gamma": (1.0, 1.0),
    "rotation_degrees": (0.0, 0.0),
    "horizontal_flip": 0.0,
    "vertical_flip": 0.0,
}
"""What is done to pictures makes of time and frequency something that nobody could record."""

EXTERNAL = "external"
"""The task whose networks dropfed does not know."""


def names_of_classes(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of an option's classes, for a validator.

    Raises:
        ValueError: one is there twice, or cannot be a name.
    """
    if len(set(labels)) < len(labels):
        raise ValueError("one is named twice; name each once")
    if not all(name == name.strip() and name.isprintable() and 0 < len(name) <= 40 for name in labels):
        raise ValueError("each must be 1 to 40 characters that can be printed")
    if any(set(name) & set("/\\,") or name.startswith(".") for name in labels):
        raise ValueError("each must do as a folder's name: no slash, no comma, no dot at its beginning")
    return labels


Labels = Annotated[tuple[str, ...], AfterValidator(names_of_classes)]
"""What a run calls the classes, the same at every site."""


class Options(BaseModel):
    """Base of every task's options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """What the sites train with."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of SGD; the others have their own."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Of adamw apart from the gradient, of the others as a part of it."""
    max_grad_norm: float | None = Field(default=None, gt=0, le=1e6)
    """To which the gradient of a step is clipped; None: it is taken as it is."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, from class 0 upwards; None where each site has its own."""
        return None

    @property
    def balances(self) -> bool:
        """Whether some images are taken more often than others in an epoch."""
        return False

    @property
    def tells_images_apart(self) -> bool:
        """Whether the gradients of single images are known of all that learns, as private training needs them."""
        return True

    @property
    def draws_to_balance(self) -> bool:
        """Whether these are drawn by the run's seed."""
        return False

    @property
    def overlap(self) -> int:
        """How many of the model's inputs hold one moment of a recording, or one image, at most."""
        return 1


OptionsT = TypeVar("OptionsT", bound=Options)


class Terms(Generic[OptionsT]):
    """What a run may say about one task.

    Attributes:
        name: what a run's configuration calls the task by.
        selection_score: the validation score by which the best aggregate of a run is chosen; higher is better.
        form: of the task's options.
        usual_augmentation: what a run changes, where that is not the augmentation's own default.
        augmentation_now: what a new run changes besides, by keys that are younger than some runs; see ``younger.py``.
        scores: columns of ``metrics.csv`` that the protocol does not describe, each with its range.
        unit_name: what people call one thing in a data folder; see ``units.Unit``.
        input_name: what they call one input of the model, of which a unit may give several.
        truths: the options that say what is true of an image, which parts of a recording there are, or of which files a
            run can be about.
    """

    name: ClassVar[str]
    selection_score: ClassVar[str] = "auroc"
    form: type[OptionsT]
    usual_augmentation: ClassVar[Mapping[str, object]] = {}
    augmentation_now: ClassVar[Mapping[str, object]] = {}
    scores: ClassVar[Mapping[str, Range]] = {}
    unit_name: ClassVar[str] = "image"
    input_name: ClassVar[str] = "image"
    truths: ClassVar[tuple[str, ...]] = ("labels",)

    def options(self, raw: Mapping[str, object]) -> OptionsT:
        """See ``contract.Task``."""
        return check_record(raw, self.form, "task_options")

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        """See ``contract.Task``."""
        return check_record({**self.usual_augmentation, **raw}, Augmentation, "augmentation")


class FrozenOptions(Options):
    """What a run may choose about such a task."""

    encoder: EncoderName = "vgg19"
    """``plain``, a classifier of torchvision by its name, or ``timm:`` and a timm model's."""
    weights: Weights = "imagenet"
    """What the encoder holds in the beginning."""
    train: Train = "head"
    """What learns."""
    hidden: tuple[int, ...] = Field(default=(4096,), max_length=4)
    """Widths of the layers between the encoder and the last one."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """After each of these."""
    image_size: int = Field(default=224, ge=32, le=1024)
    """Side in pixels that every image is scaled to."""
    balance: bool = False
    """Whether images of rarer classes are taken more often in an epoch."""
    balancing: Annotated[Literal["drawn", "whole"], Now("drawn")] = "whole"
    """How: ``drawn``: some once more than others, drawn by the seed, so that classes are equal; ``whole``: all of a
    class equally often, so that classes are as equal as that allows.
    """
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"

    @property
    def tells_images_apart(self) -> bool:
        return tells_images_apart(self.encoder, self.train)

    @property
    def balances(self) -> bool:
        return self.balance

    @property
    def draws_to_balance(self) -> bool:
        return self.balance and self.balancing == "drawn"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes of every site, if the head travels; None if each site has its own, and its own head."""
        raise NotImplementedError

    @field_validator("hidden")
    @classmethod
    def _widths_are_positive(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 16384 for width in hidden):
            raise ValueError("each width must be between 1 and 16384")
        return hidden


class PixelOptions(Options):
    """What a run may choose about a task that labels pixels."""

    image_size: int | None = Field(default=None, ge=SMALLEST_SIDE, le=4096)
    """Pixels that the longer side of every image is scaled to; None keeps every image as it is."""
    widths: tuple[int, ...] = Field(default=(32, 64, 128, 256, 512), min_length=2, max_length=5)
    """Channels of each level of the U-Net."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Probability that a value is dropped."""
    momentum: float = Field(default=0.9, ge=0, lt=1)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of every site; the first is the background."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """How many of an image's channels the model sees: the green one, or all three."""
        return 1

    @field_validator("widths")
    @classmethod
    def _widths_are_channels(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 2048 for width in widths):
            raise ValueError("each width must be between 1 and 2048")
        return widths


class SignalOptions(Options):
    """What a run may choose about such a task."""

    labels: Labels = Field(min_length=2, max_length=20)
    """What the classes are called, the same at every site."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    probe_folds: Annotated[Literal["of_people", "of_pieces"], Now("of_people")] = "of_pieces"
    """What the linear probe of held-out recordings never divides: all of one person, or of one recording where its
    table names no person; or a piece alone.
    """

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


SignalOptionsT = TypeVar("SignalOptionsT", bound=SignalOptions)


class SignalTerms(Terms[SignalOptionsT]):
    """What a run may say about a task whose recordings are taken as they are."""

    usual_augmentation = AS_THEY_ARE
    unit_name = "recording"

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        """See ``contract.Task``."""
        asked = super().augmentation(raw)
        if asked != super().augmentation({}):
            raise ConfigurationError([f"augmentation: {self.name} takes recordings as they are; leave it out"])
        return asked
