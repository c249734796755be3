"""Every message, hand-over and survey of an archive in order: who sent what, when, by which key, what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

from shared.audit.reading import NOT_OPENED, Reading
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MANIFEST, Kind, MessageRef
from shared.exchange.records.answers import Abort, Consent, Withdrawal
from shared.exchange.records.surveys import SignedSheet, Survey
from shared.exchange.records.values import Payload
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.signing import digest_of, fingerprint
from shared.exchange.trust import Message, Peer
from shared.moments import moment_text

_SAYING: Mapping[Kind, type[Payload]] = {
    "consent": Consent,
    "withdrawal": Withdrawal,
    "verdict": Verdict,
    "final": FinalCard,
    "abort": Abort,
}
"""By kind of message, the record that tells an outcome."""


@dataclass(frozen=True)
class Event:
    """One message.

    Args:
        created: by its sender's clock, which only informs.
        size_bytes: all its files, those removed since included, and its manifest.
        key: the public key that signed it.
        in_reply_to: the digest of what it answers; None for a verdict on nothing.
        answers: the path of the message that it answers; for an offer the site's card; None where it is not here.
        answered_by: paths of the messages that answer it.
        outcome: what it says, or what became of it, in words; empty where there is nothing to say.
    """

    created: str
    site: str
    sender: str
    kind: str
    run: str
    round: int
    seq: int
    path: str
    files: tuple[str, ...]
    size_bytes: int
    key: str
    digest: str
    in_reply_to: str | None
    answers: str | None
    answered_by: tuple[str, ...]
    outcome: str


@dataclass(frozen=True)
class NewKey:
    """A hand-over: from its next message on its sender signs with another key.

    Args:
        created: by its sender's clock, which only informs.
        key: the public key that signed it, from which it hands over.
        new_key: the public key of all messages from number ``from_seq`` on.
    """

    kind: str = field(default="handover", init=False)
    created: str
    site: str
    sender: str
    path: str
    key: str
    new_key: str
    from_seq: int


@dataclass(frozen=True)
class Figures:
    """A survey about the site's images, or the site's answer to one; neither is part of a chain.

    Args:
        kind: ``survey`` or ``sheet``.
        created: by its sender's clock, which only informs.
        key: the public key that signed it.
        outcome: what it asks, or says, in words.
    """

    kind: str
    created: str
    site: str
    sender: str
    path: str
    key: str
    outcome: str


@dataclass(frozen=True)
class Gap:
    """Messages that must have been there, by the numbers of their sender's others or by a record of the site.

    Args:
        first, last: their numbers.
    """

    kind: str = field(default="gap", init=False)
    site: str
    sender: str
    first: int
    last: int


Line = Event | NewKey | Figures | Gap


def timeline(readings: Mapping[str, Reading]) -> list[Line]:
    """Return every message and hand-over, none before what it answers or what its sender sent before it.

    Otherwise they stand by the clocks, as do surveys and sheets.

    What is missing stands where its sender goes on without it, or at the end.
    """
    folders: list[list[tuple[str, Message | NewKey | Survey | SignedSheet]]]
    folders = [[(site, found) for found in _ordered(reading)] for site, reading in readings.items()]
    folders += [[(site, found) for found in reading.surveys.values()] for site, reading in readings.items()]
    events: list[Line] = []
    heads: dict[tuple[str, str], int] = defaultdict(int)
    for site, found in merge(*folders, key=lambda each: (_created(each[1]), each[0])):
        if isinstance(found, NewKey):
            events.append(found)
            continue
        if isinstance(found, Survey | SignedSheet):
            events.append(_figures(readings[site], found))
            continue
        event = event_of(readings[site], found)
        if event.seq > (due := heads[site, event.sender] + 1):
            events.append(Gap(site, event.sender, due, event.seq - 1))
        heads[site, event.sender] = event.seq
        events.append(event)
    for site, reading in readings.items():
        for _, sender, head in reading.reported_heads():
            if head.seq > (newest := heads[site, sender]):
                events.append(Gap(site, sender, newest + 1, head.seq))
                heads[site, sender] = head.seq
    return events


def event_of(reading: Reading, message: Message) -> Event:
    """Return one message of a folder as an event."""
    manifest, ref = message.manifest, message.ref
    answered = reading.refs.get(manifest.in_reply_to or "")
    return Event(
        created=manifest.created,
        site=manifest.site,
        sender=manifest.sender,
        kind=ref.kind,
        run=ref.run,
        round=ref.round_no,
        seq=manifest.seq,
        path=ref.path,
        files=tuple(sorted(manifest.files)),
        size_bytes=sum(entry.size for entry in manifest.files.values()) + reading.sizes[f"{ref.path}/{MANIFEST}"],
        key=reading.key_of(message),
        digest=message.digest,
        in_reply_to=manifest.in_reply_to,
        answers=answered.path if answered else _card_if(reading, manifest.in_reply_to),
        answered_by=tuple(sorted(other.path for other in reading.answers.get(message.digest, []))),
        outcome=_outcome(reading, ref),
    )


def _card_if(reading: Reading, digest: str | None) -> str | None:
    """Return the path of the site's card, if it has this digest."""
    return names.SITE_CARD if reading.card is not None and digest_of(reading.card) == digest else None


def _new_keys(side: Peer) -> list[NewKey]:
    """Return a side's hand-overs as events, in order."""
    found, key = [], side.key
    for each in side.handovers:
        path = names.handover_path(each.number, side.sender)
        found.append(NewKey(each.created, side.site, side.sender, path, key, each.key, each.after.seq + 1))
        key = each.key
    return found


def _figures(reading: Reading, found: Survey | SignedSheet) -> Figures:
    """Return a survey, or the answer to one, as an event."""
    if isinstance(found, Survey):
        path, said = names.survey_path(found.number), f"asks about images of {found.task}"
        return Figures("survey", found.created, found.site, AGGREGATOR, path, reading.keys_of_surveys[path], said)
    path = names.sheet_path(found.number)
    said = _with_reason("yes" if found.agrees else "no", found.reason)
    return Figures("sheet", found.created, found.site, found.site, path, reading.keys_of_surveys[path], said)


def lines(events: list[Line]) -> Iterator[str]:
    """Yield one line per event, hand-over or gap."""
    for event in events:
        when = f"{'not here':25}" if isinstance(event, Gap) else moment_text(event.created)
        way = f"{event.site} -> aggregator" if event.sender == event.site else f"aggregator -> {event.site}"
        if isinstance(event, Gap):
            told = f"number {event.first}" if event.first == event.last else f"numbers {event.first} to {event.last}"
            yield f"{when}  {way}  {told}: taken away, still on the way, or not right, as `verify` tells"
            continue
        if isinstance(event, NewKey):
            told = f"message {event.from_seq} on key {fingerprint(event.new_key)}"
            yield f"{when}  {way}  hand-over {event.path}  key {fingerprint(event.key)}  from {told}"
            continue
        if isinstance(event, Figures):
            yield escape(f"{when}  {way}  {event.kind} {event.path}  key {fingerprint(event.key)}  {event.outcome}")
            continue
        where = f"{event.run}/{event.round:04d}" if event.round else event.run
        size = f"{event.size_bytes:,} bytes"
        line = f"{when}  {way}  {event.kind} {where}  {size}  key {fingerprint(event.key)}"
        unknown = "a message that is not here" if event.in_reply_to else "nothing"
        line += f"  answers {event.answers or unknown}"
        line += f"  answered by {', '.join(event.answered_by)}" if event.answered_by else ""
        yield escape(f"{line}  {event.outcome}" if event.outcome else line)


def _ordered(reading: Reading) -> list[Message | NewKey]:
    """Return a folder's messages and hand-overs, both chains in their order.

    Each hand-over stands after the last message that an earlier key signed, no reply before what it answers; otherwise
    they stand by the clocks.
    """
    chains: dict[str, list[Message | NewKey]] = {
        side.sender: sorted([*reading.sent_by(side.sender), *_new_keys(side)], key=_turn)
        for side in (reading.aggregator, reading.site)
    }
    awaited = {message.digest for message in reading.messages.values()}
    ordered: list[Message | NewKey] = []
    while heads := {sender: chain[0] for sender, chain in chains.items() if chain}:
        ready = {sender: head for sender, head in heads.items() if _replies_to(head) not in awaited}
        sender = min(ready or heads, key=lambda sender: (_created(heads[sender]), sender))
        head = chains[sender].pop(0)
        if isinstance(head, Message):
            awaited.discard(head.digest)
        ordered.append(head)
    return ordered


def _turn(found: Message | NewKey) -> tuple[int, str]:
    """Return where in its sender's order it stands: a new key after the last message of the one before."""
    return (found.from_seq - 1, found.path) if isinstance(found, NewKey) else (found.manifest.seq, "")


def _created(found: Message | NewKey | Survey | SignedSheet) -> str:
    return found.manifest.created if isinstance(found, Message) else found.created


def _replies_to(found: Message | NewKey) -> str | None:
    return None if isinstance(found, NewKey) else found.manifest.in_reply_to


def _outcome(reading: Reading, ref: MessageRef) -> str:
    """Return what a message says, or what was decided about it."""
    told = MessageRef("verdict", ref.run, ref.round_no) if ref.kind == "update" else ref
    if (said := _SAYING.get(told.kind)) is None:
        return ""
    if reading.is_hidden(told, said.FILE):
        return NOT_OPENED
    match reading.record_or_none(told, said):
        case Consent() as consent:
            return _with_reason("yes" if consent.agrees else "no", consent.reason)
        case Withdrawal() as withdrawal:
            return _with_reason("withdrawn", withdrawal.reason)
        case Verdict() as verdict:
            return verdict.status if ref.kind == "update" else verdict_text(verdict)
        case FinalCard() as card:
            return _with_reason(f"aggregate {card.chosen_round} chosen", card.reason)
        case Abort() as abort:
            return _with_reason("the run is over", abort.reason)
    return "no verdict yet" if ref.kind == "update" else ""


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict in words."""
    weight = f", weight {verdict.share:.4f}" if verdict.weight is not None or verdict.share else ""
    return _with_reason(f"{verdict.status}{weight}", verdict.why)


def _with_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what
