"""Enrolment: a site's card is accepted, and its folder says who takes part under which keys."""

from __future__ import annotations

import logging
from pathlib import Path

from aggregator.configuration import FILE
from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.exchange.encryption import EncryptionKey
from shared.exchange.readme import KNOWN_TEXTS, README_TEXT
from shared.exchange.records.messages import Federation, Invite, SiteCard
from shared.exchange.records.values import PROTOCOL, now_text
from shared.exchange.records.wire import FileEntry
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import ElsewhereError, open_federation, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import write_file

logger = logging.getLogger(__name__)


def enrol(home: Path, folder: Folder, invite: Invite, key: SigningKey, encryption_key: EncryptionKey | None) -> bool:
    """Accept a site's card, if it is there, then say in its folder who takes part; return whether it is there.

    Args:
        home: ``sites/SITE`` in the work directory.
        key, encryption_key: ours.

    Raises:
        ActionRequiredError, RejectedError: as ``open_card``.
    """
    if (content := folder.read_or_none(names.SITE_CARD, max_bytes=names.MAX_RECORD_BYTES)) is None:
        return False
    card = open_card(content, federation=invite.federation, site=invite.site, secret=invite.enrolment_secret)
    # A cut-off enrolment, of an earlier version perhaps, has left one of the texts that this protocol has there.
    there = folder.read_or_none(names.README, max_bytes=names.MAX_RECORD_BYTES)
    readme = there if there is not None and there in KNOWN_TEXTS[PROTOCOL] else README_TEXT
    federation = Federation(
        federation=invite.federation,
        site=invite.site,
        aggregator_key=key.public,
        aggregator_encryption_key=encryption_key.public if encryption_key and card.encryption_key else None,
        site_key=card.key,
        created=now_text(),
        files={names.README: FileEntry(size=len(readme), sha256=digest_of(readme))},
    )
    path = home / names.MIRROR / names.FEDERATION
    # One that a cut-off enrolment has left may be for a card that was replaced since, or name another text.
    kept = open_federation(path.read_bytes(), aggregator_key=None) if path.exists() else None
    if kept is None or (kept.site_key, kept.files) != (card.key, federation.files):
        write_file(path, key.sign(federation.model_dump()))
    folder.create(names.README, readme)
    folder.create(names.FEDERATION, path.read_bytes())
    write_file(path.with_name(names.README), readme)
    write_file(path.with_name(names.SITE_CARD), content)
    return True


def open_card(content: bytes, *, federation: str, site: str, secret: str | None) -> SiteCard:
    """Check the card in a site's folder as ``open_site_card`` does.

    Raises:
        ActionRequiredError: it is another site's, so that our settings lead into the wrong folder.
        RejectedError: it does not hold.
    """
    try:
        return open_site_card(content, federation=federation, site=site, secret=secret)
    except ElsewhereError as error:
        raise ActionRequiredError(
            f"{error}: this folder is another federation's, or another site's; correct url in {FILE}, under sites: "
            f"{site}"
        ) from None


def put_back(home: Path, folder: Folder) -> None:
    """Put into an enrolled site's folder again what it begins with, where a backup from before that has none of it.

    Args:
        home: ``sites/SITE`` in the work directory.
    """
    there = {entry.name for entry in folder.entries("")}
    for name in (names.README, names.FEDERATION):
        if name not in there:
            folder.create(name, (home / names.MIRROR / name).read_bytes())
            logger.warning("%s: %s was lost from the folder; it is there again", home.name, name)
