"""What the desktops of macOS and Windows leave in folders that somebody looked into."""

from __future__ import annotations

from pathlib import Path

_NAMES = {".ds_store", "thumbs.db", "desktop.ini"}


def is_left_by_desktop(path: Path) -> bool:
    """Return whether a file is called as a desktop calls its own."""
    return path.name.lower() in _NAMES and path.is_file()
