"""What the courier of one folder may do next: publish what is sealed, or look there by ``aggregator.inbox``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product

from aggregator.facts import awaited
from aggregator.inbox import look
from shared.errors import StandingError
from shared.exchange.names import Place
from tests.model_check.exchanges import Noticed
from tests.model_check.hospital import Step
from tests.model_check.rules import Rules
from tests.model_check.state import RUN, Desk, Folder

WITHDRAWAL = Place("withdrawal", RUN)


def steps(folder: Folder, rules: Rules) -> Iterator[Step]:
    """All that the courier may do, and whether it is an accident."""
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
        # A step that misses nothing goes first: what others lead to is no accident if it leads there too.
        for visible in _subsets(folder, rules):
            misses = len(visible) < hospital.published - desk.accepted - desk.refused
            for keeps_back, more, searches in product(
                (False, rules.looks_may_miss), (True, False), (False, _is_asked(desk))
            ):
                after = _looks(folder, visible, may_have_sent_more=more, searches=searches, keeps_back=keeps_back)
                is_cut_off = misses or keeps_back
                found.setdefault(after, (f"looks{', and misses something' if is_cut_off else ''}", is_cut_off))
    if rules.trouble and desk.asked_stop_look and not (desk.stop_looked or desk.in_trouble):
        found.setdefault(desk._replace(in_trouble=True), ("cannot reach the folder", True))
    for after, (name, is_accident) in found.items():
        if after != desk:
            yield name, is_accident, folder._replace(desk=after)


def _publishes(desk: Desk) -> tuple[str, Desk]:
    newest = desk.told[desk.published]
    what = f"{newest.kind} {newest.round_no}" if newest.round_no else newest.kind
    if not desk.has_payload:
        return f"uploads {what}", desk._replace(has_payload=True, in_trouble=False)
    after = desk._replace(has_payload=False, published=desk.published + 1, in_trouble=False)
    return f"publishes {what}", after


def _is_asked(desk: Desk) -> bool:
    return (desk.asked_look and not desk.looked) or (desk.asked_stop_look and not desk.stop_looked)


def _subsets(folder: Folder, rules: Rules) -> Iterator[frozenset[int]]:
    """Numbers of the site's messages that a look may see, all that are there first."""
    desk, hospital = folder
    there = range(desk.accepted + desk.refused + 1, hospital.published + 1)
    if not rules.looks_may_miss:
        yield frozenset(there)
        return
    sizes = range(len(there), -1, -1)
    yield from map(frozenset, chain.from_iterable(combinations(there, size) for size in sizes))


def _looks(
    folder: Folder, visible: frozenset[int], *, may_have_sent_more: bool, searches: bool, keeps_back: bool
) -> Desk:
    desk, hospital = folder
    noticed = Noticed(desk, hospital, visible, keeps_back=keeps_back)
    newest = max((each.round_no for each in desk.told), default=0)
    withdrawals = {WITHDRAWAL} if desk.has_noticed else set()
    try:
        seen = look(
            noticed,
            awaited(noticed, RUN, newest),
            searches=searches,
            noticed=withdrawals,
            may_have_sent_more=lambda: may_have_sent_more,
            fetch=noticed.fetch,
        )
        is_whole = searches and seen.is_whole
    except StandingError:
        is_whole = False
    accepted, refused = noticed.taken
    shown = desk.shown
    if desk.takes_part and WITHDRAWAL in noticed.asked_for and not shown:
        shown = "nothing"
    if desk.takes_part and noticed.has_shown(WITHDRAWAL):
        shown = "withdrawal"
    return desk._replace(
        accepted=accepted,
        refused=refused,
        knows_key=noticed.knows_key,
        looked=desk.looked or (desk.asked_look and is_whole),
        stop_looked=desk.stop_looked or (desk.asked_stop_look and is_whole),
        has_noticed=any(not noticed.is_settled(place) for place in withdrawals),
        in_trouble=False,
        shown=shown,
    )
