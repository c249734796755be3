"""A folder as one end sees it while a step is played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import NotFoundError, RejectedError, Stopped, TransientError
from shared.exchange.names import MANIFEST
from shared.folder.contract import Entry
from shared.folder.local import LocalFolder


class Cut(Stopped):
    """The connection ends here."""


class Line(LocalFolder):
    """A folder of which some files are not seen yet, or come torn, and which a connection can be cut to.

    Args:
        never_seen: files that are hidden for ever.
    """

    def __init__(self, root: Path, never_seen: frozenset[str] = frozenset()) -> None:
        super().__init__(root)
        self._never_seen = never_seen
        self._hidden: frozenset[str] = frozenset()
        self._torn: frozenset[str] = frozenset()
        self._manifests_left: int | None = None
        self._has_passed = False
        self._is_down = False

    def list(self, path: str) -> list[Entry]:
        self._require_up()
        return super().list(path)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self._require_up()
        if path in self._hidden | self._never_seen:
            raise NotFoundError(f"{path} is not seen.")
        return super().read(path, max_bytes=max_bytes)

    def _require_up(self) -> None:
        if self._is_down:
            raise TransientError("the folder does not answer.")

    def download(self, path: str, target: Path, *, size: int) -> str:
        if path in self._torn:
            raise RejectedError(path, f"has {size - 1} bytes instead of {size}")
        return super().download(path, target, size=size)

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        if self._manifests_left == 0 and self._has_passed:
            raise Cut("the connection ended after a message")
        super().upload(path, source, sha256=sha256)

    def create(self, path: str, content: bytes) -> None:
        if path.endswith(f"/{MANIFEST}") and self._manifests_left is not None:
            if self._manifests_left == 0:
                raise Cut("the connection ended before a manifest")
            self._manifests_left -= 1
            self._has_passed = True
        super().create(path, content)

    @contextmanager
    def lets_through(self, manifests: int) -> Iterator[None]:
        """Cut the connection before the manifest after so many; with some, before anything else of its message."""
        self._manifests_left, self._has_passed = manifests, False
        try:
            with suppress(Cut):
                yield
        finally:
            self._manifests_left = None

    @contextmanager
    def showing(self, *, hidden: frozenset[str] = frozenset(), torn: frozenset[str] = frozenset()) -> Iterator[None]:
        """Hide and tear some files for a while."""
        self._hidden, self._torn = hidden, torn
        try:
            yield
        finally:
            self._hidden = self._torn = frozenset()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Answer nothing for a while."""
        self._is_down = True
        try:
            yield
        finally:
            self._is_down = False
