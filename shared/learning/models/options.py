"""What a run may say about its network: which encoder, what it begins from, and what of it learns. Without PyTorch.

A name's form is checked here. Whether there is such a network is known where it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from shared.errors import ConfigurationError
from shared.exchange.forms import text_like
from shared.exchange.reading import check_record
from shared.exchange.records.values import IF_SAID, Digest
from shared.folder.durable import hash_file
from shared.learning.models import ENCODERS, WITHOUT_BATCH_NORM

TIMM = "timm:"
"""What the name of an encoder of the package timm begins with."""

EncoderName = Annotated[
    str,
    text_like(
        r"[a-z][a-z0-9_]{1,63}|timm:[a-z][a-z0-9_]{1,99}(\.[a-z0-9_]{1,99})?",
        "a torchvision classifier's name, as in resnet50 or vit_b_16, or timm: and a timm model's, "
        "as in timm:convnext_tiny",
    ),
]


def _is_told(text: str) -> str:
    if not text or text != text.strip() or not text.isprintable():
        raise ValueError("must be one line of characters that can be printed")
    return text


_Told = Annotated[str, Field(max_length=300), AfterValidator(_is_told)]


class _Choice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WeightsFile(_Choice):
    """Weights that somebody published, from a file that people put into their work directory themselves."""

    file: Annotated[
        str,
        text_like(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\.(safetensors|pth|pt|bin)",
            "a file's name without its folder, ending in .safetensors, .pth, .pt or .bin",
        ),
    ]
    sha256: Digest
    source: _Told
    """Where the file comes from: an address, or words."""
    licence: _Told
    """Under which it may be used and handed on."""
    at_sites: Annotated[bool, IF_SAID] = False
    """Whether each site takes what of them never changes from its own copy of the file, so that nobody hands it on."""

    def found(self, folders: Sequence[Path]) -> Path:
        """Return where the file lies.

        Raises:
            ConfigurationError: it is in none of these folders, or is another there.
        """
        path = next((folder / self.file for folder in folders if (folder / self.file).is_file()), None)
        if path is None:
            where = " or ".join(map(str, folders)) or "any folder of weights"
            what = f"weights: {self.file}, whose SHA-256 is {self.sha256}, is not in {where}"
            raise ConfigurationError([f"{what}; get it from {self.source} and put it there."])
        try:
            found = hash_file(path)[1]
        except OSError as error:
            raise ConfigurationError([f"weights: {path} cannot be read ({error.strerror}); correct that."]) from None
        if found != self.sha256:
            what = f"weights: {path} is another file than the run names, its SHA-256 is {found} and not {self.sha256}"
            raise ConfigurationError([f"{what}; get it from {self.source}."])
        return path


def published_weights(task_options: Mapping[str, Any]) -> WeightsFile:
    """Return the file that a run's options name.

    Raises:
        ConfigurationError: they name none.
    """
    said = task_options.get("weights")
    return check_record(said if isinstance(said, dict) else {}, WeightsFile, "task_options: weights")


def words_or_block(value: Any) -> str:
    """Return by which of its two forms a setting is checked: one of a few words, or settings of its own."""
    return "[words]" if isinstance(value, str) else "[block]"


Weights = Annotated[
    Annotated[Literal["imagenet", "random"], Tag("[words]")] | Annotated[WeightsFile, Tag("[block]")],
    Discriminator(words_or_block),
]


_PathEnd = Annotated[str, text_like(r"[A-Za-z0-9_.]{1,100}", "the end of a layer's path, as in attn.qkv")]


class LowRank(_Choice):
    """Updates of low rank R to some of the frozen encoder's linear layers; see ``lora.py``."""

    rank: int = Field(ge=1, le=256)
    on: tuple[_PathEnd, ...] = Field(default=("attention",), max_length=20)
    """Ends of the layers' paths; ``attention``: all linear layers of the attention."""

    @field_validator("on")
    @classmethod
    def _names_some(cls, on: tuple[str, ...]) -> tuple[str, ...]:
        if not on:
            raise ValueError("must name at least one layer; take train: head for none")
        return on


class WithLowRank(_Choice):
    """The encoder is frozen; low-rank updates of it, and the head, are what learns."""

    lora: LowRank


Train = Annotated[
    Annotated[Literal["all", "head"], Tag("[words]")] | Annotated[WithLowRank, Tag("[block]")],
    Discriminator(words_or_block),
]
"""What learns: the whole network; the head alone, on a frozen encoder; or the head and low-rank updates."""


def tells_images_apart(encoder: str, train: Train) -> bool:
    """Return whether the gradients of single images are known of all that learns, as private training needs them."""
    return train == "head" or (train == "all" and encoder in (*ENCODERS, *WITHOUT_BATCH_NORM))
