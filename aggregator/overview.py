"""Where the run in turn stands, read from the work directory alone; no daemon needs to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aggregator.configuration import require_aggregator
from aggregator.estimates import answer_is_expected, end_is_expected
from aggregator.facts import is_owed_end
from aggregator.run_view import OpenedRun, RunView, open_run_files, view_of
from aggregator.site import is_published, lacks_messages
from aggregator.store import RunStore, open_runs, run_in_turn
from shared.durations import duration_text
from shared.errors import ConfigurationError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import status_text
from shared.exchange.records.run import round_name
from shared.exchange.records.values import sentence, time_text
from shared.exchange.trust import open_site_card
from shared.folder.durable import full_disk
from shared.folder.lock import is_at_work
from shared.folder.meter import TRANSFER, Transfer, read_transfer, transfer_text
from shared.learning.outcome import Outcome, chosen_text
from shared.moments import moment_text
from shared.plurals import pluralize
from shared.software import own_software, release

MOST_READINGS = 5  # of a run that keeps changing; each change takes a daemon longer than a reading


@dataclass(frozen=True)
class Heartbeat:
    """What a site last said of itself. ``time`` is by the site's clock; when it was ``heard``, by ours. ``software`` is
    which it works with, where its card says another.
    """

    time: str
    phase: str
    run: str | None
    round: int
    progress_percent: int
    trouble: str | None
    software: str | None
    heard: str
    age_s: int

    @property
    def text(self) -> str:
        """The heartbeat in words, without its trouble."""
        return status_text(vars(self))


@dataclass(frozen=True)
class SiteOverview:
    """Where one site stands.

    Args:
        software: which dropfed it works with, as it last said; None before it joined.
        expected: when its answer is, by an estimate.
        new_key: which key it signs with, if another than it was enrolled with.
        trouble: what stands in the way of its folder, since ``trouble_since``.
    """

    phase: str
    software: str | None
    expected: str | None
    transfer: Transfer | None
    last_verdict: str | None
    new_key: str | None
    heartbeat: Heartbeat | None
    trouble: str | None
    trouble_since: str | None


@dataclass(frozen=True)
class Overview:
    """Where a run stands; docs/commands.md shows it in words.

    Args:
        software: of this machine.
        trouble: what keeps the run from coming to anything.
        waiting: other runs that are open, with how many of their sites have answered.
        waits_for: sites, ``since`` when and ``why``; ``next``: what happens then.
        expected_end: by an estimate.
    """

    run: str
    outcome: Outcome | None
    now: str
    work: str
    software: str
    configuration: str
    state: str
    running: bool
    reason: str | None
    trouble: Sequence[str]
    since: str
    waiting: Sequence[str]
    waits_for: Sequence[str]
    why: str | None
    next: str | None
    round: int
    rounds: int
    is_closing_round: bool
    expected_end: str | None
    chosen_round: int | None
    chosen: str | None
    final_model: str | None
    sites: Mapping[str, SiteOverview]


Read = TypeVar("Read")


def read_run_in_turn(work: Path, read: Callable[[OpenedRun], Read]) -> Read:
    """Return what ``read`` finds of the run whose turn it is, or was last, as of one moment.

    If a daemon changes the run meanwhile, ``read`` is called again.

    Raises:
        ConfigurationError: there is no such directory, or no run was launched here yet.
    """
    require_aggregator(work)
    for _ in range(MOST_READINGS):
        store = run_in_turn(work)
        if store is None:
            begins = "an aggregator is at work here that begins one: ask again in a moment"
            command = f"`dropfed-aggregator launch RUN.yaml --work {quoted(work)}`"
            remedy = begins if is_at_work(work) else f"start one with {command}"
            raise ConfigurationError([f"{work}: no run was launched here yet; {remedy}"])
        marks = store.marks()
        found = read(open_run_files(work, store))
        if store.marks() == marks:
            break
    return found


def overview(work: Path) -> Overview:
    """Return where the run in turn stands.

    Raises:
        ConfigurationError: there is no such directory, or no run was launched here yet.
    """
    return read_run_in_turn(work, lambda opened: overview_of(opened, view_of(opened, with_open_round=False)))


def overview_of(opened: OpenedRun, view: RunView) -> Overview:
    """Return where a run stands that was read."""
    work, store, run, card = opened.work, opened.store, opened.run, view.card
    now, is_running = time.time(), is_at_work(work)
    waited_for = _waited_for(opened, view)
    goes_on = is_running and not (view.is_over or store.paused or store.stop_requested or _loses_quorum(view))
    return Overview(
        run=view.run,
        outcome=view.outcome,
        now=time_text(now),
        work=str(work),
        software=own_software(),
        configuration=str(store.home / names.RUN_CONFIGURATION),
        state=_state(store, view, waited_for),
        running=is_running,
        reason=card.reason if card else view.aborted,
        trouble=_troubles(opened, view),
        since=time_text(store.stage_began),
        waiting=_waiting(opened),
        waits_for=waited_for,
        why=_why(store, view, waited_for, is_running=is_running),
        next=_next(opened, view, waited_for),
        round=min(len(view.rounds), run.rounds),
        rounds=run.rounds,
        is_closing_round=len(view.rounds) > run.rounds,
        expected_end=end_is_expected(view, now) if goes_on else None,
        chosen_round=card.chosen_round if card else None,
        chosen=chosen_text(card) if card else None,
        final_model=str(store.final_model) if card else None,
        sites={
            site: _site(opened, view, site, now, is_awaited=site in waited_for, goes_on=goes_on) for site in run.sites
        },
    )


def overview_text(state: Overview) -> str:
    """Return the overview in words, for people."""
    is_closing = state.is_closing_round and not state.final_model
    where = "the closing round" if is_closing else f"round {state.round} of {state.rounds}"
    lines = [f"outcome: {state.outcome.text}"] if state.outcome else []
    lines.append(f"run {state.run}: {state.state}, {where}")
    if not state.running and state.next:
        command = f"dropfed-aggregator launch {quoted(state.configuration)} --work {quoted(state.work)}"
        lines.append(f"the aggregator is not running: `{command}` goes on with the run")
    lines += [f"waits for its turn: {waiting}" for waiting in state.waiting]
    if state.waits_for:
        lines.append(f"waits for: {', '.join(state.waits_for)}, since {moment_text(state.since)}")
    lines += [f"{what}: {said}" for what, said in (("why", state.why), ("next", state.next)) if said]
    lines += [f"trouble: {trouble}" for trouble in state.trouble]
    if state.expected_end:
        lines.append(f"estimate: ends about {moment_text(state.expected_end)}, if rounds go on as they went")
    if state.final_model:
        lines.append(f"chosen: {state.chosen}: {state.final_model}")
    if state.reason:
        lines.append(f"reason: {state.reason}")
    lines.append(f"software: {state.software}")
    for name, site in state.sites.items():
        lines += [f"  {name}: {site.phase}", *(f"      {line}" for line in _site_lines(site, state))]
    return "\n".join(lines)


def _site_lines(site: SiteOverview, state: Overview) -> Iterator[str]:
    yield f"software: {_told_software(site.software, state.software)}"
    if site.transfer:
        yield f"on its way: {transfer_text(site.transfer)}"
    if site.last_verdict:
        yield f"last verdict: {site.last_verdict}"
    beat = site.heartbeat
    if beat:
        trouble = f"; {beat.trouble}" if beat.trouble else ""
        yield f"says: {beat.text}, heard {duration_text(beat.age_s)} ago{trouble}"
    if site.expected:
        yield f"estimate: answers about {moment_text(site.expected)}, if it takes as long as it did"
    if site.new_key:
        yield f"new key: {site.new_key}"
    if site.trouble and site.trouble_since:
        last = "" if state.running else ", when the aggregator last ran"
        yield f"trouble: {site.trouble} (since {moment_text(site.trouble_since)}{last})"


def _waiting(opened: OpenedRun) -> list[str]:
    """Return the runs that wait while one is looked at; what was exchanged is read once for all."""
    known: dict[str, Mirror | None] = {**opened.ledgers}
    others = [store for store in open_runs(opened.work) if store.run != opened.store.run]
    return [waiting_text(opened.work, store, known) for store in others]


def waiting_text(work: Path, store: RunStore, known: dict[str, Mirror | None]) -> str:
    """Return a run that waits for its turn, with how many of its sites have answered.

    Args:
        known: as ``open_run_files`` takes it.
    """
    opened = open_run_files(work, store, known=known)
    said = [site.agrees for site in view_of(opened, with_open_round=False).sites.values()]
    agreed = f"{said.count(True)} of {pluralize(len(said), 'site')} agreed, {said.count(False)} declined"
    return f"{store.run}, {agreed}{', paused' if store.paused else ''}"


def _told_software(there: str | None, here: str) -> str:
    """Return which software a site works with, and what to do if another dropfed does not go well with this one."""
    if there is None or release(there) == release(here) or there.partition(" ")[0] != here.partition(" ")[0]:
        return there or "not reported"
    return f"{there}, and here {here}: the older one may refuse what the newer asks; update both to one version"


def _waited_for(opened: OpenedRun, view: RunView) -> list[str]:
    """Return the sites that owe an answer now; at the end, those whose folder still has to take something."""
    store, ledgers = opened.store, opened.ledgers
    if view.is_over:
        return [site for site, ledger in ledgers.items() if is_owed(opened.work / "sites" / site, ledger, store)]
    if not view.rounds:
        return [] if store.stop_requested else [site for site, said in view.sites.items() if said.agrees is None]
    if store.stop_requested or view.rounds[-1].is_closed:
        return []
    update = MessageRef("update", view.run, store.round_no)
    return [
        site
        for site in view.rounds[-1].sites
        if (ledger := ledgers.get(site)) is None
        or not (ledger.is_settled(update) or view.sites[site].withdrew is not None)
    ]


def is_owed(home: Path, ledger: Mirror, store: RunStore) -> bool:
    """Return whether a site's folder still has to take something of a run that is over."""
    return lacks_messages(home, ledger) or is_owed_end(home.name, ledger, store, store.run)


def _why(store: RunStore, view: RunView, waited_for: list[str], *, is_running: bool) -> str | None:
    """Return what the present stage waits for, in a sentence."""
    run, newest = view.configuration, view.rounds[-1] if view.rounds else None
    if view.is_over:
        return "the run ends when every site's folder has what was signed for it" if waited_for else None
    if store.stop_requested:
        return "the PI has asked to close the run"
    if store.waits_in_queue and not is_running:
        return "the run is queued, and the next `launch` plays it"
    if store.paused and not waited_for:
        return "the PI has paused the run"
    hours = run.round_deadline_hours if newest else run.consent_deadline_hours
    left = duration_text(hours * 3600 - store.waited_s(newest.round if newest else 0))
    until = f"in {left}{' of running time' if store.paused else ''}"
    deadline = f"; at the deadline, {until}, a quorum of {run.quorum} is enough"
    if newest is None:
        said = len(run.sites) - len(waited_for)
        return f"the run begins when every site has said yes or no, {said} of {len(run.sites)} have{deadline}"
    if newest.is_closed:
        return None
    answered = f"{len(newest.sites) - len(waited_for)} of {len(newest.sites)} have"
    return f"the round closes when every site it asks has answered, {answered}{'' if _loses_quorum(view) else deadline}"


def _loses_quorum(view: RunView) -> bool:
    """Return whether too few sites are left, and none can come, for a round after the open one."""
    may_come = [site for site in view.sites.values() if site.withdrew is None and site.agrees is not False]
    return len(may_come) < view.configuration.quorum


def _troubles(opened: OpenedRun, view: RunView) -> list[str]:
    store, full = opened.store, full_disk(opened.work)
    own = store.trouble if not store.is_over else ""
    return [*filter(None, [full, own]), *view.standstills]


def _next(opened: OpenedRun, view: RunView, waited_for: list[str]) -> str | None:
    """Return what happens once the run has what it waits for."""
    store, run, newest = opened.store, opened.run, len(view.rounds)
    if view.is_over:
        return "the run ends" if waited_for else None
    if store.stop_requested:
        return "the best model so far is chosen, and the run ends"
    if store.paused:
        return f"no new round opens until `dropfed-aggregator resume {run.run} --work {quoted(opened.work)}`"
    if _loses_quorum(view):
        end = "the best model so far is chosen, and the run ends" if newest else "the run is aborted"
        return f"fewer sites are left than the quorum, {run.quorum}: {end}"
    if newest > run.rounds:
        return "the best model is chosen and sent to every site, and the run ends"
    following = f"round {newest + 1}" if newest < run.rounds else "the closing round (validation alone)"
    return f"{'the answers are checked and combined, and ' if newest else ''}{following} opens"


def _state(store: RunStore, view: RunView, waited_for: list[str]) -> str:
    if view.card:
        return "ending" if waited_for else "ended"
    if view.aborted:
        return "aborted"
    if store.stop_requested:
        return "being closed"
    if store.waits_in_queue:
        return "queued"
    return "paused" if store.paused else "open"


def _site(opened: OpenedRun, view: RunView, site: str, now: float, *, is_awaited: bool, goes_on: bool) -> SiteOverview:
    """Return how a site stands in a run; its troubles are left out once nothing more is awaited of it."""
    ledger, home = opened.ledgers.get(site), opened.work / "sites" / site
    heartbeat = _heartbeat(home / names.STATUS, ledger, now)
    is_expected = is_awaited and goes_on and not (heartbeat and heartbeat.phase == "paused")
    software = (heartbeat.software if heartbeat else None) or _card_software(home, ledger)
    trouble, trouble_since = (None, None) if view.is_over and not is_awaited else _trouble(home / "trouble.txt")
    return SiteOverview(
        phase=_phase(opened, view, site),
        software=software,
        expected=answer_is_expected(view, site, now) if is_expected and not trouble else None,
        transfer=read_transfer(home / TRANSFER),
        last_verdict=_last_verdict(view, site),
        new_key=_new_key(ledger),
        heartbeat=None if view.sites[site].ended else heartbeat,  # it is not read any more, and was of before
        trouble=trouble,
        trouble_since=trouble_since,
    )


def _card_software(home: Path, ledger: Mirror | None) -> str | None:
    """Return what a site's card says of its software; None before it joined."""
    if ledger is None:
        return None
    content = (home / names.MIRROR / names.SITE_CARD).read_bytes()
    return open_site_card(content, federation=ledger.peer.federation, site=home.name, secret=None).software


def _trouble(path: Path) -> tuple[str, str] | tuple[None, None]:
    """Return what stands in the way and since when, as the folder-sync worker has noted it."""
    try:
        return path.read_text("utf-8", errors="replace").rstrip("."), time_text(path.stat().st_mtime)
    except FileNotFoundError:
        return None, None


def _new_key(ledger: Mirror | None) -> str | None:
    """Return which key a site signs with, if another than it was enrolled with."""
    if ledger is None or not ledger.peer.handovers:
        return None
    newest = ledger.peer.handovers[-1]
    return f"{newest.key}, from its message {newest.after.seq + 1} on, handed over at {moment_text(newest.created)}"


def _heartbeat(path: Path, ledger: Mirror | None, now: float) -> Heartbeat | None:
    """Return what the site last said of itself; None if it said nothing yet, or that is damaged."""
    if ledger is None or not path.exists():
        return None
    try:
        heard = path.stat().st_mtime
        status = ledger.peer.open_status(path.read_bytes())
    except RejectedError:
        return None
    return Heartbeat(
        **status.model_dump(include={"time", "phase", "run", "round", "progress_percent"}),
        software=status.software,
        trouble=sentence(status.trouble) if status.trouble else None,
        heard=time_text(heard),
        age_s=max(0, round(now - heard)),
    )


def _phase(opened: OpenedRun, view: RunView, site: str) -> str:
    """Return where a site stands, as the files here read it."""
    ledger, home, said = opened.ledgers.get(site), opened.work / "sites" / site, view.sites[site]
    if ledger is None:
        return "not enrolled yet"
    if said.ended == "declined" and said.agrees is not None:
        return f"declined: {said.reason}"
    if said.ended == "withdrawn":
        return f"withdrew: {said.withdrew}"
    if view.is_over:
        return _at_the_end(opened, view, ledger, site)
    if said.agrees is None:
        return _before_consent(home, ledger, view.run)
    if not view.rounds:
        return "agreed"
    newest = view.rounds[-1]
    which, update = round_name(opened.run, newest.round), MessageRef("update", view.run, newest.round)
    if site not in newest.sites:
        return f"not asked in {which}"
    if ledger.message(update) is not None:
        return f"has answered {which}"
    if ledger.is_settled(update):
        return f"its answer to {which} is refused: {sentence(ledger.refusal(update) or '')}"
    if newest.is_closed:
        return f"has not answered {which} in time"
    sent = ledger.message(MessageRef("round", view.run, newest.round))
    return f"works on {which}" if sent and is_published(home, sent) else f"is being sent {which}"


def _at_the_end(opened: OpenedRun, view: RunView, ledger: Mirror, site: str) -> str:
    """Return how a run ended at a site that did not end it itself."""
    said, owes = view.sites[site], is_owed(opened.work / "sites" / site, ledger, opened.store)
    if ledger.message(MessageRef("offer", view.run)) is None:
        return "not asked"
    if ledger.message(MessageRef("abort", view.run)) is not None or not (view.card and said.agrees):
        return "is being told that the run is over" if owes else "told that the run is over"
    too_late = f"; withdrew when the run was over: {said.withdrew}" if said.withdrew else ""
    return f"is being sent the final model{too_late}" if owes else f"finished{too_late}"


def _before_consent(home: Path, ledger: Mirror, run: str) -> str:
    offer = ledger.message(MessageRef("offer", run))
    if offer is None:
        return "not asked"
    return "asked for consent" if is_published(home, offer) else "is being sent the offer"


def _last_verdict(view: RunView, site: str) -> str | None:
    for each in reversed(view.rounds):
        if (part := each.sites.get(site)) and part.status:
            return f"{round_name(view.configuration, each.round)}: {part.status}, {part.reason}"
    return None
