"""How long to wait until the next look: not long when something has just happened, longer the longer nothing has."""

from __future__ import annotations

import time

SHARE = 0.1  # of the time waited so far: what comes is noticed at most that much later
SHORTEST_INTERVAL_S = 0.02


class Polling:
    """The intervals between two looks at a folder.

    Args:
        longest_interval_s: where they end growing.
    """

    def __init__(self, longest_interval_s: float) -> None:
        self._longest_interval_s = longest_interval_s
        self._since = time.monotonic()

    def restart(self) -> None:
        """Something happened, so more may follow soon."""
        self._since = time.monotonic()

    def interval_s(self) -> float:
        """Return how long to wait now, in seconds."""
        waited_s = time.monotonic() - self._since
        return min(max(SHORTEST_INTERVAL_S, SHARE * waited_s), self._longest_interval_s)
