"""No count below the minimum follows from what a sheet tells, whoever knows the rule and the total."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.records.surveys import QUANTILES
from site_client.suppression import bins, cells, count, difference, rounded, spread, withheld

LEAST = 10
TABLES = st.lists(st.integers(0, 60), min_size=2, max_size=8)


@pytest.mark.parametrize(("least", "kinds", "most"), [(2, 3, 8), (3, 2, 20), (3, 3, 10), (3, 4, 7), (4, 3, 12)])
def test_no_withheld_count_follows_from_the_rest(least: int, kinds: int, most: int) -> None:
    """Of every table there may be, each withheld cell could be another number: all tables are tried."""
    tables = [table for table in product(range(most), repeat=kinds) if sum(table) >= 2 * least]
    behind = defaultdict(list)
    for table in tables:
        hidden = withheld(dict(enumerate(table)), least)
        seen = tuple(None if place in hidden else number for place, number in enumerate(table))
        behind[sum(table), seen].append(table)
    assert any(None in seen for _, seen in behind)
    for (_, seen), possible in behind.items():
        if max(map(max, possible)) == most - 1:
            continue  # what lies beyond the tables that were tried may be possible too
        for place, told in enumerate(seen):
            assert told is not None or len({table[place] for table in possible}) > 1, (seen, possible)


@given(TABLES)
def test_what_is_withheld_is_about_as_many_images_as_the_minimum(table: list[int]) -> None:
    counts = dict(enumerate(table))
    hidden = withheld(counts, LEAST)
    small = {place for place, number in counts.items() if number < LEAST}
    assert not hidden or small <= hidden
    if hidden and sum(table) >= 2 * LEAST:
        assert sum(counts[place] for place in hidden) >= LEAST
        assert len(hidden) > 1
    assert all(number == 0 or number >= LEAST for place, number in counts.items() if place not in hidden)


@given(TABLES, st.randoms(use_true_random=False))
def test_places_do_not_matter(table: list[int], chance: st.DataObject) -> None:
    """So nobody who knows the rule can tell which of the withheld counts was the small one."""
    order = [*range(len(table))]
    chance.shuffle(order)  # type: ignore[attr-defined]
    mixed = {place: table[place] for place in order}
    assert withheld(mixed, LEAST) == withheld(dict(enumerate(table)), LEAST)
    hidden = sorted(withheld(mixed, LEAST))
    turned = dict(enumerate(table)) | {b: table[a] for a, b in zip(hidden, [*hidden[1:], *hidden[:1]], strict=True)}
    assert withheld(turned, LEAST) == set(hidden)


@pytest.mark.parametrize(("least", "kinds", "most"), [(2, 3, 5), (3, 2, 8), (3, 3, 5)])
def test_no_difference_between_two_sheets_is_about_few_images(least: int, kinds: int, most: int) -> None:
    """Of every pair of tables, the later with more images of each kind or as many: what of the new ones leaves?"""
    for before, added in product(product(range(most), repeat=kinds), repeat=2):
        if sum(before) < 2 * least or 0 < sum(added) < least:
            continue
        first = cells(dict(zip("abcd", before, strict=False)), least)
        after = {key: a + b for key, a, b in zip("abcd", before, added, strict=False)}
        later = cells(after, least, [first])
        grown = dict(zip("abcd", added, strict=False))
        told = {key for key in first if first[key] is not None and later[key] is not None}
        assert all(grown[key] == 0 or grown[key] >= least for key in told), (before, added)
        hidden = [key for key in first if later[key] is None]
        assert len(hidden) != 1, (before, added)  # which would follow from the total
        assert all(later[key] in (None, rounded(number)) for key, number in after.items())


def test_a_number_beside_an_earlier_one_says_no_more_where_it_is_close() -> None:
    assert [count(number, LEAST, ["40"]) for number in (40, 41, 49, 50, 35, 30, 0, 3)] == [
        *("40", "fewer than 50", "fewer than 50", "50", "fewer than 50", "30", "0", "fewer than 10")
    ]
    assert count(45, LEAST, ["40", "fewer than 10", "0", "44"]) == "fewer than 50"
    assert [difference(number, "120") for number in (118, 124, 126)] == [0, 0, 10]  # two digits are all that is told


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300))
def test_a_quantile_is_told_only_with_as_many_images_beyond_it(values: list[float]) -> None:
    told = spread(values, LEAST).model_dump()
    for name, share in QUANTILES.items():
        assert (told[name] is not None) == (len(values) * min(share, 1 - share) >= LEAST)
    assert (told["p5"] is not None) == (len(values) >= 200)


@given(st.lists(st.integers(0, 40), min_size=3, max_size=32))
def test_no_bin_of_few_images_follows_from_the_others(contributing: list[int]) -> None:
    shares = np.full(len(contributing), 1 / len(contributing)).tolist()
    told = bins(shares, contributing, LEAST)
    hidden = [images for images, share in zip(contributing, told, strict=True) if share is None]
    if any(0 < images < LEAST for images in contributing):
        assert all(images >= LEAST for images, share in zip(contributing, told, strict=True) if share is not None)
        assert max(hidden) >= LEAST or hidden == contributing
    else:
        assert hidden == []


def test_counts_have_two_digits() -> None:
    assert [rounded(number) for number in (0, 7, 99, 100, 101, 1234, 98765)] == [
        *("0", "7", "99", "100", "100", "1200", "99000")
    ]
    assert [count(number, LEAST) for number in (0, 1, 9, 10, 1234)] == [
        *("0", "fewer than 10", "fewer than 10", "10", "1200")
    ]
    assert cells({"a": 300, "b": 200, "c": 3}, LEAST) == {"a": "300", "b": None, "c": None}
    assert cells({"a": 300, "b": 0}, LEAST) == {"a": "300", "b": "0"}
