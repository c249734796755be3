"""Which counts and quantiles of a sheet may leave: none from which a smaller number than the minimum follows. Pure.

A count below the minimum is withheld. So that it does not follow from the total and the other counts of its table, the
smallest others are withheld too, until all that is withheld is about the minimum or more. That depends on the counts
alone and not on their places: whoever knows the rule cannot tell which of the withheld counts was the small one. Where
all that is withheld is equal, one more goes, for equal counts follow from their sum.

A table without small counts is told whole, also what is 0 in it: that no image is of a kind is about all images.

Two sheets about some of the same images can be subtracted. So beside an earlier sheet a count is told only where it is
the same as there, or differs by the minimum or more; what differs by less is withheld like a small count.
Source: complementary cell suppression, Willenborg and de Waal, Elements of Statistical Disclosure Control, 2001.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from shared.exchange.records.surveys import QUANTILES, Cells, Figure, Spread, figure_text
from shared.exchange.records.values import FEWER_THAN, fewest, most

Key = TypeVar("Key")


MOST_SAID = 9999  # after "fewer than"


def withheld(counts: Mapping[Key, int], least: int, also: Collection[Key] = ()) -> frozenset[Key]:
    """Return which cells of a table may not leave.

    Args:
        counts: of disjoint kinds; their total counts as known, and is 2 * ``least`` or more.
        least: the minimum, >= 1.
        also: cells that may not leave for another reason.
    """
    hidden = {key for key, count in counts.items() if count < least}
    if not also and not any(counts[key] for key in hidden):
        return frozenset()
    hidden.update(also)
    while (others := counts.keys() - hidden) and not _cover_each_other([counts[key] for key in hidden], least):
        smallest = min(counts[key] for key in others)
        hidden |= {key for key in others if counts[key] == smallest}
    return frozenset(hidden)


def _cover_each_other(counts: Collection[int], least: int) -> bool:
    return sum(counts) >= least and len(set(counts)) > 1


def cells(counts: Mapping[str, int], least: int, earlier: Iterable[Cells] = ()) -> Cells:
    """Return a table as it may leave; what is withheld is None.

    Args:
        earlier: tables of the same kinds that left before, about some of the same images.
    """
    also = {key for table in earlier for key in _changed_by_few(counts, table, least)}
    hidden = withheld(counts, least, also)
    return {key: None if key in hidden else rounded(count) for key, count in counts.items()}


def _changed_by_few(counts: Mapping[str, int], earlier: Cells, least: int) -> frozenset[str]:
    """Return which cells may not leave because the difference to an earlier table would be about few images."""
    told = {key: cell for key, cell in earlier.items() if cell is not None and key in counts}
    return withheld({key: difference(counts[key], cell) for key, cell in told.items()}, least)


def difference(number: int, earlier: str) -> int:
    """Return by how much a number, as it may leave, differs from one that left before."""
    return abs(int(rounded(number)) - most(earlier))


def count(number: int, least: int, earlier: Iterable[str] = ()) -> str:
    """Return one number that is part of no table, as it may leave: 0, with two significant digits, or as too few.

    Args:
        earlier: what left before, about some of the same images; where that is close, it says no more than that.
    """
    if 0 < number < least:
        return f"{FEWER_THAN}{max(least, 2)}"
    close = [most(told) for told in earlier if fewest(told) and 0 < difference(number, told) < least]
    return f"{FEWER_THAN}{min(*close, MOST_SAID - least) + least}" if close else rounded(number)


def rounded(number: int) -> str:
    """Return a count with two significant digits."""
    return str(int(float(f"{number:.2g}")))


def spread(values: Sequence[float], least: int) -> Spread:
    """Return the quantiles of a value over images, each only where ``least`` images or more lie beyond it."""
    told: dict[str, Figure | None] = {
        name: figure_text(float(np.quantile(values, share))) if len(values) * min(share, 1 - share) >= least else None
        for name, share in QUANTILES.items()
    }
    return Spread(**told)


def bins(shares: Sequence[float], contributing: Sequence[int], least: int) -> list[Any]:
    """Return a mean histogram as it may leave: without bins that few images have anything in, and, as all bins sum to
    1, without one more that ``least`` images or more have something in.

    Args:
        shares: of each bin, mean over images.
        contributing: how many images have anything in each bin.
    """
    hidden = {place for place, images in enumerate(contributing) if images < least}
    if any(contributing[place] for place in hidden):
        fewest = min((images for images in contributing if images >= least), default=0)
        hidden |= {place for place, images in enumerate(contributing) if images == fewest}
    else:
        hidden = set()
    return [None if place in hidden else figure_text(share) for place, share in enumerate(shares)]
