"""What a rule of combination is; as it stands here, the weighted mean.

Weights are what sites say of themselves, such as how many images they have. A rule under which some may lie has to
decide whether it listens to them: ``weighs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

UNSIGNED = 0.0
"""Added, this makes −0 a 0, and leaves all else as it is: where some sites sent 0 and others −0, it depends on how a
processor sorts which of them is the middle one."""


class Rule:
    """Combines what the accepted sites sent."""

    fewest = 1
    """With fewer accepted sites it cannot do what it is for: then none counts, and the global model stays as it was."""
    weighs = True
    """Whether the method's weights count; if not, each site counts like any other."""
    compares_all = False
    """Whether ``average`` needs all sites' numbers at once."""
    measures_distances = False
    """Whether ``choose`` needs the distances between the sites' answers."""

    def choose(self, sites: Sequence[str], distances: Mapping[tuple[str, str], float]) -> list[str]:
        """Return the sites that count at all, of the accepted ones.

        Args:
            distances: squared, between the answers of two sites, the earlier name first.
        """
        return list(sites)

    def average(self, values: Iterable[Array], weights: Sequence[float]) -> Array:
        """Return one number for each that the sites sent: (n,) float64.

        Args:
            values: (n,) of each site; consumed one at a time.
            weights: of each site, summing to 1.

        Raises:
            ValueError: there are no values.
        """
        total: Array | None = None
        for weight, array in zip(weights, values, strict=True):
            total = weight * array if total is None else total + weight * array
        if total is None:
            raise ValueError("there is nothing to average")
        return total
