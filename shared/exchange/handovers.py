"""A site's later signing keys: each is handed over to by the one before it, in a record that is never changed again.

The first key is the one of the site's card; ``keys/0002.json`` hands over to the second, and so on. Each says after
which message of the site it holds, so that of every message it is certain which key must have signed it. What is
accepted is kept in the mirror.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shared.errors import ActionRequiredError, AlreadyExistsError, NotFoundError, ProtocolError, RejectedError
from shared.exchange.names import KEYS, MAX_RECORD_BYTES, SITE_CARD, handover_path
from shared.exchange.records.messages import Head
from shared.exchange.trust import Peer, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import write_file

logger = logging.getLogger(__name__)


def followed(site: Peer, mirror: Path) -> Peer:
    """Return a site with all its keys that the mirror knows of, from the one of its card on.

    Raises:
        ActionRequiredError: what lies there is not as it was accepted.
    """
    path = mirror / SITE_CARD
    try:
        if path.exists():
            card = open_site_card(path.read_bytes(), federation=site.federation, site=site.site, secret=None)
            site = replace(site, key=card.key, handovers=())
        while (path := mirror / handover_path(site.next_key_number)).exists():
            site = site.hand_over(path.read_bytes())
    except RejectedError as error:
        raise not_as_it_was_left(path, error) from None
    return site


def learn(site: Peer, folder: Folder, mirror: Path, *, accepted: Head) -> Peer:
    """Return a site with all its keys, of which the mirror learns those that are new in the folder.

    Args:
        accepted: the site's last message here; what it signed so far cannot become another key's.

    Raises:
        RejectedError: what lies in the folder is no hand-over by the site's key.
    """
    for known, content in _shown(site, folder, accepted):
        site, newest = known, known.handovers[-1]
        path = handover_path(newest.number)
        write_file(mirror / path, content)
        logger.warning(
            "%s: from its message %d on it signs with another key, %s…, handed over to in %s; see that its people know",
            site.site,
            newest.after.seq + 1,
            newest.key[:16],
            path,
        )
    return site


def shown(site: Peer, folder: Folder) -> Peer:
    """Return a site with all its keys that the folder shows, from the one that it has here on.

    Raises:
        RejectedError: what lies in the folder is no hand-over by the site's key.
    """
    for known, _ in _shown(site, folder):
        site = known
    return site


def _shown(site: Peer, folder: Folder, accepted: Head | None = None) -> Iterator[tuple[Peer, bytes]]:
    """Yield the site with one key more at each step, and the record that hands over to that."""
    while True:
        try:
            content = folder.read(handover_path(site.next_key_number), max_bytes=MAX_RECORD_BYTES)
        except NotFoundError:
            return
        site = site.hand_over(content, accepted=accepted)
        yield site, content


def publish(folder: Folder, mirror: Path) -> None:
    """Put the hand-overs of the mirror into the folder.

    Raises:
        ActionRequiredError: there is another there.
    """
    for path in sorted((mirror / KEYS).glob("*.json")):
        try:
            folder.create(f"{KEYS}/{path.name}", path.read_bytes())
        except AlreadyExistsError:
            raise ActionRequiredError(
                f"{KEYS}/{path.name} in the folder is not the hand-over that was made here: somebody else has this "
                "site's key; tell the aggregator's people, who must invite this hospital under a new name"
            ) from None


def not_as_it_was_left(path: Path, error: RejectedError) -> ActionRequiredError:
    """Return what is said of a file of the mirror that does not hold."""
    if isinstance(error, ProtocolError):
        return ActionRequiredError(f"{path} {error.reason}, and an empty work directory")
    return ActionRequiredError(
        f"{path} {error.reason}: it is not as it was left here; put it back from the folder or a backup"
    )
