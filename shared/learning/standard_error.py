"""How much a score over a site's images would vary with other images of the same kind: its standard error.

Patients are left out in turn, each with all images; how the score moves tells the error (the jackknife: Tukey 1958;
Efron and Stein 1981; Shao and Wu 1989 for several that are left out together). Nothing is drawn, as by a bootstrap:
whoever knows the draws knows how images are weighed, and could solve the errors of a few runs for single ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Scoring
from shared.service import alive

MOST_PARTS = 100
LARGEST = 1.0  # as a score's whole range; few images that the score hangs on could come to more


@dataclass(frozen=True)
class Jackknife:
    """Which score's error is wanted.

    Args:
        score: its column.
        units: of each image, in order: who is left out. More than ``MOST_PARTS`` are so together, by their names alone.
    """

    score: str
    units: Sequence[str]

    def error(self, scoring: Scoring, looks: Sequence[Any]) -> float | None:
        """Return the standard error, >= 0; None with one unit alone, or if the score is undefined without one.

        Args:
            looks: what the scoring has seen of each image by itself.
        """
        return self._error(lambda images: self._value(scoring, looks, images))

    def error_of_difference(self, scoring: Scoring, looks: Sequence[Any], others: Sequence[Any]) -> float | None:
        """Return the standard error of the difference of two models' scores, without the same images each time.

        Args:
            looks, others: what the scoring has seen of each image by itself, of either model.
        """

        def difference(images: Sequence[int]) -> float | None:
            value, other = (self._value(scoring, of, images) for of in (looks, others))
            return None if value is None or other is None else value - other

        return self._error(difference)

    def _value(self, scoring: Scoring, looks: Sequence[Any], images: Sequence[int]) -> float | None:
        return scoring.score([looks[image] for image in images], self.score)

    def _error(self, value_of: Callable[[Sequence[int]], float | None]) -> float | None:
        """Return √((n − 1) / n · Σ (value without part i − their mean)²) over the n parts, at most 1."""
        of_unit: dict[str, list[int]] = defaultdict(list)
        for image, unit in enumerate(self.units):
            of_unit[unit].append(image)
        groups = [of_unit[unit] for unit in sorted(of_unit, key=lambda unit: (seed_for(0, "left out", unit), unit))]
        parts = np.array_split(np.arange(len(groups)), min(len(groups), MOST_PARTS))
        if len(parts) < 2:
            return None
        values = []
        for part in parts:
            alive()
            left_out = {image for number in part for image in groups[number]}
            value = value_of([image for image in range(len(self.units)) if image not in left_out])
            if value is None:
                return None
            values.append(value)
        return min(float(np.sqrt((len(parts) - 1) * np.var(values))), LARGEST)
