"""What lies in a drop folder, by name: each file where the protocol has one, and all that has no place there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from shared.audit import protocol_1
from shared.audit.archive import MirroredFolder
from shared.errors import ActionRequiredError, NotFoundError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.names import MessageRef, ref_at
from shared.folder.capabilities import BELOW, FILES, TEXTS
from shared.folder.contract import Entry, Folder
from shared.folder.local import LocalFolder
from shared.folder.round_trip import LARGE, large_text
from shared.trouble import held_against


@contextmanager
def blamed(folder: Folder, path: str) -> Iterator[None]:
    """Take what hinders the reading of one thing as that thing's fault, as long as its folder can be reached.

    What no code expected is its fault, too.

    Raises:
        RejectedError: it cannot be read.
        TransientError, ActionRequiredError: nothing can.
    """
    try:
        with held_against(path or "."):
            yield
    except (TransientError, ActionRequiredError) as error:
        folder.check()
        raise RejectedError(path or ".", f"cannot be read: {_words_of(error, folder)}") from None


def _words_of(error: TransientError | ActionRequiredError, folder: Folder) -> str:
    """Return what was wrong; of a copied folder without a daemon's advice, as rights of evidence must not change."""
    system = error.__cause__
    words = system.strerror if isinstance(folder, LocalFolder) and isinstance(system, OSError) else None
    return words or str(error)


class Listing:
    """All that lies in a folder, walked once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.odd: dict[str, str] = {}
        """What is wrong with everything that is no file of the protocol's, and with folders that cannot be listed."""
        self.sizes: dict[str, int] = {}
        """Of every file, by path."""
        self.by_ref: dict[MessageRef, set[str]] = defaultdict(set)
        """The names of the files at each place, signed or not; none where only the folder was made."""
        self.strangers: set[str] = set()
        """Files where the protocol has none, some of which may be unfinished."""
        self.scratch: list[str] = []
        """Scratch folders, by the names of either protocol."""
        self._walk("")

    def _walk(self, path: str) -> None:
        entries = self._entries(path)
        if entries == [] and (due := _due_in(path)) and not isinstance(self._folder, MirroredFolder):
            self.by_ref[due] = set()  # in the aggregator's copy it is where an answer lay that was refused
        for entry in entries or ():
            inside = f"{path}/{entry.name}" if path else entry.name
            if entry.is_folder:
                self._enter(inside)
            elif entry.size is None:
                self.odd[inside] = "is no plain file, but a link, a pipe or the like"
            else:
                self.sizes[inside] = entry.size
                ref = ref_at(path)
                if ref is not None:
                    self.by_ref[ref].add(entry.name)
                elif inside not in names.ROOT_FILES and not names.is_lasting_record(inside):
                    self.strangers.add(inside)

    def _enter(self, path: str) -> None:
        if names.is_scratch(path) or protocol_1.is_scratch(path):
            self.scratch.append(path)
            self._check_scratch(path)
        elif _may_hold_files(path):
            self._walk(path)
        else:
            self.odd[path] = "is a folder that does not belong here"

    def _check_scratch(self, path: str) -> None:
        """Check that nothing hides in a scratch folder: each file holds a known text, or the beginning of one
        (protocol 1.3).
        """
        for entry in self._entries(path) or ():
            inside = f"{path}/{entry.name}"
            if entry.is_folder and path in self.scratch and entry.name == BELOW:
                self._check_scratch(inside)
            elif entry.size is None or entry.name not in (*FILES, LARGE) or not self._is_known_text(inside, entry.name):
                self.odd[inside] = "is not what a `check` writes into its scratch folder"

    def _entries(self, path: str) -> list[Entry] | None:
        """Return what lies in one folder; None if it cannot be listed, or has just gone as a check's does."""
        try:
            with blamed(self._folder, path):
                return self._folder.list(path)
        except RejectedError as error:
            self.odd[error.file] = error.reason
        except NotFoundError:
            pass
        return None

    def _is_known_text(self, path: str, name: str) -> bool:
        texts = (large_text(),) if name == LARGE else TEXTS
        try:
            with blamed(self._folder, path):
                content = self._folder.read(path, max_bytes=max(map(len, texts)))
        except NotFoundError:  # the check that made it has just ended
            return True
        except RejectedError:
            return False
        return any(text.startswith(content) for text in texts)


def _may_hold_files(path: str) -> bool:
    """Return whether a folder at ``path`` is part of the protocol's tree."""
    return path == names.RUNS or path in names.RECORD_FOLDERS or _due_in(path) is not None


def _due_in(path: str) -> MessageRef | None:
    """Return the message that comes first into an empty folder of the protocol's tree; None where nothing need come."""
    match path.split("/"):
        case [names.RUNS, run] if names.is_name(run):
            return MessageRef("offer", run)
        case [names.RUNS, run, "rounds"] if names.is_name(run):
            return MessageRef("round", run, 1)
        case [names.RUNS, run, "rounds", number]:
            return ref_at(f"{names.RUNS}/{run}/rounds/{number}/to_site")
    return ref_at(path)
