"""How much a score over a site's images would vary with other images of the same kind: its standard error.

Patients are drawn with replacement, each with all images, as many as there are, a hundred times; the standard deviation
of the score over these draws is told (Efron 1979, Bootstrap methods: another look at the jackknife; Davison and Hinkley
1997, section 3.8, for whole clusters). A percentile of the draws would tell more of single images, where they are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
        of_unit: dict[str, list[Any]] = defaultdict(list)
        for unit, look in zip(self.units, looks, strict=True):
            of_unit[unit].append(look)
        groups, values = list(of_unit.values()), []
        if len(groups) < 2:
            return None
        for draw in np.random.default_rng(self.seed).integers(len(groups), size=(DRAWS, len(groups))):
            alive()
            value = scoring.scores([look for number in draw for look in groups[number]])[self.score].value
            values += [] if value is None else [value]
        return float(np.std(values)) if 2 * len(values) > DRAWS else None
