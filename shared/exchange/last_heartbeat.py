"""What a site's last heartbeat in a folder tells of its messages, which its own disk may have lost."""

from __future__ import annotations

from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.names import MAX_RECORD_BYTES, STATUS
from shared.exchange.records.messages import Head
from shared.exchange.trust import Peer
from shared.folder.contract import Folder

ANOTHER_COPY = (
    "not from this work directory: another copy of the directory is at work, or this one is an old copy; end all but "
    "the newest"
)
"""How a sentence ends about something that our key has signed, and that is not here."""


def last_told(folder: Folder, own: Peer) -> Head:
    """Return the last message of which our heartbeat in a folder speaks; seq 0 if no heartbeat of ours is there.

    Anybody may have put something else in its place.

    Args:
        own: the site, as itself.
    """
    try:
        content = folder.read_or_none(STATUS, max_bytes=MAX_RECORD_BYTES)
        return own.open_status(content).own_head if content is not None else Head()
    except RejectedError:
        return Head()


def another_copy(told: Head, where: str) -> ActionRequiredError:
    """Return what to say where our heartbeat tells of a message that is not from here.

    Args:
        where: the heartbeat is.
    """
    signed = f"{STATUS} {where}, signed with our key,"
    return ActionRequiredError(f"{signed} tells of message {told.seq}, and that is {ANOTHER_COPY}")
