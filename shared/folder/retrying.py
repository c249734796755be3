"""The one place where anything is tried again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from threading import Event

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, stop_never
from tenacity import wait_random_exponential as full_jitter

from shared import service
from shared.errors import (
    ActionRequiredError,
    DropfedError,
    LockedError,
    NotFoundError,
    ProcessingError,
    Stopped,
    TransientError,
)
from shared.folder.around import FolderAround, Result
from shared.folder.contract import Entry, Folder
from shared.trouble import Trouble

logger = logging.getLogger(__name__)

LONGEST_RETRY_AFTER_S = 3600.0  # a server that asks for more is asked again after this
HELD_TOLD_AT_ATTEMPT = 4  # a file that is free before that, some seconds later, is nobody's trouble
ROOT_SEEN_EVERY_S = 300.0  # "not there" is not believed for longer than this of a folder that was not seen itself


def ignore(_trouble: DropfedError | None) -> None:
    """Take no notice."""


class RetryingFolder(FolderAround):
    """A folder that retries temporary failures and those that need a person; all other errors pass through at once.

    Of a folder that is gone every file is "not there", as if it were only to come. So now and then that answer is
    followed by a look at the folder itself.

    Args:
        folder: does the work.
        name: what people call it, for the log.
        stop: when set, waiting ends with ``Stopped``. A call that needs no waiting is still made.
        on_trouble: told the error when trouble begins or becomes another, and None when it is over; of a lock (423),
            or a file still being processed (425), only of one that lasts.
        give_up_after_s: raise the last error when the next attempt would come later; None = never, 0 = at once.
        first_wait_s: upper bound of the first wait after a temporary failure; it doubles from wait to wait.
        longest_wait_s: where the doubling ends. Each wait is random between 0 and its bound (full jitter).
        action_required_wait_s: wait after a failure that needs a person.

    Raises:
        Stopped: from every method, in addition to what ``Folder`` says.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        name: str,
        stop: Event,
        on_trouble: Callable[[DropfedError | None], None] = ignore,
        give_up_after_s: float | None = None,
        first_wait_s: float = 1.0,
        longest_wait_s: float = 60.0,
        action_required_wait_s: float = 60.0,
    ) -> None:
        super().__init__(folder)
        self._name = name
        self._stop = stop
        self._on_trouble = on_trouble
        self._action_required_wait_s = action_required_wait_s
        self._jitter = full_jitter(multiplier=first_wait_s, max=longest_wait_s)
        self._trouble = Trouble(logger, name, "the folder can be used again.")
        self._root_seen_at = -math.inf
        self._retrying = Retrying(
            retry=retry_if_exception_type((TransientError, ActionRequiredError)),
            wait=self._wait_s,
            stop=stop_never if give_up_after_s is None else stop_before_delay(give_up_after_s),
            before_sleep=self._say_trouble,
            sleep=self._sleep,
            reraise=True,
        )

    def __repr__(self) -> str:
        return f"RetryingFolder({self._folder!r})"

    def list(self, path: str) -> list[Entry]:
        found = super().list(path)
        if not path:
            self._root_seen_at = time.monotonic()
        return found

    def _call(self, work: Callable[[], Result]) -> Result:
        try:
            result = self._retrying(work)
        except (TransientError, ActionRequiredError, Stopped):
            raise
        except NotFoundError:
            self._look_at_root()
            self._say_over()
            raise
        except DropfedError:  # an answer all the same: the folder can be reached
            self._say_over()
            raise
        self._say_over()
        return result

    def _look_at_root(self) -> None:
        if time.monotonic() - self._root_seen_at >= ROOT_SEEN_EVERY_S:
            self._retrying(self._folder.check)
            self._root_seen_at = time.monotonic()

    def _wait_s(self, attempt: RetryCallState) -> float:
        error = _error_of(attempt)
        if isinstance(error, ActionRequiredError):
            return self._action_required_wait_s
        asked_s = error.retry_after_s if isinstance(error, TransientError) else None
        return max(self._jitter(attempt), min(asked_s or 0.0, LONGEST_RETRY_AFTER_S))

    def _sleep(self, seconds: float) -> None:
        if service.wait(self._stop, seconds):
            raise Stopped(f"{self._name}: asked to stop while waiting for the folder.")

    def _say_trouble(self, attempt: RetryCallState) -> None:
        error = _error_of(attempt)
        if isinstance(error, LockedError | ProcessingError) and attempt.attempt_number < HELD_TOLD_AT_ATTEMPT:
            return  # who reads a file while it is replaced is often locked out, and seldom for long
        if self._trouble.begins(error):
            self._on_trouble(error)

    def _say_over(self) -> None:
        if self._trouble.ends():
            self._on_trouble(None)


def _error_of(attempt: RetryCallState) -> DropfedError:
    """Return the error of an attempt that tenacity means to repeat."""
    error = attempt.outcome.exception() if attempt.outcome is not None else None
    if not isinstance(error, DropfedError):
        raise TypeError(f"only failures of the folder are repeated, not {error!r}")
    return error
