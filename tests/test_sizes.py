"""Sizes in words: never 0 of something, three digits, and no unit with a thousand of itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (7448, "7.45 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (104_857_600, "105 MB"),
        (25.4e9, "25.4 GB"),
        (3e15, "3000000 GB"),
    ],
)
def test_a_size_in_words(size: float, text: str) -> None:
    assert size_text(size) == text


@given(st.integers(1, 10**11))
def test_it_is_right_to_three_digits(size: int) -> None:
    number, unit = size_text(size).split()
    assert re.fullmatch(r"[1-9][0-9]{0,2}(\.[0-9]{1,2})?", number)
    assert float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit] == pytest.approx(size, rel=0.005)
