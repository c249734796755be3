"""Where this site stands, read from the work directory alone; no daemon needs to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from shared.errors import ConfigurationError, RejectedError
from shared.escaping import quoted
from shared.exchange.mirror import Mirror
from shared.exchange.names import FEDERATION, MANIFEST, MessageRef
from shared.exchange.order import consent_of
from shared.exchange.records.messages import status_text
from shared.exchange.records.values import time_text
from shared.exchange.records.verdicts import FinalCard
from shared.folder.durable import full_disk
from shared.folder.lock import is_at_work
from shared.folder.meter import TRANSFER, Transfer, read_transfer, transfer_text
from shared.learning.outcome import final_text
from shared.moments import moment_text
from shared.software import own_software
from site_client import limits, store
from site_client.configuration import (
    SiteConfiguration,
    changed_settings,
    configuration_in_force,
    require_here,
    workers_of,
)
from site_client.facts import current, going_on, is_left
from site_client.heartbeat import last_status
from site_client.moving import last_look
from site_client.policy import judge
from site_client.programs import own_places
from site_client.rotation import read_ledger
from site_client.surveys import asks_a_person, ways_to_decide

OWN_TURN = "nobody: this site has the turn"
TROUBLE = "an end of the trouble told below"


def overview(work: Path) -> dict[str, Any]:
    """Return the site as plain values: what its daemon said last of itself, and what it waits for.

    Raises:
        ConfigurationError: there is no such directory, or the daemon has not run here yet.
    """
    require_here(work)
    if (heartbeat := last_status(work)) is None:
        start = f"start it with `dropfed-site run --work {quoted(work)}`"
        raise ConfigurationError([f"{work}: the daemon has not run here yet; {start}"])
    running, status = is_at_work(work), heartbeat.model_dump()
    status["trouble"] = full_disk(work) or status["trouble"]
    configuration, ledger = configuration_in_force(work), read_ledger(work)
    transfer = read_transfer(work / TRANSFER)
    waits_for, then = _standing(work, configuration, ledger, status)
    return status | {
        "work": str(work),
        "software": own_software(),
        "running": running,
        "waits_for": waits_for,
        "since": _since(work, ledger, status),
        "ended": _ended(work, ledger),
        "next": then,
        "paused": store.is_paused(work),
        "transfer": asdict(transfer) if transfer else None,
        "moved": asdict(look) if (look := last_look(work)) else None,
        "limits": limits.describe(
            configuration.limits,
            configuration.threads,
            workers_of(configuration),
            configuration.processes * configuration.nodes,
        ),
        "settings": changed_settings(work, configuration) if running else None,
    }


def overview_text(state: dict[str, Any]) -> str:
    """Return the overview in words, for people."""
    lines = [f"{state['site']}: {status_text(state)}"]
    if not state["running"]:
        lines.append(f"the daemon is not running: start it with `dropfed-site run --work {quoted(state['work'])}`")
    if state["ended"]:
        lines.append(f"last run: {state['ended']}")
    since = f", since {moment_text(state['since'])}" if state["since"] else ""
    lines.append(f"waits for: {state['waits_for']}{since}")
    lines.append(f"next{'' if state['running'] else ', once it runs'}: {state['next']}")
    if state["transfer"]:
        lines.append(f"on its way: {transfer_text(Transfer(**state['transfer']))}")
    if state["moved"]:
        how = f"met trouble: {state['moved']['trouble']}" if state["moved"]["trouble"] else "went well"
        lines.append(f"server: the last look of `dropfed-site move`, {moment_text(state['moved']['at'])}, {how}")
    lines.append(f"limits: {state['limits']}")
    # No record of the aggregator's tells which software it works with (protocol 4.2).
    lines.append(f"software: {state['software']}; the aggregator's: not reported")
    if state["settings"]:
        lines.append(f"settings: {state['settings']}")
    if state["trouble"]:
        lines.append(f"trouble: {state['trouble']}")
    return "\n".join(lines)


def _standing(
    work: Path, configuration: SiteConfiguration, ledger: Mirror, status: Mapping[str, Any]
) -> tuple[str, str]:
    """Return what or whom the site waits for, and what happens then."""
    if store.is_paused(work):
        return "a person here, to end the pause", f"nothing, until `dropfed-site resume --work {quoted(work)}`"
    waits_for, then = what_it_waits_for(work, configuration, ledger)
    if waits_for.startswith("the aggregator") and (name := asks_a_person(work, configuration.policy, ledger)):
        waits_for, then = f"a person here, to decide about {name}: {ways_to_decide(work, name)}", "the answer is sent"
    if status["phase"] == "sending":
        waits_for, then = "its folder, to take what is signed here", "what is signed is sent whole"
    if status["trouble"]:
        return TROUBLE, "tries again, and goes on once it is over"
    return waits_for, then


def _since(work: Path, ledger: Mirror, status: Mapping[str, Any]) -> str | None:
    """Return since when the site waits for what it waits for, in UTC; None if that is not known."""
    if (paused_at := store.paused_at(work)) is not None:
        return time_text(paused_at)
    messages = [message for message in (ledger.last_from_peer(), *ledger.own_messages()[-1:]) if message]
    if status["trouble"] or not messages:
        return None
    return time_text(max(ledger.path(message.ref, MANIFEST).stat().st_mtime for message in messages))


def _ended(work: Path, ledger: Mirror) -> str | None:
    """Return which run the aggregator spoke of last, and how it ended; None while it goes on."""
    last = ledger.last_from_peer()
    ended = how_ended(work, ledger, last.ref.run) or left_text(ledger, last.ref.run) if last else None
    return f"{last.ref.run} {ended}" if last and ended else None


def how_ended(work: Path, ledger: Mirror, run: str) -> str | None:
    """Return how a run ended, as a sentence whose subject it is; None while it goes on, or was left by this site."""
    final, consent, decided = MessageRef("final", run), consent_of(ledger, run), store.decision(work, run)
    if consent is not None and not consent.agrees:
        return f"was declined here: {consent.reason}"
    if ledger.message(MessageRef("abort", run)) is not None:
        return f"was aborted: {store.why_aborted(ledger, run)}"
    if ledger.message(final) is None:
        return None
    if decided is not None and decided.answer == "withdraw":
        return "was over before the aggregator read that this site withdraws: it has finished the run"
    try:
        card = ledger.record(final, FinalCard)
    except RejectedError as error:
        return f"ended; {error}"
    rest = "" if store.has_final(work, run) else "; it is not ready for use here yet: log.txt tells what is in the way"
    return f"ended with {final_text(card)}{rest}"


def left_text(ledger: Mirror, run: str) -> str | None:
    """Return that this site has left a run, as a sentence whose subject it is; None if it has not."""
    return "was left by this site" if is_left(ledger, run) else None


def what_it_waits_for(work: Path, configuration: SiteConfiguration, ledger: Mirror) -> tuple[str, str]:
    """Return what the site waits for by the aggregator's messages, if it is neither in trouble nor paused."""
    looks = f"looks again within {configuration.poll_seconds:g} s"
    if not (ledger.root / FEDERATION).exists():
        return "the aggregator, to accept this site's card", looks
    runs, message = going_on(ledger), current(ledger)
    last = message.ref if message else None
    # A round comes before offers that wait, and what this site has to do before what it waits for.
    has_left = last is not None and is_left(ledger, last.run)
    in_round = last is not None and last.kind == "round" and not has_left
    if last is not None and in_round and ledger.message(MessageRef("update", last.run, last.round_no)) is None:
        hours = configuration.limits.training_hours
        rests = limits.seconds_until(hours, datetime.now()) > 0
        waits_for = f"its hours for training, {hours}" if rests else OWN_TURN
        return waits_for, f"the answer to {store.round_name_of(ledger, last)} is signed and sent"
    undecided = [each.ref.run for each in runs if consent_of(ledger, each.ref.run) is None]
    asked = [run for run in undecided if _asks_a_person(work, configuration, ledger, run)]
    if len(asked) < len(undecided):
        return OWN_TURN, "the answer is sent"
    if asked:
        about = "; and about ".join(f"run {run}: {ways_to_decide(work, run)}" for run in asked)
        return f"a person here, to decide about {about}", "the answer is sent"
    if last is not None and in_round:
        what = store.round_name_of(ledger, last)
        return f"the aggregator's verdict on {what}, once the other sites have answered", looks
    if any(not is_left(ledger, each.ref.run) for each in runs):
        return "the aggregator, to send a round or the final model", f"{looks}, then trains"
    return f"the aggregator, to offer {'another' if has_left else 'a'} run", looks


def _asks_a_person(work: Path, site: SiteConfiguration, ledger: Mirror, run: str) -> bool:
    """Return whether the policy leaves an offer to a person, who has not decided yet."""
    try:
        configuration, _ = store.offer(ledger, run)
    except RejectedError:
        return False
    decided = store.decision(work, run)
    decision = decided.answer == "yes" if decided else None
    places, answered = own_places(work, site), store.answered(ledger)
    return judge(site.policy, configuration, decision, site.site, places, answered=answered).answer == "ask"
