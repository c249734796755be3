"""One read model of a drop folder or of a mirror of one: the messages that hold, and the records in them.

The daemons' is a ``Mirror``: what they signed and what they accepted. The audit's is a ``Reading`` of a folder in which
anybody may have written. Each tells a record by its type and its message's ref.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from shared.errors import NotFoundError, RejectedError
from shared.exchange.names import METRICS, MessageRef
from shared.exchange.records.messages import Head
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import AnyPayload
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.retention import may_be_removed
from shared.exchange.tables import MetricsRow, read_metrics
from shared.exchange.trust import Message
from shared.trouble import held_against


class Ledger(ABC):
    """What holds in one folder, as far as it is known here. Nothing is written through it.

    Attributes:
        messages: every message that holds, by where it lies.
    """

    def __init__(self) -> None:
        self.messages: dict[MessageRef, Message] = {}
        self._chosen: dict[str, int] = {}
        self._in_order: tuple[list[Message], dict[str, list[Message]]] = [], {}

    def message(self, ref: MessageRef) -> Message | None:
        """Return the message at ``ref``, if it holds."""
        return self.messages.get(ref)

    def sent_by(self, sender: str) -> list[Message]:
        """Return a sender's messages, in their order."""
        known = list(self.messages.values())  # a copy: at the aggregator, two threads share a ledger
        before, by_sender = self._in_order
        # The newest message alone is ever taken back, so whoever has as many, and the same last one, has the same.
        if len(known) != len(before) or (known and known[-1] is not before[-1]):
            by_sender = {}
            for message in sorted(known, key=lambda message: message.manifest.seq):
                by_sender.setdefault(message.manifest.sender, []).append(message)
            self._in_order = known, by_sender
        return list(by_sender.get(sender, ()))

    def head_of(self, sender: str) -> Head:
        """Return a sender's last message."""
        sent = self.sent_by(sender)
        return sent[-1].head if sent else Head()

    @abstractmethod
    def content(self, ref: MessageRef, name: str) -> bytes:
        """Return what a small file of a message says.

        Raises:
            NotFoundError, RejectedError, ActionRequiredError: it is not there, or another than its manifest says.
        """

    @abstractmethod
    def parsed(self, content: bytes, kind: type[AnyPayload], path: str) -> AnyPayload:
        """Return a record by what its file says.

        Raises:
            RejectedError: it is not well-formed.
        """

    def record(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload:
        """Return a record of a message.

        Raises:
            RejectedError: it is not well-formed.
            NotFoundError, RejectedError, ActionRequiredError: as for ``content``.
        """
        return self.parsed(self.content(ref, kind.FILE), kind, f"{ref.path}/{kind.FILE}")

    def record_or_none(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload | None:
        """Return a record of a message; None where there is none that holds."""
        try:
            with held_against(f"{ref.path}/{kind.FILE}"):
                return self.record(ref, kind)
        except (NotFoundError, RejectedError):
            return None

    @property
    def is_early(self) -> bool:
        """Whether the folder is of protocol 1, which a daemon's never is."""
        return False

    def table(self, run: str, round_no: int) -> list[MetricsRow]:
        """Return the table of the site's answer in a round; empty where there is no answer, or none that opens.

        Raises:
            RejectedError: it is not a metrics table, or another than its manifest says.
            ActionRequiredError: as for ``content``.
        """
        ref = MessageRef("update", run, round_no)
        if ref not in self.messages:
            return []
        try:
            with held_against(ref.path):
                content = self.content(ref, METRICS)
                return read_metrics(content, f"{ref.path}/{METRICS}", is_early=self.is_early)
        except NotFoundError:
            return []

    def readable_table(self, run: str, round_no: int) -> list[MetricsRow]:
        """Return the table of the site's answer in a round; empty where there is none that holds."""
        try:
            return self.table(run, round_no)
        except RejectedError:
            return []

    @abstractmethod
    def configuration(self, run: str) -> RunConfiguration | None:
        """Return a run's configuration, as signed with the offer; None where it does not hold."""

    def may_be_pruned(self, ref: MessageRef, *, settled: Collection[int]) -> bool:
        """Return whether the tensor files of a message may go, by the rule of its run as signed with the offer.

        Nothing may go on the word of an offer or a final card that does not hold.

        Args:
            settled: the rounds of the run that have a verdict in this folder.
        """
        run, final = self.configuration(ref.run), MessageRef("final", ref.run)
        if run is None or MessageRef("offer", ref.run) not in self.messages:
            return False
        if ref.run not in self._chosen and final in self.messages:
            if (card := self.record_or_none(final, FinalCard)) is None:
                return False
            self._chosen[ref.run] = card.chosen_round
        chosen = self._chosen.get(ref.run)
        return may_be_removed(run.keep, ref, settled=settled, chosen=chosen, difference=run.wire.difference)


def readable_tables(
    ledgers: Mapping[str, Ledger], run: str, rounds: Iterable[int]
) -> dict[int, dict[str, list[MetricsRow]]]:
    """Return the tables of these rounds that hold, by round and site."""
    tables: dict[int, dict[str, list[MetricsRow]]] = {}
    for round_no in rounds:
        of_round = tables.setdefault(round_no, {})
        for site, ledger in ledgers.items():
            with suppress(RejectedError):
                of_round[site] = ledger.table(run, round_no)
    return tables
