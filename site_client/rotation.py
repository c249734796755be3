"""A new signing key: the old one hands over to it, in a record that the daemon puts into the folder at its next start.

Three steps, each of which may be the last before a crash: the new key is written as ``signing.key.new``; the record,
which names it and is signed by the old one, into the mirror; then the new key takes the old one's place. Where the
record is there and the last step is not done, it is done when the key is next asked for.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shared.errors import ActionRequiredError, ConfigurationError, NotFoundError, RejectedError
from shared.escaping import quoted
from shared.exchange.handovers import enrolled, followed, hand_over, shown
from shared.exchange.mirror import Mirror
from shared.exchange.names import AGGREGATOR, FEDERATION, MAX_RECORD_BYTES, MIRROR, SITE_CARD, survey_path
from shared.exchange.records.messages import Handover, Head
from shared.exchange.signing import KEY_FILE, NEW_KEY_FILE, SigningKey
from shared.exchange.trust import Peer, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import sync_folder
from site_client.configuration import identity, read_configuration


def own_key(work: Path) -> SigningKey:
    """Return this site's signing key.

    Raises:
        ActionRequiredError: it is missing, readable by others, or not a key; or the mirror's records of keys are
        damaged.
    """
    new = work / NEW_KEY_FILE
    if new.exists() and SigningKey.at(new).public == _ourselves(work).newest_key:
        with suppress(FileNotFoundError):  # another command did it just now
            new.replace(work / KEY_FILE)
        sync_folder(work)
    return SigningKey.at(work / KEY_FILE)


def first_key(work: Path) -> str:
    """Return the public key that this site was enrolled with, which card and ``federation.json`` go on showing."""
    return _ourselves(work).key


def shown_key(work: Path) -> str:
    """Return the public key that card and ``federation.json`` show of this site, where all is well: its first.

    Raises:
        ActionRequiredError: its key is missing, readable by others, not a key, or not the one that was handed over to
        last.
    """
    key = own_key(work).public
    try:
        ourselves = _ourselves(work)
    except ActionRequiredError:  # a card that is not ours is told of where cards are looked at
        return key
    return _as_shown(work, key, ourselves)


def shown_key_by(work: Path, folder: Folder, key: str) -> str:
    """Return the key shown, read from this site's hand-overs in the folder if a lost disk held card and hand-overs.

    Args:
        key: what ``shown_key`` says.

    Raises:
        ActionRequiredError: it is not the one that was handed over to last.
        RejectedError: what lies in the folder is no hand-over by the site's key.
    """
    if (work / MIRROR / SITE_CARD).exists():
        return key
    us = read_configuration(work)
    try:
        content = folder.read(SITE_CARD, max_bytes=MAX_RECORD_BYTES)
        card = open_site_card(content, federation=us.federation, site=us.site, secret=None)
    except (NotFoundError, RejectedError):  # told of where cards are looked at
        return key
    return _as_shown(work, key, shown(Peer(us.federation, us.site, us.site, card.key), folder))


def _as_shown(work: Path, key: str, ourselves: Peer) -> str:
    if not ourselves.handovers:
        return key
    if key != ourselves.newest_key:
        raise ActionRequiredError(
            f"{work / KEY_FILE} was handed over to the key {ourselves.newest_key[:16]}…: put that back from a backup"
        )
    return ourselves.key


def _ourselves(work: Path) -> Peer:
    """Return this site with all its keys; without a card in the mirror it has none."""
    us = identity(work)
    mirror = work / MIRROR
    return followed(enrolled(Peer(us.federation, us.site, us.site, ""), mirror), mirror)


def read_ledger(work: Path) -> Mirror:
    """Return what was exchanged, as the work directory remembers it, at a site whose signing key is here.

    Raises:
        ConfigurationError: as for ``identity``.
        ActionRequiredError: as for ``own_key``; or what lies here is not as it was left.
    """
    us = identity(work)
    peer = Peer(us.federation, us.site, AGGREGATOR, us.aggregator_key)
    return Mirror(work, me=us.site, public_key=own_key(work).public, peer=peer)


def require_rotatable(work: Path) -> Head:
    """Check that there is a key here that can hand over; return the last message that it signed.

    Raises:
        ConfigurationError: this site has sent nothing yet, so there is nothing to hand over.
        ActionRequiredError: the present key is not there, or is not the one to hand over.
    """
    ledger = read_ledger(work)
    ledger.require_newest_key()
    if not (ledger.root / FEDERATION).exists() or ledger.own_head.seq == 0:
        raise ConfigurationError(
            [f"{work}: this site has sent nothing yet under its key: `dropfed-site run --work {quoted(work)}` first"]
        )
    return ledger.own_head


def rotate(work: Path) -> Handover:
    """Make a new key and hand over to it. No daemon may be at work here.

    Raises:
        ConfigurationError, ActionRequiredError: as ``require_rotatable``.
    """
    after, key, ourselves, ledger = require_rotatable(work), own_key(work), _ourselves(work), read_ledger(work)
    # A sheet is of a key that was in use at its survey (protocol 5.1), also where the aggregator's clock is fast.
    surveys = [
        ledger.peer.open_survey((ledger.root / survey_path(number)).read_bytes(), number).created
        for number in range(1, ledger.newest_survey + 1)
    ]
    new = SigningKey.made_at(work / NEW_KEY_FILE)
    handover = hand_over(ourselves, work / MIRROR, key, new.public, after, not_before=surveys)
    own_key(work)
    return handover
