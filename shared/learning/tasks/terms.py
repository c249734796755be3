"""Each task's terms: what a run may say about it, and the score by which its best model is chosen.

They are what a run can be checked for without images or a model, so that whoever only verifies needs no PyTorch. A
task's class derives from its terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypeVar

from shared.errors import ConfigurationError
from shared.exchange.reading import check_record
from shared.exchange.records.run import Range
from shared.learning.data import SMALLEST_SIDE, TIME
from shared.learning.data.augmentation import Augmentation
from shared.learning.models import FEWEST_MOMENTS
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

_FEWEST_FREQUENCIES = 4
_CHANNELS = tuple(f"{place}_acceleration_{axis}" for place in ("hand", "chest", "ankle") for axis in "xyz")
_ACTIVITIES = (
    *("lying", "sitting", "standing", "walking", "running", "cycling", "nordic walking", "ascending stairs"),
    *("descending stairs", "vacuum cleaning", "ironing", "rope jumping"),
)


def _names_of_classes(labels: tuple[str, ...]) -> tuple[str, ...]:
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


Labels = Annotated[tuple[str, ...], AfterValidator(_names_of_classes)]
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
    """

    name: ClassVar[str]
    selection_score: ClassVar[str] = "auroc"
    form: type[OptionsT]
    usual_augmentation: ClassVar[Mapping[str, object]] = {}
    augmentation_now: ClassVar[Mapping[str, object]] = {}
    scores: ClassVar[Mapping[str, Range]] = {}

    def options(self, raw: Mapping[str, object]) -> OptionsT:
        """See ``contract.Task``."""
        return check_record(raw, self.form, "task_options")

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        """See ``contract.Task``."""
        return check_record({**self.usual_augmentation, **raw}, Augmentation, "augmentation")


class DrOptions(Options):
    """What a run may choose about this task."""

    encoder: EncoderName = "resnet50"
    """``small``, a classifier of torchvision by its name, or ``timm:`` and a timm model's."""
    weights: Weights = "imagenet"
    """What the encoder's training begins from."""
    train: Train = "all"
    """What learns."""
    head: Literal["released", "linear"] = "released"
    """``released``: two layers with BatchNorm, as in the published code; ``linear``: one, as in the paper."""
    image_size: int = Field(default=256, ge=32, le=1024)
    """Side in pixels that every photograph is scaled to."""
    normalise: bool = True
    """Whether the network sees photographs less ImageNet's mean, over its deviation, as its weights want it; the
    released code has them between 0 and 1.
    """

    @property
    def tells_images_apart(self) -> bool:
        return tells_images_apart(self.encoder, self.train)

    @field_validator("train")
    @classmethod
    def _something_travels(cls, train: Train) -> Train:
        if train == "head":
            raise ValueError(
                "must be all, or {lora: {rank: R}}; grades differ from site to site, so each head stays there, and "
                "with head nothing would travel"
            )
        return train


class DrStaging(Terms[DrOptions]):
    """See ``dr_staging.py``."""

    name = "dr_staging"
    form = DrOptions
    usual_augmentation = FLIPPED_AND_TURNED


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
    def class_names(self) -> tuple[str, ...]:
        """The same at every site: the head travels."""
        raise NotImplementedError

    @field_validator("hidden")
    @classmethod
    def _widths_are_positive(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 16384 for width in hidden):
            raise ValueError("each width must be between 1 and 16384")
        return hidden


class ImageOptions(FrozenOptions):
    """What a run may choose about this task."""

    encoder: EncoderName = "resnet18"
    train: Train = "all"
    hidden: tuple[int, ...] = Field(default=(), max_length=4)
    labels: Labels = Field(default=("negative", "positive"), min_length=2, max_length=100)
    """What the classes are called, the same at every site."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


class ImageClassification(Terms[ImageOptions]):
    """See ``image_classification.py``."""

    name = "image_classification"
    form = ImageOptions
    usual_augmentation = FLIPPED_AND_TURNED


class FundusOptions(ImageOptions):
    """What a run may choose about this task."""

    encoder: EncoderName = "vgg19"
    train: Train = "head"
    hidden: tuple[int, ...] = Field(default=(4096, 4096), max_length=4)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    labels: Labels = Field(default=("normal", "glaucoma", "cataract"), min_length=2, max_length=20)


class FundusDisease(Terms[FundusOptions]):
    """See ``fundus_disease.py``."""

    name = "fundus_disease"
    form = FundusOptions
    usual_augmentation = FLIPPED_AND_TURNED


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
        """The same at every site; the first is the background."""
        raise NotImplementedError

    @field_validator("widths")
    @classmethod
    def _widths_are_channels(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 2048 for width in widths):
            raise ValueError("each width must be between 1 and 2048")
        return widths


class OctaOptions(PixelOptions):
    """What a run may choose about this task."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return "background", "vessel"


class SegmentationOptions(PixelOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=("background", "foreground"), min_length=2, max_length=20)
    """What the classes of pixels are called; the first is the background."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


class Segmentation(Terms[SegmentationOptions]):
    """See ``segmentation.py``."""

    name = "segmentation"
    selection_score = "dice_mean"
    form = SegmentationOptions


class OctaSegmentation(Terms[OctaOptions]):
    """See ``octa_segmentation.py``."""

    name = "octa_segmentation"
    selection_score = "dice_mean"
    form = OctaOptions


class RdrOptions(FrozenOptions):
    """What a run may choose about this task."""

    image_size: int = Field(default=512, ge=32, le=1024)
    head: Annotated[Literal["released", "layers"], Now("released")] = "layers"
    """``released``: a layer of 16 at each position, and one over all positions, as in the published code; ``layers``:
    those of ``hidden``, on the features' mean over all positions.
    """
    balance: bool = True
    severities: tuple[str, ...] = Field(
        default=("normal", "mild", "moderate", "severe", "proliferative"), min_length=2, max_length=20
    )
    """Their names, from the slightest upwards."""
    referable_from: int = Field(default=2, ge=1)
    """The first severity that is referable, counted from 0."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return "not referable", "referable"

    @model_validator(mode="after")
    def _both_classes_exist(self) -> RdrOptions:
        if self.referable_from >= len(self.severities):
            raise ValueError(f"referable_from must be below the {len(self.severities)} severities")
        if len({name.lower() for name in self.severities}) < len(self.severities):
            raise ValueError("severities: one is named twice; name each once")
        return self


class RdrClassification(Terms[RdrOptions]):
    """See ``rdr_classification.py``."""

    name = "rdr_classification"
    form = RdrOptions
    usual_augmentation = AS_SCANS_VARY
    augmentation_now: ClassVar[Mapping[str, object]] = {"translation": (-0.05, 0.05)}


class SignalOptions(Options):
    """What a run may choose about such a task."""

    labels: Labels = Field(min_length=2, max_length=20)
    """What the classes are called, the same at every site."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels


SignalOptionsT = TypeVar("SignalOptionsT", bound=SignalOptions)


class SignalTerms(Terms[SignalOptionsT]):
    """What a run may say about a task whose recordings are taken as they are."""

    usual_augmentation = AS_THEY_ARE

    def augmentation(self, raw: Mapping[str, object]) -> Augmentation:
        """See ``contract.Task``."""
        asked = super().augmentation(raw)
        if asked != super().augmentation({}):
            raise ConfigurationError([f"augmentation: {self.name} takes recordings as they are; leave it out"])
        return asked


class SpectrogramOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=("normal", "abnormal"), min_length=2, max_length=20)
    encoder: EncoderName = "resnet18"
    """As of ``DrOptions``."""
    weights: Weights = "random"
    """What the encoder's training begins from."""
    segment_seconds: float = Field(default=5.0, ge=0.1, le=600)
    """How long each piece of a recording is."""
    frame_seconds: float = Field(default=0.064, ge=0.001, le=10)
    """How long each of the frames is whose frequencies are told apart."""
    highest_hz: float = Field(default=1000.0, ge=1, le=100_000)
    """The highest frequency that is looked at; files need twice as many samples a second."""
    image_size: int = Field(default=128, ge=32, le=1024)
    """Side in pixels of each picture."""

    @property
    def tells_images_apart(self) -> bool:
        return tells_images_apart(self.encoder, "all")

    @model_validator(mode="after")
    def _frames_fit(self) -> SpectrogramOptions:
        if 2 * self.frame_seconds > self.segment_seconds:
            raise ValueError("frame_seconds must be at most half of segment_seconds")
        if self.highest_hz * self.frame_seconds < _FEWEST_FREQUENCIES:
            raise ValueError(f"highest_hz times frame_seconds must be at least {_FEWEST_FREQUENCIES}")
        return self


class Spectrograms(SignalTerms[SpectrogramOptions]):
    """See ``spectrograms.py``."""

    name = "spectrograms"
    form = SpectrogramOptions


class TimeSeriesOptions(SignalOptions):
    """What a run may choose about this task."""

    labels: Labels = Field(default=_ACTIVITIES, min_length=2, max_length=20)
    channels: tuple[str, ...] = Field(default=_CHANNELS, min_length=1, max_length=256)
    """The columns that are read of each file, the same at every site."""
    rate_hz: float = Field(default=100.0, gt=0, le=100_000)
    """Rows a second, of every file."""
    window: int = Field(default=512, ge=FEWEST_MOMENTS, le=1_000_000)
    """Rows that the network sees at a time."""
    stride: int = Field(default=256, ge=1, le=1_000_000)
    """Rows from the beginning of one window to that of the next."""
    mean: tuple[float, ...] | None = None
    """Taken off each channel, in its own unit; None: each recording's own mean."""
    std: tuple[float, ...] | None = None
    """What each channel is divided by; None: each recording's own deviation."""

    @property
    def overlap(self) -> int:
        return -(-self.window // self.stride)

    @field_validator("channels")
    @classmethod
    def _channels_are_columns(cls, channels: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(channels)) < len(channels) or TIME in channels:
            raise ValueError(f"each must be named once, and none be called {TIME}")
        if not all(name == name.strip() and name.isprintable() and 0 < len(name) <= 60 for name in channels):
            raise ValueError("each must be 1 to 60 characters that can be printed")
        return channels

    @model_validator(mode="after")
    def _statistics_are_of_channels(self) -> TimeSeriesOptions:
        for statistics in (self.mean, self.std):
            if statistics is not None and len(statistics) != len(self.channels):
                raise ValueError(f"mean and std each need {len(self.channels)} numbers, one for each channel, or null")
        if self.std is not None and not all(0 < each < math.inf for each in self.std):
            raise ValueError("std must be greater than 0")
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise ValueError("mean must be numbers")
        return self


class TimeSeries(SignalTerms[TimeSeriesOptions]):
    """See ``time_series.py``."""

    name = "time_series"
    form = TimeSeriesOptions


TERMS: Mapping[str, type[Terms[Any]]] = {
    terms.name: terms
    for terms in (
        DrStaging,
        FundusDisease,
        ImageClassification,
        OctaSegmentation,
        RdrClassification,
        Segmentation,
        Spectrograms,
        TimeSeries,
    )
}
"""The terms of each task by its name."""
