"""Addresses of folders: which may be used, and in one form.

No refusal repeats the address: a password may stand in it.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from shared.errors import ActionRequiredError
from shared.escaping import escape

_LINK = r"(?<=/public\.php/dav/files/)[^/]+|(?<=/dav/public-files/)[^/]+|(?<=/s/)[A-Za-z0-9]{15,}(?=/|$)"
"""A public link's token: as Nextcloud, as ownCloud, and as browsers have it."""
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%\w+)?")
_MALFORMED = "The folder's address is malformed: write it as https://HOST/PATH"


def checked_url(url: str) -> str:
    """Return the address of a folder, percent-encoded, without a final slash; several slashes in a row count as one.

    Raises:
        ActionRequiredError: it is none, contains a user or password, or would send them in the clear.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ActionRequiredError(_MALFORMED) from None
    if parts.username is not None or parts.password is not None:
        raise ActionRequiredError("The folder's address contains a user or password: put them in their own settings")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ActionRequiredError(_MALFORMED)
    if not _HOST.fullmatch(parts.hostname) or parts.netloc.endswith(":") or "://" in parts.path:
        raise ActionRequiredError(_MALFORMED)  # as https://https://HOST/PATH, whose host nobody would ever find
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "http" and not is_loopback(url):
        raise ActionRequiredError(f"http://{host} would have the password and the data sent in the clear: use https")
    path = quote(re.sub("/+", "/", unquote(parts.path)).rstrip("/"), safe="/")
    if {".", ".."} & set(path.split("/")):
        raise ActionRequiredError(_MALFORMED)
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def shown(address: str) -> str:
    """Return an address as people may read it: the token of a public link is hidden, for it lets anybody in."""
    return escape(re.sub(_LINK, "…", address))


def shown_user(url: str, user: str) -> str:
    """Return the user as people may read it: that of a public link is its token."""
    return "…" if is_public_link(url) else user


def is_public_link(url: str) -> bool:
    """Return whether ``url`` is that of a public link, whose user is a token, and which may need no password."""
    return "/public.php/" in url or re.search(_LINK, url) is not None


def is_near(url: str) -> bool:
    """Return whether ``url`` names this machine or an address of this network, and so leads nowhere from elsewhere."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_private
    except ValueError:
        return "." not in host


def checked_address(url: str) -> str:
    """Return the address of a folder as ``checked_url`` does, or of a folder of this machine: ``file:///PATH``.

    Raises:
        ActionRequiredError: it is neither, or a folder of another machine: ``file:////MACHINE/PATH``.
    """
    here = folder_here(url)
    if here is None and ("://" not in url or url.startswith("file:")):
        raise ActionRequiredError(f"{_MALFORMED}, or as file:///PATH if it is a folder of this machine")
    if here is None:
        return checked_url(url)
    if "\0" in str(here) or ".." in here.parts:  # which would be a second name of a folder
        raise ActionRequiredError(f"{_MALFORMED}, or as file:///PATH without '..'")
    if here.as_posix().startswith("//"):
        raise ActionRequiredError(
            "The folder's address is that of another machine's folder: write it as https://HOST/PATH"
        )
    return here.absolute().as_uri()


def folder_here(url: str) -> Path | None:
    """Return the folder of this machine that an address names; None of any other address."""
    return Path(url2pathname(url.removeprefix("file://"))) if url.startswith("file:///") else None


def is_loopback(url: str) -> bool:
    """Return whether ``url`` leads to this machine itself."""
    return is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Return whether ``host`` is this machine itself, so that only it can reach what listens there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
