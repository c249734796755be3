"""Either side's later signing keys: each is handed over to by the one before, in a record that never changes again.

A site's first key is that of its card, the aggregator's that of ``federation.json``; ``keys/0002.json`` and
``aggregator_keys/0002.json`` hand over to the second, and so on. Each says after which message of its sender it holds,
so that of every message it is certain which key must have signed it. What is accepted is kept in the mirror. The
aggregator follows a site by itself; a site follows the aggregator once a person there has named the new key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from shared.errors import ActionRequiredError, AlreadyExistsError, DoubtfulError, ProtocolError, RejectedError
from shared.escaping import quoted
from shared.exchange.names import AGGREGATOR, FEDERATION, MAX_RECORD_BYTES, SITE_CARD, handover_path
from shared.exchange.records.messages import Handover, Head
from shared.exchange.records.values import now_text
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer, open_federation, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import write_file

NAMED_KEY = "aggregator.key"
"""Name of the file beside a site's mirror: the key of the aggregator that a person here has named."""

logger = logging.getLogger(__name__)


def enrolled(side: Peer, mirror: Path) -> Peer:
    """Return a side under the key that it was enrolled with, which the mirror shows; before that, as it is.

    Raises:
        ActionRequiredError: what lies there is not as it was accepted.
    """
    path = mirror / (FEDERATION if side.sender == AGGREGATOR else SITE_CARD)
    if not path.exists():
        return side
    try:
        if side.sender == AGGREGATOR:
            key = open_federation(path.read_bytes(), aggregator_key=None).aggregator_key
        else:
            key = open_site_card(path.read_bytes(), federation=side.federation, site=side.site, secret=None).key
    except RejectedError as error:
        raise not_as_it_was_left(path, error) from None
    return replace(side, key=key, handovers=())


def followed(side: Peer, mirror: Path) -> Peer:
    """Return a side with all its keys that the mirror knows of, from its present one on.

    Raises:
        ActionRequiredError: what lies there is not as it was accepted.
    """
    while (path := mirror / handover_path(side.next_key_number, side.sender)).exists():
        try:
            side = side.hand_over(path.read_bytes())
        except RejectedError as error:
            raise not_as_it_was_left(path, error) from None
    return side


def hand_over(
    own: Peer, mirror: Path, key: SigningKey, new: str, after: Head, *, not_before: Iterable[str] = ()
) -> Handover:
    """Hand over to our next key, in a record of the mirror.

    Args:
        key: ours until now.
        new: the public key that follows.
        after: our last message that ``key`` signed.
        not_before: moments that the record's own may not precede, whatever this machine's clock says.
    """
    handover = Handover(
        federation=own.federation,
        site=own.site,
        number=own.next_key_number,
        key=new,
        after=after,
        created=max([now_text(), *not_before]),
    )
    write_file(mirror / handover_path(handover.number, own.sender), key.sign(handover.model_dump()))
    return handover


def learn(side: Peer, folder: Folder, mirror: Path, *, accepted: Head, only_named: bool = False) -> Peer:
    """Return a side with all its keys, of which the mirror learns those that are new in the folder.

    Args:
        accepted: its last message here; what it signed so far cannot become another key's.
        only_named: no key is learnt but the one that a person here has named (``name_key``).

    Raises:
        RejectedError: what lies in the folder is no hand-over by its key.
        ActionRequiredError: it hands over to a key that nobody here has named.
    """
    for known, content in _shown(side, folder, accepted):
        newest, path = known.handovers[-1], handover_path(known.handovers[-1].number, side.sender)
        if only_named and newest.key != named_key(mirror):
            raise ActionRequiredError(
                f"{path}: the aggregator hands over to the key {newest.key}: ask its people by telephone whether that "
                f"is theirs; if so, `dropfed-site accept-key {newest.key} --work {quoted(mirror.parent)}`"
            )
        side = known
        write_file(mirror / path, content)
        logger.warning(
            "%s: from its message %d on it signs with another key, %s…, handed over to in %s; see that its people know",
            side.sender,
            newest.after.seq + 1,
            newest.key[:16],
            path,
        )
    return side


def name_key(work: Path, key: str) -> None:
    """Write down which key of the aggregator a person at a site has named, for its daemon to follow."""
    write_file(work / NAMED_KEY, key.encode())


def named_key(mirror: Path) -> str | None:
    """Return which key of the aggregator a person at a site has named, if any."""
    path = mirror.parent / NAMED_KEY
    return path.read_text() if path.exists() else None


def shown(side: Peer, folder: Folder) -> Peer:
    """Return a side with all its keys that the folder shows, from the one that it has here on.

    Raises:
        RejectedError: what lies in the folder is no hand-over by its key.
    """
    for known, _ in _shown(side, folder):
        side = known
    return side


def _shown(side: Peer, folder: Folder, accepted: Head | None = None) -> Iterator[tuple[Peer, bytes]]:
    """Yield the side with one key more at each step, and the record that hands over to that."""
    while True:
        path = handover_path(side.next_key_number, side.sender)
        if (content := folder.read_or_none(path, max_bytes=MAX_RECORD_BYTES)) is None:
            return
        side = side.hand_over(content, accepted=accepted)
        yield side, content


def publish(own: Peer, folder: Folder, mirror: Path) -> None:
    """Put our hand-overs of the mirror into the folder.

    Raises:
        ActionRequiredError: our key has signed another there.
        DoubtfulError: there is something else there.
    """
    for number, handover in enumerate(own.handovers):
        path = handover_path(handover.number, own.sender)
        try:
            folder.create(path, (mirror / path).read_bytes())
        except AlreadyExistsError:
            try:
                there = folder.read(path, max_bytes=MAX_RECORD_BYTES)
                replace(own, handovers=own.handovers[:number]).hand_over(there)
            except RejectedError as error:
                raise DoubtfulError(path, f"is not the hand-over that was made here: it {error.reason}") from None
            whose, remedy = (
                ("the aggregator's", "tell every hospital, and begin a new federation")
                if own.sender == AGGREGATOR
                else ("this site's", "tell the aggregator's people, who must invite this hospital under a new name")
            )
            raise ActionRequiredError(
                f"{path} in the folder is not the hand-over that was made here: somebody else has {whose} key; {remedy}"
            ) from None


def not_as_it_was_left(path: Path, error: RejectedError) -> ActionRequiredError:
    """Return what is said of a file of the mirror that does not hold."""
    if isinstance(error, ProtocolError):
        return ActionRequiredError(f"{path} {error.reason}, and an empty work directory")
    return ActionRequiredError(
        f"{path} {error.reason}: it is not as it was left here; put it back from the folder or a backup"
    )
