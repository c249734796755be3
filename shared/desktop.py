"""What the desktops of macOS and Windows, and Synology's storage, leave in folders that somebody looked into."""

from __future__ import annotations

from pathlib import Path

_NAMES = {".ds_store", "thumbs.db", "desktop.ini"}
_FOLDERS = {"@eadir"}


def is_left_by_desktop(path: Path) -> bool:
    """Return whether a file, or a folder, is called as a desktop calls its own."""
    name = path.name.lower()
    return (name in _NAMES and path.is_file()) or (name in _FOLDERS and path.is_dir())
