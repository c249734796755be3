"""Making a work directory: ``aggregator.yaml``, the signing key, one invite per site."""

from __future__ import annotations

import secrets
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from aggregator.configuration import FILE, AggregatorConfiguration, SiteAccess, read_configuration
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.exchange.names import AGGREGATOR, FEDERATION, MIRROR, NAME_FORM, SITE_CARD, is_name
from shared.exchange.reading import check_record, dump_values, dump_yaml, parse_yaml
from shared.exchange.records.messages import Invite
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.exchange.trust import open_federation
from shared.folder.address import checked_address, folder_here
from shared.folder.durable import write_file
from shared.folder.lock import make_work

_HEAD = b"""\
# What this machine knows and never sends. Paths are relative to this folder.
#   heldout:  by task, a folder of labelled images for the tolerance check, laid out like a site's, as in
#             heldout: {octa_segmentation: /data/octa, dr_staging: /data/fundus}
#   password_file: holds the folder's password, readable by you alone (chmod 600)
"""


@dataclass(frozen=True)
class Entrance:
    """How a site enters its folder.

    Args:
        password: None if it is to reach the site by another way than its invite.
    """

    url: str
    user: str
    password: str | None = field(default=None, repr=False)


def initialise(
    work: Path, federation: str, urls: Mapping[str, str], user: str, site_urls: Mapping[str, str] = MappingProxyType({})
) -> list[Path]:
    """Make what is missing in a work directory; of what a person wrote, nothing is changed.

    Args:
        urls: each site's folder by the site's name.
        site_urls: each site's folder as the site reaches it, if its address is another.

    Returns:
        The files written.

    Raises:
        ConfigurationError: a name or an address that is not allowed, a directory that belongs to another federation
            or has another address for a site, or an ``aggregator.yaml`` that a person has to extend.
    """
    problems = misnamed((federation, *urls))
    wanted: dict[str, SiteAccess] = {}
    for name, url in urls.items():
        values = {"url": url, "user": user, "password_file": f"passwords/{name}"}
        try:
            wanted[name] = check_record(values, SiteAccess, f"--site {name}")
        except ConfigurationError as error:
            problems += error.problems
    problems += misfits(work, federation, wanted)
    for name, url in site_urls.items():
        if name not in urls or invite_path(work, name).exists():
            invite = invite_path(work, name)
            where = f"change url in {invite}" if invite.exists() else f"add --site {name}=URL"
            problems.append(f"--site-url {name}: is for an invite that is made now; {where}")
        try:
            checked_address(url)
        except ActionRequiredError as error:
            problems.append(f"--site-url {name}: {error}")
    if problems:
        raise ConfigurationError(problems)
    sites = wanted | (read_configuration(work).sites if (work / FILE).exists() else {})
    entrances = {  # a site that has joined needs none any more
        name: Entrance(site_urls.get(name, access.url), name)
        for name, access in sites.items()
        if not (invite_path(work, name).exists() or (work / "sites" / name / MIRROR / SITE_CARD).exists())
    }
    return settle(work, federation, wanted, entrances, {})


def misnamed(names: Iterable[str]) -> list[str]:
    """Return what is wrong with these names of federations and sites, a sentence for each."""
    return [
        f"{name}: is what the aggregator itself is called; take another name"
        if name == AGGREGATOR
        else f"{name or repr(name)}: is not a name: use {NAME_FORM}"
        for name in names
        if not is_name(name) or name == AGGREGATOR
    ]


def misfits(work: Path, federation: str, wanted: Mapping[str, SiteAccess]) -> list[str]:
    """Return what in a work directory stands against these sites, a sentence for each."""
    path = work / FILE
    if not path.exists():
        return []
    configuration = read_configuration(work)
    known = configuration.sites
    problems = [
        f"--site {name}: {path} has another address for it; change it there, under sites: {name}: url, "
        f"and in {invite_path(work, name)}"
        for name in sorted(wanted.keys() & known.keys())
        if checked_address(wanted[name].url) != checked_address(known[name].url)
    ]
    if configuration.federation != federation:
        problems.insert(0, f"{path}: belongs to federation {configuration.federation}; take another --work")
    return problems


def settle(
    work: Path,
    federation: str,
    wanted: Mapping[str, SiteAccess],
    entrances: Mapping[str, Entrance],
    invites: Mapping[str, Invite],
) -> list[Path]:
    """Write what is missing in a work directory: the sites into ``aggregator.yaml``, the key, and the invites.

    Args:
        wanted: the aggregator's way to each site's folder, as ``misfits`` finds nothing against.
        entrances: the sites' own ways, which their invites are to say.
        invites: those that were written before, of these sites. What says otherwise is changed, and keeps its secret.

    Returns:
        The files written.

    Raises:
        ConfigurationError: an ``aggregator.yaml`` that a person has to extend.
        ActionRequiredError: others may enter the work directory.
    """
    path = work / FILE
    configuration = read_configuration(work) if path.exists() else None
    known = configuration.sites if configuration else {}
    sites = {**wanted, **known}  # of what a person wrote, nothing is changed
    settings = check_record({"federation": federation, "sites": sites}, AggregatorConfiguration, "init")
    make_work(work)
    content: bytes | None = None
    if configuration is None:
        content = _HEAD + dump_yaml(settings)
    elif sites != known:
        content = _extended(path, configuration, sites)
    shown_in = (*work.glob("invites/*.json"), *work.glob(f"sites/*/{MIRROR}/{FEDERATION}"))  # what shows it for good
    key = (SigningKey.at if shown_in else SigningKey.made_at)(work / KEY_FILE)
    (work / "passwords").mkdir(mode=0o700, exist_ok=True)
    made = []
    if content is not None:
        write_file(path, content)
        made.append(path)
    for name, entrance in entrances.items():
        new = led(invites.get(name) or _invite(federation, name, entrance.user, key.public), entrance)
        if new != invites.get(name):
            write_invite(work, name, new)
            made.append(invite_path(work, name))
    return made


def kept_encryption_key(work: Path) -> EncryptionKey | None:
    """Return this machine's encryption key, or None if none was made yet.

    Raises:
        ActionRequiredError: it is missing, and sites know it.
    """
    written = (path.read_bytes() for path in work.glob(f"sites/*/{MIRROR}/{FEDERATION}"))
    is_known = any(open_federation(content, aggregator_key=None).aggregator_encryption_key for content in written)
    return (EncryptionKey.at if is_known else EncryptionKey.found_at)(work / ENCRYPTION_KEY_FILE)


def encryption_key(work: Path) -> EncryptionKey:
    """Return this machine's encryption key, made when it is first asked for.

    Raises:
        ActionRequiredError: it is missing, and sites know it.
    """
    return kept_encryption_key(work) or EncryptionKey.made_at(work / ENCRYPTION_KEY_FILE)


def _extended(path: Path, configuration: AggregatorConfiguration, sites: Mapping[str, SiteAccess]) -> bytes:
    """Return ``aggregator.yaml`` with every site of ``sites``; each line that is there stays as it is.

    Raises:
        ConfigurationError: it is not laid out as ``init`` does it, so that a person has to add them.
    """
    new = {name: access.model_dump() for name, access in sites.items() if name not in configuration.sites}
    head, line, tail = path.read_bytes().partition(b"\nsites:\n")
    entries = textwrap.indent(dump_values(new).decode(), "  ").encode()
    content = head + line + entries + tail
    try:
        if parse_yaml(content, AggregatorConfiguration, str(path)) == configuration.model_copy(update={"sites": sites}):
            return content
    except ConfigurationError:
        pass
    raise ConfigurationError(
        [
            f"{path}: add under sites: by hand, your edits there are kept: {name}: {{url: {access['url']}, "
            f"user: {access['user']}, password_file: {access['password_file']}}}; then run init again for its invite"
            for name, access in new.items()
        ]
    )


def invite_path(work: Path, site: str) -> Path:
    """Return where a site's invite is kept."""
    return work / "invites" / f"{site}.json"


def write_invite(work: Path, site: str, invite: Invite) -> None:
    """Keep a site's invite, for its people alone to read."""
    content = invite.model_dump_json(indent=2, exclude_none=True).encode()
    write_file(invite_path(work, site), content, private=True)


def _invite(federation: str, site: str, user: str, aggregator_key: str) -> Invite:
    """Return an invite that leads nowhere yet."""
    secret = secrets.token_hex(32)
    return Invite(federation=federation, site=site, user=user, aggregator_key=aggregator_key, enrolment_secret=secret)


def led(invite: Invite, entrance: Entrance) -> Invite:
    """Return the invite as it leads to ``entrance``; a password in it stays as long as the user is the same.

    It says nothing of a folder of this machine: the site's people name theirs.
    """
    url = entrance.url if folder_here(entrance.url) is None else None
    kept = invite.password if invite.user == entrance.user else None
    return invite.model_copy(update={"url": url, "user": entrance.user, "password": entrance.password or kept})
