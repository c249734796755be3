"""How often a daemon looks, and how late it notices."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared import polling
from shared.polling import Polling

DOCUMENT = Path(__file__).parents[1] / "docs" / "exchange.md"


class Clock:
    now_s = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


def looks_until(clock: Clock, waits: Polling, takes_s: float, awaited: str | None) -> tuple[int, float]:
    """How many looks find nothing until what takes so long has come, and how late the next one then is."""
    began, looks = clock.now_s, 0
    while (waited_s := clock.now_s - began) < takes_s:
        clock.now_s += waits.interval_s(awaited)
        looks += 1
    waits.restart()
    return looks, waited_s - takes_s


def test_a_first_wait_is_looked_into_at_every_tenth_of_it(clock: Clock) -> None:
    looks, late_s = looks_until(clock, Polling(30), 300, "update")
    assert looks == 87
    assert late_s <= 30


def test_looks_are_as_many_as_the_document_says(clock: Clock) -> None:
    units = {"s": 1, "min": 60, "h": 3600}
    rows = re.findall(r"^\| (\d+) (s|min|h) \| (\d+) \| (\d+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 4
    for number, unit, later, first in rows:
        waits, takes_s = Polling(30), float(number) * units[unit]
        looks = [looks_until(clock, waits, takes_s, "update")[0] for _ in range(4)]
        assert looks[:2] == [int(first)] * 2
        assert looks[2:] == [int(later)] * 2


@pytest.mark.parametrize("takes_s", [0.3, 3, 60, 300, 3600])
def test_a_wait_a_little_unlike_those_before_is_noticed_as_soon(clock: Clock, takes_s: float) -> None:
    waits = Polling(30)
    for share in (5, 1, 0.9, 1.1, 0.8, 1.2, 1):  # the first is longer than all that follow
        looks, late_s = looks_until(clock, waits, share * takes_s, "update")
        assert late_s <= min(0.1 * share * takes_s, 30) + 0.021
    assert looks < max(10, takes_s / 20)


def test_a_short_wait_after_long_ones_is_noticed_within_the_longest_interval_and_then_soon(clock: Clock) -> None:
    waits = Polling(30)
    for _ in range(5):
        looks_until(clock, waits, 300, "update")
    assert looks_until(clock, waits, 2, "update") == (1, 28)
    assert looks_until(clock, waits, 2, "update")[1] <= 11
    assert looks_until(clock, waits, 2, "update")[1] <= 6
    assert looks_until(clock, waits, 2, "verdict")[1] <= 0.2  # another kind of wait


def test_nothing_is_expected_of_a_wait_for_nobody_knows_what(clock: Clock) -> None:
    waits = Polling(30)
    looks_until(clock, waits, 300, None)
    assert looks_until(clock, waits, 2, None)[1] <= 0.2
