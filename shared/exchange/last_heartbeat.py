"""What a site's last heartbeat in a folder tells of its messages, which its own disk may have lost."""

from __future__ import annotations

from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.mirror import ANOTHER_COPY
from shared.exchange.names import MAX_RECORD_BYTES, STATUS
from shared.exchange.records.messages import Head
from shared.exchange.trust import Peer
from shared.folder.contract import Folder


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


def another_copy(told: Head) -> ActionRequiredError:
    """Return what to say where our heartbeat in a folder tells of a message that is not from here."""
    return ActionRequiredError(
        f"{STATUS} in the folder, signed with our key, tells of message {told.seq}, and that is {ANOTHER_COPY}"
    )
