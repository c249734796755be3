"""How long to wait until the next look: not long when something has just happened, longer the longer nothing has.

What is awaited round after round takes about as long as it took before. So a daemon that has waited for it before does
not look for most of that time, except every ``longest_interval_s``.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque

SHARE = 0.1  # of the time waited so far: what comes is noticed at most that much later
SHORTEST_INTERVAL_S = 0.02
REMEMBERED = 3  # waits of each kind; one alone tells nothing, for a first round is often longer than the others
UNLOOKED_SHARE = 0.75  # of the shortest of them


class Polling:
    """The intervals between two looks at a folder.

    Args:
        longest_interval_s: where they end growing.
    """

    def __init__(self, longest_interval_s: float) -> None:
        self._longest_interval_s = longest_interval_s
        self._since = time.monotonic()
        self._looked_s = 0.0  # when a look last found nothing
        self._awaited: str | None = None
        self._took_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def restart(self) -> None:
        """Poll often again: something happened, so more may follow soon."""
        if self._awaited is not None:  # it had come since the last look, perhaps long before this one
            self._took_s[self._awaited].append(max(self._looked_s, self.waited_s / 2))
        self._awaited, self._since = None, time.monotonic()

    @property
    def waited_s(self) -> float:
        """How long nothing has happened, in seconds."""
        return time.monotonic() - self._since

    def interval_s(self, awaited: str | None = None) -> float:
        """Return how long to wait now, in seconds.

        Args:
            awaited: what kind of thing comes next; None where nobody knows.
        """
        self._awaited = awaited
        self._looked_s = waited_s = self.waited_s
        took_s = self._took_s[awaited or ""]
        unlooked_s = UNLOOKED_SHARE * min(took_s) - waited_s if len(took_s) > 1 else 0.0
        return min(max(SHORTEST_INTERVAL_S, SHARE * waited_s, unlooked_s), self._longest_interval_s)
