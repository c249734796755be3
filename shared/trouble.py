"""What stands in a daemon's way, told to its log: each sentence once, and once that it is over.

What no code expected is told with its traceback, and is no end of anything: the site, the file or the step that it came
with is in trouble, or at fault, and all else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from traceback import extract_tb

from shared.errors import (
    PLEASE_REPORT,
    ActionRequiredError,
    DropfedError,
    FaultError,
    PluginError,
    RejectedError,
    TransientError,
)
from shared.escaping import escape
from shared.folder.durable import disk_trouble

LONGEST_BACKOFF_S = 300.0
_HOME = Path(__file__).parents[1]
_ROOMS = ("aggregator", "shared", "site_client", "studies")
_SHOWN = 200  # characters of what a library says

logger = logging.getLogger(__name__)


class Trouble:
    """The trouble of one thing, such as one folder.

    Args:
        name: what people call it.
        over: how the log says that it is over.
    """

    def __init__(self, logger: logging.Logger, name: str, over: str) -> None:
        self._logger = logger
        self._name = name
        self._over = over
        self._present: str | None = None
        self._logged: set[str] = set()  # since it began
        self._unforeseen = 0  # times, since it began, that code did what it must not

    def begins(self, error: DropfedError) -> bool:
        """Note an error; return whether it is another than the present one."""
        # Passing failures are one trouble whatever their words, and locks another; all else needs its own remedy.
        kind = type(error).__name__ if isinstance(error, TransientError) else str(error)
        self._unforeseen += isinstance(error, UnexpectedError | PluginError)
        if kind not in self._logged:
            self._logged.add(kind)
            level = logging.WARNING if isinstance(error, TransientError) else logging.ERROR
            cause = error.__cause__ if isinstance(error, UnexpectedError) else None
            text = str(error).rstrip(".")
            # What was signed stays. Its subclasses pass: a doubt once it is put right, another protocol with an update.
            then = "" if type(error) is RejectedError else " Trying again until it works."
            self._logger.log(level, "%s: %s.%s", self._name, text, then, exc_info=cause)
        is_new, self._present = kind != self._present, kind
        return is_new

    def backoff_s(self, usual_s: float) -> float:
        """Return how long to wait before the next try: the more often code did what nobody expected, the longer."""
        return max(usual_s, min(usual_s * 2.0 ** min(self._unforeseen, 30), LONGEST_BACKOFF_S))

    def ends(self) -> bool:
        """Note that all is well; return whether there was trouble."""
        if self._present is None:
            return False
        self._present = None
        self._logged.clear()
        self._unforeseen = 0
        self._logger.info("%s: %s", self._name, self._over)
        return True


class UnexpectedError(ActionRequiredError):
    """What no code expected: a mistake in dropfed, in a file that somebody added to it, or in a library."""

    def __init__(self, cause: Exception) -> None:
        what = f"{_named(cause)}{_place(cause)}"
        super().__init__(f"an error that nobody expected, {what}; {PLEASE_REPORT}")
        self.__cause__ = cause


@contextmanager
def tolerate_unwritable(path: Path) -> Iterator[None]:
    """Go on where a file cannot be written that nothing but people's knowledge hangs on; the log says so once."""
    try:
        yield
    except OSError as error:
        _log_unwritten(str(disk_trouble(error, path)))


@lru_cache(maxsize=1000)
def _log_unwritten(trouble: str) -> None:
    logger.error("%s The work goes on without what would be noted there.", trouble)


@contextmanager
def held_against(path: str) -> Iterator[None]:
    """Hold what is raised while something of another's is looked at against that, and log it with its traceback.

    Args:
        path: of what is looked at, in its folder.

    Raises:
        RejectedError: something was raised that no code expected.
    """
    try:
        yield
    except Exception as error:
        is_told = isinstance(error, DropfedError | OSError | MemoryError)
        if is_told and not isinstance(error, FaultError):
            raise
        what = f"could not be looked at: {_named(error)}"
        _log(path, what)
        raise RejectedError(path, what) from error


@lru_cache(maxsize=1000)
def _log(path: str, what: str) -> None:
    """Log what was just raised: once, for the same is looked at again and again."""
    logger.exception("%s: %s", escape(path), what)


def _place(error: Exception) -> str:
    """Return the file and line of a daemon's own in which an error came about; empty if in none."""
    for frame in reversed(extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if any(file.is_relative_to(_HOME / room) for room in _ROOMS):
            return f" in {file.relative_to(_HOME).as_posix()}, line {frame.lineno}"
    return ""


def _named(error: Exception) -> str:
    what = error.what if isinstance(error, FaultError) else error
    return escape(f"{type(error).__name__} ({what})")[:_SHOWN]
