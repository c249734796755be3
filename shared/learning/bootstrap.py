"""How much a score over a site's images would vary with other images of the same kind: its standard error.

Patients are drawn with replacement, each with all images, as many as there are, a hundred times; the standard deviation
of the score over these draws is told (Efron 1979, Bootstrap methods: another look at the jackknife; Davison and Hinkley
1997, section 3.8, for whole clusters). A percentile of the draws would tell more of single images, where they are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.learning.tasks.contract import Scoring
from shared.service import alive

DRAWS = 100


@dataclass(frozen=True)
class Bootstrap:
    """Which score's error is wanted.

    Args:
        score: its column.
        units: of each image, in order: who is drawn.
        seed: of the draws; with the same one, two models are scored on the same images.
    """

    score: str
    units: Sequence[str]
    seed: int

    def error(self, scoring: Scoring, looks: Sequence[Any]) -> float | None:
        """Return the standard error, >= 0; None with one unit alone, or if most draws leave the score undefined.

        Args:
            looks: what the scoring has seen of each image by itself.
        """
        return self._error(lambda images: self._value(scoring, looks, images))

    def error_of_difference(self, scoring: Scoring, looks: Sequence[Any], others: Sequence[Any]) -> float | None:
        """Return the standard error of the difference of two models' scores, both on the same images in each draw.

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
        """Return the deviation of a value over the draws, each of the images by their numbers."""
        of_unit: dict[str, list[int]] = defaultdict(list)
        for image, unit in enumerate(self.units):
            of_unit[unit].append(image)
        groups, values = list(of_unit.values()), []
        if len(groups) < 2:
            return None
        for draw in np.random.default_rng(self.seed).integers(len(groups), size=(DRAWS, len(groups))):
            alive()
            value = value_of([image for number in draw for image in groups[number]])
            values += [] if value is None else [value]
        return float(np.std(values)) if 2 * len(values) > DRAWS else None
