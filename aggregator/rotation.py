"""A new signing key of the aggregator: the present one hands over to it in every hospital's folder.

The steps, each of which may be the last before a crash: the new key is written as ``signing.key.new``; a record that
names it, signed by the old one, into the mirror of each hospital, also of one that no longer stands in
``aggregator.yaml`` and may come back; invites that nobody has used yet name it; then it takes the old one's place. The
same command goes on where it was cut off. The folders show the records at the next
launch, and a hospital follows once a person there has named the new key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.setup import write_invite
from aggregator.site import open_ledger, read_invite
from shared.errors import ConfigurationError
from shared.exchange.handovers import hand_over
from shared.exchange.mirror import Mirror
from shared.exchange.signing import KEY_FILE, NEW_KEY_FILE, SigningKey
from shared.folder.durable import sync_folder


@dataclass(frozen=True)
class Rotation:
    """What a new key means for the hospitals.

    Args:
        key: the new public key.
        enrolled: the hospitals that have to name it before they go on.
        invited: those that have not joined yet, and need their invite anew.
    """

    key: str
    enrolled: Sequence[str]
    invited: Sequence[str]


def require_rotatable(work: Path) -> tuple[SigningKey, dict[str, Mirror]]:
    """Check that there is a key here that can hand over; return it, and what was exchanged with each hospital.

    Raises:
        ConfigurationError: no hospital has joined yet.
        ActionRequiredError: the present key is not there, or is not the one to hand over.
    """
    key, new = SigningKey.at(work / KEY_FILE), work / NEW_KEY_FILE
    homes = {home.name: home for home in sorted(work.glob("sites/*/"))}
    ledgers = {site: ledger for site, home in homes.items() if (ledger := open_ledger(home)) is not None}
    if not ledgers:
        raise ConfigurationError([f"{work}: no hospital has joined yet, so that nobody knows this key: begin anew"])
    for site, ledger in ledgers.items():
        if not (new.exists() and SigningKey.at(new).public == ledger.own.newest_key):  # of a rotation that was cut off
            open_ledger(homes[site], key=key.public)
    return key, ledgers


def rotate(work: Path) -> Rotation:
    """Make a new key and hand over to it. No daemon may be at work here.

    Raises:
        ConfigurationError, ActionRequiredError: as ``require_rotatable``.
    """
    key, ledgers = require_rotatable(work)
    new = SigningKey.made_at(work / NEW_KEY_FILE)
    for ledger in ledgers.values():
        if ledger.own.newest_key != new.public:
            hand_over(ledger.own, ledger.root, key, new.public, ledger.own_head)
    invited = sorted({path.stem for path in work.glob("invites/*.json")} - ledgers.keys())
    for site in invited:
        write_invite(work, site, read_invite(work, site).model_copy(update={"aggregator_key": new.public}))
    (work / NEW_KEY_FILE).replace(work / KEY_FILE)
    sync_folder(work)
    return Rotation(new.public, [*ledgers], invited)
