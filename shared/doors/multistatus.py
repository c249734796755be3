"""The answer to PROPFIND, read while it comes (RFC 4918, section 14.16): of each entry what is asked for, and no more.

    multistatus > response > href
                           > propstat > status
                                      > prop > resourcetype > collection
                                             > getcontentlength, getetag, getlastmodified, quota-available-bytes

Properties count where their propstat says 200, or 425, as Infinite Scale does of a file that it still works on. The
text is taken for UTF-8, as servers write it, whatever it says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from xml.parsers import expat

from shared.doors import Refusal, door
from shared.doors.http_answer import length_of

DEEPEST = 32
MOST_ELEMENTS = 40  # for each entry
LONGEST_TEXT = 4096  # characters of one element
MOST_NAMES = 1000  # of elements, attributes and namespaces, which the parser keeps to its end
LONGEST_PIECE = 1 << 13  # bytes of one tag, comment or the like

_RESPONSE = ["DAV:}multistatus", "DAV:}response"]
_HREF = [*_RESPONSE, "DAV:}href"]
_PROPSTAT = [*_RESPONSE, "DAV:}propstat"]
_STATUS = [*_PROPSTAT, "DAV:}status"]
_PROP = [*_PROPSTAT, "DAV:}prop"]
_COLLECTION = [*_PROP, "DAV:}resourcetype", "DAV:}collection"]
_SIZE, _ETAG, _DATE, _ROOM = _ASKED_FOR = tuple(
    f"DAV:}}{name}" for name in ("getcontentlength", "getetag", "getlastmodified", "quota-available-bytes")
)


class NotWhole(Refusal):
    """It ends too early, or is no XML: another look may find it whole."""


class TooLong(Refusal):
    """It has more entries than are allowed."""


@dataclass
class Response:
    """What a listing says of one entry.

    Args:
        path: decoded, without a final slash; "" where its address is none.
        size: in bytes; None where the server does not say, or of a folder.
        date: of the last change, in the server's words.
        available_bytes: how much more may be put there; None where the server does not say or sets no limit.
        is_processing: the server still works on what was just written.
    """

    path: str = ""
    is_folder: bool = False
    size: int | None = None
    etag: str | None = None
    date: str | None = None
    available_bytes: int | None = None
    is_processing: bool = False


@dataclass
class _Told:
    """What stands in one response, or in one of its propstats."""

    is_folder: bool = False
    is_processing: bool = False
    texts: dict[str, str] = field(default_factory=dict)


class Reader:
    """Takes a document piece by piece, and keeps nothing of it but its ``responses``.

    Args:
        most_entries: of a folder, which is itself listed besides.
    """

    def __init__(self, most_entries: int) -> None:
        self.responses: list[Response] = []
        self._most = most_entries
        self._at: list[str] = []  # the elements that it stands in
        self._elements = self._fed = 0
        self._names: set[str] = set()
        self._text: list[str] | None = None  # of the innermost, if that is asked for
        self._response, self._propstat = _Told(), _Told()
        self._parser = expat.ParserCreate("utf-8", "}")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartNamespaceDeclHandler = self._namespace
        self._parser.StartDoctypeDeclHandler = self._doctype

    def feed(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            NotWhole, TooLong, Refusal: what has come so far is no listing.
        """
        self._parse(piece, is_last=False)
        self._fed += len(piece)
        # What is not ended yet is looked at again with each piece that comes: it must not become long.
        if self._fed - max(0, self._parser.CurrentByteIndex) > LONGEST_PIECE + len(piece):
            raise Refusal(f"sent a listing with a tag of more than {LONGEST_PIECE} bytes")

    def close(self) -> list[Response]:
        """Return all entries, in the server's order.

        Raises:
            NotWhole: it ends too early.
        """
        self._parse(b"", is_last=True)
        return self.responses

    def _parse(self, piece: bytes, *, is_last: bool) -> None:
        with door("sent a listing that cannot be read"):
            try:
                self._parser.Parse(piece, is_last)
            except expat.ExpatError:
                raise NotWhole("sent a listing that is not whole") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._note(name, *attributes)
        at = self._at
        at.append(name)
        self._elements += 1
        if at[0] != _RESPONSE[0]:
            raise Refusal("did not answer with a listing: check that the address is a WebDAV folder")
        if len(at) > DEEPEST or self._elements > MOST_ELEMENTS * (self._most + 1):
            raise Refusal("sent a listing of more elements, or deeper, than any folder needs")
        if at == _RESPONSE:
            self._response = _Told()
        elif at == _PROPSTAT:
            self._propstat = _Told()
        elif at == _COLLECTION:
            self._propstat.is_folder = True
        elif at in (_HREF, _STATUS) or (name in _ASKED_FOR and at[:-1] == _PROP):
            self._text = []

    def _end(self, name: str) -> None:
        at = self._at
        if self._text is not None:
            told = self._response if at == _HREF else self._propstat
            told.texts.setdefault(name, "".join(self._text))
            self._text = None
        elif at == _PROPSTAT:
            status = self._propstat.texts.pop(_STATUS[-1], "")
            if " 200" in status or " 425" in status:
                self._response.is_folder |= self._propstat.is_folder
                self._response.is_processing |= " 425" in status
                self._response.texts = self._propstat.texts | self._response.texts
        elif at == _RESPONSE:
            if len(self.responses) > self._most:
                raise TooLong(f"holds more than {self._most} entries")
            self.responses.append(_response(self._response))
        at.pop()

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            if sum(map(len, self._text)) > LONGEST_TEXT:
                raise Refusal(f"sent a listing with a text of more than {LONGEST_TEXT} characters")

    def _namespace(self, prefix: str | None, address: str | None) -> None:
        self._note(f"{prefix}={address}")

    def _note(self, *names: str) -> None:
        self._names.update(names)
        if len(self._names) > MOST_NAMES:
            raise Refusal("sent a listing of more names of elements, attributes and namespaces than any server has")

    def _doctype(self, *_: object) -> None:
        raise Refusal("sent a listing with a document type, which WebDAV does not use")


def _response(told: _Told) -> Response:
    return Response(
        _path(told.texts.get(_HREF[-1], "")),
        told.is_folder,
        None if told.is_folder else _count(told.texts.get(_SIZE, "")),
        told.texts.get(_ETAG),
        told.texts.get(_DATE),
        _count(told.texts.get(_ROOM, "")),
        told.is_processing,
    )


def _path(href: str) -> str:
    """Return an address's path, decoded; servers write whole addresses, paths, and either case of %2f."""
    try:
        return unquote(urlsplit(href.strip()).path).rstrip("/")
    except ValueError:
        return ""


def _count(text: str) -> int | None:
    """Return a count of bytes; ownCloud says "no limit" by a negative one."""
    return length_of(text.strip())
