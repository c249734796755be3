"""The same model with fewer states, by which all accidents are explored at once, each as often as it likes.

What is left out here can be told from a look that misses what is there, and any look may:

    publishing   what is signed is in its folder at once; before that, it was as if it was missed
    keys         who signs with another key is not read until that is known: missed
    a site       that dies, is stopped, joins late, or has looked and not acted yet, does what it does a little later
    what the aggregator has decided and not done yet for one site: it may do it as long as that is allowed at all
    whether a folder was looked into since the PI's stop, or cannot be reached: the stop may go on at any time

So each step of the whole model is one here, or none (``check_step``): what never happens here never happens there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from shared.exchange.names import MessageRef
from tests.model_check import director, folder_sync, hospital
from tests.model_check.director import View
from tests.model_check.rules import Rules
from tests.model_check.state import NEXT, RUN, RUNS, Desk, Director, Folder


def plain(folder: Folder) -> Folder:
    """A folder as it is here."""
    desk, site = folder
    return Folder(
        plain_desk(desk),
        site._replace(
            is_here=desk.enrolled,
            knows=desk.enrolled,
            published=len(site.sent),
            has_payload=False,
            wants_out=(),
            rotated=None,
            shows_key=False,
            started=True,
            looked=False,
        ),
    )


def plain_desk(desk: Desk) -> Desk:
    """The aggregator's end as it is here."""
    return desk._replace(
        published=len(desk.told),
        has_payload=False,
        knows_key=False,
        asked_look=False,
        asked_stop_look=False,
        stop_looked=False,
        in_trouble=False,
        due="",
        had_left=False,
    )


def folder_steps(folder: Folder, rules: Rules) -> list[tuple[str, bool, Folder]]:
    """All that may happen in one folder without the aggregator's decisions."""
    desk, site = folder
    if not desk.enrolled and not site.comes:
        return []
    if not desk.enrolled:
        return [("joins", False, plain(folder._replace(desk=desk._replace(enrolled=True))))]
    found: dict[Folder, tuple[str, bool]] = {}
    has_news = hospital.finds(folder, rules)
    leaving = [(), *((run,) for run in RUNS if rules.withdrawals and (rules.queue or run == RUN))]
    for looked, wants_out in product((False, True), leaving):
        before = Folder(desk, site._replace(looked=looked, wants_out=wants_out))
        for name, is_accident, after in hospital.steps(before, rules):
            _note(found, plain(after), f"site {name}", is_accident or bool(wants_out) or (looked and has_news))
    asked = Folder(desk._replace(asked_look=desk.takes_part), site)
    for name, is_accident, after in folder_sync.steps(asked, rules):
        _note(found, plain(after), f"folder-sync {name}", is_accident)
    found.pop(folder, None)
    return [(name, is_accident, after) for after, (name, is_accident) in found.items()]


def results(run: Director, views: tuple[director.View, director.View], rules: Rules) -> list[director.Result]:
    """All that may happen at the aggregator."""
    found: dict[tuple[Director, tuple[Desk, Desk]], tuple[str, bool]] = {}
    for name, is_accident, after, desks in _found(director.Office(run, views, rules)):
        one, other = (plain_desk(desk) for desk in desks.values())
        _note(found, (after, (one, other)), name, is_accident)
    found.pop((run, (views[0].desk, views[1].desk)), None)
    return [(name, is_accident, *after) for after, (name, is_accident) in found.items()]


def _note(found: dict[Any, tuple[str, bool]], after: Any, name: str, is_accident: bool) -> None:
    """Keep one step to each state, and one that is no accident if there is such."""
    if after not in found or (found[after][1] and not is_accident):
        found[after] = (name, is_accident)


def _found(office: director.Office) -> Iterator[director.Found]:
    run, desks = office.director, office.desks
    yield from director.accidents(office)
    if not office.is_last and (office.is_over or office.rules.turns_overlap):
        yield director.next_turn(office)
    if run.due:
        yield director.does(office)
    fresh: set[tuple[str, str]] = set()
    for stop_looked in {False, run.stopped}:
        looked = [View(view.desk._replace(stop_looked=stop_looked), view.sent) for view in office.views]
        now = director.Office(run, (looked[0], looked[1]), office.rules)
        if not now.is_over:
            fresh |= {(type(action).__name__, action.site) for action in now.actions if hasattr(action, "site")}
            fresh |= {("OfferEarly", site) for site in now.early_offers}
            if not run.due:
                yield from director.decides(now)
    for site in desks:
        for due in _allowed(office, site):
            name, after = director.does_for(office, site, due)
            yield name, (due, site) not in fresh, run, desks | {site: after}


def _allowed(office: director.Office, site: str) -> Iterator[str]:
    """What may be done for one site, whatever was decided; some of it is looked at once more when it is done."""
    run, desk, known = office.director, office.desks[site], office.known[site]
    newest = run.round_no
    is_sent = known.message(MessageRef("round", run.run, newest)) is not None
    is_told = known.message(MessageRef("verdict", run.run, newest)) is not None
    if desk.enrolled and known.message(MessageRef("offer", run.run)) is None:
        yield "SignOffer"
    is_offered = known.message(MessageRef("offer", NEXT)) is not None
    if desk.enrolled and not (office.is_last or is_offered):
        yield "OfferEarly"  # also once the run is over: that may have been decided just before
    if run.chosen or run.aborted:
        yield from ("SignFinal", "SignAbort")
    elif desk.takes_part and not run.closed:
        yield "SignRound"
        if known.is_settled(MessageRef("update", run.run, newest)) and not desk.scored:
            yield "Score"
    elif desk.takes_part and is_sent and not is_told and (run.aggregated or newest > office.rules.rounds):
        yield "SignVerdict"


def placed(folder: Folder, desk: Desk, name: str) -> Folder:
    """A folder whose aggregator's end has changed by a step of this name."""
    return plain(folder._replace(desk=desk))


def check_folder_step(before: Folder, after: Folder, rules: Rules) -> None:
    """Demand that a step of the whole model in a folder is one here, or none."""
    one, other = plain(before), plain(after)
    if one != other and other not in [found for *_, found in folder_steps(one, rules)]:
        raise AssertionError(f"the reduced model has no step from {before} to {after}")


def check_result(
    run: Director, views: tuple[director.View, director.View], result: director.Result, rules: Rules
) -> None:
    """Demand that a step of the whole model at the aggregator is one here, or none."""
    _, _, after, desks = result
    one = (run, (plain_desk(views[0].desk), plain_desk(views[1].desk)))
    other = (after, (plain_desk(desks[0]), plain_desk(desks[1])))
    plain_views = (View(one[1][0], views[0].sent), View(one[1][1], views[1].sent))
    if one != other and other not in [found for *_, found in _pairs(results(run, plain_views, rules))]:
        raise AssertionError(f"the reduced model has no step from {run, views} to {after, desks}")


def _pairs(found: list[director.Result]) -> Iterator[tuple[str, bool, tuple[Director, tuple[Desk, Desk]]]]:
    yield from ((name, is_accident, (after, desks)) for name, is_accident, after, desks in found)
