"""``dropfed-site check``: what works here and what does not, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

from shared import check
from shared.check import Finding, LookAtImages, with_problems
from shared.durations import duration_text
from shared.errors import ActionRequiredError, NotFoundError, RejectedError
from shared.exchange.encoding import most_bytes, weights_bytes
from shared.exchange.handovers import followed
from shared.exchange.names import AGGREGATOR, FEDERATION, MAX_RECORD_BYTES, MIRROR, SITE_CARD
from shared.exchange.records.messages import Federation
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import KEY_FILE
from shared.exchange.trust import Peer, open_site_card
from shared.folder.address import checked_url, folder_here
from shared.folder.contract import Folder
from shared.folder.listed import ListedFolder, note_tag
from shared.folder.meter import Meter
from shared.folder.round_trip import LARGE_BYTES
from shared.folder.webdav import WebDavFolder
from shared.learning.methods import method_names
from shared.learning.models.options import published_weights
from shared.learning.plugins import plugins_of, provided
from shared.learning.tasks import TASK_NAMES
from shared.plurals import pluralize
from shared.sizes import size_text
from site_client.apart import ALLOWED_IN, answered
from site_client.configuration import (
    FILE,
    SiteConfiguration,
    ca_file_of,
    connect,
    no_card,
    opened_federation,
    other_site,
)
from site_client.machine import look_at_computing, look_at_daemon, look_at_room
from site_client.offer import newest_offer, standing, why_over
from site_client.programs import look_at_programs
from site_client.rotation import read_ledger, shown_key, shown_key_by
from site_client.store import SCRATCH, WEIGHTS


def examine(work: Path, configuration: SiteConfiguration, *, quick: bool = False) -> Iterator[Finding]:
    """Look at this machine, the signing key, the folder, its server, who takes part there, and the data.

    In the folder a scratch folder is made and removed; here it is noted how the daemon may look into it.

    Args:
        quick: leave out what takes time: the 16 MB that are sent and brought back, and the images.
    """
    yield from with_problems(partial(look_at_daemon, work, configuration))
    yield from with_problems(partial(check.look_at_rights, work))
    yield from with_problems(partial(look_at_room, work))
    key = None
    try:
        key = shown_key(work)
    except ActionRequiredError as error:
        yield Finding("problem", str(error))
    offered = newest_offer(work) if key is not None else None
    speed = None if quick else partial(_speed, configuration, offered)
    yield from with_problems(partial(_folder, work, configuration, key, speed, offered))
    yield from with_problems(partial(look_at_computing, configuration))
    yield from with_problems(partial(check.look_at_plugins, configuration.policy.plugins, ALLOWED_IN))
    yield from with_problems(partial(_allowed, configuration))
    yield from with_problems(partial(look_at_programs, work, configuration))
    if offered is not None:
        yield from with_problems(partial(_published_weights, work, *offered))
    if not configuration.data:
        yield check.names_no_folder(FILE, "data")
    if key is not None:
        yield from with_problems(partial(_division, work))
    if quick:
        for task, folder in configuration.data.items():
            if not (work / folder).is_dir():
                yield Finding("problem", f"{FILE}: data: {task}: there is no folder {work / folder}; correct the path")
        yield Finding("note", "left out, as --quick says: the round trip of 16 MB, and the images")
        return
    run = offered[0] if offered else None
    for task in configuration.data:
        yield from with_problems(partial(_images, task, work, configuration, run))
    for task in configuration.out_of_distribution:
        yield from with_problems(partial(_out_of_distribution_images, task, work, configuration, run))


def _allowed(configuration: SiteConfiguration) -> Iterator[Finding]:
    """Compare the tasks and methods that the hospital allows with those that there are here."""
    policy = configuration.policy
    own = {"tasks": (TASK_NAMES, policy.tasks), "methods": (method_names(), policy.methods)}
    for kind, (here, allowed) in own.items():
        if unnamed := [name for name in here if name not in allowed]:
            yield Finding(
                "note",
                f"{FILE}: policy: {kind}: does not name {', '.join(unnamed)}; a run by these is declined for good",
            )
    known = {*method_names(), *provided("methods")}
    for name in policy.methods:
        if name not in known:
            yield Finding(
                "warning",
                f"{FILE}: policy: methods: {name}: is neither a file nor in a wheel here, and a run by it would be "
                "declined for good; install it, or take the name out",
            )


def _images(task: str, work: Path, configuration: SiteConfiguration, run: RunConfiguration | None) -> Iterator[Finding]:
    from site_client.own_images import look_at_own_images  # noqa: PLC0415  (PyTorch, where there may be no images yet)

    return look_at_own_images(task, work, configuration, run)


def _out_of_distribution_images(
    task: str, work: Path, configuration: SiteConfiguration, run: RunConfiguration | None
) -> Iterator[Finding]:
    root = work / configuration.out_of_distribution[task]
    asked = LookAtImages(setting=f"{FILE}: out_of_distribution", task=task, root=root, is_labelled=False, run=run)
    yield from answered(asked, configuration, plugins_of([("tasks", task)]), scratch=work / SCRATCH)


def _published_weights(work: Path, run: RunConfiguration, listed: Sharing) -> Iterator[Finding]:
    """Check that the weights are here that the newest run has this site take from its own copy.

    Raises:
        ConfigurationError: they are not.
    """
    if listed.from_file and why_over(work, run.run) is None:
        path = published_weights(run.task_options).found([work / WEIGHTS])
        yield Finding("ok", f"weights: {path} is the file that run {run.run} names")


def _division(work: Path) -> Iterator[Finding]:
    """Check that the division of the images is the one with which this site agreed to its last run.

    Raises:
        ActionRequiredError: it is not.
    """
    from site_client.commitment import agreed_runs  # noqa: PLC0415  (PyTorch, where there may be no images yet)
    from site_client.division import BUDGET, DIVISION, kept  # noqa: PLC0415

    if blocks := kept(work, agreed_runs(read_ledger(work))).division.blocks:
        told = f"{pluralize(len(blocks), 'block')} of images; {DIVISION} and {BUDGET} belong into the backup"
    else:
        told = "no image is dealt yet; all are when this site agrees to its first run, or its first survey arrives"
    yield Finding("ok", f"division: {told}")


def _folder(
    work: Path,
    configuration: SiteConfiguration,
    key: str | None,
    speed: Callable[[WebDavFolder], Iterator[Finding]] | None,
    offered: tuple[RunConfiguration, Sharing] | None,
) -> Iterator[Finding]:
    if folder_here(configuration.url) is None:
        yield from check.look_at_way(checked_url(configuration.url), ca_file_of(work, configuration), FILE)
    folder = connect(work, configuration, Meter())
    yield from check.look_at_server(folder, partial(note_tag, work))
    if offered is not None and standing(work, offered[0].run) == "offered":
        yield from _room_for(folder, *offered)
    if speed is not None and isinstance(folder, WebDavFolder):
        yield from with_problems(partial(speed, folder))
    federation, listed = None, ListedFolder(folder)
    if key is not None:
        key = shown_key_by(work, listed, key)
    with suppress(NotFoundError):
        federation = opened_federation(listed.read(FEDERATION, max_bytes=MAX_RECORD_BYTES), configuration)
    has_card = _look_at_cards(work, listed, configuration, key)
    yield _aggregator(work, federation, configuration, key)
    if not has_card:
        raise no_card(work)


def _room_for(folder: Folder, run: RunConfiguration, sharing: Sharing) -> Iterator[Finding]:
    room, needed = folder.room(), most_bytes(run, sharing) - weights_bytes(sharing, "offer", run.wire)  # which is there
    if room is not None and room < needed:
        told = f"run {run.run} takes up to {size_text(needed)} of the folder beside its offer (keep: {run.keep})"
        yield Finding("warning", f"room: {told}, more than is left; have the quota raised, or ask for another `keep`")


def _speed(
    configuration: SiteConfiguration, offered: tuple[RunConfiguration, Sharing] | None, folder: WebDavFolder
) -> Iterator[Finding]:
    """Yield how fast a large file moves, and what that means for a model; the site's limits hold back models alone."""
    room = folder.room()
    if room is not None and room < 2 * LARGE_BYTES:
        yield Finding("warning", "round trip: left out, for the folder has no room for 16 MB")
        return
    speed = folder.speed(check.free_scratch(folder))
    what, size_up, size_down = "a model of 100 MB", 100_000_000, 100_000_000
    if offered is not None:
        run, sharing = offered
        size_up, size_down = (weights_bytes(sharing, kind, run.wire) for kind in ("update", "round"))
        what = f"a round of run {run.run} ({size_text(size_up)} up, {size_text(size_down)} down)"
    limits = configuration.limits
    up = min(speed.up, (limits.upload_megabits or inf) * 1e6 / 8)
    down = min(speed.down, (limits.download_megabits or inf) * 1e6 / 8)
    held = f", as {FILE}, limits: has it," if (up, down) != (speed.up, speed.down) else ""
    yield Finding(
        "ok",
        f"round trip: 16 MB came back as they were sent, up at {size_text(speed.up)}/s and down at "
        f"{size_text(speed.down)}/s; {what} takes{held} about {duration_text(max(1, size_up / up))} up and "
        f"{duration_text(max(1, size_down / down))} down",
    )


def _look_at_cards(work: Path, folder: Folder, configuration: SiteConfiguration, key: str | None) -> bool:
    """Compare this site with its card, as it was made here and as the folder has it; return whether there is one.

    Raises:
        ActionRequiredError: name or key are others, or there are two cards.
    """
    own = work / MIRROR / SITE_CARD
    cards = {str(own): own.read_bytes()} if own.exists() else {}
    with suppress(NotFoundError):
        cards[f"{SITE_CARD} in the folder"] = folder.read(SITE_CARD, max_bytes=MAX_RECORD_BYTES)
    for where, content in cards.items():
        try:
            card = open_site_card(content, federation=configuration.federation, site=configuration.site, secret=None)
        except RejectedError as error:
            raise other_site(where, error.reason, configuration) from None
        _require_key(work, key, where, card.key)
    if len(set(cards.values())) > 1:
        raise ActionRequiredError(
            f"{own} differs from the card in the folder, although the key is the same: delete it; the daemon takes the "
            "folder's card"
        )
    return bool(cards)


def _aggregator(
    work: Path, federation: Federation | None, configuration: SiteConfiguration, key: str | None
) -> Finding:
    """Compare this site with what the aggregator accepted.

    Raises:
        ActionRequiredError: name or key are others.
    """
    if federation is None:
        return Finding("warning", "the aggregator has not accepted this site's card yet; it does once it runs")
    if (federation.federation, federation.site) != (configuration.federation, configuration.site):
        raise other_site(FEDERATION, f"was written for {federation.federation}/{federation.site}", configuration)
    _require_key(work, key, FEDERATION, federation.site_key)
    aggregator = Peer(federation.federation, federation.site, AGGREGATOR, federation.aggregator_key)
    newest = followed(aggregator, work / MIRROR).newest_key
    return Finding("ok", f"enrolled in {federation.federation}, aggregator key {newest[:16]}…")


def _require_key(work: Path, key: str | None, where: str, shown: str) -> None:
    """Raise unless ``key`` is the one that is shown, or there is none, which was told already."""
    if key not in (None, shown):
        raise ActionRequiredError(
            f"{work / KEY_FILE} is not the key that {where} shows: if this site takes part from another work "
            "directory, go on in that one, delete this one, and never start its daemon; else put the right key back "
            "from a backup; if there is none, the aggregator's people must invite this hospital under a new name, "
            "with an empty folder"
        )
