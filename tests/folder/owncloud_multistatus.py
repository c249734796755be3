"""Listings as sabre/dav writes them."""

from __future__ import annotations

import re
from urllib.parse import quote
from xml.sax.saxutils import escape

DAV, OC = "{DAV:}", "{http://owncloud.org/ns}"
_PREFIXES = {DAV: "d", OC: "oc"}


def multistatus(responses: list[str]) -> bytes:
    namespaces = 'xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns" xmlns:oc="http://owncloud.org/ns"'
    return f'<?xml version="1.0"?><d:multistatus {namespaces}>{"".join(responses)}</d:multistatus>'.encode()


def response(path: str, stats: str) -> str:
    return f"<d:response><d:href>{_quoted(path)}</d:href>{stats}</d:response>"


def propstat(elements: list[str], status: int) -> str:
    phrase = {200: "OK", 404: "Not Found"}[status]
    return (
        f"<d:propstat><d:prop>{''.join(elements)}</d:prop><d:status>HTTP/1.1 {status} {phrase}</d:status></d:propstat>"
    )


def element(tag: str, content: str) -> str:
    namespace, name = tag[: tag.index("}") + 1], tag[tag.index("}") + 1 :]
    if namespace in _PREFIXES:
        return f"<{_PREFIXES[namespace]}:{name}>{content}</{_PREFIXES[namespace]}:{name}>"
    return f'<x:{name} xmlns:x="{escape(namespace[1:-1])}">{content}</x:{name}>'


def _quoted(path: str) -> str:
    """Percent-encode a path as sabre/dav does, in lower case."""
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(path, safe="/"))
