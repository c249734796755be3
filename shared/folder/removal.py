"""Removing a directory that somebody else's program has filled."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def remove_tree(root: Path) -> None:
    """Remove a directory with all that is in it, however deep that is and whatever its rights are; no link is followed.

    What cannot be removed stays. Nothing may write into it any more.
    """
    with suppress(OSError):
        root.chmod(0o700)
        # What lies in a directory is moved up before that is removed, so that no path grows, and nothing recurses.
        while found := list(os.scandir(root)):
            for entry in found:
                if not entry.is_dir(follow_symlinks=False):
                    Path(entry).unlink()
                    continue
                Path(entry).chmod(0o700)
                for inner in list(os.scandir(entry)):
                    if inner.is_dir(follow_symlinks=False):
                        Path(inner).chmod(0o700)  # a directory that moves is written to
                    Path(inner).rename(root / secrets.token_hex(16))
                Path(entry).rmdir()
        root.rmdir()
