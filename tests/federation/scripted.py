"""A site played by the test: it keeps the protocol, and answers a round with whatever the test wants to send."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import PLAIN, Wire
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.trust import Message, Peer, open_record
from shared.folder.local import LocalFolder
from shared.learning.schedules import round_configuration
from site_client.facts import may_answer
from site_client.setup import read_invite
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration

MODEL_BYTES = 1 << 30


def metrics(round_no: int, dice: float = 0.5) -> bytes:
    """A table that says the received model has this validation Dice."""
    scores: dict[str, float | None] = {"dice_mean": dice, "dice_std": 0.0}
    rate = round_configuration(run_configuration(), round_no, "north").learning_rate
    return write_metrics([MetricsRow(round_no, 0, "validation", "10", rate, 0.5, scores)])


class ScriptedSite:
    """Speaks for one site of a federation, straight on the server's disk."""

    def __init__(self, federation: Federation, name: str) -> None:
        self.name = name
        self.home = federation.site(name)
        self.folder = LocalFolder(federation.folder(name))
        invite = read_invite(federation.aggregator / "invites" / f"{name}.json")
        peer = Peer(invite.federation, name, AGGREGATOR, invite.aggregator_key)
        self.key = SigningKey.at(self.home / "signing.key")
        self.channel = Channel(self.home, self.folder, me=name, key=self.key, peer=peer, encryption_key=None)
        self.card = (self.home / "mirror" / names.SITE_CARD).read_bytes()
        self.folder.create(names.SITE_CARD, self.card)

    def receive(self, ref: MessageRef, *answers: str | None) -> Message:
        """Wait for a message of the aggregator and accept it."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            manifest = self.channel.inbox.notice(ref)
            if manifest is not None:
                message = self.channel.inbox.fetch(ref, manifest, answers=answers, max_weights_bytes=MODEL_BYTES)
                if message is not None:
                    return message
            time.sleep(0.05)
        raise AssertionError(f"{self.name} waited in vain for {ref.path}")

    def consent(self, agrees: bool = True) -> None:
        """Answer the offer."""
        offer = self.receive(MessageRef("offer", RUN), digest_of(self.card))
        answer = Consent(
            run=RUN,
            agrees=agrees,
            reason="as the test says",
            images={"train": "12", "validation": "10"} if agrees else {},
        )
        files = {names.CONSENT: canonical(answer.model_dump())}
        self.channel.outbox.sign(MessageRef("consent", RUN), files, in_reply_to=offer.digest)
        self.channel.outbox.publish()

    def withdraw(self, reason: str) -> None:
        """Leave the run."""
        offer = self.channel.ledger.message(MessageRef("offer", RUN))
        assert offer is not None
        files = {names.WITHDRAWAL: canonical(Withdrawal(run=RUN, reason=reason).model_dump())}
        self.channel.outbox.sign(MessageRef("withdrawal", RUN), files, in_reply_to=offer.digest)
        self.channel.outbox.publish()

    def receive_round(self, round_no: int) -> Path:
        """Wait for a round; returns the global model's file."""
        ref = MessageRef("round", RUN, round_no)
        self.receive(ref, *may_answer(self.channel.ledger, ref, digest_of(self.card)))
        return self.channel.ledger.path(ref, names.GLOBAL_MODEL)

    def answer(self, round_no: int, files: Mapping[str, bytes | Path], wire: Wire = PLAIN) -> None:
        """Send these files as the round's answer, said to be in this form."""
        sent = self.channel.ledger.message(MessageRef("round", RUN, round_no))
        assert sent is not None
        self.channel.outbox.sign(MessageRef("update", RUN, round_no), files, in_reply_to=sent.digest, wire=wire)
        self.channel.outbox.publish()

    def verdict(self, round_no: int) -> Verdict:
        """Wait for the verdict on our answer."""
        update = self.channel.ledger.message(MessageRef("update", RUN, round_no))
        ref = MessageRef("verdict", RUN, round_no)
        self.receive(ref, None, update.digest if update else None)
        return open_record(self.channel.ledger.path(ref, names.VERDICT).read_bytes(), Verdict, ref.path)
