"""What lies in a folder, by the answer to PROPFIND (RFC 4918, section 14.16).

Only the status 207 with a whole ``multistatus`` document counts. A login page, an empty body or half a
document is an error, never an empty folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.doors.multistatus import Response
from shared.errors import ActionRequiredError
from shared.folder.contract import Entry

QUESTION = (
    b'<?xml version="1.0" encoding="utf-8"?><propfind xmlns="DAV:"><prop>'
    b"<resourcetype/><getcontentlength/><getetag/><getlastmodified/><quota-available-bytes/></prop></propfind>"
)


@dataclass(frozen=True)
class Listing:
    """A folder and its entries.

    Attributes:
        itself: the resource asked about.
        etag: the server's tag of it, or None.
        available_bytes: how much more may be put there, or None where the server does not say or sets no limit.
        is_processing: the server still works on what was just written there.
        entries: what lies directly in it, in the server's order.
    """

    itself: Entry
    etag: str | None
    available_bytes: int | None
    is_processing: bool
    entries: tuple[Entry, ...]


def listing_of(responses: Sequence[Response], path: str, where: str) -> Listing:
    """Return the resource that was asked about, and apart from it what lies in it.

    Args:
        path: that was asked about: absolute, not percent-encoded, without a final slash.
        where: its address for messages.

    Raises:
        ActionRequiredError: the answer is about another resource.
    """
    itself: Response | None = None
    entries = []
    for response in responses:
        parent, _, name = response.path.rpartition("/")
        if response.path == path:
            itself = response
        elif parent == path and name:
            entries.append(Entry(name, response.is_folder, response.size, response.etag or response.date))
    if itself is None:
        raise ActionRequiredError(
            f"{where} sent a listing of another folder: configure the address that the server itself uses for it."
        )
    name = path.rpartition("/")[2]
    told = Entry(name, itself.is_folder, itself.size)
    return Listing(told, itself.etag, itself.available_bytes, itself.is_processing, tuple(entries))
