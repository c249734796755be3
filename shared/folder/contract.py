"""What every drop folder promises, whatever server lies behind it.

Paths are relative, '/'-separated, without a leading slash; ``check_path`` refuses anything else.
Every method may raise ``TransientError`` or ``ActionRequiredError``; every method may be called again after
either, and calling one twice has the effect of calling it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import NotFoundError

MAX_ENTRIES = 10_000  # a longer listing is refused
SMALL_BYTES = 1 << 20  # what is not larger is sent without ado
UNFINISHED = ".new"  # ends the names under which a small file is written, before it is moved to its own


@dataclass(frozen=True)
class Entry:
    """One name in a folder listing.

    Attributes:
        size: in bytes, None for a folder and for what is no plain file.
        mark: what the server changes with most changes of a file, an ETag or a date; None where it tells neither. The
            same mark is no proof of the same content.
    """

    name: str
    is_folder: bool
    size: int | None
    mark: str | None = field(default=None, compare=False)


class Folder(ABC):
    """One site's drop folder."""

    @abstractmethod
    def read(self, path: str, *, max_bytes: int) -> bytes:
        """Return a small file whole.

        Raises:
            NotFoundError: there is no such file.
            RejectedError: it is larger than ``max_bytes``.
        """

    @abstractmethod
    def download(self, path: str, target: Path, *, size: int) -> str:
        """Stream a file of exactly ``size`` bytes to ``target`` and return its SHA-256 (hex).

        ``target`` appears (or is replaced) only when all bytes have arrived. They need not be on the disk yet: whoever
        relies on them after a power cut waits for that (``sync_file``). What came before a cut may stay beside it, for
        the next call to go on from.

        Raises:
            NotFoundError: there is no such file.
            RejectedError: the complete file has another size.
        """

    @abstractmethod
    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        """Stream ``source`` to its final name, making parent folders; a torn file is simply sent again.

        Args:
            sha256: of ``source``, where it is known: content that is on the server already need not be sent again.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; one that is not there counts as removed."""

    @abstractmethod
    def room(self) -> int | None:
        """Return how many bytes may still be put into the folder; None without a limit, or if none is reported."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> None:
        """Write a small file all-or-nothing under a name never used before, making parent folders.

        The same bytes already there count as done.

        Raises:
            AlreadyExistsError: other bytes are there.
        """

    @abstractmethod
    def overwrite(self, path: str, content: bytes) -> None:
        """Replace a small file all-or-nothing. For ``status.json`` alone."""

    @abstractmethod
    def list(self, path: str) -> list[Entry]:
        """Return the folder's entries sorted by name; ``""`` is the root.

        Raises:
            NotFoundError: there is no such folder.
            RejectedError: more than ``MAX_ENTRIES`` entries.
        """

    def read_or_none(self, path: str, *, max_bytes: int) -> bytes | None:
        """Return the content as ``read`` does, or None if there is no such file."""
        try:
            return self.read(path, max_bytes=max_bytes)
        except NotFoundError:
            return None

    def entries(self, path: str) -> Sequence[Entry]:
        """Return the entries as ``list`` does, or none if there is no such folder."""
        try:
            return self.list(path)
        except NotFoundError:
            return []

    def entries_now(self, path: str) -> Sequence[Entry]:
        """Return the entries as they are now, not as an earlier listing has them; none if there is no such folder."""
        return self.entries(path)

    def find(self, path: str) -> Entry | None:
        """Return what the folder above lists under the name of ``path``; None if it is not there."""
        parent, _, name = path.rpartition("/")
        return next((entry for entry in self.entries(parent) if entry.name == name), None)

    def tag(self) -> str | None:
        """Return what the server changes with every change in or below the folder; None where it has no such tag.

        Whether it does so with every change, ``Capabilities.etags_propagate`` tells.
        """
        return None

    @abstractmethod
    def interrupt(self) -> None:
        """Have what another thread waits for on the network end at once, with ``TransientError``."""

    @abstractmethod
    def check(self) -> None:
        """Prove that the folder can be reached and is a folder.

        Raises:
            ActionRequiredError: wrong password, no such folder, not a WebDAV server, …, with the remedy.
        """


def unfinished_names(path: str) -> list[str]:
    """Return the names under which a small file may be written, in order: the next if the server locked one."""
    return [path + UNFINISHED * times for times in (1, 2, 3)]


def finished_name(path: str) -> str:
    """Return the name that an unfinished file is to get, and any other file's own."""
    while path.endswith(UNFINISHED):
        path = path.removesuffix(UNFINISHED)
    return path


def check_path(path: str) -> str:
    """Return ``path`` unchanged if it stays inside the folder and every server understands it.

    Raises:
        ValueError: empty segment, '.', '..', a backslash or a control character; '?' or ';', which wsgidav cuts off
            a MOVE's Destination together with what follows.
    """
    for segment in path.split("/"):
        if segment in ("", ".", "..") or any(char in "\\?;" or ord(char) < 32 or ord(char) == 127 for char in segment):
            raise ValueError(f"{path!r} is not a path inside the folder")
    return path
