"""Check a drop folder, months later or live: every name, signature, hash and chain.

What is checked, in this order:

    names       nothing lies there that the protocol does not name; a scratch folder that a `check` had no time to
                remove holds nothing but what a `check` writes
    keys        federation.json signs for both keys; README.txt, site.json and status.json hold under them
    surveys     each is the aggregator's, numbered without gap, and each sheet is the site's answer to one, with no
                figure that the protocol does not describe, or with more digits
    messages    every manifest passes ``trust.py``; every payload is there, with its size and SHA-256, and no other;
                a tensor file that is not there counts as removed if the run's own rule prunes it; weights are said
                to be in the form that the run wants, and encrypted where it wants that. Where the manifest is still
                to come, nothing lies but what such a message has
    contents    each payload is what its name says and nothing besides (``contents.py``)
    chains      each sender's messages are numbered without gap or repeat, each naming the one before it
    records     each says nothing but what follows from those before it (``bindings.py``)
    replies     each message answers the message it must answer; none of a site's follows its withdrawal from the run,
                and none that the aggregator signed when it had read that
    order       the aggregator's messages of a run come in their order, and from a run's first round to its end nothing
                but offers comes of any other
    heads       the newest messages that status.json, sheets and hand-overs speak of are there; in the aggregator's own
                copy they may speak of a site's message that is yet to be fetched

Reading alone; nothing is changed. How good a model is, is not judged: that is what the verdicts are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

from shared.audit import protocol_1
from shared.audit.archive import MirroredFolder
from shared.audit.bindings import find_loose_records
from shared.audit.contents import check_contents
from shared.audit.reading import UNKNOWN, Finding, HiddenError, Reading
from shared.audit.sites import one_chain
from shared.errors import NotFoundError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.encryption import EncryptionKey, max_ciphertext_bytes
from shared.exchange.names import AGGREGATOR, MANIFEST, MessageRef
from shared.exchange.order import Order, Replies
from shared.exchange.records.messages import Federation, Head, Status
from shared.exchange.signing import digest_of
from shared.exchange.trust import Message, check_encrypted, check_form
from shared.folder.contract import Folder, finished_name
from shared.folder.durable import complete_name
from shared.moments import moment_text
from shared.plurals import pluralize
from shared.sizes import size_text


@dataclass
class Audit:
    """The result for one folder.

    ``in_progress``: messages whose manifest is still to come, or that the aggregator's copy has not fetched yet;
    ``removed``: tensor files that the run's rule pruned; ``scratch``: scratch folders of a `check`; ``handovers``:
    records by which a side changed its key; ``surveys``: what was asked about its images, and its answers;
    ``encrypted``: files that only the folder's two sides can read; ``opened``: how many of them were, by a key that was
    given; ``touched``: how many messages a finding is about.
    """

    federation: Federation | None = None
    messages: int = 0
    files: int = 0
    size_bytes: int = 0
    in_progress: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    handovers: list[str] = field(default_factory=list)
    aggregator_keys: list[str] = field(default_factory=list)
    surveys: list[str] = field(default_factory=list)
    encrypted: int = 0
    opened: int = 0
    findings: list[Finding] = field(default_factory=list)
    touched: int = 0

    def as_json(self) -> dict[str, object]:
        """Return plain values, for scripts."""
        federation = self.federation.model_dump() if self.federation else None
        return {"holds": not self.findings, **asdict(self), "federation": federation}


def verify(folder: Folder, *, aggregator_key: str | None = None, secret_key: EncryptionKey | None = None) -> Audit:
    """Check one site's folder.

    Args:
        aggregator_key: the aggregator's public key if known from elsewhere (64 hex digits); without it the folder
            is only checked against itself.
        secret_key: the site's or the aggregator's private encryption key; without it, of what is encrypted the bytes in
            the folder are checked, and not what they say.

    Raises:
        ActionRequiredError: the folder cannot be read.
    """
    return verified(Reading(folder, aggregator_key, secret_key))


def verified(reading: Reading) -> Audit:
    """Check all that a folder's messages say together."""
    return _Verification(reading).run()


class _Verification:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._messages = reading.messages
        self._find = reading.find
        self._is_mirror = isinstance(reading.folder, MirroredFolder)
        self._audit = Audit(
            reading.federation,
            messages=len(reading.messages),
            files=len(reading.sizes),
            size_bytes=sum(reading.sizes.values()),
            scratch=reading.scratch,
            handovers=[*reading.handovers],
            aggregator_keys=[*reading.aggregator.keys] if reading.federation else [],
            surveys=[*reading.surveys],
        )

    def run(self) -> Audit:
        reading, federation = self._reading, self._reading.federation
        if federation is not None:
            for message in self._messages.values():
                self._check_form(message)
                for name in message.manifest.files:
                    self._check_payload(message, name)
            find_loose_records(reading)
            for sender in (AGGREGATOR, federation.site):
                self._check_chain(sender)
            order = self._check_order(self._check_replies())
            self._check_withdrawals()
            for path, sender, head in reading.reported_heads():
                self._check_head(sender, head, path)
            self._check_unsigned(reading.status, order)
            self._note_to_come(federation.site)
        self._audit.findings = sorted(set(reading.findings))
        about = {finding.file for finding in self._audit.findings}
        self._audit.touched = sum(any(_is_of(ref.path, file) for file in about) for ref in self._messages)
        return self._audit

    def _find_in(self, message: Message, what: str) -> None:
        """Note what is wrong with a message."""
        self._find(message.ref.manifest, what, message.manifest.created)

    # --- messages ------------------------------------------------------------------------------------------

    def _check_payload(self, message: Message, name: str) -> None:
        path, created = f"{message.ref.path}/{name}", message.manifest.created
        if path in self._reading.odd:
            return
        if path not in self._reading.sizes:
            if self._reading.was_pruned(message.ref, name):
                self._audit.removed.append(path)
            elif names.is_weights(name) and self._reading.hides_rules(message.ref.run):
                self._find(path, "is missing, or was removed by the run's rule, which only a key shows", created)
            else:
                self._find(path, "is missing", created)
            return
        self._audit.encrypted += message.manifest.files[name].encrypted is not None
        try:
            with self._reading.looking_at(path, created):
                self._check_as_it_lies(message, name)
        except NotFoundError:
            self._find(path, "vanished while it was read", created)

    def _check_as_it_lies(self, message: Message, name: str) -> None:
        is_encrypted = message.manifest.files[name].encrypted is not None
        try:
            with self._reading.file(message, name) as local, self._reading.looking_at(f"{message.ref.path}/{name}"):
                check_contents(self._reading, message, name, local)  # what was signed and is not right never was
            self._audit.opened += is_encrypted
        except HiddenError:
            with self._reading.as_it_lies(message, name):
                pass

    def _check_form(self, message: Message) -> None:
        run = self._reading.configuration(message.ref.run)
        if run is not None or self._reading.hides_rules(message.ref.run):
            with self._reading.looking_at(message.ref.manifest, message.manifest.created):
                check_encrypted(message, run.encrypt if run else "all")
                if run is not None:
                    check_form(message, run.wire)

    # --- chains and replies --------------------------------------------------------------------------------

    def _check_chain(self, sender: str) -> None:
        before, last = Head(), None
        for message in self._reading.sent_by(sender):
            seq = message.manifest.seq
            if seq == before.seq:
                self._find_in(message, f"is a second number {seq} of {sender}")
            elif seq > before.seq + 1:
                after = f"{before.seq} ({last.path})" if last else "0"
                due = self._due_between(last, message.ref)
                what = f"is number {seq} of {sender}, after {after}: those between are missing or broken{due}"
                self._find_in(message, what)
            elif message.manifest.previous != before.digest:
                self._find_in(message, f"does not name {sender}'s message before it")
            before, last = message.head, message.ref

    def _due_between(self, before: MessageRef | None, after: MessageRef) -> str:
        """Return one message that a gap in a sender's chain must have held, in words; "" if the order tells none."""
        due = None
        if before is not None and before.kind == "round" and before.run == after.run:
            due = MessageRef("verdict", before.run, before.round_no)
        elif after.kind == "verdict":
            due = MessageRef("round", after.run, after.round_no)
        return f"; {due.path} must be one of them" if due and due not in self._messages else ""

    def _check_replies(self) -> Replies:
        """Check that each message answers the one that it must answer; return what answers what."""
        reading = self._reading
        kind = protocol_1.Replies if reading.opened.protocol == 1 else Replies
        sent = reading.sent_by(reading.opened.site)
        replies = kind(digest_of(reading.card) if reading.card is not None else None, sent)
        for message in reading.sent_by(AGGREGATOR):
            self._check_reply(replies, message)
            replies.take(message)
        for message in sent:
            self._check_reply(replies, message)
        return replies

    def _check_reply(self, replies: Replies, message: Message) -> None:
        if (fault := replies.fault(message.ref, message.manifest.in_reply_to)) is not None:
            self._find_in(message, fault)

    def _check_order(self, replies: Replies) -> Order:
        """Check that the aggregator's messages of a run come in one order, and rounds of two runs never interleave.

        What follows a gap in the chain, which is a finding, is in no order that could be told. What comes next is told
        by the order that is returned.

        Args:
            replies: with all messages taken.
        """
        order, before = Order(), Head()
        for message in self._reading.sent_by(AGGREGATOR):
            if message.manifest.seq > before.seq + 1:
                break
            if (fault := order.fault(message.ref, partial(_knew_withdrawal, replies, message))) is not None:
                self._find_in(message, fault)
            order.take(message.ref)
            before = message.head
        return order

    def _check_withdrawals(self) -> None:
        for ref, withdrawal in self._messages.items():
            if ref.kind != "withdrawal":
                continue
            for message in self._reading.sent_by(withdrawal.manifest.sender):
                if message.ref.run == ref.run and message.manifest.seq > withdrawal.manifest.seq:
                    self._find_in(message, "was sent after the site had withdrawn from the run")

    def _check_head(self, sender: str, head: Head, said_in: str) -> None:
        if head.seq == 0:
            return
        sent = self._reading.sent_by(sender)
        for message in sent:
            if message.manifest.seq == head.seq:
                if message.digest != head.digest:
                    self._find_in(message, f"is not the number {head.seq} of {sender} that {said_in} speaks of")
                return
        if self._is_to_come(sender, head):
            return
        what = f"speaks of message {head.seq} of {sender}, which is not there"
        if sent and sent[-1].manifest.seq < head.seq:
            newest = sent[-1]
            what += f"; the newest here is number {newest.manifest.seq}, {newest.ref.path}: "
            what += f"all after it, up to {head.seq}, are missing, removed or not right"
        self._find(said_in, what)

    def _is_to_come(self, sender: str, head: Head) -> bool:
        """Return whether a mirror may fetch a message of the site's yet: the aggregator reads a heartbeat, or a sheet,
        before the messages that this speaks of.
        """
        newest = self._reading.head_of(sender).seq
        return self._is_mirror and sender != AGGREGATOR and len(self._reading.sent_by(sender)) == newest < head.seq

    def _note_to_come(self, site: str) -> None:
        """Note what a mirror has not fetched yet, unless it is fetching: then that is told by its path."""
        heads = [head.seq for _, sender, head in self._reading.reported_heads() if self._is_to_come(sender, head)]
        first, last = self._reading.head_of(site).seq + 1, max(heads, default=0)
        if last and not any(ref.is_from_site and MANIFEST not in found for ref, found in self._reading.by_ref.items()):
            told = f"message {last}" if first == last else f"messages {first} to {last}"
            self._audit.in_progress.append(f"{told} of {site}")

    def _check_unsigned(self, status: Status | None, order: Order) -> None:
        """Check for messages without a manifest: each is being sent, or its manifest was removed, or it is none."""
        by_ref = self._reading.by_ref
        for is_from_site in (True, False):
            unsigned = [
                ref
                for ref, found in by_ref.items()
                if MANIFEST not in found and ref.manifest not in self._reading.odd and ref.is_from_site == is_from_site
            ]
            sender = "site" if is_from_site else AGGREGATOR
            known = [message for message in self._messages.values() if message.ref.is_from_site == is_from_site]
            newest = max((message.manifest.seq for message in known), default=0)
            head = (status.own_head if is_from_site else status.aggregator_head) if status else Head()
            is_unknown = head.seq <= newest or (self._is_mirror and is_from_site)
            may_be_on_its_way = len(unsigned) == 1 and newest == len(known) and is_unknown
            for ref in unsigned:
                self._check_unnamed(ref, by_ref[ref])
                if may_be_on_its_way and self._may_come_next(ref, order) and not self._must_be_whole(ref):
                    self._audit.in_progress.append(ref.path)
                else:
                    beside = f"the {sender}'s files beside it are not signed" if by_ref[ref] else "its folder is empty"
                    self._find(ref.manifest, f"is missing: {beside}")

    def _check_unnamed(self, ref: MessageRef, found: set[str]) -> None:
        """Check what no manifest names yet: each is a file of such a message, or is being written as one."""
        most = max_ciphertext_bytes(names.MAX_RECORD_BYTES)
        for name in found:
            path, due = f"{ref.path}/{name}", finished_name(complete_name(name))
            if due != MANIFEST and not names.may_hold(ref.kind, due):
                self._find(path, "is a file that does not belong here")
            elif not names.is_weights(due) and (size := self._reading.sizes[path]) > most:
                self._find(path, f"has {size} bytes, at most {most} are expected")

    def _may_come_next(self, ref: MessageRef, order: Order) -> bool:
        """Return whether the message at ``ref`` may come next, by those that are here (protocol 6.1)."""

        def has_left(run: str) -> bool:
            return MessageRef("withdrawal", run) in self._messages

        if ref.is_from_site:
            answered = (each.round_no for each in self._messages if (each.kind, each.run) == ("update", ref.run))
            is_passed = ref.kind == "update" and ref.round_no < max(answered, default=0)
            return ref.answers in self._messages and not has_left(ref.run) and not is_passed
        if ref.kind == "offer":  # one that waits for a verdict, perhaps
            return True
        run = self._reading.configuration(ref.run)
        is_a_round_of_it = run is None or ref.round_no <= run.rounds + 1
        return is_a_round_of_it and order.fault(ref, has_left) is None

    def _must_be_whole(self, ref: MessageRef) -> bool:
        """Return whether a message of the aggregator's says that the one at ``ref`` was whole.

        What a site signed before it read the end of a run may still be on its way.
        """
        ends = {MessageRef("final", ref.run), MessageRef("abort", ref.run)} & self._messages.keys()
        if not ref.is_from_site:
            return bool(ends - {ref})
        if ref.kind == "update":
            verdict = self._messages.get(MessageRef("verdict", ref.run, ref.round_no))
            return verdict is not None and verdict.manifest.in_reply_to is not None
        return ref.kind == "consent" and any(
            message.ref.run == ref.run and message.ref.kind in ("round", "final") for message in self._messages.values()
        )


def _knew_withdrawal(replies: Replies, message: Message, run: str) -> bool:
    return replies.had_read(MessageRef("withdrawal", run), message.manifest.in_reply_to)


def _is_of(message: str, file: str) -> bool:
    return file == message or file.startswith(f"{message}/")


def lines(audit: Audit) -> Iterator[str]:
    """Yield one line per finding."""
    for finding in audit.findings:
        since = "" if finding.since == UNKNOWN else f" (was right at {moment_text(finding.since)})"
        yield escape(f"{finding.file}: {finding.what}{since}")


def holding(audits: Mapping[str, Audit]) -> str:
    """Return one line, beside findings: how much else was checked, and holds by itself.

    Args:
        audits: by what to call each folder.
    """
    opened = [audit for audit in audits.values() if audit.federation is not None]
    found = {(name, finding.file) for name, audit in audits.items() for finding in audit.findings}
    count = sum(len(audit.findings) for audit in audits.values())
    messages = sum(audit.messages for audit in opened)
    touched = sum(audit.touched for audit in opened)
    unopened = len(audits) - len(opened)
    beside = f"; {pluralize(unopened, 'folder')} could not be checked at all" if unopened else ""
    return (
        f"{pluralize(count, 'finding')} at {pluralize(len(found), 'place')}; no finding is about "
        f"{messages - touched:,} of {pluralize(messages, 'message')} in {pluralize(len(opened), 'folder')}{beside}"
    )


def summary(audits: Mapping[str, Audit], *, is_key_compared: bool) -> str:
    """Return one line: how much was checked, and under which aggregator's key.

    Args:
        audits: by what to call each folder.
        is_key_compared: whether the aggregator's first key is one that was known from elsewhere.
    """
    messages = sum(audit.messages for audit in audits.values())
    files = sum(audit.files for audit in audits.values())
    size = size_text(sum(audit.size_bytes for audit in audits.values()))
    on_their_way = [
        f"{name}/{path}" if len(audits) > 1 else path for name, audit in audits.items() for path in audit.in_progress
    ]
    keys = one_chain(audit.aggregator_keys for audit in audits.values())
    removed = sum(len(audit.removed) for audit in audits.values())
    more = f", {len(on_their_way)} on their way ({', '.join(on_their_way)})" if on_their_way else ""
    more += f", {pluralize(removed, 'tensor file')} removed by the runs' own rule" if removed else ""
    paths = [path for audit in audits.values() for path in audit.handovers]
    handovers = sum(not names.is_handover(path, AGGREGATOR) for path in paths) + len(keys[1:])
    more += f", {pluralize(handovers, 'hand-over')} of a key" if handovers else ""
    surveys = sum(len(audit.surveys) for audit in audits.values())
    more += (
        f", {pluralize(surveys, 'survey or sheet', 'surveys and sheets')} of figures about images" if surveys else ""
    )
    encrypted, opened = (sum(getattr(audit, what) for audit in audits.values()) for what in ("encrypted", "opened"))
    more += f", {pluralize(encrypted, 'encrypted file')}, {opened} of them opened" if encrypted else ""
    scratch = sum(len(audit.scratch) for audit in audits.values())
    more += f", {pluralize(scratch, 'scratch folder')} of a check" if scratch else ""
    return escape(
        f"{pluralize(len(audits), 'folder')}, {pluralize(messages, 'message')}{more}, {pluralize(files, 'file')}, "
        f"{size}: every signature, hash, chain, name and content holds under aggregator key {', then '.join(keys)}"
        f"{'' if is_key_compared else ' (not compared with a key of yours: --key)'}"
    )
