"""What the stand-in for ownCloud raises in place of an answer of success."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818  (an answer, not a fault of ours)
    """Any answer but success: the status, the exception that sabre/dav names in it, and its message."""

    def __init__(self, status: int, exception: str, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.exception = exception
        self.message = message
