"""The daemons' reading interfaces over a state of the model: the messages of one folder as either end knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

from shared.errors import DoubtfulError, RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.messages import Head
from shared.exchange.records.values import AnyPayload, Payload
from shared.exchange.trust import check_order
from tests.model_check.state import RUN, Desk, Hospital, Sent, Told

CARD = "card"


@dataclass(frozen=True)
class Signed:
    """A message as far as its place in the order goes."""

    ref: MessageRef
    seq: int
    previous: str | None
    in_reply_to: str | None
    digest: str
    says: str = ""

    @property
    def manifest(self) -> Signed:
        """What chains it."""
        return self

    @property
    def head(self) -> Head:
        """The sender's chain head once this message is accepted."""
        return Head.model_construct(seq=self.seq, digest=self.digest)


@cache
def told_messages(told: tuple[Told, ...]) -> tuple[Signed, ...]:
    """The aggregator's messages."""
    return tuple(
        Signed(
            ref=MessageRef(each.kind, each.run, each.round_no),
            seq=seq,
            previous=f"told {seq - 1}" if seq > 1 else None,
            in_reply_to=None if each.answers is None else CARD if each.answers == 0 else f"sent {each.answers}",
            digest=f"told {seq}",
        )
        for seq, each in enumerate(told, 1)
    )


@cache
def sent_messages(sent: tuple[Sent, ...], told: tuple[Told, ...]) -> tuple[Signed, ...]:
    """The site's messages, which answer those of the aggregator."""
    by_ref = {message.ref: message.digest for message in told_messages(told)}
    return tuple(
        Signed(
            ref=(ref := MessageRef(each.kind, each.run, each.round_no)),
            seq=seq,
            previous=f"sent {seq - 1}" if seq > 1 else None,
            in_reply_to=by_ref[ref.answers] if ref.answers else None,
            digest=f"sent {seq}",
            says=each.says,
        )
        for seq, each in enumerate(sent, 1)
    )


def called(message: Sent | Told) -> str:
    """A message in words."""
    what = f"{message.kind} {message.round_no}" if message.round_no else message.kind
    return what if message.run == RUN else f"{what} of {message.run}"


class Known:
    """An ``Exchange``: what one end knows of its own messages and the other's."""

    def __init__(self, own: tuple[Signed, ...], peers: tuple[Signed, ...], refused: tuple[Signed, ...] = ()) -> None:
        self._own, self._peers = own, peers
        self._by_ref = {message.ref: message for message in (*own, *peers)}
        self._refused = {message.ref: message for message in refused}

    def message(self, ref: MessageRef) -> Signed | None:
        """As for any."""
        return self._by_ref.get(ref)

    def refusal(self, ref: MessageRef) -> str | None:
        """As for any."""
        return "is poison" if ref in self._refused else None

    def is_settled(self, ref: MessageRef) -> bool:
        """As for any."""
        return ref in self._by_ref or ref in self._refused

    def record(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload:
        """As for any."""
        record = _record(kind, self._by_ref[ref].says)
        assert isinstance(record, kind)
        return record

    def own_messages(self) -> tuple[Signed, ...]:
        """As for any."""
        return self._own

    def peer_messages(self) -> tuple[Signed, ...]:
        """As for any."""
        return self._peers

    def last_from_peer(self) -> Signed | None:
        """As for any."""
        return self._peers[-1] if self._peers else None


@cache
def _record(kind: type[Payload], says: str) -> Payload:
    if kind is Withdrawal:
        return Withdrawal(run=RUN, reason="")
    agrees = says != "no"
    return Consent(run=RUN, agrees=agrees, reason="", images={"train": "12"} if agrees else {})


def known_at_desk(desk: Desk, sent: tuple[Sent, ...]) -> Known:
    """What the aggregator knows of a folder."""
    return _known_at_desk(desk.told, sent, desk.accepted, desk.accepted + desk.refused)


@cache
def _known_at_desk(told: tuple[Told, ...], sent: tuple[Sent, ...], accepted: int, taken: int) -> Known:
    messages = sent_messages(sent, told)
    return Known(told_messages(told), messages[:accepted], messages[accepted:taken])


def known_at_hospital(hospital: Hospital, desk: Desk) -> Known:
    """What the site knows of its folder."""
    return _known_at_hospital(hospital.sent, desk.told, hospital.read)


@cache
def _known_at_hospital(sent: tuple[Sent, ...], told: tuple[Told, ...], read: int) -> Known:
    return Known(sent_messages(sent, told), told_messages(told)[:read])


class Noticed(Known):
    """The same at the aggregator while it looks into the folder, of whose messages it sees some.

    Args:
        visible: numbers of the site's messages whose manifests are seen.
        keeps_back: the withdrawal's own files cannot be read now.
    """

    def __init__(self, desk: Desk, hospital: Hospital, visible: Collection[int], *, keeps_back: bool = False) -> None:
        self._sent = sent_messages(hospital.sent, desk.told)
        self._told = told_messages(desk.told)
        self._accepted, self._refused_count = desk.accepted, desk.refused
        self._seen = {message.ref: message for message in self._sent if message.seq in visible}
        self._rotated = hospital.rotated if hospital.shows_key else None
        self._is_signed_anew = hospital.rotated
        self._keeps_back = keeps_back
        self.knows_key = desk.knows_key
        self.asked_for: set[MessageRef] = set()
        """Where it was looked."""
        self.met_gap = False
        """Whether a message was seen whose sender has sent others before it, which are not seen."""
        self._renew()

    @property
    def taken(self) -> tuple[int, int]:
        """How many of the site's messages are accepted, and how many refused."""
        return self._accepted, self._refused_count

    def _renew(self) -> None:
        end = self._accepted + self._refused_count
        super().__init__(self._told, self._sent[: self._accepted], self._sent[self._accepted : end])

    def notice(self, ref: MessageRef) -> bytes | None:
        """As for any; the manifest's bytes say nothing here."""
        self.asked_for.add(ref)
        return b"manifest" if ref in self._seen else None

    def is_signed(self, ref: MessageRef, manifest: bytes) -> bool:
        """As for any: whether the key that signed a message is known."""
        message = self._seen[ref]
        return self._is_signed_anew is None or message.seq <= self._is_signed_anew or self.knows_key

    def skips_messages(self, ref: MessageRef, manifest: bytes) -> bool:
        """As for any."""
        return self.is_signed(ref, manifest) and self._seen[ref].seq > self._accepted + 1

    def has_shown(self, ref: MessageRef) -> bool:
        """Whether it was looked there, and a message seen that its sender has signed."""
        is_seen = ref in self.asked_for and ref in self._seen
        return is_seen and self.is_signed(ref, b"manifest")

    def fetch(self, ref: MessageRef, manifest: bytes) -> bool:
        """Take a message as the folder-sync worker does; return whether it was accepted or refused.

        Raises:
            DoubtfulError: it comes before one that is missing.
        """
        message = self._seen[ref]
        if not self.is_signed(ref, manifest):
            self.knows_key = self._rotated is not None
            return False
        if self._keeps_back and ref.kind == "withdrawal":
            return False
        answered = self.message(ref.answers) if ref.answers else None
        refused = [each.digest for each in self._sent[self._accepted :][: self._refused_count]]
        head = self._peers[-1].head if self._peers else Head()
        try:
            check_order(message, ref, head=head, answers=(answered.digest,) if answered else (), refused=refused)
            if message.says == "poison":
                raise RejectedError(ref.manifest, "is poison")
        except DoubtfulError:
            if self._rotated is not None and not self.knows_key:
                self.knows_key = True  # for it may be signed by another key: it is looked at again
                return False
            self.met_gap = True
            raise
        except RejectedError:
            self._refused_count += 1
        else:
            self._accepted += 1
        self._renew()
        return True


def chains(desk: Desk, hospital: Hospital) -> Iterator[Signed]:
    """What lies in the folder, as an auditor reads it."""
    yield from told_messages(desk.told)[: desk.published]
    yield from sent_messages(hospital.sent, desk.told)[: hospital.published]
