"""A quarter of the random schedules; see ``schedules``."""

from pathlib import Path

from tests.faults.schedules import assert_that_nothing_is_lost, seeds_of_file


@seeds_of_file(3)
def test_whatever_goes_wrong_nothing_is_lost(seed: int, tmp_path: Path) -> None:
    assert_that_nothing_is_lost(seed, tmp_path)
