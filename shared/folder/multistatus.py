"""Reads the answer to PROPFIND: what lies in a folder (RFC 4918, section 14.16).

Only the status 207 with a whole ``multistatus`` document counts. A login page, an empty body or half a
document is an error, never an empty folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shared.errors import PassingError, StandingError
from shared.folder.contract import Entry

QUESTION = (
    b'<?xml version="1.0" encoding="utf-8"?><propfind xmlns="DAV:"><prop>'
    b"<resourcetype/><getcontentlength/><getetag/><quota-available-bytes/></prop></propfind>"
)
_DAV = "{DAV:}"


@dataclass(frozen=True)
class Listing:
    """A folder and its entries.

    Attributes:
        itself: the resource asked about.
        etag: the server's tag of it, or None.
        available_bytes: how much more may be put there, or None where the server does not say or sets no limit.
        entries: what lies directly in it, in the server's order.
    """

    itself: Entry
    etag: str | None
    available_bytes: int | None
    entries: tuple[Entry, ...]


def parse(document: bytes, path: str, where: str) -> Listing:
    """Read a multistatus document.

    Args:
        path: the absolute path that was asked about, not percent-encoded, without a final slash.
        where: its address for messages.

    Raises:
        PassingError: the document is not whole.
        StandingError: it is another document, or about another resource.
    """
    try:
        root: Element = fromstring(document, forbid_dtd=True)
    except ParseError:
        raise PassingError(f"{where} sent a listing that is not whole.") from None
    except DefusedXmlException:
        raise StandingError(f"{where} sent a listing with a document type, which WebDAV does not use.") from None
    if root.tag != f"{_DAV}multistatus":
        raise StandingError(f"{where} did not answer with a listing: check that the address is a WebDAV folder.")
    itself: Element | None = None
    entries = []
    for response in root.findall(f"{_DAV}response"):
        found = _path_of(response)
        parent, _, name = found.rpartition("/")
        if found == path:
            itself = _properties(response)
        elif parent == path and name:
            entries.append(_entry(name, _properties(response)))
    if itself is None:
        raise StandingError(
            f"{where} sent a listing of another folder: configure the address that the server itself uses for it."
        )
    return Listing(
        _entry(path.rpartition("/")[2], itself),
        itself.findtext(f"{_DAV}getetag"),
        _number(itself, "quota-available-bytes"),
        tuple(entries),
    )


def _path_of(response: Element) -> str:
    """Return a response's path, decoded; servers write whole addresses, paths, and either case of %2f."""
    href = (response.findtext(f"{_DAV}href") or "").strip()
    try:
        return unquote(urlsplit(href).path).rstrip("/")
    except ValueError:
        return ""


def _properties(response: Element) -> Element:
    """Return the properties that exist; those that do not stand apart under the status 404."""
    found = Element(f"{_DAV}prop")
    for propstat in response.findall(f"{_DAV}propstat"):
        if " 200" in (propstat.findtext(f"{_DAV}status") or ""):
            found.extend(propstat.findall(f"{_DAV}prop/*"))
    return found


def _entry(name: str, properties: Element) -> Entry:
    is_folder = properties.find(f"{_DAV}resourcetype/{_DAV}collection") is not None
    return Entry(name, is_folder, None if is_folder else _number(properties, "getcontentlength"))


def _number(properties: Element, name: str) -> int | None:
    """Return a count of bytes; ownCloud says "no limit" by a negative one."""
    text = (properties.findtext(f"{_DAV}{name}") or "").strip()
    return int(text) if text.isdecimal() else None
