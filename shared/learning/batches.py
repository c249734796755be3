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
    count = math.ceil(len(items) / largest)
    if largest > 1:
        count = min(count, max(1, len(items) // 2))
    return [items[len(items) * index // count : len(items) * (index + 1) // count] for index in range(count)]
