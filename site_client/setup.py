"""Joining: one invite file becomes a work directory with configuration, keys and the site's card."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shared.errors import ActionRequiredError, ConfigurationError, DropfedError, NotFoundError
from shared.exchange import names
from shared.exchange.drop_folder import lies_in, require_no_drop_folder_around
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.exchange.reading import check_record, dump_yaml, parse_json
from shared.exchange.records.messages import Invite, SiteCard
from shared.exchange.records.values import now_text
from shared.exchange.signing import KEY_FILE, SigningKey, enrolment_code
from shared.exchange.trust import open_site_card
from shared.folder.address import folder_here
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.folder.lock import make_work
from shared.folder.login import Password
from shared.folder.meter import Meter
from shared.settings import read_named
from shared.software import own_software
from site_client.configuration import FILE, SiteConfiguration, connect, opened_federation, read_configuration

_OF_ENROLMENT = (names.SITE_CARD, names.FEDERATION)
_HEAD = b"""\
# What belongs to this hospital and never leaves it. Paths are relative to this folder.
#   data:    by task, the folder with this hospital's images, as in {octa_segmentation: /data/octa}
#   policy:  consent: ask waits for `dropfed-site approve RUN`; auto agrees to what the lists below allow
#   device:  cpu, cuda or cuda:0
#   workers: processes that prepare images meanwhile; null: none for a CPU, and what a GPU needs
"""


def read_invite(path: Path) -> Invite:
    """Read the file from the aggregator.

    Raises:
        ConfigurationError: every problem in it.
    """
    content = read_named(path, "name the invite file")
    try:
        return parse_json(content, Invite, str(path))
    except ConfigurationError as error:
        remedy = "get the file anew from the aggregator's people"
        raise ConfigurationError([f"{problem.partition('; ')[0]}; {remedy}" for problem in error.problems]) from None


def joined(work: Path, invite: Invite) -> SiteConfiguration | None:
    """Return the settings of a directory that was set up from this invite before; None of a new one.

    Raises:
        ConfigurationError: it belongs to another site, or its settings are wrong.
    """
    if not (work / FILE).exists():
        return None
    known = read_configuration(work)
    told = (invite.federation, invite.site, invite.aggregator_key)
    if (known.federation, known.site, known.aggregator_key) != told:
        another = f"{known.site} of {known.federation}"
        raise ConfigurationError([f"{work / FILE}: belongs to {another}; join in another directory with --work"])
    return known


def settings_of(
    invite: Invite, *, data: dict[str, str], url: str | None, user: str | None = None, ca_file: Path | None = None
) -> SiteConfiguration:
    """Return what ``site.yaml`` says of a site that joins.

    Args:
        data: the hospital's folders by task; more can be filled in by hand.
        url: where the folder is reached from here, if elsewhere than the invite says.
        user: who enters the folder, if another than the invite says: of a public link, its token.
        ca_file: certificates to trust instead of the public ones.

    Raises:
        ConfigurationError: the address cannot be used, or nobody names one.
    """
    if url is None and invite.url is None:
        raise ConfigurationError(["the invite names no address: name the folder of this site with --url"])
    values = {
        "federation": invite.federation,
        "site": invite.site,
        "url": url or invite.url,
        "user": user or invite.user,
        "ca_file": str(ca_file.resolve()) if ca_file else None,
        "aggregator_key": invite.aggregator_key,
        "data": data,
    }
    return check_record(values, SiteConfiguration, "join")


def require_unused(work: Path, configuration: SiteConfiguration, password: str | None) -> None:
    """Check, before anything is kept here, that the folder belongs to this aggregator and to no other directory.

    What keeps us from reading there is left to `check`, as is the card where a signing key is here already.

    Raises:
        ConfigurationError: the directory lies where others read, or among the images.
        ActionRequiredError: another aggregator writes in the folder, or the site takes part from elsewhere.
    """
    _require_apart(work, configuration)
    federation = card = None
    try:
        fixed = None if password is None else Password.fixed(password)
        folder = ListedFolder(connect(work, configuration, Meter(), password=fixed))
        with suppress(NotFoundError):
            federation = folder.read(names.FEDERATION, max_bytes=names.MAX_RECORD_BYTES)
        with suppress(NotFoundError):
            content = folder.read(names.SITE_CARD, max_bytes=names.MAX_RECORD_BYTES)
            card = open_site_card(content, federation=configuration.federation, site=configuration.site, secret=None)
    except DropfedError:
        pass
    if federation is not None:
        opened_federation(federation, configuration)
    if card is not None and not (work / KEY_FILE).exists():
        raise ActionRequiredError(
            f"site {card.site} of {card.federation} takes part already, from another work directory: {names.SITE_CARD} "
            f"in the folder shows its key {card.key[:16]}…; go on in that directory, or put its backup back here; if "
            "both are lost, the aggregator's people must invite this hospital under a new name, with an empty folder"
        )


def _require_apart(work: Path, configuration: SiteConfiguration) -> None:
    """Check that keys and a password come neither before others' eyes nor among images.

    Raises:
        ConfigurationError: they would.
    """
    require_no_drop_folder_around(work)
    for place in filter(None, (folder_here(configuration.url), *map(Path, configuration.data.values()))):
        if lies_in(work, place):
            remedy = "join in another directory with --work"
            raise ConfigurationError([f"{work}: lies in {place}, which is no place for keys and a password; {remedy}"])


def join(
    work: Path,
    invite: Invite,
    *,
    data: dict[str, str],
    url: str | None,
    password: str | None,
    user: str | None = None,
    ca_file: Path | None = None,
) -> SiteConfiguration:
    """Make the work directory; what exists already is kept, so a repeated join changes nothing but the password, and
    makes a card that is neither here nor in the folder.

    Args:
        data, url, user, ca_file: as ``settings_of`` takes them.
        password: kept in a file that only its owner can read; None if it comes from elsewhere.

    Raises:
        ConfigurationError: the directory belongs to another site, or the address cannot be used.
        ActionRequiredError: others may enter the work directory.
    """
    path = work / FILE
    configuration = settings_of(invite, data=data, url=url, user=user, ca_file=ca_file)
    if known := joined(work, invite):
        if password is not None:
            write_file(work / known.password_file, password.encode(), private=True)
        is_restored = (work / KEY_FILE).exists() and not (work / names.MIRROR / names.SITE_CARD).exists()
        if is_restored and _is_unknown(work, known, password):
            _write_card(work, invite)
        return known
    make_work(work)
    _write_card(work, invite)
    if password is not None:
        write_file(work / configuration.password_file, password.encode(), private=True)
    write_file(path, _HEAD + dump_yaml(configuration))
    return configuration


def _write_card(work: Path, invite: Invite) -> None:
    """Make this site's card, of the keys that are here, or of new ones."""
    key = SigningKey.made_at(work / KEY_FILE)
    encryption_key = EncryptionKey.made_at(work / ENCRYPTION_KEY_FILE)
    card = SiteCard(
        federation=invite.federation,
        site=invite.site,
        key=key.public,
        encryption_key=encryption_key.public,
        software=own_software(),
        enrolment=enrolment_code(invite.enrolment_secret, invite.federation, invite.site, key.public),
        created=now_text(),
    )
    write_file(work / names.MIRROR / names.SITE_CARD, key.sign(card.model_dump()))


def _is_unknown(work: Path, configuration: SiteConfiguration, password: str | None) -> bool:
    """Return whether the folder is known to be there, and to hold neither this site's card nor the aggregator's answer
    to it.
    """
    try:
        folder = connect(work, configuration, Meter(), password=None if password is None else Password.fixed(password))
        return not {entry.name for entry in folder.list("")}.intersection(_OF_ENROLMENT)
    except DropfedError:
        return False
