"""What `make test` shows by a few cases and `make test-long` plays for every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature, signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def shown_by(few: Iterable[object], cases: Iterable[Any]) -> list[Any]:
    """Return the cases; those that are not of the few are long.

    Raises:
        AssertionError: one of the few is no case.
    """
    found, kept = list(cases), list(few)
    assert all(case in found for case in kept), kept
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in found]


def held_to(
    few: int, many: int, parent: settings | None = None, /, **strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hold a property to a few examples, and to many where it takes long; what else it asks for are fixtures.

    Args:
        parent: Hypothesis's further settings.
    """

    def held(holds: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.long)])
        def test(examples: int, **fixtures: object) -> None:
            settings(parent, max_examples=examples)(given(**strategies)(holds))(**fixtures)

        names = ["examples", *(name for name in signature(holds).parameters if name not in strategies)]
        test.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])  # type: ignore[attr-defined]
        test.__name__, test.__doc__, test.__module__ = holds.__name__, holds.__doc__, holds.__module__
        return test

    return held
