"""Addresses of folders: which may be used, and in one form.

No refusal repeats the address: a password may stand in it.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import quote, unquote, urlsplit

from shared.errors import StandingError

_MALFORMED = "The folder's address is malformed: write it as https://HOST/PATH"


def checked_url(url: str) -> str:
    """Return the address of a folder, percent-encoded, without a final slash; several slashes in a row count as one.

    Raises:
        StandingError: it is none, contains a user or password, or would send them in the clear.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise StandingError(_MALFORMED) from None
    if parts.username is not None or parts.password is not None:
        raise StandingError("The folder's address contains a user or password: put them in their own settings")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise StandingError(_MALFORMED)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "http" and not is_loopback(url):
        raise StandingError(f"http://{host} would have the password and the data sent in the clear: use https")
    path = quote(re.sub("/+", "/", unquote(parts.path)).rstrip("/"), safe="/")
    if {".", ".."} & set(path.split("/")):
        raise StandingError(_MALFORMED)
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def is_loopback(url: str) -> bool:
    """Whether ``url`` leads to this machine itself."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
