"""Dividing a list into batches."""

from __future__ import annotations

import math
from typing import TypeVar

Item = TypeVar("Item")


def even_parts(items: list[Item], largest: int) -> list[list[Item]]:
    """Return the items in order, in parts whose sizes differ by at most one.

    No part is larger than ``largest``, except by one rather than leave a single item over, because a BatchNorm cannot
    learn from a batch of one.
    """
    count = count_of_parts(len(items), largest)
    return [items[len(items) * index // count : len(items) * (index + 1) // count] for index in range(count)]


def count_of_parts(items: int, largest: int) -> int:
    """Return into how many parts ``even_parts`` divides so many items."""
    count = math.ceil(items / largest)
    return min(count, max(1, items // 2)) if largest > 1 else count
