"""The only door: bytes from a folder become records by passing through here, in one stated order (protocol 10.1).

For a message's manifest (``Peer.open``):

     1. size       at most 1 MiB, before anything is parsed
     2. form       canonical bytes only (RFC 8785), so that one content has one hash
     3. signature  Ed25519, by the key pinned for this sender, or by one that it handed over to
     4. record     of the folder's protocol, with exactly the fields of a manifest
     5. key        the one that signs the sender's message of this number
     6. sender     federation, site and sender are the expected ones, and this sender writes in this place
     7. run        the run that the directory's path names
     8. round      the kind and round number that the path names
     9. files      the closed list of this kind, and none has a form that such a file cannot have
    10. chain      numbered one after, and naming, the sender's last message, which is the one that a hand-over named
    11. reply      answers a message that it may answer

Then, by the run's offer: encrypted exactly where the run wants that (step 12, ``check_encrypted``).

For its payloads: no larger than such a file can be (13, ``inbox.py``); size and SHA-256 as the manifest says (14,
``check_file``); where it is encrypted, every block of it (15, ``encryption.py``); then its contents by the record's own
schema (``open_record``, ``open_yaml``; tensors by ``weights.py`` or, where the run wants them in another form
(``check_form``), by ``encoding.py``; tables by ``tables.py``).

Whoever can write in a folder can put anything there, but cannot sign it. So only what the sender's key has signed for
this very place is held against the sender, and refused for good: ``RejectedError``. All else is ``DoubtfulError``
(protocol 10.2): steps 1 to 8 (also another's signed message carried here), a message before which one is missing, and a
payload that is not what its manifest names.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NoReturn

from shared.doors import Refusal
from shared.doors.json_text import parse_canonical
from shared.doors.schema import AnyRecord, fill
from shared.errors import DoubtfulError, ProtocolError, RejectedError
from shared.exchange.encryption import content_bytes
from shared.exchange.names import (
    AGGREGATOR,
    FEDERATION,
    KINDS,
    MAX_RECORD_BYTES,
    README,
    SITE_CARD,
    STATUS,
    MessageRef,
    handover_path,
    is_weights,
    may_hold,
    sheet_path,
    survey_path,
)
from shared.exchange.order import Link
from shared.exchange.reading import dump_yaml, fault_in, fill_yaml
from shared.exchange.records.messages import Federation, Handover, Head, Manifest, SiteCard, Status
from shared.exchange.records.surveys import SignedSheet, Survey
from shared.exchange.records.values import PROTOCOL, PROTOCOLS, Protocol
from shared.exchange.records.wire import Encrypt, Wire, encrypts
from shared.exchange.signing import digest_of, enrolment_code, open_signed


class ElsewhereError(RejectedError):
    """A record that was written for another federation or site than it is read for."""


@dataclass(frozen=True)
class Message:
    """A manifest that passed, where it lies, and its SHA-256."""

    ref: MessageRef
    manifest: Manifest
    digest: str

    @property
    def head(self) -> Head:
        """The sender's chain head once this message is accepted."""
        return Head(seq=self.manifest.seq, digest=self.digest)


@dataclass(frozen=True)
class Peer:
    """Whom we read: a sender in one site's folder, under one pinned key (64 hex digits) and those it handed over to.

    Args:
        protocol: what the folder is written in.
    """

    federation: str
    site: str
    sender: str
    key: str
    handovers: tuple[Handover, ...] = ()
    protocol: Protocol = PROTOCOL

    @property
    def keys(self) -> tuple[str, ...]:
        """All the sender's keys, the first one first."""
        return (self.key, *(each.key for each in self.handovers))

    @property
    def newest_key(self) -> str:
        """The key that signs the sender's next message."""
        return self.keys[-1]

    @property
    def next_key_number(self) -> int:
        """The number of the key that would come after the newest."""
        return len(self.handovers) + 2

    def key_of(self, seq: int) -> str:
        """Return the key that signs the sender's message of a number."""
        return next((each.key for each in reversed(self.handovers) if seq > each.after.seq), self.key)

    def hand_over(self, content: bytes, *, accepted: Head | None = None) -> Peer:
        """Check a hand-over to the sender's next key, by the rules for a manifest as far as they apply.

        Args:
            accepted: the sender's last message accepted so far.

        Returns:
            The sender with that key.

        Raises:
            RejectedError: naming the record and what is wrong.
        """
        # 1 to 4 as of a manifest, but signed by the newest key alone (protocol 4.3 and 4.4).
        path = handover_path(self.next_key_number, self.sender)
        before = self.handovers[-1].after if self.handovers else Head()
        body, key = _open_signed(content, path)
        if key != self.newest_key:
            _doubt(path, "is signed by an unknown key")
        handover = _of_protocol(body, Handover, path, self.protocol)
        # It was written for this place, and brings a key that is new here.
        self._require_here(handover, self.next_key_number, path)
        if handover.key in self.keys:
            _refuse(path, "hands over to a key that was used before")
        # It takes over after the last accepted message or later; if right after that, it names that very message.
        if handover.after.seq < max(before.seq, accepted.seq if accepted else 0):
            _refuse(path, "takes messages from the key that signed them")
        if accepted and handover.after.seq == accepted.seq and handover.after != accepted:
            _refuse(path, "does not name the sender's last message")
        return replace(self, handovers=(*self.handovers, handover))

    def open(
        self,
        content: bytes,
        ref: MessageRef,
        *,
        head: Head,
        answers: Collection[str | None],
        refused: Collection[str] = (),
    ) -> Message:
        """Check a manifest in the order that this module states.

        Args:
            head: the sender's last message accepted so far.
            answers: digests of the messages one of which this one must answer; None stands for none.
            refused: digests of the sender's messages that were refused for good, after which none can be accepted.

        Raises:
            RejectedError: naming the manifest and the first step that failed.
            DoubtfulError: naming them too, where that may not be the sender's doing.
        """
        # 1 to 9 need the manifest alone.
        message = self.open_out_of_order(content, ref, head=head)
        # 10 and 11 compare it with what was accepted before it. A hand-over names the last message that the key before
        # it signed (protocol 4.3).
        if any(each.after.seq == head.seq and each.after != head for each in self.handovers):
            _refuse(ref.manifest, "breaks the chain: the sender's key was handed over after another message")
        check_order(message.manifest, ref, head=head, answers=answers, refused=refused)
        return message

    def open_out_of_order(self, content: bytes, ref: MessageRef, *, head: Head | None = None) -> Message:
        """Check steps 1 to 9, for readers that hold every message and check chain and reply across them.

        Args:
            head: the sender's last message accepted so far, of readers to whom a message is new.

        Raises:
            RejectedError: naming the manifest and the first step that failed.
            DoubtfulError: naming them too, where that may not be the sender's doing.
        """
        # 1 to 3. Size, form and signature are checked before anything else is read from the bytes.
        body, key = self._open_signed(content, ref.manifest)
        # 4. Only now is it read as a manifest. One of another protocol is told as that, whatever else it holds.
        manifest = _of_protocol(body, Manifest, ref.manifest, self.protocol)
        # 5. Each of the sender's keys signs its own stretch of the chain (protocol 4.3 and 4.4).
        if key != self.key_of(manifest.seq):
            _doubt(ref.manifest, f"is signed by another key of {self.sender} than its message {manifest.seq}")
        if head is not None and key != self.newest_key:
            self._require_place_left(manifest.seq, digest_of(content), head, ref.manifest)
        # 6. A message of another federation or site, carried here, is nobody's fault: it is doubtful, not refused.
        if (manifest.federation, manifest.site, manifest.sender) != (self.federation, self.site, self.sender):
            _doubt(ref.manifest, f"was written for {manifest.federation}/{manifest.site} by {manifest.sender}")
        if ref.is_from_site == (self.sender == AGGREGATOR):
            _doubt(ref.manifest, f"lies where {self.sender} does not write")
        # 7 and 8. So is one that was moved to another run's or round's directory.
        if manifest.run != ref.run:
            _doubt(ref.manifest, f"belongs to run {manifest.run}")
        if (manifest.kind, manifest.round) != (ref.kind, ref.round_no):
            _doubt(ref.manifest, f"is of kind {manifest.kind} and round {manifest.round}, which belongs elsewhere")
        # 9. From here on the sender itself has signed what is wrong, so it is refused for good. The list of files is
        #    closed: nothing that the protocol does not name (protocol 1.1 and 6.3) can be brought into a mirror.
        names, required = set(manifest.files), KINDS[ref.kind].files
        if missing := sorted(required - names):
            _refuse(ref.manifest, f"does not list what every {ref.kind} has: {', '.join(missing)}")
        if strange := sorted(name for name in names if not may_hold(ref.kind, name)):
            _refuse(ref.manifest, f"lists what no {ref.kind} has: {', '.join(strange)}")
        for name, entry in manifest.files.items():
            if entry.wire != entry.wire.of(ref.kind, name):
                _refuse(ref.manifest, f"gives {name} a form that it cannot have")
        return Message(ref, manifest, digest_of(content))

    def _require_place_left(self, seq: int, digest: str, head: Head, path: str) -> None:
        """Check that a key which was handed over can have signed a message here (protocol 10.2).

        Whoever has a copy of that key could sign another for a number that has its message, which is not the sender's
        doing: all that were accepted have theirs, and the last of the key's stretch, which the hand-over names.
        """
        last = next(each.after for each in self.handovers if seq <= each.after.seq)
        if seq <= head.seq or (seq == last.seq and digest != last.digest):
            _doubt(path, f"is signed by a key that was handed over, and is another than {self.sender}'s message {seq}")

    def open_status(self, content: bytes, *, head: Head | None = None) -> Status:
        """Check a heartbeat: it is signed by the newest key, or by the one that signed the message it speaks of.

        Args:
            head: the site's last message accepted so far, of readers to whom the heartbeat is new: a key that was
                handed over speaks of no earlier one.

        Raises:
            RejectedError: signature or names do not hold.
        """
        body, key = self._open_signed(content, STATUS)
        status = _of_protocol(body, Status, STATUS, self.protocol)
        is_past = head is not None and status.own_head.seq < head.seq
        if key != self.newest_key and (is_past or key != self.key_of(status.own_head.seq)):
            _refuse(STATUS, f"is signed by a key of {self.sender} that was handed over before")
        if (status.federation, status.site) != (self.federation, self.site):
            _refuse(STATUS, f"was written for {status.federation}/{status.site}")
        return status

    def open_survey(self, content: bytes, number: int, *, is_new: bool = False) -> Survey:
        """Check what the aggregator asks about the site's images, at the place of its number.

        Args:
            is_new: it was not seen before, so that only the newest key may have signed it.

        Raises:
            RejectedError: signature, names or number do not hold, or it is not well-formed.
        """
        body, key = self._open_signed(content, path := survey_path(number))
        if is_new and key != self.newest_key:
            _doubt(path, f"is signed by a key of {self.sender} that was handed over before")
        survey = _of_protocol(body, Survey, path, self.protocol)
        self._require_here(survey, number, path)
        return survey

    def open_sheet(self, content: bytes, survey: Survey, digest: str) -> SignedSheet:
        """Check a site's answer to a survey; its key is as for a heartbeat, and was not handed over before the survey.

        Args:
            digest: of the survey.

        Raises:
            RejectedError: signature, names or number do not hold, it is not well-formed, or answers another survey.
        """
        body, key = self._open_signed(content, path := sheet_path(survey.number))
        answer = _of_protocol(body, SignedSheet, path, self.protocol)
        is_stale = key not in (self.newest_key, self.key_of(answer.own_head.seq))
        # Whoever holds a copy of an old key could name an old message, so the key must have been in use at the survey
        # (protocol 5.1).
        if is_stale or (key != self.newest_key and self._handed_over(key) < survey.created):
            _refuse(path, f"is signed by a key of {self.sender} that was handed over before")
        self._require_here(answer, survey.number, path)
        if answer.in_reply_to != digest:
            _refuse(path, f"does not answer {survey_path(survey.number)}")
        if (fault := answer.fault(survey)) is not None:
            _refuse(path, fault)
        return answer

    def _handed_over(self, key: str) -> str:
        """Return when a key that is not the newest handed over to the next."""
        return self.handovers[self.keys.index(key)].created

    def _require_here(self, record: Handover | Survey | SignedSheet, number: int, path: str) -> None:
        if (record.federation, record.site) != (self.federation, self.site):
            _refuse(path, f"was written for {record.federation}/{record.site}")
        if record.number != number:
            _refuse(path, f"is number {record.number}, which belongs elsewhere")

    def _open_signed(self, content: bytes, path: str) -> tuple[dict[str, object], str]:
        body, key = _open_signed(content, path)
        if key not in self.keys:
            _doubt(path, "is signed by an unknown key")
        return body, key


def check_order(
    manifest: Link,
    ref: MessageRef,
    *,
    head: Head,
    answers: Collection[str | None],
    refused: Collection[str] = (),
) -> None:
    """Check steps 10 and 11 of a manifest that is well signed; arguments as for ``Peer.open``.

    Raises:
        RejectedError: it cannot be its sender's next message.
        DoubtfulError: a message before it is missing.
    """
    # 10. The chain admits one next message: numbered one after the last, and naming it (protocol 3.2).
    if manifest.previous in refused:
        _refuse(ref.manifest, f"breaks the chain: number {manifest.seq - 1} before it was refused")
    if manifest.seq > head.seq + 1:  # whoever can remove a message makes such a gap
        _doubt(ref.manifest, f"breaks the chain: it is number {manifest.seq}, number {head.seq + 1} is expected")
    if manifest.seq <= head.seq:
        _refuse(ref.manifest, f"breaks the chain: it is number {manifest.seq}, number {head.seq + 1} is expected")
    if manifest.previous != head.digest:
        _refuse(ref.manifest, "breaks the chain: it does not name the sender's message before it")
    # 11. What it answers shows what its sender had read; see ``order.py`` (protocol 6.8).
    if manifest.in_reply_to not in answers:
        _refuse(ref.manifest, "does not answer the message it should answer")


def check_file(message: Message, name: str, size: int, sha256: str) -> None:
    """Compare a payload with its manifest.

    Raises:
        DoubtfulError: other size or other hash.
    """
    entry, path = message.manifest.files[name], f"{message.ref.path}/{name}"
    if size != entry.size:
        _doubt(path, f"has {size} bytes, its manifest says {entry.size}")
    if sha256 != entry.sha256:
        _doubt(path, "is not the file its manifest names (SHA-256 differs)")


def check_sizes(message: Message, max_weights_bytes: int, *, without_weights: bool = False) -> None:
    """Check by the manifest that no payload is larger than it can be, so that none can fill the disk (protocol 10.1,
    step 13).

    Args:
        max_weights_bytes: all tensor files together may be no larger; everything else is at most ``MAX_RECORD_BYTES``.
        without_weights: the tensor files are left where they lie.

    Raises:
        RejectedError: one is larger.
    """
    room = max_weights_bytes
    for name, entry in sorted(message.manifest.files.items()):
        if without_weights and is_weights(name):
            continue
        most = room if is_weights(name) else MAX_RECORD_BYTES
        if content_bytes(entry) > most:
            _refuse(f"{message.ref.path}/{name}", f"has {content_bytes(entry)} bytes, at most {most} are expected")
        room -= content_bytes(entry) if is_weights(name) else 0


def check_form(message: Message, wire: Wire) -> None:
    """Check by the manifest that the weights are in the form that the run asks for.

    Raises:
        RejectedError: they are in another.
    """
    for name, entry in message.manifest.files.items():
        if entry.wire != (wanted := wire.of(message.ref.kind, name)):
            _refuse(f"{message.ref.path}/{name}", f"has the form ({entry.wire}), the run wants ({wanted})")


def check_encrypted(message: Message, encrypt: Encrypt) -> None:
    """Check by the manifest that exactly those payloads are encrypted that the run asks to encrypt.

    Raises:
        RejectedError: one is not that should be, or is that should not be.
    """
    for name, entry in message.manifest.files.items():
        if (entry.encrypted is not None) != encrypts(encrypt, name):
            what = "is encrypted" if entry.encrypted else "is not encrypted"
            _refuse(f"{message.ref.path}/{name}", f"{what}, which is not what the run wants (encrypt: {encrypt})")


def open_record(content: bytes, kind: type[AnyRecord], path: str) -> AnyRecord:
    """Read an unsigned JSON payload whose hash was checked: one that says all that such a record says.

    Raises:
        RejectedError: not canonical JSON, not this record, or a key is left out.
    """
    try:
        return _record(parse_canonical(content, MAX_RECORD_BYTES), kind, path)
    except Refusal as refusal:
        _refuse(path, str(refusal))


def open_yaml(content: bytes, kind: type[AnyRecord], path: str) -> AnyRecord:
    """Read a YAML payload whose hash was checked: one that has the very bytes that ``dump_yaml`` makes of its record.

    Raises:
        RejectedError: not plain YAML, not this record, or another text of it.
    """
    try:
        record = fill_yaml(content, kind)
        if (ours := dump_yaml(record)) != content:
            lines = zip(ours.splitlines(keepends=True), content.splitlines(keepends=True), strict=False)
            same = takewhile(lambda line: line[0] == line[1], lines)
            raise Refusal(f"is not written as the protocol writes this record, from line {1 + len([*same])} on")
    except Refusal as refusal:
        _refuse(path, fault_in(refusal, kind))
    return record


def open_site_card(
    content: bytes, *, federation: str, site: str, secret: str | None, protocol: Protocol = PROTOCOL
) -> SiteCard:
    """Check a site's card; with the invite's secret also that its key belongs to whom we invited.

    Raises:
        ElsewhereError: it is another site's, or another federation's.
        RejectedError: signature or enrolment code do not hold.
        ProtocolError: it is of another protocol.
    """
    body, key = _open_signed(content, SITE_CARD)
    card = _of_protocol(body, SiteCard, SITE_CARD, protocol)
    if card.key != key:
        _refuse(SITE_CARD, "is signed by another key than the one it shows")
    if (card.federation, card.site) != (federation, site):
        raise ElsewhereError(SITE_CARD, f"was written for {card.federation}/{card.site}")
    if secret is not None and card.enrolment != enrolment_code(secret, federation, site, card.key):
        _refuse(SITE_CARD, "does not prove knowledge of the invite's secret: send the site a new invite")
    return card


def open_federation(content: bytes, *, aggregator_key: str | None, protocol: Protocol | None = PROTOCOL) -> Federation:
    """Check ``federation.json``, against the pinned aggregator key if one is given.

    Args:
        protocol: what the folder must be written in; None: any that an audit reads.

    Raises:
        RejectedError: signature or key do not hold.
        ProtocolError: it is of another protocol.
    """
    body, key = _open_signed(content, FEDERATION)
    record = _of_protocol(body, Federation, FEDERATION, protocol)
    if record.aggregator_key != key or (aggregator_key is not None and key != aggregator_key):
        _refuse(FEDERATION, "is signed by another key than the aggregator's")
    if set(record.files) != {README}:
        _refuse(FEDERATION, f"lists other files than {README}")
    return record


def _open_signed(content: bytes, path: str) -> tuple[dict[str, object], str]:
    try:
        return open_signed(content)
    except Refusal as refusal:
        _doubt(path, str(refusal))


def _of_protocol(body: dict[str, object], kind: type[AnyRecord], path: str, protocol: Protocol | None) -> AnyRecord:
    """Read a signed record that says which protocol it is of.

    Raises:
        DoubtfulError: it is not well-formed: the sender may have signed it as another record, at another place.
        ProtocolError: it is of another protocol than expected.
    """
    # An older record may have other keys, too: what protocol it is of comes first.
    found = body.get("protocol")
    if protocol is not None and type(found) is int and found != protocol and found in PROTOCOLS:
        what = f"is of protocol {found}, and protocol {protocol} is expected"
        remedy = "finish the runs of that folder with dropfed 0.1, then invite the site anew, with an empty folder"
        raise ProtocolError(path, f"{what}: {remedy}" if protocol == PROTOCOL else what)
    try:
        return _record(body, kind, path)
    except RejectedError as error:
        _doubt(path, error.reason)


def _record(body: dict[str, object], kind: type[AnyRecord], path: str) -> AnyRecord:
    try:
        record = fill(kind, body)
    except Refusal as refusal:
        _refuse(path, f"is not a well-formed {kind.__name__} record: {fault_in(refusal, kind)}")
    # Signed records of protocol 1 leave out what they have nothing to say of, or do not.
    if body.get("protocol") != 1 and record.model_dump(mode="json") != body:
        _refuse(path, "is not written as the protocol writes this record")
    return record


def _refuse(path: str, reason: str) -> NoReturn:
    raise RejectedError(path, reason)


def _doubt(path: str, reason: str) -> NoReturn:
    raise DoubtfulError(path, reason)
