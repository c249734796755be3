"""Counts in words, where people read them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.exchange.records.run import RunConfiguration
from shared.plurals import pluralize
from tests.federation.running import run_configuration


def test_one_is_one_and_all_else_are_several() -> None:
    assert [pluralize(count, "round") for count in (0, 1, 2, 1234)] == [
        "0 rounds",
        "1 round",
        "2 rounds",
        "1,234 rounds",
    ]
    assert [pluralize(count, "image lies", "images lie") for count in (1, 2)] == ["1 image lies", "2 images lie"]


def test_a_quorum_that_one_site_cannot_be() -> None:
    with pytest.raises(ValidationError, match="2 is more than the 1 site; lower it"):
        RunConfiguration.model_validate(run_configuration(sites=["north"], quorum=1).model_dump() | {"quorum": 2})
