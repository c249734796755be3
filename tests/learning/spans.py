"""Exact linear algebra over the rationals: whether some combination of sums over sets is about few images alone.

It knows nothing of blocks. A vector says with what weight each image enters a number that left a site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

Vector = Mapping[Hashable, Fraction | int]


def smallest_support(vectors: Sequence[Vector], below: int) -> set[Hashable] | None:
    """The images, fewer than ``below``, that some combination of the vectors is about; None if there is no such one.

    Images that enter every vector alike, an atom, cannot be told apart: a combination has all of them or none.
    """
    atoms: dict[tuple[Fraction, ...], set[Hashable]] = defaultdict(set)
    for image in {image for vector in vectors for image in vector}:
        atoms[tuple(Fraction(vector.get(image, 0)) for vector in vectors)].add(image)
    columns = list(atoms)
    rank = _rank(columns)
    for chosen in _fewer(columns, [len(atoms[column]) for column in columns], below):
        # A combination vanishes outside of these atoms, and not within, just if they are needed for the whole rank.
        if _rank([column for number, column in enumerate(columns) if number not in chosen]) < rank:
            return {image for number in chosen for image in atoms[columns[number]]}
    return None


def _fewer(columns: Sequence[object], sizes: Sequence[int], below: int) -> Iterator[tuple[int, ...]]:
    """All choices of atoms that hold fewer images, smaller choices first."""
    small = [number for number in range(len(columns)) if sizes[number] < below]
    for count in range(1, below):
        for chosen in combinations(small, count):
            if sum(sizes[number] for number in chosen) < below:
                yield chosen


def _rank(rows: Sequence[Sequence[Fraction]]) -> int:
    left = [list(row) for row in rows]
    rank = 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((number for number in range(rank, len(left)) if left[number][column]), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        for number in range(rank + 1, len(left)):
            factor = left[number][column] / left[rank][column]
            if factor:
                left[number] = [a - factor * b for a, b in zip(left[number], left[rank], strict=True)]
        rank += 1
    return rank
