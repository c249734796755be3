"""Making a work directory: ``aggregator.yaml``, the signing key, one invite per site."""

from __future__ import annotations

import secrets
import textwrap
from collections.abc import Mapping
from pathlib import Path

from aggregator.configuration import FILE, AggregatorConfiguration, SiteAccess, read_configuration
from shared.errors import ConfigurationError
from shared.exchange.names import AGGREGATOR, is_name
from shared.exchange.reading import check_record, dump_values, dump_yaml, parse_yaml
from shared.exchange.records import Invite
from shared.exchange.signing import SigningKey
from shared.folder.address import checked_url
from shared.folder.durable import write_file

KEY_FILE = "signing.key"

_HEAD = b"""\
# What this machine knows and never sends. Paths are relative to this folder.
#   heldout:  by task, a folder of labelled images for the tolerance check, laid out like a site's, as in
#             heldout: {octa_segmentation: /data/octa, dr_staging: /data/fundus}
#   password_file: holds the folder's password, readable by you alone (chmod 600)
"""


def initialise(work: Path, federation: str, urls: Mapping[str, str], user: str) -> list[Path]:
    """Make what is missing in a work directory; of what a person wrote, nothing is changed.

    Args:
        urls: each site's folder by the site's name.

    Returns:
        The files written.

    Raises:
        ConfigurationError: a name or an address that is not allowed, a directory that belongs to another federation
            or has another address for a site, or an ``aggregator.yaml`` that a person has to extend.
    """
    path = work / FILE
    configuration = read_configuration(work) if path.exists() else None
    known = configuration.sites if configuration else {}
    problems = [
        f"{name}: is not a name: use lower-case letters, digits, '-', '_' and '.', at most 64"
        for name in (federation, *urls)
        if not is_name(name) or name == AGGREGATOR
    ]
    if configuration is not None and configuration.federation != federation:
        problems.append(f"{path}: belongs to federation {configuration.federation}; take another --work")
    wanted: dict[str, SiteAccess] = {}
    for name, url in urls.items():
        values = {"url": url, "user": user, "password_file": f"passwords/{name}"}
        try:
            wanted[name] = check_record(values, SiteAccess, f"--site {name}")
        except ConfigurationError as error:
            problems += error.problems
    problems += [
        f"--site {name}: {path} has another address for it; change it there, under sites: {name}: url, "
        f"and in {_invite_path(work, name)}"
        for name in sorted(wanted.keys() & known.keys())
        if checked_url(wanted[name].url) != checked_url(known[name].url)
    ]
    if problems:
        raise ConfigurationError(problems)
    sites = wanted | known
    settings = check_record({"federation": federation, "sites": sites}, AggregatorConfiguration, "init")
    content: bytes | None = None
    if configuration is None:
        content = _HEAD + dump_yaml(settings)
    elif sites != known:
        content = _extended(path, configuration, sites)
    has_invited = any((work / "invites").glob("*.json"))  # and each invite shows the key that is to be used for good
    key = (SigningKey.at if has_invited else SigningKey.made_at)(work / KEY_FILE)
    made = []
    if content is not None:
        write_file(path, content)
        made.append(path)
    (work / "passwords").mkdir(mode=0o700, exist_ok=True)
    for name, access in sites.items():
        if not (invite := _invite_path(work, name)).exists():
            write_file(invite, _invite(federation, name, access.url, key.public), private=True)
            made.append(invite)
    return made


def _extended(path: Path, configuration: AggregatorConfiguration, sites: Mapping[str, SiteAccess]) -> bytes:
    """``aggregator.yaml`` with every site of ``sites``; each line that is there stays as it is.

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


def _invite_path(work: Path, site: str) -> Path:
    return work / "invites" / f"{site}.json"


def _invite(federation: str, site: str, url: str, aggregator_key: str) -> bytes:
    invite = Invite(
        federation=federation,
        site=site,
        url=url,
        user=site,
        aggregator_key=aggregator_key,
        enrolment_secret=secrets.token_hex(32),
    )
    return invite.model_dump_json(indent=2).encode()
