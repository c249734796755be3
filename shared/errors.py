"""Every error a person or a daemon must act upon.

Each message is one sentence (or a list of them): what is wrong, where, what to do. The three kinds of
failure that the daemons tell apart are types: ``TransientError`` goes away by waiting, ``ActionRequiredError``
needs a person, ``RejectedError`` is input that is refused for good.

Messages quote what others wrote: names of files, answers of servers, reasons. Whatever is quoted, a message is made
harmless where it comes into being (``shared.escaping``), so that it is one line wherever it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.escaping import escape

PLEASE_REPORT = "please report it, with the lines of the log once names and paths are taken out of them"
"""What people are asked to do about a mistake in dropfed; a log tells of files at a hospital."""


class DropfedError(Exception):
    """Base of all errors whose text is meant for a person.

    Args:
        message: one sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(escape(message))


class _ManyProblemsError(DropfedError):
    """Several sentences at once.

    Args:
        problems: every problem found, each naming the file and the remedy.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(escape, problems))
        Exception.__init__(self, "\n".join(self.problems))


class ConfigurationError(_ManyProblemsError):
    """A configuration that cannot be used; each problem names file, key and remedy."""


class DataError(_ManyProblemsError):
    """A site's data cannot be used."""


@contextmanager
def all_told() -> Iterator[list[str]]:
    """Yield a list for what is wrong with data; what is in it at the end is raised, as one DataError."""
    problems: list[str] = []
    yield problems
    if problems:
        raise DataError(problems)


@contextmanager
def added_to(problems: list[str], where: str = "") -> Iterator[None]:
    """Add what is wrong with data meanwhile to these problems, with ``where`` before each, and go on."""
    try:
        yield
    except DataError as error:
        problems += [f"{where}{problem}" for problem in error.problems]


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """Have each problem of data name what it is of."""
    try:
        yield
    except DataError as error:
        raise DataError([f"{name}: {problem}" for problem in error.problems]) from None


class TransientError(DropfedError):
    """A failure that waiting cures: refused, reset, timed out, 423, 429, 5xx except 507.

    Args:
        retry_after_s: what the server asked to wait for, in seconds, or None.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LockedError(TransientError):
    """Another request holds the file, usually for a moment: 423, or ownCloud's 500 to a MOVE."""


class ProcessingError(TransientError):
    """The server still works on what was just written, as Infinite Scale does: 425, or in older versions a 503."""


class ActionRequiredError(DropfedError):
    """A failure that a person must cure: 401, 403, no such folder, 507, bad certificate, not WebDAV."""


class PluginError(ActionRequiredError):
    """The code of a plug-in raises, hangs, is too large, or makes what it must not; only who wrote it can cure that."""


class FaultError(PluginError):
    """What a function of others gave, and must not: told with its file and line.

    Args:
        hook: that function; None where nobody knows which did.
        what: it did, as in "gave None, not a number".
    """

    def __init__(self, hook: Callable[..., object] | None, what: str) -> None:
        code = getattr(hook, "__code__", None)
        self.what = f"{getattr(hook, '__name__', 'it')}() {what}" if hook else what
        self.place = (code.co_filename, code.co_firstlineno) if code else None
        where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        super().__init__(f"{self.what}{where}; ask who wrote it")


class LeftAloneError(ActionRequiredError):
    """A name that stays locked though nobody uses it, and is not written until its lock must be gone."""


class NotFoundError(DropfedError):
    """The named file or folder is not there. Often simply: not yet."""


class AlreadyExistsError(DropfedError):
    """A write-once name holds other bytes already."""


class RejectedError(DropfedError):
    """Input that is refused for good: wrong hash, signature, chain, shape, or a value that is not finite.

    Args:
        file: path inside the folder of what is refused.
        reason: what is wrong with it.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = escape(file)
        self.reason = escape(reason)


class DoubtfulError(RejectedError):
    """Input that does not hold, and may be the doing of anybody who can write in the folder, not of its sender.

    It is not taken, nor held against the sender: a daemon looks again until it is put right.
    """

    remedy = "it is not taken, nor held against anybody; see who else can write in the folder, and put it right there"


class ProtocolError(DoubtfulError):
    """A record of another protocol than the folder's, or than this software speaks."""


class Stopped(DropfedError):  # noqa: N818  (nothing is wrong, so it is not called an error)
    """The daemon was asked to stop while it waited or worked; nothing is wrong."""
