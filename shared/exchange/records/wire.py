"""In which form a payload travels, and how a manifest names it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shared.exchange.names import GLOBAL_MODEL, SITE_MODEL, Kind, is_weights
from shared.exchange.records.values import IF_SAID, Count, Digest, Record, Wrapped

Numbers = Literal["float32", "bfloat16", "float16"]


class Wire(Record):
    """The form of the weights that rounds send; by default plain float32. What each says exactly: ``encoding.py``.

    Args:
        numbers: what each number is rounded to before it travels.
        difference: a site sends, of its trained numbers, the difference to those it received.
        compression: of each tensor; without loss.
    """

    numbers: Numbers = "float32"
    difference: bool = False
    compression: Literal["none", "zstd"] = "none"

    def of(self, kind: Kind, name: str) -> Wire:
        """Return the form of one file of a message: a run's form applies only to the weights of its rounds."""
        if (kind, name) == ("round", GLOBAL_MODEL):
            return self.model_copy(update={"difference": False})
        return self if (kind, name) == ("update", SITE_MODEL) else PLAIN

    def __str__(self) -> str:
        return ", ".join([self.numbers, *["difference"] * self.difference, *["zstd"] * (self.compression == "zstd")])


PLAIN = Wire()
Encrypt = Literal["none", "weights", "all"]
"""Which payloads of a run whoever runs the server cannot read."""


def encrypts(encrypt: Encrypt, name: str) -> bool:
    """Return whether a run with this choice encrypts a payload of this name."""
    return encrypt == "all" or (encrypt == "weights" and is_weights(name))


class FileEntry(Record):
    """One payload as it lies in the folder: size in bytes, SHA-256, its form if that is not the plain one, and if it is
    encrypted what decrypts it, wrapped (``encryption.py``).
    """

    size: Count
    sha256: Digest
    wire: Annotated[Wire, Field(exclude_if=lambda wire: wire == PLAIN)] = PLAIN
    encrypted: Annotated[Wrapped | None, IF_SAID] = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_text(cls, value: Any) -> Any:
        form = value.get("wire") if isinstance(value, dict) else None
        if isinstance(form, dict) and (form == PLAIN.model_dump() or form.keys() != Wire.model_fields.keys()):
            raise ValueError("wire: is left out where it is plain, and complete where it is not")
        return value

    @field_validator("encrypted", mode="before")
    @classmethod
    def _is_left_out_where_it_is_not(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("is left out where the file is not encrypted")
        return value
