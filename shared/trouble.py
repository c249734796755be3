"""What stands in a daemon's way, told to its log: each sentence once, and once that it is over."""

from __future__ import annotations

import logging

from shared.errors import DropfedError, PassingError


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
        self._told: set[str] = set()  # since it began

    def begins(self, error: DropfedError) -> bool:
        """Note an error; return whether it is another than the present one."""
        # Passing failures are one trouble whatever their words; every other needs its own remedy.
        kind = "passing" if isinstance(error, PassingError) else str(error)
        if kind not in self._told:
            self._told.add(kind)
            level = logging.WARNING if isinstance(error, PassingError) else logging.ERROR
            self._logger.log(level, "%s: %s. Trying again until it works.", self._name, str(error).rstrip("."))
        is_new, self._present = kind != self._present, kind
        return is_new

    def ends(self) -> bool:
        """Note that all is well; return whether there was trouble."""
        if self._present is None:
            return False
        self._present = None
        self._told.clear()
        self._logger.info("%s: %s", self._name, self._over)
        return True
