"""A regular expression that somebody types, or offers, is one, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.doors import Refusal
from shared.doors.patterns import LONGEST, parse
from shared.errors import ConfigurationError
from site_client.configuration import read_configuration


@pytest.mark.parametrize(
    "pattern", ["a{4294967295}", "a{99999999999999999999}", "(" * 150, "[", "(?<=a*)b", "[0-\x06]"]
)
def test_a_pattern_that_no_parser_takes_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(pattern)
    assert str(refusal.value).isprintable()
    (tmp_path / "site.yaml").write_text(json.dumps({"groups": {"octa_segmentation": pattern}}))
    with pytest.raises(ConfigurationError, match=r"groups.*regular expression"):
        read_configuration(tmp_path)


def test_a_pattern_has_a_bound() -> None:
    assert parse("a" * LONGEST).pattern == "a" * LONGEST
    with pytest.raises(Refusal, match="has more than 200 characters"):
        parse("a" * (LONGEST + 1))
