"""What a server can do, measured by small requests in a scratch folder, which is removed afterwards.

Nothing in the exchange depends on the answers: the weakest server works, only slower. They tell people what to expect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Literal

from shared.doors.http_answer import seconds_of
from shared.errors import (
    ActionRequiredError,
    DropfedError,
    NotFoundError,
    ProcessingError,
    RejectedError,
    TransientError,
)
from shared.folder.answers import Answer
from shared.folder.chunks import ChunkedUploads
from shared.folder.connection import Connection

TEXTS = (b"A check of what this server can do.\n", b"Another text of the same check, of another length.\n")
"""All that is ever written into a scratch folder."""
FILES = ("one", "two", "three")
"""All files that are ever in it,"""
BELOW = "below"
"""and the one folder, in which there are some of them, too."""
REPLACEMENTS = 12
HELD_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""A file that was just read may still be held, as on ownCloud, or one just written be processed, as on Infinite Scale:
how long to wait before each further try."""
_DONE = (200, 201, 204)


@dataclass(frozen=True)
class Capabilities:
    """What one server was seen to do for one user.

    Attributes:
        software: the server, as it calls itself; empty if it does not say.
        is_https: the connection is encrypted.
        login: how the password is shown.
        clock_ahead_s: the server's clock less this machine's, to within a second or two; None if it does not tell.
        room_bytes: how much more may be stored; None without a limit, or if it does not tell.
        moves: a file can be renamed.
        moves_are_forbidden: not to this user, as in a create-only share.
        keeps: MOVE with Overwrite: F never replaces a file.
        replaces: MOVE with Overwrite: T does.
        replaces_at_once: and who reads meanwhile was never seen to find nothing, or a part. Not seen is not proven.
        copies: a file can be copied on the server.
        ranges: a part of a file can be asked for.
        conditional_puts: PUT with If-None-Match: * never replaces a file.
        etags: files have ETags.
        etags_propagate: a folder's ETag changes with anything below it, and only then.
        checksums: a file comes with a checksum that the server has kept of it.
        chunked_uploads: large files can be sent in pieces.
        left_behind: the scratch folder, if the server would not remove it.
    """

    software: str
    is_https: bool
    login: str
    clock_ahead_s: float | None
    room_bytes: int | None
    moves: bool
    moves_are_forbidden: bool
    keeps: bool
    replaces: bool
    replaces_at_once: bool
    copies: bool
    ranges: bool
    conditional_puts: bool
    etags: bool
    etags_propagate: bool
    checksums: bool
    chunked_uploads: bool
    left_behind: str | None = None


def probe(connection: Connection, scratch: str) -> Capabilities:
    """Measure what the server of a drop folder can do.

    Args:
        scratch: a name never used before, for a folder directly in the drop folder.

    Raises:
        TransientError: the connection failed meanwhile.
        ActionRequiredError: the folder cannot be written to, or what is written does not come back.
    """
    began = time.time()
    first = connection.send("PROPFIND", "", headers={"Depth": "0"})
    took_s = time.time() - began
    if first.status != 207:
        raise connection.error(first, "PROPFIND", "")
    made = connection.send("MKCOL", f"{scratch}/")
    if made.status not in _DONE:
        raise connection.error(made, "MKCOL", scratch)
    try:
        found = _Probe(connection, scratch).measure(first, began + took_s / 2)
    finally:
        removed = _when_free(lambda: connection.send("DELETE", f"{scratch}/"))
    is_gone = removed.status in _DONE or _is_gone(connection, scratch)
    return found if is_gone else replace(found, left_behind=scratch)


def _is_gone(connection: Connection, folder: str) -> bool:
    """Look again after a DELETE that failed: through a public link ownCloud removes a folder, and answers 500."""
    return connection.send("PROPFIND", f"{folder}/", headers={"Depth": "0"}).status in (404, 410)


class _Probe:
    """One measurement in one scratch folder."""

    def __init__(self, connection: Connection, scratch: str) -> None:
        self._connection = connection
        self._scratch = scratch

    def measure(self, first: Answer, asked_at: float) -> Capabilities:
        one, two = TEXTS
        connection = self._connection
        self._write("one", one)
        if self._content("one") != one:
            where = connection.where(f"{self._scratch}/one")
            raise ActionRequiredError(f"{where} came back with other content: check what stands before the server.")
        moved = self._relocate("MOVE", "one", "two", overwrite=False)
        moves = moved.status in _DONE and self._content("one") is None and self._content("two") == one
        self._write("one", two)
        self._write("two", one)
        kept = self._relocate("MOVE", "one", "two", overwrite=False)
        keeps = moves and kept.status == 412 and (self._content("one"), self._content("two")) == (two, one)
        self._write("one", two)
        replaced = self._relocate("MOVE", "one", "two", overwrite=True)
        replaces = moves and replaced.status in _DONE and self._content("two") == two
        self._write("two", one)
        copied = self._relocate("COPY", "two", "three", overwrite=True)
        copies = copied.status in _DONE and (self._content("two"), self._content("three")) == (one, one)
        return Capabilities(
            software=first.headers.get("Server", ""),
            is_https=connection.url.startswith("https:"),
            login=connection.login,
            clock_ahead_s=_clock_ahead(first, asked_at),
            room_bytes=connection.listing("", depth=0).available_bytes,
            moves=moves,
            moves_are_forbidden=moved.status == 403,
            keeps=keeps,
            replaces=replaces,
            replaces_at_once=replaces and self._replaces_at_once(),
            copies=copies,
            ranges=self._gives_ranges(one),
            conditional_puts=self._heeds_conditions(one, two),
            etags="ETag" in self._ask("GET", "two").headers,
            etags_propagate=self._propagates(one),
            checksums="OC-Checksum" in self._ask("GET", "two").headers,
            chunked_uploads=(uploads := ChunkedUploads.beside(connection)) is not None and uploads.is_offered(),
        )

    def _replaces_at_once(self) -> bool:
        """Replace a file some times while a second connection reads it."""
        is_over, second = Event(), self._connection.another()
        with ThreadPoolExecutor(1) as executor:
            reading = executor.submit(self._is_always_whole, second, is_over)
            try:
                for number in range(REPLACEMENTS):
                    self._write("one", TEXTS[number % 2])
                    self._relocate("MOVE", "one", "two", overwrite=True)
            except BaseException:  # Ctrl-C does not wait for what the second connection waits for
                is_over.set()
                second.interrupt()
                raise
            is_over.set()
            return reading.result()

    def _is_always_whole(self, connection: Connection, is_over: Event) -> bool:
        while not is_over.is_set():
            try:
                if self._content("two", connection) not in TEXTS:
                    return False
            except TransientError:  # locked while it is replaced
                continue
            except DropfedError:  # Apache has been seen to say 403
                return False
        return True

    def _gives_ranges(self, text: bytes) -> bool:
        self._write("two", text)
        headers = {"Range": "bytes=2-5"}
        if self._ask("GET", "two", headers).status != 206:
            return False
        with self._connection.open("GET", f"{self._scratch}/two", status=(200, 206), headers=headers) as body:
            return b"".join(body.blocks(len(text))) == text[2:6]

    def _heeds_conditions(self, text: bytes, other: bytes) -> bool:
        headers = {"If-None-Match": "*"}
        path = f"{self._scratch}/two"
        answer = _when_free(lambda: self._connection.send("PUT", path, body=other, headers=headers))
        return answer.status == 412 and self._content("two") == text

    def _propagates(self, text: bytes) -> bool:
        """Return whether a change two levels below shows; measured in the scratch folder, where nobody else writes."""
        made = self._ask("MKCOL", f"{BELOW}/")
        if made.status not in _DONE:
            return False
        before, unchanged = self._etags(), self._etags()
        self._write(f"{BELOW}/one", text)
        after = self._etags()
        told = None not in before and before[1] == unchanged[1]
        return told and all(old != new for old, new in zip(before, after, strict=True))

    def _etags(self) -> tuple[str | None, str | None]:
        """Return the drop folder's ETag and the scratch folder's."""
        root = self._connection.listing("", depth=0).etag
        return root, self._connection.listing(f"{self._scratch}/", depth=0).etag

    def _ask(self, method: str, name: str, headers: dict[str, str] | None = None) -> Answer:
        return _when_free(lambda: self._connection.send(method, f"{self._scratch}/{name}", headers=headers))

    def _write(self, name: str, content: bytes) -> None:
        path = f"{self._scratch}/{name}"
        answer = _when_free(lambda: self._connection.send("PUT", path, body=content))
        if answer.status not in _DONE:
            raise self._connection.error(answer, "PUT", path)

    def _content(self, name: str, connection: Connection | None = None) -> bytes | None:
        """Return what a file holds; None if it is not there, or holds more than any of ours."""
        for pause_s in HELD_S:
            with suppress(ProcessingError):
                return self._content_now(name, connection or self._connection)
            time.sleep(pause_s)
        return self._content_now(name, connection or self._connection)

    def _content_now(self, name: str, connection: Connection) -> bytes | None:
        try:
            with connection.open("GET", f"{self._scratch}/{name}", status=200) as body:
                return b"".join(body.blocks(max(map(len, TEXTS))))
        except (NotFoundError, RejectedError):
            return None

    def _relocate(self, method: Literal["MOVE", "COPY"], source: str, target: str, *, overwrite: bool) -> Answer:
        paths = f"{self._scratch}/{source}", f"{self._scratch}/{target}"
        return _when_free(lambda: self._connection.relocate(method, *paths, overwrite=overwrite))


def _when_free(ask: Callable[[], Answer]) -> Answer:
    """Ask again, a few times, while the file is held."""
    for pause_s in HELD_S:
        answer = ask()
        if answer.status != 423 and not answer.is_processing:
            return answer
        time.sleep(pause_s)
    return ask()


def _clock_ahead(answer: Answer, asked_at: float) -> float | None:
    """Return the server's clock less ours in seconds; of its second, which is whole, half has passed on average."""
    told = seconds_of(answer.headers.get("Date", ""))
    return None if told is None else told + 0.5 - asked_at
