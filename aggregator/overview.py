"""Where the newest run stands, read from the work directory alone; no daemon needs to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from aggregator.configuration import MADE_BY
from aggregator.estimates import answer_is_expected, end_is_expected
from aggregator.facts import ending_of, is_owed_end
from aggregator.results import run_outcome, run_standstills
from aggregator.site import is_published, lacks_messages, open_ledger
from aggregator.store import RunStore, consent_of, runs_in, withdrawal_of
from shared.durations import duration_text
from shared.errors import ConfigurationError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.encryption import EncryptionKey
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import status_text
from shared.exchange.records.run import RunConfiguration, round_name
from shared.exchange.records.values import sentence, time_text
from shared.folder.lock import is_at_work, require_work
from shared.folder.meter import TRANSFER, Transfer, read_transfer, transfer_text
from shared.learning.outcome import chosen_text
from shared.learning.tasks import SELECTION_SCORES

MOST_READINGS = 5  # of a run that keeps changing; each change takes a daemon longer than a reading


def read_channels(work: Path, sites: list[str], own_key: EncryptionKey | None = None) -> dict[str, Mirror]:
    """The exchange with each enrolled site as the work directory remembers it.

    Args:
        own_key: the aggregator's, where it matters that a payload was encrypted; else no secret is read.
    """
    homes = {site: work / "sites" / site for site in sites}
    channels = {site: open_ledger(home, encryption_key=own_key) for site, home in homes.items()}
    return {site: channel for site, channel in channels.items() if channel is not None}


@dataclass(frozen=True)
class Reading:
    """The newest run of a work directory, and the exchange with each of its enrolled sites."""

    work: Path
    store: RunStore
    run: RunConfiguration
    channels: Mapping[str, Mirror]


Read = TypeVar("Read")


def read_newest_run(work: Path, read: Callable[[Reading], Read]) -> Read:
    """What ``read`` says of the newest run; said again where a daemon changed the run meanwhile, so that it is of one
    moment.

    Raises:
        ConfigurationError: there is no such directory, or no run was launched here yet.
    """
    require_work(work, MADE_BY)
    for _ in range(MOST_READINGS):
        runs = runs_in(work)
        if not runs:
            command = f"`dropfed-aggregator launch RUN.yaml --work {quoted(work)}`"
            raise ConfigurationError([f"{work}: no run was launched here yet; start one with {command}"])
        store = runs[-1]
        marks = store.marks()
        run = store.configuration()
        found = read(Reading(work, store, run, read_channels(work, run.sites)))
        if store.marks() == marks:
            break
    return found


def overview(work: Path) -> dict[str, Any]:
    """The newest run as plain values.

    Raises:
        ConfigurationError: there is no such directory, or no run was launched here yet.
    """
    return read_newest_run(work, overview_of)


def overview_of(reading: Reading) -> dict[str, Any]:
    """The same of a run that was read."""
    work, store, run, channels = reading.work, reading.store, reading.run, reading.channels
    card, now, is_running = store.card(), time.time(), is_at_work(work)
    waited_for = _waited_for(work, store, run, channels)
    goes_on = is_running and not (store.is_over or store.paused or store.stop_requested)
    outcome, score = run_outcome(store, channels), SELECTION_SCORES.get(run.task)
    return {
        "run": run.run,
        "outcome": asdict(outcome) if outcome else None,
        "now": time_text(now),
        "work": str(work),
        "configuration": str(store.home / names.RUN_CONFIGURATION),
        "state": _state(store, waited_for),
        "running": is_running,
        "reason": card.reason if card else store.aborted(),
        "trouble": list(run_standstills(store, channels, score).values()) if score else [],
        "since": time_text(store.stage_began),
        "waits_for": waited_for,
        "why": _why(store, run, waited_for),
        "next": _next(work, store, run, waited_for),
        "round": min(store.round_no, run.rounds),
        "rounds": run.rounds,
        "is_closing_round": store.round_no > run.rounds,
        "expected_end": end_is_expected(store, run, channels, now) if goes_on else None,
        "chosen_round": card.chosen_round if card else None,
        "chosen": chosen_text(card) if card else None,
        "final_model": str(store.final_model) if card else None,
        "sites": {
            site: _site(reading, site, now, is_awaited=site in waited_for, goes_on=goes_on) for site in run.sites
        },
    }


def overview_text(state: dict[str, Any]) -> str:
    """The same for people."""
    is_closing = state["is_closing_round"] and not state["final_model"]
    where = "the closing round" if is_closing else f"round {state['round']} of {state['rounds']}"
    lines = [f"outcome: {state['outcome']['text']}"] if state["outcome"] else []
    lines.append(f"run {state['run']}: {state['state']}, {where}")
    if not state["running"] and state["next"]:
        command = f"dropfed-aggregator launch {quoted(state['configuration'])} --work {quoted(state['work'])}"
        lines.append(f"the aggregator is not running: `{command}` goes on with the run")
    if state["waits_for"]:
        lines.append(f"waits for: {', '.join(state['waits_for'])}, since {state['since']}")
    lines += [f"{what}: {state[what]}" for what in ("why", "next") if state[what]]
    lines += [f"trouble: {trouble}" for trouble in state["trouble"]]
    if state["expected_end"]:
        lines.append(f"estimate: ends about {state['expected_end']}, if rounds go on as they went")
    if state["final_model"]:
        lines.append(f"chosen: {state['chosen']}: {state['final_model']}")
    if state["reason"]:
        lines.append(f"reason: {state['reason']}")
    for name, site in state["sites"].items():
        lines.append(f"  {name}: {site['phase']}")
        if site["transfer"]:
            lines.append(f"      on its way: {transfer_text(Transfer(**site['transfer']))}")
        if site["last_verdict"]:
            lines.append(f"      last verdict: {site['last_verdict']}")
        if site["heartbeat"] and not site["phase"].startswith("finished"):  # it is not read any more, and was of before
            trouble, heard = site["heartbeat"]["trouble"], f"heard {duration_text(site['heartbeat']['age_s'])} ago"
            lines.append(f"      says: {status_text(site['heartbeat'])}, {heard}{f'; {trouble}' if trouble else ''}")
        if site["expected"]:
            lines.append(f"      estimate: answers about {site['expected']}, if it takes as long as it did")
        if site["new_key"]:
            lines.append(f"      new key: {site['new_key']}")
        if site["trouble"]:
            last = "" if state["running"] else ", when the aggregator last ran"
            lines.append(f"      trouble: {site['trouble']} (since {site['trouble_since']}{last})")
    return "\n".join(lines)


def _waited_for(work: Path, store: RunStore, run: RunConfiguration, channels: Mapping[str, Mirror]) -> list[str]:
    """The sites that owe an answer now; at the end, those whose folder still has to take something."""
    if store.is_over:
        return [site for site, channel in channels.items() if _is_owed(work / "sites" / site, channel, store)]
    if store.stop_requested or store.verdicts(store.round_no) is not None:
        return []
    if store.round_no == 0:
        return [site for site in run.sites if site not in channels or consent_of(channels[site], run.run) is None]
    update = MessageRef("update", run.run, store.round_no)
    return [
        site
        for site in store.participants(store.round_no)
        if (channel := channels.get(site)) is None
        or not (channel.is_settled(update) or withdrawal_of(channel, run.run) is not None)
    ]


def _is_owed(home: Path, channel: Mirror, store: RunStore) -> bool:
    """Whether a site's folder still has to take something of a run that is over."""
    return lacks_messages(home, channel) or is_owed_end(home.name, channel, store, store.run)


def _why(store: RunStore, run: RunConfiguration, waited_for: list[str]) -> str | None:
    """What the present stage waits for, in a sentence."""
    if store.is_over:
        return "the run ends when every site's folder has what was signed for it" if waited_for else None
    if store.stop_requested:
        return "the PI has asked to close the run"
    if store.paused and not waited_for:
        return "the PI has paused the run"
    hours = run.round_deadline_hours if store.round_no else run.consent_deadline_hours
    left = duration_text(hours * 3600 - store.waited_s(store.round_no))
    until = f"in {left}{' of running time' if store.paused else ''}"
    deadline = f"at the deadline, {until}, a quorum of {run.quorum} is enough"
    if store.round_no == 0:
        said = len(run.sites) - len(waited_for)
        return f"the run begins when every site has said yes or no, {said} of {len(run.sites)} have; {deadline}"
    asked = len(store.participants(store.round_no))
    if store.verdicts(store.round_no) is not None:
        return None
    answered = f"{asked - len(waited_for)} of {asked} have"
    return f"the round closes when every site it asks has answered, {answered}; {deadline}"


def _next(work: Path, store: RunStore, run: RunConfiguration, waited_for: list[str]) -> str | None:
    """What happens then."""
    if store.is_over:
        return "the run ends" if waited_for else None
    if store.stop_requested:
        return "the best model so far is chosen, and the run ends"
    if store.paused:
        return f"no new round opens until `dropfed-aggregator resume {run.run} --work {quoted(work)}`"
    if store.round_no > run.rounds:
        return "the best model is chosen and sent to every site, and the run ends"
    following = f"round {store.round_no + 1}" if store.round_no < run.rounds else "the closing round (validation alone)"
    return f"{'the answers are checked and combined, and ' if store.round_no else ''}{following} opens"


def _state(store: RunStore, waited_for: list[str]) -> str:
    if store.card():
        return "ending" if waited_for else "ended"
    if store.aborted():
        return "aborted"
    if store.stop_requested:
        return "being closed"
    return "paused" if store.paused else "open"


def _site(reading: Reading, site: str, now: float, *, is_awaited: bool, goes_on: bool) -> dict[str, Any]:
    """Of a run that is over, what stood in the way of a site that nothing is awaited of does not matter any more."""
    store, run, channel, home = reading.store, reading.run, reading.channels.get(site), reading.work / "sites" / site
    transfer = read_transfer(home / TRANSFER)
    heartbeat = _heartbeat(home / names.STATUS, channel, now)
    is_paused = heartbeat is not None and heartbeat["phase"] == "paused"
    is_expected = is_awaited and goes_on and not is_paused
    trouble, trouble_since = (None, None) if store.is_over and not is_awaited else _trouble(home / "trouble.txt")
    return {
        "phase": _phase(reading, site),
        "expected": answer_is_expected(channel, run, store.round_no) if channel and is_expected else None,
        "transfer": asdict(transfer) if transfer else None,
        "last_verdict": _last_verdict(store, run, site),
        "new_key": _new_key(channel),
        "heartbeat": heartbeat,
        "trouble": trouble,
        "trouble_since": trouble_since,
    }


def _trouble(path: Path) -> tuple[str, str] | tuple[None, None]:
    """What stands in the way, and since when; the folder-sync worker writes it once, and removes it when it is over."""
    try:
        return path.read_text().rstrip("."), time_text(path.stat().st_mtime)
    except FileNotFoundError:
        return None, None


def _new_key(channel: Mirror | None) -> str | None:
    """Which key a site signs with, if another than it was enrolled with."""
    if channel is None or not channel.peer.handovers:
        return None
    newest = channel.peer.handovers[-1]
    return f"{newest.key}, from its message {newest.after.seq + 1} on, handed over at {newest.created}"


def _heartbeat(path: Path, channel: Mirror | None, now: float) -> dict[str, Any] | None:
    """What the site last said of itself, as the folder-sync worker kept it; None before it said anything, or if it is
    damaged.

    ``time`` is by the site's clock; when it was heard, by ours.
    """
    if channel is None or not path.exists():
        return None
    try:
        heard = path.stat().st_mtime
        status = channel.peer.open_status(path.read_bytes())
    except RejectedError:
        return None
    said = status.model_dump(include={"time", "phase", "run", "round", "progress_percent", "trouble"})
    trouble = sentence(status.trouble) if status.trouble else None
    return said | {"trouble": trouble, "heard": time_text(heard), "age_s": max(0, round(now - heard))}


def _phase(reading: Reading, site: str) -> str:
    """Where a site stands, as the files here read it."""
    store, run, channel, home = reading.store, reading.run, reading.channels.get(site), reading.work / "sites" / site
    if channel is None:
        return "not enrolled yet"
    consent, round_no = consent_of(channel, run.run), store.round_no
    ended, withdrew = ending_of(channel, run.run), withdrawal_of(channel, run.run)
    if ended == "declined" and consent is not None:
        return f"declined: {consent.reason}"
    if ended == "withdrawn":
        return f"withdrew: {withdrew}"
    if store.is_over:
        return _at_the_end(home, store, channel, withdrew)
    if consent is None:
        return _before_consent(home, channel, run.run)
    which, update = round_name(run, round_no), MessageRef("update", run.run, round_no)
    if site not in store.participants(round_no):
        return f"not asked in {which}" if round_no else "agreed"
    if channel.message(update) is not None:
        return f"has answered {which}"
    if channel.is_settled(update):
        return f"its answer to {which} is refused: {sentence(channel.refusal(update) or '')}"
    if store.verdicts(round_no) is not None:
        return f"has not answered {which} in time"
    sent = channel.message(MessageRef("round", run.run, round_no))
    return f"works on {which}" if sent and is_published(home, sent) else f"is being sent {which}"


def _at_the_end(home: Path, store: RunStore, channel: Mirror, withdrew: str | None) -> str:
    """Of a site that did not end the run itself."""
    consent, is_owed = consent_of(channel, store.run), _is_owed(home, channel, store)
    if channel.message(MessageRef("offer", store.run)) is None:
        return "not asked"
    gets_final = store.card() is not None and consent is not None and consent.agrees
    if channel.message(MessageRef("abort", store.run)) is not None or not gets_final:
        return "is being found that the run is over" if is_owed else "found that the run is over"
    too_late = f"; withdrew when the run was over: {withdrew}" if withdrew else ""
    return f"is being sent the final model{too_late}" if is_owed else f"finished{too_late}"


def _before_consent(home: Path, channel: Mirror, run: str) -> str:
    offer = channel.message(MessageRef("offer", run))
    if offer is None:
        return "not asked"
    return "asked for consent" if is_published(home, offer) else "is being sent the offer"


def _last_verdict(store: RunStore, run: RunConfiguration, site: str) -> str | None:
    for round_no in range(store.round_no, 0, -1):
        verdict = (store.verdicts(round_no) or {}).get(site)
        if verdict is not None:
            return f"{round_name(run, round_no)}: {verdict.status}, {verdict.reason}"
    return None
