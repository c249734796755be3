"""Text from elsewhere, shown so that it can neither forge a line nor move the cursor, nor fall apart in a command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

_FORMULA = re.compile(r"(^\s*|;[\s\"]*)(?=[=+\-@])")
"""Where a spreadsheet takes what follows for a formula; in many countries a semicolon begins a cell."""


def escape(text: str) -> str:
    """Return the text on one line; what would break it, or cannot be seen, as an escape, as in ``\\n``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def uncomputed(text: str) -> str:
    """Return a text of somebody else's for a table, so that no spreadsheet computes it."""
    return _FORMULA.sub(r"\1'", escape(text))


def quoted(path: str | Path) -> str:
    """Return a path as people type it in a command: quoted where a shell would not take it for one word, and such that
    no command takes it for an option.
    """
    typed = f"./{path}" if str(path).startswith("-") else str(path)
    return subprocess.list2cmdline([typed]) if sys.platform == "win32" else shlex.quote(typed)
