"""One end of one drop folder: what is known of it, sign and publish one way, fetch and verify the other."""

from __future__ import annotations

from pathlib import Path

from shared.exchange.encryption import EncryptionKey
from shared.exchange.inbox import Inbox
from shared.exchange.mirror import Mirror
from shared.exchange.outbox import Outbox
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer
from shared.folder.contract import Folder


class Channel:
    """Both daemons' way through one site's folder.

    Args:
        home: local directory of the mirror and what lies beside it.
        me: ``aggregator`` or the site's name.
        key: its signing key.
        peer: the other side and its pinned key.
        encryption_key: ours; None where there is none.
    """

    def __init__(
        self,
        home: Path,
        folder: Folder,
        *,
        me: str,
        key: SigningKey,
        peer: Peer,
        encryption_key: EncryptionKey | None,
    ) -> None:
        self.ledger = Mirror(home, me=me, public_key=key.public, peer=peer, encryption_key=encryption_key)
        self.outbox = Outbox(self.ledger, folder, key)
        self.inbox = Inbox(self.ledger, folder)
