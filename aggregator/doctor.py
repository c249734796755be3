"""``dropfed-aggregator check``: what works here and what does not, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from aggregator.configuration import (
    FILE,
    PLUGINS_ALLOWED_IN,
    AggregatorConfiguration,
    SiteAccess,
    bounds_of,
    open_folder,
)
from aggregator.site import open_ledger, read_invite
from aggregator.store import configurations_of
from shared.check import (
    Finding,
    LookAtImages,
    look_at_plugins,
    look_at_rights,
    look_at_server,
    names_no_folder,
    with_problems,
)
from shared.errors import NotFoundError, RejectedError
from shared.exchange.names import MAX_RECORD_BYTES, SITE_CARD
from shared.exchange.records.messages import Invite
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.exchange.trust import open_site_card
from shared.folder.contract import Folder
from shared.folder.listed import note_tag
from shared.learning.apart import answered
from shared.learning.plugins import plugins_of


def examine(work: Path, configuration: AggregatorConfiguration) -> Iterator[Finding]:
    """Look at every site's folder and invite, what the servers can do, and the held-out images.

    In each folder a scratch folder is made and removed; here it is noted how its daemon may look into it.
    """
    yield from with_problems(partial(look_at_rights, work))
    for name, access in sorted(configuration.sites.items()):
        for finding in with_problems(partial(_site, work, name, access, configuration.federation)):
            yield replace(finding, text=f"{name}: {finding.text}")
    if not configuration.heldout:
        yield names_no_folder(FILE, "heldout")
    yield from with_problems(partial(look_at_plugins, configuration.plugins, PLUGINS_ALLOWED_IN))
    for task, folder in configuration.heldout.items():
        yield from with_problems(partial(_images, work, configuration, task, work / folder))


def _images(work: Path, configuration: AggregatorConfiguration, task: str, root: Path) -> Iterator[Finding]:
    run = next(configurations_of(work, task), None)
    asked = LookAtImages(setting=f"{FILE}: heldout", task=task, root=root, is_labelled=True, run=run)
    yield from answered(asked, bounds_of(configuration), plugins_of([("tasks", task)]))


def _site(work: Path, name: str, access: SiteAccess, federation: str) -> Iterator[Finding]:
    invite = read_invite(work, name)
    if (invite.federation, invite.site) != (federation, name):
        yield Finding(
            "problem",
            f"its invite is for {invite.federation}/{invite.site}, {FILE} says {federation}/{name}; correct {FILE}",
        )
    ledger = open_ledger(work / "sites" / name)
    keys = ledger.own.keys if ledger else (invite.aggregator_key,)
    present = SigningKey.at(work / KEY_FILE).public if (work / KEY_FILE).exists() else None
    if (invite.aggregator_key, present) != (keys[0], keys[-1]):
        yield Finding("problem", f"its invite shows another key than {work / KEY_FILE}; put the right key back")
    folder = open_folder(work, access)
    yield from look_at_server(folder, partial(note_tag, work / "sites" / name))
    yield _card(folder, invite)


def _card(folder: Folder, invite: Invite) -> Finding:
    try:
        card = open_site_card(
            folder.read(SITE_CARD, max_bytes=MAX_RECORD_BYTES),
            federation=invite.federation,
            site=invite.site,
            secret=invite.enrolment_secret,
        )
    except NotFoundError:
        return Finding("warning", "the site has not joined yet: its card is not in the folder")
    except RejectedError as error:
        return Finding("problem", str(error))
    return Finding("ok", f"the site's card is there, key {card.key[:16]}…")
