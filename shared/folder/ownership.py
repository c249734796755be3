"""What root makes belongs to the owner of the folder around it: a daemon may work there as that user.

A command that root types in a work directory of a service's user writes as that user would. The owner is asked of the
very folder in which something is made, by its descriptor, for that user may put another one under its name meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG


def create_file(path: Path, flags: int, mode: int) -> int:
    """Open a file, as ``os.open`` does, that ``flags`` may create; return its descriptor."""
    with _opened(path.parent) as folder:
        if folder is None:
            return os.open(path, flags, mode)
        try:
            descriptor = os.open(path.name, flags | os.O_NOFOLLOW, mode, dir_fd=folder)
        except OSError as error:
            error.filename = str(path)
            raise
        _give(descriptor, folder)
        return descriptor


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, unless they are there.

    Args:
        mode: of the folder itself, less what the umask takes.
    """
    if path.is_dir():
        return
    if path.parent != path:  # of a drive that is gone there is nothing above
        make_folder(path.parent)
    with _opened(path.parent) as folder:
        if folder is None:
            path.mkdir(mode, exist_ok=True)
            return
        try:
            os.mkdir(path.name, mode, dir_fd=folder)
        except FileExistsError:
            return
        made = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            _give(made, folder)
        finally:
            os.close(made)


def give_file(path: Path) -> None:
    """Give a file that was opened otherwise, and that root may just have made; a link is left alone."""
    with _opened(path.parent) as folder, suppress(OSError):
        if folder is not None:
            descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                _give(descriptor, folder)
            finally:
                os.close(descriptor)


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Yield the descriptor of a folder; None where nothing is given away: in root's own, by others, and on Windows."""
    if sys.platform == "win32" or os.geteuid():
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor if os.fstat(descriptor).st_uid else None
    finally:
        os.close(descriptor)


def _give(descriptor: int, folder: int) -> None:
    """Give a file or a folder of root's to the owner of the folder around it."""
    made, owner = os.fstat(descriptor), os.fstat(folder)
    is_elsewhere_too = S_ISREG(made.st_mode) and made.st_nlink > 1  # by that user's doing, perhaps
    if made.st_uid == 0 and not is_elsewhere_too:
        with suppress(OSError):  # a disk of another machine, or one that knows no owners
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
