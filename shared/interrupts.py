"""Ctrl-C while a program is still imported is no traceback: the ``cli.py`` of each imports this before all else."""

from __future__ import annotations

import sys
from types import TracebackType

STOPPED = "stopped by Ctrl-C; where this command had begun something, the same command goes on with it"


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write what ended this process; after Ctrl-C the interpreter ends it as that signal does."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write(f"\n{STOPPED}\n")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell
