"""The property that every random schedule of faults is held to: whatever goes wrong, nothing is lost.

DROPFED_SCHEDULES in the environment says how many there are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.at_length import shown_by
from tests.faults.runs import REPLAY, run_in
from tests.faults.storm import random_weather

SEEDS = range(int(os.environ.get("DROPFED_SCHEDULES", "8")))
FEW = SEEDS if "DROPFED_SCHEDULES" in os.environ else (3, 5)
"""All kinds of faults: with TLS on a plain server, and without on a cloud."""


@pytest.mark.parametrize("seed", shown_by(FEW, SEEDS))
def test_whatever_goes_wrong_nothing_is_lost(seed: int, tmp_path: Path) -> None:
    """A federation in the storm of this seed ends as if nothing had happened, and its logs say what was wrong.

    Half of them have a cloud whose locks leak for their server.
    """
    is_cloud = seed // 4 % 2 == 1
    outcome = run_in(random_weather(seed, is_cloud=is_cloud), tmp_path)
    journal = tmp_path / "journal.txt"
    journal.write_text(outcome.journal)
    again = f"again: {REPLAY} {seed}{' --cloud' * is_cloud}; what went wrong: {journal}; the logs lie beside it"
    assert not outcome.problems, "\n".join([*outcome.problems, again])
