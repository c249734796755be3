"""Options that are younger than some runs: what a new run takes, and what one meant that does not say it.

``launch`` writes every option into ``run.yaml``. So a run without an option is older than that, and an option's default
is what such a run did; ``Now`` beside it says what a new run takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Now:
    """Marks an option: what a run takes now that does not say it.

    Args:
        value: of the option.
        unless: an option that says the same in another way: a run that says that one takes nothing here.
    """

    value: object
    unless: str | None = None


def completed(said: Mapping[str, Any], options: type[BaseModel]) -> dict[str, Any]:
    """Return what a new run says, with what it takes now where it does not say it.

    Args:
        said: unchecked.
        options: the form that it will be checked by.
    """
    added = {
        name: mark.value
        for name, field in options.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Now) and mark.unless not in said
    }
    return added | dict(said)
