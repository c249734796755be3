"""A folder that is looked into by its listings: nothing is asked for by its name that no listing has shown.

On ownCloud each GET of a file that does not exist locks that very name for as long as it runs; and if the server ends
meanwhile, the lock stays, and everything that asks for the name keeps it alive. The listing of a folder locks nothing.

A **look** is what a daemon learns of the folder in one go: each directory is listed once in it, when it is first asked
for. Where the tag of the whole folder changes with every change below it, a look at an unchanged folder is one request,
and its directories are listed anew only now and then, for federated shares and external storage tell of changes late or
never.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from shared.errors import NotFoundError
from shared.folder.around import FolderAround
from shared.folder.capabilities import Capabilities
from shared.folder.contract import Entry, Folder, unfinished_names
from shared.folder.durable import write_file
from shared.folder.forbearing import LOCKED_FOR_S

logger = logging.getLogger(__name__)

LISTED_EVERY_S = 600.0  # whatever the tag says
HAS_TAG = "folder-has-tag"
"""Name of the file beside a mirror that is there if the folder's tag was seen to change with every change below it."""


def note_tag(home: Path, found: Capabilities) -> None:
    """Note beside a mirror whether the tag of its folder tells of every change, for the daemon's next start."""
    if found.etags_propagate:
        write_file(home / HAS_TAG, b"")
    else:
        (home / HAS_TAG).unlink(missing_ok=True)


class ListedFolder(FolderAround):
    """A folder as one look after the other shows it. What is written through it shows from the next look on.

    Args:
        has_tag: the folder's tag is known to change with every change below it.
    """

    def __init__(self, folder: Folder, *, has_tag: bool = False) -> None:
        super().__init__(folder)
        self._has_tag = has_tag
        self._tag: str | None = None
        self._began_at = -math.inf
        self._listings: dict[str, tuple[Entry, ...] | None] = {}
        self._former: dict[str, tuple[Entry, ...] | None] = {}
        """Listings from before, which must still hold if the tag is to be believed."""
        self._seen: set[str] = set()  # directories that were there
        self._missing: set[str] = set()  # and those that were not
        self._unfinished_since: dict[str, float] = {}

    def look_anew(self, *, whatever_the_tag_says: bool = False) -> None:
        """Begin a look: what was listed before counts no more, unless the folder is known not to have changed."""
        tag, now = self._folder.tag() if self._has_tag else None, time.monotonic()
        is_unchanged = tag is not None and tag == self._tag
        if is_unchanged and not whatever_the_tag_says and now - self._began_at < LISTED_EVERY_S:
            return
        self._forget_all_but_the_last_look()
        self._former = self._listings if is_unchanged else {}
        self._tag, self._began_at, self._listings = tag, now, {}

    def _forget_all_but_the_last_look(self) -> None:
        """Keep no memory of what is not asked for any more: there is no end of names that a folder can show."""
        asked_for = self._listings.keys()
        self._seen &= asked_for
        self._missing &= asked_for
        for path in [path for path in self._unfinished_since if path.rpartition("/")[0] not in asked_for]:
            del self._unfinished_since[path]

    def held_up(self) -> str | None:
        """Return which file that was asked for lacks its name alone, and for so long that its writer cannot give it."""
        now = time.monotonic()
        return next((path for path, since in self._unfinished_since.items() if now - since >= LOCKED_FOR_S), None)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self._require_listed(path)
        return super().read(path, max_bytes=max_bytes)

    def download(self, path: str, target: Path, *, size: int) -> str:
        self._require_listed(path)
        return super().download(path, target, size=size)

    def list(self, path: str) -> list[Entry]:
        if (listing := self._listing(path)) is None:
            raise NotFoundError(f"{path} is not there.")
        return [*listing]

    def entries_now(self, path: str) -> Sequence[Entry]:
        self._listings[path] = found = self._ask_for(path)
        return found or ()

    def _require_listed(self, path: str) -> None:
        entry = self.find(path)
        is_there = entry is not None and not entry.is_folder  # servers answer a question for a folder in many ways
        if is_there or not any(map(self.find, unfinished_names(path))):
            self._unfinished_since.pop(path, None)
        else:
            self._unfinished_since.setdefault(path, time.monotonic())
        if not is_there:
            raise NotFoundError(f"{path} is not there.")

    def _listing(self, path: str) -> tuple[Entry, ...] | None:
        if path not in self._listings:
            # What was not there may be one of several that are awaited in one directory, whose listing shows them all.
            found = None if path in self._missing and self.find(path) is None else self._ask_for(path)
            self._listings[path] = found
            if self._former.pop(path, found) != found and self._folder.tag() == self._tag:
                logger.info("this folder's ETag does not tell of every change; its directories are listed at each look")
                self._has_tag, self._former = False, {}
        return self._listings[path]

    def _ask_for(self, path: str) -> tuple[Entry, ...] | None:
        try:
            found = tuple(super().list(path))
        except NotFoundError:
            if path in self._seen:  # nobody removes one: is the whole folder gone?
                self._folder.check()
                self._seen.clear()
            self._missing.add(path)
            return None
        self._missing.discard(path)
        self._seen.add(path)
        return found
