"""What a folder-sync worker may do next: publish what is signed, or look into its folder by ``aggregator.look``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import NamedTuple

from aggregator.facts import awaited
from aggregator.look import look
from shared.errors import ActionRequiredError
from shared.exchange.names import MessageRef
from tests.model_check.exchanges import Noticed, called
from tests.model_check.hospital import Step
from tests.model_check.rules import Rules
from tests.model_check.state import RUNS, Desk, Folder


class Look(NamedTuple):
    """One look into the folder: what it sees, and what it is to look for.

    Args:
        visible: numbers of the site's messages whose manifests are seen.
        keeps_back: the withdrawal's own files cannot be read now.
        more: it looks for all that the site may have sent, as when its heartbeat is not seen.
        searches: it began after it was asked for.
    """

    visible: frozenset[int]
    keeps_back: bool
    more: bool
    searches: bool


class Looked(NamedTuple):
    """What came of a look: what the aggregator then holds, and whether a gap in what it saw stood in its way."""

    desk: Desk
    met_gap: bool


def steps(folder: Folder, rules: Rules) -> Iterator[Step]:
    """All that the folder-sync worker may do, and whether it is an accident."""
    desk, hospital = folder
    found: dict[Desk, tuple[str, bool]] = {}
    if not desk.enrolled:
        after = desk._replace(
            enrolled=hospital.is_here, looked=desk.asked_look, stop_looked=desk.asked_stop_look, in_trouble=False
        )
        found[after] = ("enrols it" if hospital.is_here else "finds no card", False)
    elif desk.published < len(desk.told):
        name, after = _publishes(desk)
        found[after] = (name, False)
    else:
        for how in looks(folder, rules):
            misses = how.keeps_back or len(how.visible) < hospital.published - desk.accepted - desk.refused
            after = looked(folder, how).desk
            found.setdefault(after, (f"looks{', and misses something' if misses else ''}", misses))
    if rules.trouble and desk.asked_stop_look and not (desk.stop_looked or desk.in_trouble):
        found.setdefault(desk._replace(in_trouble=True), ("cannot reach the folder", True))
    for after, (name, is_accident) in found.items():
        if after != desk:
            yield name, is_accident, folder._replace(desk=after)


def _publishes(desk: Desk) -> tuple[str, Desk]:
    newest = desk.told[desk.published]
    what = called(newest)
    if not desk.has_payload:
        return f"uploads {what}", desk._replace(has_payload=True, in_trouble=False)
    after = desk._replace(has_payload=False, published=desk.published + 1, in_trouble=False)
    return f"publishes {what}", after


def _is_asked(desk: Desk) -> bool:
    return (desk.asked_look and not desk.looked) or (desk.asked_stop_look and not desk.stop_looked)


def looks(folder: Folder, rules: Rules) -> Iterator[Look]:
    """All looks that there may be. One that misses nothing goes first: what others lead to is no accident if it leads
    there too.
    """
    for visible in _subsets(folder, rules):
        for keeps_back, more, searches in product(
            (False, rules.looks_may_miss), (True, False), (False, _is_asked(folder.desk))
        ):
            yield Look(visible, keeps_back, more, searches)


def _subsets(folder: Folder, rules: Rules) -> Iterator[frozenset[int]]:
    """Numbers of the site's messages that a look may see, all that are there first."""
    desk, hospital = folder
    there = range(desk.accepted + desk.refused + 1, hospital.published + 1)
    if not rules.looks_may_miss:
        yield frozenset(there)
        return
    sizes = range(len(there), -1, -1)
    yield from map(frozenset, chain.from_iterable(combinations(there, size) for size in sizes))


def looked(folder: Folder, how: Look) -> Looked:
    """Look into the folder."""
    desk, hospital = folder
    noticed = Noticed(desk, hospital, how.visible, keeps_back=how.keeps_back)
    newest = max((each.round_no for each in desk.told if each.run == desk.run), default=0)
    withdrawals = {MessageRef("withdrawal", run) for run in desk.noticed}
    withdrawal = MessageRef("withdrawal", desk.run)
    is_whole, in_trouble = False, False
    try:
        seen = look(
            noticed,
            noticed,
            awaited(noticed, desk.run, newest),
            searches=how.searches,
            noticed=withdrawals,
            may_have_sent_more=lambda: how.more,
            fetch=noticed.fetch,
        )
        is_whole = how.searches and seen.is_whole
    except ActionRequiredError:
        in_trouble = True
    accepted, refused = noticed.taken
    shown = desk.shown
    if desk.takes_part and withdrawal in noticed.asked_for and not shown:
        shown = "nothing"
    if desk.takes_part and noticed.has_shown(withdrawal):
        shown = "withdrawal"
    after = desk._replace(
        accepted=accepted,
        refused=refused,
        knows_key=noticed.knows_key,
        looked=desk.looked or (desk.asked_look and is_whole),
        stop_looked=desk.stop_looked or (desk.asked_stop_look and is_whole),
        noticed=tuple(
            run for run in RUNS if (ref := MessageRef("withdrawal", run)) in withdrawals and not noticed.is_settled(ref)
        ),
        in_trouble=in_trouble,
        shown=shown,
    )
    return Looked(after, noticed.met_gap)
