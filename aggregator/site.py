"""One site as the aggregator's files know it: its invite, what was exchanged, and what its folder is known to have."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ActionRequiredError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.encryption import EncryptionKey
from shared.exchange.mirror import Mirror
from shared.exchange.names import AGGREGATOR
from shared.exchange.reading import parse_json
from shared.exchange.records.messages import Federation, Head, Invite
from shared.exchange.trust import Message, Peer, open_federation, open_record
from shared.folder.durable import read_private

PUBLISHED = "published.json"
"""Name of the file among a site's that says what of ours is known to be in its folder."""


def open_ledger(home: Path, *, key: str | None = None, encryption_key: EncryptionKey | None = None) -> Mirror | None:
    """Return what was exchanged with a site whose files are in ``home``, or None until it is enrolled.

    Args:
        key: our public signing key, if anything is to be signed by it.
        encryption_key: None where nothing that is encrypted is read.

    Raises:
        ActionRequiredError: that is not the key that we have handed over to last.
    """
    if (federation := enrolled_in(home)) is None:
        return None
    peer, shown = peer_of(federation), key or federation.aggregator_key
    ledger = Mirror(home, me=AGGREGATOR, public_key=shown, peer=peer, encryption_key=encryption_key)
    if key is not None:
        ledger.require_newest_key()
    return ledger


def enrolled_in(home: Path) -> Federation | None:
    """Return what says who takes part, or None until the site is enrolled: its card is written last."""
    mirror = home / names.MIRROR
    if not (mirror / names.SITE_CARD).exists():
        return None
    return open_federation((mirror / names.FEDERATION).read_bytes(), aggregator_key=None)


def peer_of(federation: Federation) -> Peer:
    """Return the site as the other side of the exchange, under the key of its card."""
    return Peer(federation.federation, federation.site, federation.site, federation.site_key)


def lacks_messages(home: Path, ledger: Mirror) -> bool:
    """Return whether the folder of a site, whose files are in ``home``, may still lack messages that we signed."""
    return _published_head(home).seq < ledger.own_head.seq


def is_published(home: Path, message: Message) -> bool:
    """Return whether the folder of a site, whose files are in ``home``, is known to have a message that we signed."""
    return message.manifest.seq <= _published_head(home).seq


def _published_head(home: Path) -> Head:
    path = home / PUBLISHED
    try:
        return open_record(path.read_bytes(), Head, str(path))
    except (FileNotFoundError, RejectedError):  # it is written anew once the folder-sync worker has looked
        return Head()


def read_invite(work: Path, site: str) -> Invite:
    """Read the invite made for a site, which also holds its enrolment secret.

    Raises:
        ActionRequiredError: it is missing or readable by others.
        ConfigurationError: every problem in it.
    """
    path = work / "invites" / f"{site}.json"
    if not path.exists():
        makes = f"`dropfed-aggregator init --work {quoted(work)}` with --federation and --site makes it"
        remedy = makes if enrolled_in(work / "sites" / site) is None else "put it back from a backup"
        raise ActionRequiredError(f"{path} is missing: {remedy}")
    return parse_json(read_private(path), Invite, str(path))


def read_needed_invite(work: Path, site: str) -> Invite | None:
    """Read the invite made for a site; None once the site is enrolled, for then nothing of it is needed.

    Raises:
        ActionRequiredError, ConfigurationError: as ``read_invite``.
    """
    return read_invite(work, site) if enrolled_in(work / "sites" / site) is None else None
