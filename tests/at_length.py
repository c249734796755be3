"""What `make test` shows by a few cases and `make test-long` plays for every one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def shown_by(few: Iterable[object], cases: Iterable[Any]) -> list[Any]:
    """Return the cases; those that are not of the few are long.

    Raises:
        AssertionError: one of the few is no case.
    """
    found, kept = list(cases), list(few)
    assert all(case in found for case in kept), kept
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in found]
