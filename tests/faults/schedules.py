"""The property that every schedule of faults is held to. Its seeds are divided over ``test_schedules_*.py``,
so that as many workers as there are such files can share them (pytest-xdist with ``--dist loadfile``).
DROPFED_SCHEDULES in the environment says how many there are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.runs import REPLAY, run_in
from tests.faults.storm import random_weather

SCHEDULES = int(os.environ.get("DROPFED_SCHEDULES", "8"))
FILES = 4


def seeds_of_file(number: int) -> pytest.MarkDecorator:
    """The share of file ``number``, from 0."""
    return pytest.mark.parametrize("seed", range(number, SCHEDULES, FILES))


def assert_that_nothing_is_lost(seed: int, root: Path) -> None:
    """A federation in the storm of this seed ends as if nothing had happened, and its logs say what was wrong.

    Every other one has a cloud whose locks leak for its server.
    """
    is_cloud = seed // FILES % 2 == 1
    outcome = run_in(random_weather(seed, is_cloud=is_cloud), root)
    journal = root / "journal.txt"
    journal.write_text(outcome.journal)
    again = f"again: {REPLAY} {seed}{' --cloud' * is_cloud}; what went wrong: {journal}; the logs lie beside it"
    assert not outcome.problems, "\n".join([*outcome.problems, again])
