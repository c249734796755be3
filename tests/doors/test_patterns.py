"""A regular expression that somebody types, or offers, is one, or is refused."""

from __future__ import annotations

import pytest

from shared.doors import Refusal
from shared.doors.patterns import LONGEST
from shared.errors import ConfigurationError
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import valid_pattern


@pytest.mark.parametrize(
    "pattern", ["a{4294967295}", "a{99999999999999999999}", "(" * 150, "[", "(?<=a*)b", "[0-\x06]"]
)
def test_a_pattern_of_an_offer_that_no_parser_takes_is_refused(pattern: str) -> None:
    with pytest.raises(Refusal) as refusal:
        valid_pattern(pattern)
    assert str(refusal.value).isprintable()
    with pytest.raises(ConfigurationError, match="regular expression"):
        task_named("octa_segmentation").options({"group_pattern": pattern})


def test_a_pattern_has_a_bound() -> None:
    assert valid_pattern("a" * LONGEST) == "a" * LONGEST
    with pytest.raises(Refusal, match="has more than 200 characters"):
        valid_pattern("a" * (LONGEST + 1))
