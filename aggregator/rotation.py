"""A new signing key of the aggregator: the present one hands over to it in every hospital's folder.

The steps, each of which may be the last before a crash: the new key is written as ``signing.key.new``; a record that
names it, signed by the old one, into the mirror of each hospital, also of one that no longer stands in
``aggregator.yaml`` and may come back; invites that nobody has used yet name it; then it takes the old one's place. The
same command goes on where it was cut off. The folders show the records at the next
launch, and a hospital follows once a person there has named the new key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.configuration import read_configuration
from aggregator.setup import invite_path, write_invite
from aggregator.site import open_ledger, read_invite
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError
from shared.exchange.handovers import hand_over
from shared.exchange.mirror import Mirror
from shared.exchange.names import is_name
from shared.exchange.records.messages import Invite
from shared.exchange.signing import KEY_FILE, NEW_KEY_FILE, SigningKey
from shared.folder.durable import sync_folder


@dataclass(frozen=True)
class Rotation:
    """What a new key means for the hospitals.

    Args:
        key: the new public key.
        unnamed: by hospital that has joined, the keys that it has to name one after the other before it goes on, as far
            as is known here; the last is the new one.
        invited: those that have not joined yet, and need their invite anew.
        lost: those that no longer stand in ``aggregator.yaml`` and know neither this key nor the one before.
    """

    key: str
    unnamed: Mapping[str, Sequence[str]]
    invited: Sequence[str]
    lost: Sequence[str]


@dataclass(frozen=True)
class Rotatable:
    """What a new key is handed over with, and to whom.

    Args:
        key: the present one.
        ledgers: what was exchanged with each hospital that can follow.
        invites: of those that have not joined yet.
        lost: as in ``Rotation``.
    """

    key: SigningKey
    ledgers: Mapping[str, Mirror]
    invites: Mapping[str, Invite]
    lost: Sequence[str]


def require_rotatable(work: Path) -> Rotatable:
    """Check that there is a key here that can hand over; return what that takes.

    Raises:
        ConfigurationError: no hospital has joined yet.
        ActionRequiredError: the present key is not there, or is not the one to hand over.
    """
    key, new = SigningKey.at(work / KEY_FILE), work / NEW_KEY_FILE
    told = {key.public, *([SigningKey.at(new).public] if new.exists() else [])}  # of a rotation that was cut off
    configured = read_configuration(work).sites
    ledgers: dict[str, Mirror] = {}
    invites: dict[str, Invite] = {}
    lost: list[str] = []
    for site in sorted({*configured, *filter(is_name, (home.name for home in work.glob("sites/*/")))}):
        try:
            ledger = open_ledger(work / "sites" / site)
            if ledger is None and (site in configured or invite_path(work, site).exists()):
                invites[site] = read_invite(work, site)
            elif ledger is not None and ledger.own.newest_key not in told:
                open_ledger(work / "sites" / site, key=key.public)  # raises
            elif ledger is not None:
                ledgers[site] = ledger
        except DropfedError as error:
            if site in configured:
                raise ActionRequiredError(f"{site}: {error}") from error
            lost.append(site)  # of one that is left out nobody waits for anything
    if not ledgers:
        raise ConfigurationError([f"{work}: no hospital has joined yet, so that nobody knows this key: begin anew"])
    return Rotatable(key, ledgers, invites, lost)


def rotate(work: Path) -> Rotation:
    """Make a new key and hand over to it. No daemon may be at work here.

    Raises:
        ConfigurationError, ActionRequiredError: as ``require_rotatable``.
    """
    found = require_rotatable(work)
    new = SigningKey.made_at(work / NEW_KEY_FILE)
    unnamed = {}
    for site, ledger in found.ledgers.items():
        unnamed[site] = [*(key for key in _unnamed(ledger) if key != new.public), new.public]
        if ledger.own.newest_key != new.public:
            hand_over(ledger.own, ledger.root, found.key, new.public, ledger.own_head)
    for site, invite in found.invites.items():
        write_invite(work, site, invite.model_copy(update={"aggregator_key": new.public}))
    (work / NEW_KEY_FILE).replace(work / KEY_FILE)
    sync_folder(work)
    return Rotation(new.public, unnamed, [*found.invites], found.lost)


def _unnamed(ledger: Mirror) -> list[str]:
    """Return our later keys that signed nothing yet which the hospital has answered: it may not have followed them."""
    answered = {message.manifest.in_reply_to for message in ledger.peer_messages()}
    last = max((message.manifest.seq for message in ledger.own_messages() if message.digest in answered), default=0)
    return [handover.key for handover in ledger.own.handovers if handover.after.seq >= last]
