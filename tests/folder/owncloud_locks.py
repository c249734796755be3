"""The locks of the stand-in for ownCloud: its table ``oc_file_locks``, and the rows that a stopped server leaves there.

A request that reads a name holds a shared lock on it while it runs, one that writes holds the only one. Each lock that
is taken, and each that is refused because others read, lets the row's life begin anew. Nobody looks at that life but
the hourly clean-up: a row that nobody gives back, because the server was stopped meanwhile, stands until then.

    | request on a name that is not there | ownCloud                     | Nextcloud                    |
    |-------------------------------------|------------------------------|------------------------------|
    | GET                                 | takes a shared lock, and 404 | takes none, and 404          |
    | PROPFIND of the name itself         | renews one that stands       | not tried: takes it for none |
    | PROPFIND of the folder above        | takes and renews none        | takes and renews none        |
    | PUT onto one that stands            | 423, renews                  | 423, renews                  |
    | MOVE onto one that stands           | 500, renews                  | 500, renews                  |

MKCOL answers 423 and COPY is taken for another PUT; that they renew as well was not tried, and is the worse case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.folder.owncloud_refusal import Refusal

LIFE_S = 3600.0  # of a lock, from when it was last taken or asked for
CLEAN_UP_EVERY_S = 3600.0
_WRITING = -1


@dataclass
class _Row:
    """One name's lock. ``state``: how many read it, or -1 while one writes; ``left``: how many of them are no more."""

    state: int
    ends_at: float
    left: int = 0


class LockTable:
    """Who holds which name.

    Args:
        clock: seconds, never going back.

    Attributes:
        is_nextcloud: a GET of a missing name takes no lock, and a look at one renews none.
        cleans_up_hourly: the clean-up runs by itself as time goes on, at each whole hour since the table was made.
        warnings: lines that ownCloud's log has by now, one for each GET of a missing name.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_nextcloud = False
        self.cleans_up_hourly = False
        self.warnings = 0
        self._clock = clock
        self._ahead_s = 0.0
        self._made_at = clock()
        self._hours_cleaned = 0
        self._rows: dict[str, _Row] = {}
        self._leaks = 0  # how many of the next GETs of missing names leave their locks
        self._mutex = threading.RLock()

    # --- what requests do ------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Hold a shared lock.

        Raises:
            Refusal: 423, somebody writes it.
        """
        self._share(name)
        try:
            yield
        finally:
            self._give_back(name)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Hold the only lock.

        Raises:
            Refusal: 423, somebody reads or writes it, or has left a lock.
        """
        self._take(name)
        try:
            yield
        finally:
            self._give_back(name)

    @contextmanager
    def missing(self, name: str) -> Iterator[None]:
        """Do what a GET of a name that is not there does to the table.

        Raises:
            Refusal: 423, somebody is just making it.
        """
        if self.is_nextcloud:
            yield
            return
        self._share(name)
        with self._mutex:
            self.warnings += 1
            is_left = self._leaks > 0
            self._leaks -= is_left
            self._rows[name].left += is_left
        try:
            yield
        finally:
            if not is_left:
                self._give_back(name)

    def look_at_missing(self, name: str) -> None:
        """Do what a PROPFIND of a name that is not there does to the table."""
        with self._mutex:
            self._clean_up_by_the_clock()
            if name in self._rows and not self.is_nextcloud:
                self._renew(self._rows[name])

    # --- what tests do ---------------------------------------------------------------------------------------

    def leak_next(self) -> None:
        """Have the next GET of a missing name leave its lock, as when Apache is killed while it runs."""
        with self._mutex:
            self._leaks += 1

    def leak(self, name: str) -> None:
        """Leave a shared lock on a name, whoever may have taken it."""
        with self._mutex:
            self._share(name)
            self._rows[name].left += 1

    def advance(self, seconds: float) -> None:
        """Let the table's time go on."""
        with self._mutex:
            self._ahead_s += seconds
            self._clean_up_by_the_clock()

    def clean_up(self) -> None:
        """Remove the rows whose life has passed, as the hourly cron job does."""
        with self._mutex:
            self._remove_until(self._now())

    def standing(self) -> list[str]:
        """Return the names whose lock was left behind, also those whose life has passed.

        Not those of requests that are being answered: they are given back a moment after the answer has come.
        """
        with self._mutex:
            self._clean_up_by_the_clock()
            return sorted(name for name, row in self._rows.items() if row.left)

    # --- rows ------------------------------------------------------------------------------------------------

    def _share(self, name: str) -> None:
        with self._mutex:
            self._clean_up_by_the_clock()
            row = self._rows.setdefault(name, _Row(0, 0.0))
            if row.state == _WRITING:
                raise _locked(name)
            row.state += 1
            self._renew(row)

    def _take(self, name: str) -> None:
        with self._mutex:
            self._clean_up_by_the_clock()
            row = self._rows.setdefault(name, _Row(0, 0.0))
            if row.state == _WRITING:
                raise _locked(name)
            self._renew(row)  # before anybody sees that others read it: a shared lock is asked for first
            if row.state > 0:
                raise _locked(name)
            row.state = _WRITING

    def _give_back(self, name: str) -> None:
        with self._mutex:
            row = self._rows.get(name)
            if row is None:  # the clean-up was quicker
                return
            row.state = 0 if row.state == _WRITING else row.state - 1
            if row.state == 0:
                del self._rows[name]

    def _renew(self, row: _Row) -> None:
        row.ends_at = self._now() + LIFE_S

    def _now(self) -> float:
        return self._clock() + self._ahead_s

    def _clean_up_by_the_clock(self) -> None:
        hours = int((self._now() - self._made_at) // CLEAN_UP_EVERY_S)
        if self.cleans_up_hourly and hours > self._hours_cleaned:
            self._hours_cleaned = hours
            self._remove_until(self._made_at + hours * CLEAN_UP_EVERY_S)

    def _remove_until(self, then: float) -> None:
        self._rows = {name: row for name, row in self._rows.items() if row.ends_at >= then}


def _locked(name: str) -> Refusal:
    return Refusal(423, "OCA\\DAV\\Connector\\Sabre\\Exception\\FileLocked", f'"{name}" is locked')
