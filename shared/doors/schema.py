"""Parsed values become records: everything that pydantic finds wrong, up to a number that people can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from shared.doors import Refusal, door, require_size

AnyRecord = TypeVar("AnyRecord", bound=BaseModel)
Kind = TypeVar("Kind")
MOST_FAULTS = 20
TOO_MANY_FAULTS = 1000  # to tell any of them: pydantic writes all of them out first


class Faults(Refusal):
    """What is wrong, by pydantic's names for it.

    Args:
        found: the first ``MOST_FAULTS``, in the record's order.
    """

    def __init__(self, found: list[ErrorDetails]) -> None:
        super().__init__("is not well-formed")
        self.found = found


def _refusal(error: ValidationError) -> Refusal:
    if error.error_count() > TOO_MANY_FAULTS:
        return Refusal(f"is wrong in {error.error_count()} places")
    return Faults(error.errors(include_url=False)[:MOST_FAULTS])


@door("cannot be checked: what checks it fails on it; change what it says, or ask who wrote the check")
def fill(kind: type[AnyRecord], values: Mapping[str, Any]) -> AnyRecord:
    """Check parsed values against a record.

    Raises:
        Faults, Refusal: they are not of its form.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from None
    except RecursionError as error:
        raise Refusal("is nested too deeply; write it flat") from error


@door("is not JSON")
def fill_json(kind: type[AnyRecord], content: bytes, max_bytes: int) -> AnyRecord:
    """Read a record from JSON that need not be canonical.

    Raises:
        Faults, Refusal: it is none, too large, or not of the record's form.
    """
    require_size(content, max_bytes)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(error) from None


@door("is not JSON of its form")
def fill_form(form: TypeAdapter[Kind], content: bytes, max_bytes: int) -> Kind:
    """Read a value of any form from JSON.

    Raises:
        Refusal: it is none, too large, or of another form.
    """
    require_size(content, max_bytes)
    return form.validate_json(content)


@door("has a form that is not known here")
def fill_loosely(kind: type[Kind], value: Any) -> Kind:
    """Take parsed values for a kind of thing.

    Raises:
        Refusal: they cannot be taken for it.
    """
    return TypeAdapter(kind).validate_python(value)
