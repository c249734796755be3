"""Where the newest run stands, read from the work directory alone; no daemon needs to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aggregator.setup import KEY_FILE
from aggregator.site import lacks_messages, open_channel
from aggregator.store import RunStore, consent_of, runs_in, withdrawal_of
from shared.durations import duration_text
from shared.errors import ConfigurationError, PoisonError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import Place
from shared.exchange.records import RunConfiguration, sentence, status_text, time_text
from shared.exchange.signing import SigningKey
from shared.folder.local import LocalFolder
from shared.folder.lock import demand_work, is_at_work
from shared.folder.meter import TRANSFER, Transfer, read_transfer, transfer_text


def read_channels(work: Path, sites: list[str]) -> dict[str, Channel]:
    """The exchange with each enrolled site as the work directory remembers it."""
    key, homes = SigningKey.at(work / KEY_FILE), {site: work / "sites" / site for site in sites}
    channels = {site: open_channel(home, LocalFolder(home / "mirror"), key) for site, home in homes.items()}
    return {site: channel for site, channel in channels.items() if channel is not None}


def overview(work: Path) -> dict[str, Any]:
    """The newest run as plain values.

    Raises:
        ConfigurationError: there is no such directory, or no run was launched here yet.
    """
    demand_work(work)
    runs = runs_in(work)
    if not runs:
        command = f"`dropfed-aggregator launch RUN.yaml --work {work}`"
        raise ConfigurationError([f"{work}: no run was launched here yet; start one with {command}"])
    store = runs[-1]
    run = store.configuration()
    channels = read_channels(work, run.sites)
    card = store.card()
    waited_for = _waited_for(work, store, run, channels)
    return {
        "run": run.run,
        "work": str(work),
        "configuration": str(store.home / names.RUN_CONFIGURATION),
        "state": _state(store, waited_for),
        "running": is_at_work(work),
        "reason": card.reason if card else store.given_up(),
        "since": time_text(store.stage_began),
        "waits_for": waited_for,
        "why": _why(store, run, waited_for),
        "next": _next(work, store, run, waited_for),
        "round": min(store.round_no, run.rounds),
        "rounds": run.rounds,
        "chosen_round": card.chosen_round if card else None,
        "final_model": str(store.final_model) if card else None,
        "sites": {site: _site(work, store, run, site, channels.get(site)) for site in run.sites},
    }


def overview_text(state: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"run {state['run']}: {state['state']}, round {state['round']} of {state['rounds']}"]
    if not state["running"] and state["next"]:
        command = f"dropfed-aggregator launch {state['configuration']} --work {state['work']}"
        lines.append(f"the aggregator is not running: `{command}` goes on with the run")
    if state["waits_for"]:
        lines.append(f"waits for: {', '.join(state['waits_for'])}, since {state['since']}")
    lines += [f"{what}: {state[what]}" for what in ("why", "next") if state[what]]
    if state["final_model"]:
        lines.append(f"chosen: the aggregate of round {state['chosen_round']}, {state['final_model']}")
    if state["reason"]:
        lines.append(f"reason: {state['reason']}")
    for name, site in state["sites"].items():
        lines.append(f"  {name}: {site['phase']}")
        if site["transfer"]:
            lines.append(f"      on its way: {transfer_text(Transfer(**site['transfer']))}")
        if site["last_verdict"]:
            lines.append(f"      last verdict: {site['last_verdict']}")
        if site["heartbeat"] and site["phase"] != "finished":  # it is not read any more, and was of before
            trouble = site["heartbeat"]["trouble"]
            lines.append(f"      says: {status_text(site['heartbeat'])}{f'; {trouble}' if trouble else ''}")
        if site["trouble"]:
            lines.append(f"      trouble: {site['trouble']}")
    return "\n".join(lines)


def _waited_for(work: Path, store: RunStore, run: RunConfiguration, channels: Mapping[str, Channel]) -> list[str]:
    """The sites that owe an answer now; at the end, those whose folder still has to take something."""
    if store.card() is not None:
        return [site for site, channel in channels.items() if _is_owed(work / "sites" / site, channel, run.run)]
    if store.is_over or store.verdicts(store.round_no) is not None:
        return []
    if store.round_no == 0:
        return [site for site in run.sites if site not in channels or consent_of(channels[site], run.run) is None]
    update = Place("update", run.run, store.round_no)
    return [
        site
        for site in store.participants(store.round_no)
        if not channels[site].is_settled(update) and withdrawal_of(channels[site], run.run) is None
    ]


def _is_owed(home: Path, channel: Channel, run: str) -> bool:
    """Whether a site's folder still has to take something of a run whose final model was chosen."""
    consent = consent_of(channel, run)
    gets_final = consent is not None and consent.agrees and withdrawal_of(channel, run) is None
    return lacks_messages(home, channel) or (gets_final and channel.message(Place("final", run)) is None)


def _why(store: RunStore, run: RunConfiguration, waited_for: list[str]) -> str | None:
    """What the present stage waits for, in a sentence."""
    if store.is_over:
        return "the run ends when every site's folder has what was sealed for it" if waited_for else None
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
        return f"no new round opens until `dropfed-aggregator resume {run.run} --work {work}`"
    if store.round_no > run.rounds:
        return "the best model is chosen and sent to every site, and the run ends"
    following = f"round {store.round_no + 1}" if store.round_no < run.rounds else "the closing round (validation alone)"
    return f"{'the answers are checked and combined, and ' if store.round_no else ''}{following} opens"


def _state(store: RunStore, waited_for: list[str]) -> str:
    if store.card():
        return "ending" if waited_for else "ended"
    if store.given_up():
        return "given up"
    if store.stop_requested:
        return "being closed"
    return "paused" if store.paused else "open"


def _site(work: Path, store: RunStore, run: RunConfiguration, site: str, channel: Channel | None) -> dict[str, Any]:
    home = work / "sites" / site
    trouble, transfer = home / "trouble.txt", read_transfer(home / TRANSFER)
    return {
        "phase": _phase(home, store, site, channel),
        "transfer": asdict(transfer) if transfer else None,
        "last_verdict": _last_verdict(store, run, site),
        "heartbeat": _heartbeat(home / names.STATUS, channel),
        "trouble": trouble.read_text() if trouble.exists() else None,
    }


def _heartbeat(path: Path, channel: Channel | None) -> dict[str, Any] | None:
    """What the site last said of itself, as the courier kept it; None before it said anything, or if it is damaged."""
    if channel is None or not path.exists():
        return None
    try:
        status = channel.open_status(path.read_bytes())
    except PoisonError:
        return None
    said = status.model_dump(include={"time", "phase", "run", "round", "progress_percent", "trouble"})
    return said | {"trouble": sentence(status.trouble) if status.trouble else None}


def _phase(home: Path, store: RunStore, site: str, channel: Channel | None) -> str:
    if channel is None:
        return "not enrolled yet"
    consent, round_no = consent_of(channel, store.run), store.round_no
    if consent is None:
        return "asked for consent"
    if not consent.agrees:
        return f"declined: {consent.reason}"
    if (reason := withdrawal_of(channel, store.run)) is not None:
        return f"withdrew: {reason}"
    if store.card() is not None:
        return "is being sent the final model" if _is_owed(home, channel, store.run) else "finished"
    if channel.message(Place("update", store.run, round_no)) is not None:
        return f"has answered round {round_no}"
    if site in store.participants(round_no):
        return f"works on round {round_no}"
    return f"not asked in round {round_no}" if round_no else "agreed"


def _last_verdict(store: RunStore, run: RunConfiguration, site: str) -> str | None:
    for round_no in range(store.round_no, 0, -1):
        verdict = (store.verdicts(round_no) or {}).get(site)
        if verdict is not None:
            which = f"round {round_no}" if round_no <= run.rounds else "the closing round"
            return f"{which}: {verdict.status}, {verdict.reason}"
    return None
