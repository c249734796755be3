"""A drop folder on any WebDAV server.

Only what all measured servers keep is relied upon: one writer per folder, names never used before, small files
written to ``NAME.new`` and moved into place. ``If-None-Match``, locks, ETags and dates are not relied upon.
Nothing here repeats a request to get over trouble; that is ``RetryingFolder``'s. But for one: what a server still works
on is moved once it has done, for to send it again would begin that work anew.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import Literal

from shared.errors import (
    ActionRequiredError,
    AlreadyExistsError,
    LockedError,
    NotFoundError,
    ProcessingError,
    RejectedError,
    TransientError,
)
from shared.folder.answers import Answer
from shared.folder.capabilities import Capabilities, probe
from shared.folder.connection import Connection, FileBody
from shared.folder.contract import SMALL_BYTES, Entry, Folder, check_path, unfinished_names
from shared.folder.copies import Copies
from shared.folder.download import download
from shared.folder.durable import disk_trouble
from shared.folder.large_uploads import LargeUploads
from shared.folder.login import Password
from shared.folder.meter import Meter
from shared.folder.multistatus import Listing
from shared.folder.round_trip import Speed, measure_speed

logger = logging.getLogger(__name__)

_MAYBE_NO_PARENT = (404, 409, 500)  # what servers say to PUT and MKCOL when the folder above is missing
_SAYS_NOTHING_OF_COPY = (423, 429, 503)  # each method is answered so in its moment

PROCESSED_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long to wait before each further look at a file that the server still works on."""


class WebDavFolder(Folder):
    """The drop folder at a WebDAV address. Each thread needs its own.

    Args:
        url: ``https://HOST/PATH`` of the folder; plain ``http`` only to this machine itself.
        user: sent with every request (Basic).
        password: sent with every request (Basic), as UTF-8. It appears in no message and no log. A ``Password`` is read
            again when refused.
        ca_file: certificates to trust instead of the public ones.
        stall_s: seconds without a byte moving after which a request fails; no limit on its whole duration.
        meter: watches files on their way and holds them back.
        copies: shared with other folders that get the same content, so that the server may copy it between them.

    Raises:
        ActionRequiredError: an address, a password or a CA file that cannot be used.
    """

    def __init__(
        self,
        url: str,
        user: str,
        password: str | Password,
        *,
        ca_file: Path | None = None,
        stall_s: float = 60,
        meter: Meter | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._connection = Connection(url, user, password, ca_file=ca_file, stall_s=stall_s)
        self._meter = meter or Meter()
        self._large_uploads = LargeUploads(
            self._connection, self._meter, put=self._put, require_arrived=self._require_arrived
        )
        self._copies = copies
        self._interrupted = 0  # how often
        self._interruption = Condition()
        self._folders: set[str] = set()  # made or seen by this object
        self._made: set[str] = set()  # made by this object
        self._locked: set[str] = set()  # of the names of unfinished files; such a lock may stand for hours
        self._may_move = True  # until a MOVE is forbidden, as in create-only shares
        self._is_processed = False  # whether the server works on each file that it gets, as far as it has said

    def __repr__(self) -> str:
        return f"WebDavFolder({self._connection.where('')!r}, user {self._connection.shown_user!r})"

    @property
    def url(self) -> str:
        """The folder's address, without a final slash."""
        return self._connection.url

    def read(self, path: str, *, max_bytes: int) -> bytes:
        with self._connection.open("GET", check_path(path), status=200) as body:
            content = b"".join(body.blocks(max_bytes))
        self._folders.update(_parents(path))
        return content

    def download(self, path: str, target: Path, *, size: int) -> str:
        try:
            return download(self._connection, check_path(path), target, size, self._meter)
        except OSError as error:
            raise disk_trouble(error, target) from error

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        check_path(path)
        try:
            size = source.stat().st_size
            if size <= SMALL_BYTES:
                with source.open("rb") as file:
                    self._put(path, FileBody(file, size))
            else:
                self.make_folder(_parent(path))  # rather than learn after a long upload that it is missing
                self._bring(path, source, size, sha256)
        except TransientError:
            self._forget_folders()
            raise
        except OSError as error:
            raise disk_trouble(error, source) from error

    def interrupt(self) -> None:
        with self._interruption:
            self._interrupted += 1
            self._interruption.notify_all()
        self._connection.interrupt()
        self._large_uploads.interrupt()

    def remove(self, path: str) -> None:
        answer = self._connection.send("DELETE", check_path(path))
        if answer.status not in (404, 410):
            self._require(answer, (200, 204), "DELETE", path)

    def capabilities(self, scratch: str) -> Capabilities:
        """Measure what the server can do; see ``probe``."""
        return probe(self._connection, scratch)

    def speed(self, scratch: str) -> Speed:
        """Measure how fast a large file moves; see ``measure_speed``. The scratch folder is removed afterwards."""
        try:
            return measure_speed(self, scratch)
        finally:
            self._connection.send("DELETE", f"{scratch}/")
            self._folders.discard(scratch)

    def room(self) -> int | None:
        return self._ask("", depth=0).available_bytes

    def tag(self) -> str | None:
        return self._ask("", depth=0).etag

    def create(self, path: str, content: bytes) -> None:
        # Servers have been seen to write over a file whatever they were told. Nothing can be in a folder just made.
        if _parent(check_path(path)) not in self._made and self._holds(path, content):
            return
        try:
            self._put_whole(path, content, overwrite=False)
        except (TransientError, _ForbiddenError):
            # The answer was lost, or tells of a file that is there by now: the destination decides.
            if not self._holds(path, content):
                raise

    def overwrite(self, path: str, content: bytes) -> None:
        self._put_whole(check_path(path), content, overwrite=True)

    def list(self, path: str) -> list[Entry]:
        listing = self._ask(path and check_path(path), depth=1)
        if not listing.itself.is_folder:
            raise NotFoundError(f"{self._connection.where(path)} is a file, not a folder.")
        self._folders.update((path, *_parents(path)))
        return sorted(listing.entries, key=lambda entry: entry.name)

    def check(self) -> None:
        self._connection.forget_session()  # which may be open still though the password was changed
        listing = self._ask("", depth=0)
        where = self._connection.where("")
        if not listing.itself.is_folder:
            raise ActionRequiredError(f"{where} is a file, not a folder: correct the address.")
        if "/remote.php/" in self._connection.path and listing.etag is None:
            # ownCloud answers so, with 207, for the folder of a user that does not exist
            raise ActionRequiredError(f"{where} is nobody's folder: check the user name in the address.")

    def _ask(self, path: str, *, depth: Literal[0, 1]) -> Listing:
        """Send PROPFIND for a folder; its own address ends in a slash, or Apache redirects."""
        try:
            return self._connection.listing(f"{path}/" if path else "", depth=depth)
        except NotFoundError:
            if path:
                raise
            raise ActionRequiredError(
                f"{self._connection.where('')} is not there: check the address, and that the folder is still shared "
                f"with user {self._connection.shown_user!r}."
            ) from None

    def _bring(self, path: str, source: Path, size: int, sha256: str | None) -> None:
        """Bring a large file into the folder with the least sending that the server allows; see that all is there."""
        interrupted = self._interrupted

        def upload() -> None:
            if self._interrupted != interrupted:  # while it waited for another folder's upload
                where = self._connection.where(path)
                raise TransientError(f"{where} was not sent: the wait for another upload of it was cut.")
            self._large_uploads.send(path, source, size, sha256)

        if self._copies is None or sha256 is None:
            upload()
        else:
            place = self._connection.on_server(path)
            self._copies.put(
                self._connection.account,
                sha256,
                place,
                upload=upload,
                copy=lambda original: self._copy(original, path, size, sha256),
            )

    def _require_arrived(self, path: str, size: int) -> None:
        """Check that all bytes have arrived."""
        try:
            arrived = self._connection.listing(path, depth=0).itself.size
        except NotFoundError:
            arrived = None
        if arrived != size:
            raise TransientError(
                f"{self._connection.where(path)} has {arrived or 0} of the {size} bytes that were sent."
            )

    def _copy(self, original: str, path: str, size: int, sha256: str) -> bool:
        """Have the server copy a file of another of its folders; return whether it can.

        Whoever may write in that folder may have changed the file since we put it there, so what has arrived is read.

        Raises:
            NotFoundError: the original is gone, or was changed.
            DropfedError: the server does nothing now.
        """
        answer = self._connection.relocate("COPY", original, path, overwrite=True)
        if answer.status in (404, 410):
            raise NotFoundError(f"{self._connection.where(original)} is not there any more.")
        if answer.is_processing or answer.status in _SAYS_NOTHING_OF_COPY:
            raise self._connection.error(answer, "COPY", path)
        if answer.status not in (201, 204):
            return False
        if self._sha256_of(path, size) != sha256:
            where = self._connection.where(original)
            logger.error("%s was changed by somebody who may write there, and is sent anew where it was copied", where)
            self.remove(path)
            raise NotFoundError(f"{where} is not there any more.")
        return True

    def _sha256_of(self, path: str, size: int) -> str | None:
        """Return the SHA-256 (hex) of a file of the folder; None if it is longer than ``size``."""
        digest = hashlib.sha256()
        try:
            with (
                self._connection.open("GET", path, status=200) as body,
                self._meter.transfer(path, "down", size) as moved,
            ):
                for block in body.blocks(size):
                    digest.update(block)
                    moved(len(block))
        except RejectedError:
            return None
        return digest.hexdigest()

    def _holds(self, path: str, content: bytes) -> bool:
        """Return whether ``content`` is already under ``path``; raise AlreadyExistsError if something else is.

        Nothing is asked for by its name that is not listed: ownCloud locks a name that is asked for and not there.
        """
        try:
            entry = self.find(path)
            if entry is None:
                return False
            if not entry.is_folder:
                found = self.read(path, max_bytes=len(content))
                if found != content and content.startswith(found):
                    found = self.read(path, max_bytes=len(content))  # the first answer may have been cut on its way
                if found == content:
                    return True
        except NotFoundError:
            return False
        except RejectedError:
            pass  # longer
        raise AlreadyExistsError(
            f"{self._connection.where(path)} is there already, with other content; it was left as it is."
        )

    def _put_whole(self, path: str, content: bytes, *, overwrite: bool) -> None:
        """Write a small file so that readers see it whole or not at all."""
        if self._may_move:
            # Not hidden: nginx does not list dot-files. Not .part: ownCloud refuses it.
            *others, unfinished = unfinished_names(path)
            unfinished = next((name for name in others if name not in self._locked), unfinished)
            try:
                self._put_unfinished(unfinished, content)
                self._move(unfinished, path, overwrite=overwrite)
            except _ForbiddenError:
                self._connection.send("DELETE", unfinished)
            else:
                return
        # A create-only share, as ownCloud has them: no renaming, but there a PUT is all-or-nothing by itself.
        self._put(path, content, {} if overwrite else {"If-None-Match": "*"})
        self._may_move = False

    def _put_unfinished(self, path: str, content: bytes) -> None:
        """Write a file that is moved afterwards; where its name is locked, the next attempt takes another."""
        try:
            self._put(path, content)
        except LockedError:
            self._locked.add(path)
            raise

    def _put(self, path: str, body: bytes | FileBody, headers: dict[str, str] | None = None) -> None:
        parent = _parent(path)
        if parent:
            self.make_folder(parent)
        answer = self._connection.send("PUT", path, body=body, headers=headers)
        if answer.status in _MAYBE_NO_PARENT:
            self._forget_folders()
            if self.make_folder(parent):
                answer = self._connection.send("PUT", path, body=body, headers=headers)
        self._require(answer, (201, 204) if answer.is_page else (200, 201, 204), "PUT", path)
        self._folders.add(parent)

    def _move(self, source: str, target: str, *, overwrite: bool) -> None:
        interrupted = self._interrupted
        if self._is_processed:  # Infinite Scale removes what is to be replaced before it refuses
            self._await_processed(source, target, interrupted)
        answer = self._connection.relocate("MOVE", source, target, overwrite=overwrite)
        for pause_s in PROCESSED_S:
            if not answer.is_processing:
                break
            self._is_processed = True
            if self._is_interrupted(interrupted, pause_s):
                break
            answer = self._connection.relocate("MOVE", source, target, overwrite=overwrite)
        if answer.status == 412:
            self._connection.send("DELETE", source)
        self._require(answer, (201, 204), "MOVE", target)

    def _await_processed(self, source: str, target: str, interrupted: int) -> None:
        """Wait until the server has done with a file that it got.

        Raises:
            ProcessingError: it has not, after a minute, or when that wait was interrupted.
        """
        with suppress(NotFoundError):  # removed, as for a virus: the MOVE tells of it
            for pause_s in (0.0, *PROCESSED_S):
                if self._is_interrupted(interrupted, pause_s):
                    break
                if not self._connection.listing(source, depth=0).is_processing:
                    return
            where = self._connection.where(target)
            raise ProcessingError(f"{where} cannot do MOVE now: the server still works on what was sent.")

    def _is_interrupted(self, before: int, pause_s: float) -> bool:
        """Wait; return whether another thread interrupted that, ``before`` being how often one had until then."""
        with self._interruption:
            return self._interruption.wait_for(lambda: self._interrupted != before, pause_s)

    def make_folder(self, path: str) -> bool:
        """Make sure that a folder and all above it are there; return whether it had to be made.

        Raises:
            ActionRequiredError: there is a file in its place, or the root itself is missing.
        """
        if path in self._folders:
            return False
        if not path:
            self.check()
            self._folders.add(path)
            return False
        if _parent(_parent(path)) in self._folders:
            self.make_folder(_parent(path))  # not known, so most likely not there
        answer = self._connection.send("MKCOL", f"{path}/")
        if answer.status in _MAYBE_NO_PARENT and self.make_folder(_parent(path)):
            answer = self._connection.send("MKCOL", f"{path}/")
        if made := answer.status == 201:
            self._made.add(path)
        if not made and not self._is_folder(path, answer):
            where = self._connection.where(path)
            raise ActionRequiredError(f"{where} is a file where a folder must be: move it out of the way.")
        self._folders.add(path)
        return made

    def _forget_folders(self) -> None:
        """Forget which folders are there: somebody may have removed them."""
        self._folders.clear()
        self._made.clear()

    def _is_folder(self, path: str, refusal: Answer) -> bool:
        """Return whether a folder that MKCOL did not make is there; 405 alone is also said about files."""
        try:
            return self._ask(path, depth=0).itself.is_folder
        except NotFoundError:
            error = self._connection.error(refusal, "MKCOL", path)
            if isinstance(error, NotFoundError):  # said of what was to be made
                error = TransientError(f"{error} It could not be made.")
            raise error from None

    def _require(self, answer: Answer, wanted: tuple[int, ...], method: str, path: str) -> None:
        """Raise unless the status is one of ``wanted``."""
        if answer.status in wanted:
            return
        error = self._connection.error(answer, method, path)
        if answer.status == 403:
            raise _ForbiddenError(str(error))
        if isinstance(error, NotFoundError):  # not what was asked for is missing, but what was just put there
            raise TransientError(f"{error} It was there a moment ago; it is sent again.")
        raise error


class _ForbiddenError(ActionRequiredError):
    """403: to this user, or to everybody in a create-only share."""


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above ``path``, down to the root, ``""``."""
    while path:
        path = _parent(path)
        yield path
