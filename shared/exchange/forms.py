"""Texts of a fixed form, and what a person is told about any other: what is wanted, not a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator, BeforeValidator

from shared.errors import ActionRequiredError


def text_like(pattern: str, wanted: str) -> BeforeValidator:
    """Return a validator that accepts a text only if ``pattern`` matches it as a whole.

    Args:
        wanted: as the rest of a sentence that begins with "must be".
    """

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"must be {wanted}; put it in quotes, or YAML misreads it")
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"must be {wanted}")
        return value

    return BeforeValidator(check)


def text_that(passes: Callable[[str], object]) -> AfterValidator:
    """Return a validator that accepts a text unless ``passes`` raises ActionRequiredError, whose words it then says."""

    def check(text: str) -> str:
        try:
            passes(text)
        except ActionRequiredError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(check)
