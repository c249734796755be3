"""A folder whose names are left alone where nothing else can end a lock on them.

ownCloud forgets to take a lock back when it is stopped in the midst of a request, and each further request for that
name prolongs the lock by an hour. So a name that stays locked though nobody uses it is not asked for until that hour
has passed, and after it the server's hourly clean-up, which alone removes such locks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from shared.errors import ActionRequiredError, DropfedError, LeftAloneError, LockedError, TransientError
from shared.folder.around import FolderAround
from shared.folder.contract import Folder
from shared.moments import moment_text

LOCKED_FOR_S = 600.0
"""After this a lock is taken for a forgotten one. Only the time between two refusals for it counts: what else goes
wrong in between, as on a line that is cut now and then, says nothing of the lock."""
LEFT_ALONE_S = 7500.0
"""Longer than a lock's life (an hour) and the time to the next clean-up after that (another), which may run late."""


class ForbearingFolder(FolderAround):
    """Writes no name that has been locked for long.

    Raises:
        LeftAloneError: from the methods that write, at once: the name is left alone for now.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._locked_s: dict[str, float] = {}  # for how long, as far as it is known
        self._refused_at: dict[str, float] = {}  # where the newest attempt was refused for the lock: when
        self._left_alone: dict[str, tuple[float, str]] = {}

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        with self._forbearance(path):
            super().upload(path, source, sha256=sha256)

    def create(self, path: str, content: bytes) -> None:
        with self._forbearance(path):
            super().create(path, content)

    def overwrite(self, path: str, content: bytes) -> None:
        with self._forbearance(path):
            super().overwrite(path, content)

    @contextmanager
    def _forbearance(self, path: str) -> Iterator[None]:
        until, reason = self._left_alone.get(path, (0.0, ""))
        if time.monotonic() < until:
            raise LeftAloneError(reason)
        try:
            yield
        except LockedError:
            now = time.monotonic()
            self._locked_s[path] = self._locked_s.get(path, 0.0) + now - self._refused_at.get(path, now)
            self._refused_at[path] = now
            if self._locked_s[path] < LOCKED_FOR_S:
                raise
            self._folder.list("")  # a server that answers nothing else either has another trouble than a lock
            self._forget(path)
            reason = _reason(path)
            self._left_alone[path] = now + LEFT_ALONE_S, reason
            raise LeftAloneError(reason) from None
        except (TransientError, ActionRequiredError):
            self._refused_at.pop(path, None)
            raise
        except DropfedError:
            self._forget(path)
            raise
        self._forget(path)
        self._left_alone.pop(path, None)

    def _forget(self, path: str) -> None:
        self._locked_s.pop(path, None)
        self._refused_at.pop(path, None)


def _reason(path: str) -> str:
    until = moment_text(datetime.now().timestamp() + LEFT_ALONE_S)
    return (
        f"{path} stays locked on its server though nobody uses it; it is left alone until {until}, when "
        "that lock should be gone; whoever runs the server can remove it at once, and then this daemon is to be "
        "started anew"
    )
