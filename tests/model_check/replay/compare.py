"""What lies on the disk, and what daemons remember, held against the model."""

from __future__ import annotations

import os
from pathlib import Path

from shared.audit.reading import Reading
from shared.audit.verify import verified
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import handover_path
from shared.exchange.order import ending_of
from shared.exchange.trust import Message
from shared.folder.local import LocalFolder
from site_client.daemon import Turn
from tests.model_check import director, hospital
from tests.model_check.exchanges import CARD, Signed, known_at_desk, known_at_hospital, sent_messages, told_messages
from tests.model_check.properties import agreed_to
from tests.model_check.replay.aggregator import AggregatorOnDisk
from tests.model_check.replay.site import SiteOnDisk
from tests.model_check.rules import Rules
from tests.model_check.state import SITES, Desk, Director, Folder, Hospital, State


def compare(aggregator: AggregatorOnDisk, sites: dict[str, SiteOnDisk], state: State, rules: Rules) -> None:
    """Hold everything against a state of the model.

    Raises:
        AssertionError: saying what is otherwise.
    """
    _compare_run(aggregator, state.director)
    goes_on = not (state.director.chosen or state.director.aborted)
    for name, folder in zip(SITES, state.folders, strict=True):
        _compare_files(aggregator, name, folder)
        _compare_due(aggregator, name, folder.desk)
        if goes_on:
            _compare_round(aggregator, name, folder.desk, rules)
            _compare_looks(aggregator, name, folder.desk)
        _compare_exchange(aggregator, name, folder, rules)
        if folder.hospital.comes:
            _compare_site(sites[name], name, folder, rules)


def compare_end(aggregator: AggregatorOnDisk, state: State, rules: Rules) -> None:
    """The daemon says that all is over; so does the audit of each folder, with the model's end and no finding.

    Raises:
        AssertionError: saying what is otherwise.
    """
    assert aggregator.daemon._is_over(), "the daemon goes on"
    for name, (desk, site) in zip(SITES, state.folders, strict=True):
        if not desk.told:
            continue
        reading = Reading(LocalFolder(aggregator.drops[name]), None, None)
        told, sent = told_messages(desk.told), sent_messages(site.sent, desk.told)
        for run in _offered(desk, rules):
            expected = rules.ending_by_audit([*told, *sent], agreed=agreed_to(run, site), run=run)
            _same(f"the end of {run} by audit for {name}", reading.ending(run), expected)
        if not any(message.says == "poison" for message in site.sent):
            _same(f"what verify finds in {name}", verified(reading).findings, [])


def _compare_run(aggregator: AggregatorOnDisk, run: Director) -> None:
    store, round_no = aggregator.store, run.round_no
    _same("the newest round", store.round_no, round_no)
    if round_no:
        _same("closed", store.verdicts(round_no) is not None, run.closed)
        _same("aggregated", store.has_aggregate(round_no), run.aggregated)
    _same("chosen", store.card() is not None, run.chosen)
    _same("aborted", store.aborted() is not None, run.aborted)
    _same("paused", store.paused, run.paused)
    _same("stopped", store.stop_requested, run.stopped)
    for_run = [type(action).__name__ for action in aggregator.due if isinstance(action, director.FOR_RUN)]
    _same("due for the run", for_run, [run.due] if run.due else [])


def _compare_files(aggregator: AggregatorOnDisk, name: str, folder: Folder) -> None:
    """What lies in the folder itself."""
    desk, site = folder
    drop = aggregator.drops[name]
    lying = {f"{Path(root).relative_to(drop).as_posix()}/{file}" for root, _, files in os.walk(drop) for file in files}
    lying = {path.removeprefix("./") for path in lying}
    expected = {path for path in lying if not path.startswith(f"{names.RUNS}/")}
    for messages, end in (
        (told_messages(desk.told), desk),
        (sent_messages(site.sent, desk.told), site),
    ):
        expected |= _compare_messages(lying, messages, end)
    _same("files that belong to no message", lying - expected, set())
    _same(names.SITE_CARD, names.SITE_CARD in lying, site.is_here)
    _same(names.FEDERATION, names.FEDERATION in lying, desk.enrolled)
    _same("the hand-over", handover_path(2, "site") in lying, site.shows_key)


def _compare_messages(lying: set[str], messages: tuple[Signed, ...], end: Desk | Hospital) -> set[str]:
    """Look how far the folder has what one end has signed; return the files that belong to it."""
    found = set()
    for message in messages:
        path, is_there = message.ref.path, message.seq <= end.published
        files = {each for each in lying if each.startswith(f"{path}/")}
        _same(message.ref.manifest, message.ref.manifest in files, is_there)
        has_payload = is_there or (message.seq == end.published + 1 and end.has_payload)
        _same(f"files of {path}", bool(files - {message.ref.manifest}), has_payload)
        found |= files
    return found


def _compare_due(aggregator: AggregatorOnDisk, name: str, desk: Desk) -> None:
    due = [type(action).__name__ for action in aggregator.due if getattr(action, "site", None) == name]
    _same(f"due for {name}", due, [desk.due] if desk.due else [])
    _same(f"{name} is enrolled", aggregator.folder_syncs[name].channel is not None, desk.enrolled)


def _compare_round(aggregator: AggregatorOnDisk, name: str, desk: Desk, rules: Rules) -> None:
    """What is recorded of a site in the newest round, and which of its answers have counted."""
    store = aggregator.store
    round_no = store.round_no
    verdict = (store.verdicts(round_no) or {}).get(name)
    _same(f"{name} takes part", name in store.participants(round_no), desk.takes_part)
    _same(f"{name} is scored", store.score(round_no, name) is not None, desk.scored)
    _same(f"verdict on {name}", verdict.status if verdict else "", desk.status)
    if rules.late_counts_next:
        verdicts = {number: (store.verdicts(number) or {}).get(name) for number in range(1, round_no + 1)}
        counted = [(number, verdict) for number, verdict in verdicts.items() if verdict and verdict.share > 0]
        found = tuple((number - 1 if verdict.late else number, number) for number, verdict in counted)
        _same(f"answers of {name} that have counted", found, desk.counted)


def _compare_looks(aggregator: AggregatorOnDisk, name: str, desk: Desk) -> None:
    """What is remembered of looks into a folder."""
    one, daemon = aggregator.folder_syncs[name], aggregator.daemon
    for what, looks, asked, looked in (
        ("the round", daemon._looks_for_round, desk.asked_look, desk.looked),
        ("the stop", daemon._looks_at_stop, desk.asked_stop_look, desk.stop_looked),
    ):
        number = looks._asked.get(name)
        _same(f"a look at {name} is asked for by {what}", number is not None, asked)
        _same(f"and has come for {what}", number is not None and one.looked >= number, looked)
    _same(f"{name}'s folder is in trouble", one.is_in_trouble, desk.in_trouble)
    _same(f"an unread withdrawal of {name}", one.has_unread_withdrawal, bool(desk.noticed))


def _compare_exchange(aggregator: AggregatorOnDisk, name: str, folder: Folder, rules: Rules) -> None:
    """What the aggregator holds of the messages of both sides."""
    desk, site = folder
    channel = aggregator.folder_syncs[name].channel
    if channel is None:
        return
    taken = desk.accepted + desk.refused
    told, sent = told_messages(desk.told), sent_messages(site.sent, desk.told)
    _same_messages(channel, told, sent[: desk.accepted])
    refused = [message.ref for message in sent if channel.ledger.refusal(message.ref) is not None]
    _same("refused", refused, [message.ref for message in sent[desk.accepted : taken]])
    for run in _offered(desk, rules):
        expected = rules.ending_at_aggregator(known_at_desk(desk, site.sent[:taken]), run)
        _same(f"the end of {run} by the aggregator for {name}", ending_of(channel.ledger, run), expected)


def _compare_site(site: SiteOnDisk, name: str, folder: Folder, rules: Rules) -> None:
    """What a site holds, and what it wants to do."""
    desk, at_site = folder
    channel = site.channel
    told, sent = told_messages(desk.told), sent_messages(at_site.sent, desk.told)
    _same_messages(channel, sent, told[: at_site.read])
    _same(f"{name} knows", (channel.ledger.root / names.FEDERATION).exists(), at_site.knows)
    _same(f"{name} has looked", site.turn is Turn.LOOKED, at_site.looked)
    _same(f"{name} does next", site.decided, hospital.decided(folder, rules))
    for run in _offered(desk, rules) if at_site.read else ():
        expected = rules.ending_at_site(known_at_hospital(at_site, desk), run)
        _same(f"the end of {run} by {name}", ending_of(channel.ledger, run), expected)


def _offered(desk: Desk, rules: Rules) -> list[str]:
    """The runs that a site was offered."""
    return [run for run in rules.runs if any(message.run == run for message in desk.told)]


def _same_messages(channel: Channel, own: tuple[Signed, ...], peers: tuple[Signed, ...]) -> None:
    """Compare what one end has signed and accepted with the model: places, order, and what each message answers."""
    there = [*channel.ledger.own_messages(), *channel.ledger.peer_messages()]
    of_digest: dict[str | None, str] = {message.digest: _label(message) for message in there}
    found = [(_label(message), message.ref, _answered(message, of_digest)) for message in there]
    wanted = [
        (message.digest, message.ref, None if message.says == "poison" else message.in_reply_to)
        for message in (*own, *peers)
    ]
    _same("messages", found, wanted)


def _label(message: Message) -> str:
    return f"{'sent' if message.ref.is_from_site else 'told'} {message.manifest.seq}"


def _answered(message: Message, of_digest: dict[str | None, str]) -> str | None:
    answered = message.manifest.in_reply_to
    return None if answered is None else of_digest.get(answered, CARD)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {found}; by the model: {wanted}")
