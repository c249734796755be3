"""Every error a person or a daemon must act upon.

Each message is one sentence (or a list of them): what is wrong, where, what to do. The three kinds of
failure that the daemons tell apart are types: ``PassingError`` goes away by waiting, ``StandingError``
needs a person, ``PoisonError`` is input that is refused for good.
"""

from __future__ import annotations

from collections.abc import Sequence


class DropfedError(Exception):
    """Base of all errors whose text is meant for a person."""


class ConfigurationError(DropfedError):
    """A configuration that cannot be used.

    Args:
        problems: every problem found, each naming file, key and remedy.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class DataError(DropfedError):
    """A site's data cannot be used.

    Args:
        problems: every problem found, each naming the file and the remedy.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PassingError(DropfedError):
    """A failure that waiting cures: refused, reset, timed out, 423, 429, 5xx except 507.

    Args:
        retry_after_s: what the server asked to wait for, in seconds, or None.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StandingError(DropfedError):
    """A failure that a person must cure: 401, 403, no such folder, 507, bad certificate, not WebDAV."""


class NotFoundError(DropfedError):
    """The named file or folder is not there. Often simply: not yet."""


class AlreadyExistsError(DropfedError):
    """A write-once name holds other bytes already."""


class PoisonError(DropfedError):
    """Input that is refused for good: wrong hash, signature, chain, shape, or a value that is not finite.

    Args:
        file: path inside the folder of what is refused.
        reason: what is wrong with it.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class ProtocolError(PoisonError):
    """A record of another protocol than the folder's, or than this software speaks."""


class Stopped(DropfedError):  # noqa: N818  (nothing is wrong, so it is not called an error)
    """The daemon was asked to stop while it waited or worked; nothing is wrong."""
