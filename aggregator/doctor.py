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
from aggregator.enrolment import open_card
from aggregator.setup import invite_path
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
from shared.errors import ActionRequiredError, NotFoundError, RejectedError
from shared.exchange.mirror import Mirror
from shared.exchange.names import MAX_RECORD_BYTES, SITE_CARD
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.folder.contract import Folder
from shared.folder.listed import note_tag
from shared.learning.apart import answered
from shared.learning.plugins import plugins_of


def examine(work: Path, configuration: AggregatorConfiguration) -> Iterator[Finding]:
    """Look at every site's folder and invite, what the servers can do, and the held-out images.

    In each folder a scratch folder is made and removed; here it is noted how its daemon may look into it.
    """
    yield from with_problems(partial(look_at_rights, work))
    yield from with_problems(partial(_key, work))
    for name, access in sorted(configuration.sites.items()):
        for finding in with_problems(partial(_site, work, name, access, configuration.federation)):
            yield replace(finding, text=f"{name}: {finding.text}")
    if not configuration.heldout:
        yield names_no_folder(FILE, "heldout")
    yield from with_problems(partial(look_at_plugins, configuration.plugins, PLUGINS_ALLOWED_IN))
    for task, folder in configuration.heldout.items():
        yield from with_problems(partial(_images, work, configuration, task, work / folder))


def _key(work: Path) -> Iterator[Finding]:
    key = SigningKey.at(work / KEY_FILE).public
    yield Finding("ok", f"key: {work / KEY_FILE}, whose public half is {key[:16]}…")


def _images(work: Path, configuration: AggregatorConfiguration, task: str, root: Path) -> Iterator[Finding]:
    run = next(configurations_of(work, task), None)
    asked = LookAtImages(setting=f"{FILE}: heldout", task=task, root=root, is_labelled=True, run=run)
    yield from answered(asked, bounds_of(configuration), plugins_of([("tasks", task)]))


def _site(work: Path, name: str, access: SiteAccess, federation: str) -> Iterator[Finding]:
    ledger = open_ledger(work / "sites" / name)
    invite = read_invite(work, name) if ledger is None or invite_path(work, name).exists() else None
    if invite is not None:
        if (invite.federation, invite.site) != (federation, name):
            yield Finding(
                "problem",
                f"its invite is for {invite.federation}/{invite.site}, {FILE} says {federation}/{name}; correct {FILE}",
            )
        keys = ledger.own.keys if ledger else (invite.aggregator_key,)
        present = SigningKey.at(work / KEY_FILE).public if (work / KEY_FILE).exists() else keys[-1]
        if (invite.aggregator_key, present) != (keys[0], keys[-1]):
            yield Finding("problem", f"its invite shows another key than {work / KEY_FILE}; put the right key back")
    folder = open_folder(work, access)
    yield from look_at_server(folder, partial(note_tag, work / "sites" / name))
    secret = invite.enrolment_secret if invite and ledger is None else None  # once the site has joined, its key counts
    yield _card(folder, federation, name, secret, ledger)


def _card(folder: Folder, federation: str, site: str, secret: str | None, ledger: Mirror | None) -> Finding:
    try:
        content = folder.read(SITE_CARD, max_bytes=MAX_RECORD_BYTES)
        card = open_card(content, federation=federation, site=site, secret=secret)
    except NotFoundError:
        return Finding("warning", "the site has not joined yet: its card is not in the folder")
    except (ActionRequiredError, RejectedError) as error:
        return Finding("problem", str(error))
    if ledger is not None and card.key != ledger.peer.keys[0]:
        return Finding(
            "problem", f"{SITE_CARD} is not the card that the site joined with; see who else can write there"
        )
    return Finding("ok", f"the site's card is there, key {card.key[:16]}…")
