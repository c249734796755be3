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
    if root.is_symlink():
        return
    with suppress(OSError):
        root.chmod(0o700)
        while sum(_goes_on(entry, root) for entry in list(os.scandir(root))):
            pass
        root.rmdir()


def _goes_on(entry: os.DirEntry[str], root: Path) -> bool:
    """Remove a file or an empty directory; of a directory, move up what lies in it, so that no path grows and nothing
    recurses. Return whether anything was done.
    """
    done = False
    with suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            Path(entry).unlink()
            return True
        Path(entry).chmod(0o700)
        for inner in list(os.scandir(entry)):
            with suppress(OSError):
                if inner.is_dir(follow_symlinks=False):
                    Path(inner).chmod(0o700)  # a directory that moves is written to
                Path(inner).rename(root / secrets.token_hex(16))
                done = True
        Path(entry).rmdir()
        done = True
    return done
