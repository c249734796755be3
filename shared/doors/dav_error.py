"""Why a WebDAV server refuses, as sabre/dav writes it into an answer's body, and with it ownCloud and all like it.

error > exception
      > message
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.parsers import expat

from shared.doors import Refusal, door

_ERRORS = ("DAV:}error", "DAV}error")  # the second of Infinite Scale and OpenCloud
_SABRE = "http://sabredav.org/ns}"


@dataclass
class Reason:
    """What the server says: the kind of its error, and in its own words."""

    exception: str = ""
    message: str = ""


def reason_of(body: bytes) -> Reason | None:
    """Return the reason that a short body tells; None if it is another document."""
    found, at = Reason(), list[str]()

    def start(name: str, _: dict[str, str]) -> None:
        at.append(name)
        if at[0] not in _ERRORS:
            raise ValueError(name)

    def characters(text: str) -> None:
        match at:
            case [_, name] if name == f"{_SABRE}exception":
                found.exception += text
            case [_, name] if name == f"{_SABRE}message":
                found.message += text

    def doctype(*_: object) -> None:
        raise ValueError("WebDAV uses no document types")

    parser = expat.ParserCreate("utf-8", "}")
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: at.pop()
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = doctype
    try:
        with door("cannot be read"):
            parser.Parse(body, True)
    except Refusal:
        return None
    return found
