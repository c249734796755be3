"""Making a work directory: ``aggregator.yaml``, the signing key, one invite per site."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from aggregator.configuration import FILE, AggregatorConfiguration, SiteAccess, read_configuration
from shared.errors import ConfigurationError
from shared.exchange.names import AGGREGATOR, is_name
from shared.exchange.reading import dump_yaml
from shared.exchange.records import Invite
from shared.exchange.signing import SigningKey
from shared.folder.durable import write_file

KEY_FILE = "signing.key"

_HEAD = b"""\
# What this machine knows and never sends. Paths are relative to this folder.
#   heldout:  by task, a folder of labelled images for the tolerance check, laid out like a site's, as in
#             heldout: {octa_segmentation: /data/octa, dr_staging: /data/fundus}
#   password_file: holds the folder's password, readable by you alone (chmod 600)
"""


def initialise(work: Path, federation: str, urls: Mapping[str, str], user: str) -> list[Path]:
    """Make what is missing in a work directory.

    Args:
        urls: each site's folder by the site's name.

    Returns:
        The files made.

    Raises:
        ConfigurationError: a name is not allowed, or the directory belongs to another federation.
    """
    problems = [
        f"{name}: is not a name: use lower-case letters, digits, '-', '_' and '.', at most 64"
        for name in (federation, *urls)
        if not is_name(name) or name == AGGREGATOR
    ]
    if problems:
        raise ConfigurationError(problems)
    known: dict[str, SiteAccess] = {}
    path = work / FILE
    if path.exists():
        configuration = read_configuration(work)
        if configuration.federation != federation:
            raise ConfigurationError([f"{path}: belongs to federation {configuration.federation}; take another --work"])
        known = configuration.sites
    made = []
    key = SigningKey.at(work / KEY_FILE)
    new = {
        name: SiteAccess(url=url, user=user, password_file=f"passwords/{name}")
        for name, url in urls.items()
        if name not in known
    }
    if not path.exists():
        write_file(path, _HEAD + dump_yaml(AggregatorConfiguration(federation=federation, sites=new)))
        made.append(path)
    elif new:
        raise ConfigurationError(
            [f"{path}: add the site {name} under sites: by hand, your edits there are kept" for name in new]
        )
    (work / "passwords").mkdir(mode=0o700, exist_ok=True)
    for name in known | new:
        invite_path = work / "invites" / f"{name}.json"
        if not invite_path.exists():
            invite = Invite(
                federation=federation,
                site=name,
                url=(known | new)[name].url,
                user=name,
                aggregator_key=key.public,
                enrolment_secret=secrets.token_hex(32),
            )
            write_file(invite_path, invite.model_dump_json(indent=2).encode(), private=True)
            made.append(invite_path)
    return made
