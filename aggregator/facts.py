"""What the aggregator knows of a run, read for ``rounds.decide``: from its own record of it, and from what is known of
each site's folder. Whoever plays a run without files gives readings of their own (``Memory``, ``Exchange``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from aggregator.rounds import OfferEarly, RunFacts, SiteFacts, due_end
from aggregator.store import withdrawal_of
from shared.exchange.names import MessageRef
from shared.exchange.order import Exchange, consent_of
from shared.exchange.records.run import RunConfiguration


class Memory(Protocol):
    """What the aggregator has recorded of a run; ``RunStore`` is one."""

    @property
    def round_no(self) -> int:
        """The newest opened round; 0 before the first."""

    @property
    def paused(self) -> bool:
        """Whether the PI paused the run."""

    @property
    def stop_requested(self) -> bool:
        """Whether the PI asked to stop."""

    def participants(self, round_no: int) -> tuple[str, ...]:
        """Return the sites that take part in an opened round."""

    def score(self, round_no: int, site: str) -> object | None:
        """Return what the check of a site's answer gave; None before it."""

    def verdicts(self, round_no: int) -> object | None:
        """Return the verdicts of a closed round; None while it is open."""

    def has_aggregate(self, round_no: int) -> bool:
        """Return whether the models of a round are combined."""

    def card(self) -> object | None:
        """Return which aggregate was chosen; None while the run goes on."""

    def aborted(self) -> str | None:
        """Return why the run ended without having started, or None."""


def run_facts(
    run: RunConfiguration,
    store: Memory,
    sites: Mapping[str, Exchange | None],
    *,
    in_turn: bool,
    waited_s: float,
    has_looked: Callable[[str], bool],
    has_looked_since_stop: bool,
    gains_nothing: str = "",
) -> RunFacts:
    """Return the facts of a run.

    Args:
        sites: what is known of each site's folder; None of one that is not enrolled, or cannot have the run.
        in_turn: whether the method asks one site after the other.
        waited_s: in the present stage.
        has_looked: whether the folder of a site was looked into since it was asked to take part in the newest round,
            and while nothing was paused.
        has_looked_since_stop: whether each folder was since the PI asked to stop.
        gains_nothing: why the run ends after the newest round by its ``stop_after``, once that round is settled.
    """
    round_no = store.round_no
    participants = store.participants(round_no)
    return RunFacts(
        rounds=run.rounds,
        quorum=run.quorum,
        consent_deadline_s=run.consent_deadline_hours * 3600,
        round_deadline_s=run.round_deadline_hours * 3600,
        sites=tuple(
            site_facts(name, exchange, store, run.run, takes_part=name in participants, has_looked=has_looked)
            for name, exchange in sites.items()
        ),
        seed=run.seed,
        sites_per_round=run.sites_per_round,
        in_turn=in_turn,
        round_no=round_no,
        closed=store.verdicts(round_no) is not None,
        aggregated=store.has_aggregate(round_no),
        waited_s=waited_s,
        paused=store.paused or store.stop_requested,  # while a stop waits for a look into the folders
        stop_requested=store.stop_requested and has_looked_since_stop,
        gains_nothing=gains_nothing,
        final_chosen=store.card() is not None,
        aborted=store.aborted() is not None,
    )


def site_facts(
    name: str,
    exchange: Exchange | None,
    store: Memory,
    run: str,
    *,
    takes_part: bool,
    has_looked: Callable[[str], bool],
) -> SiteFacts:
    """Return the facts of one site; arguments as for ``run_facts``."""
    if exchange is None:
        return SiteFacts(name)
    round_no = store.round_no
    consent = consent_of(exchange, run)
    sent = exchange.message(MessageRef("round", run, round_no)) is not None
    return SiteFacts(
        name=name,
        enrolled=True,
        offered=exchange.message(MessageRef("offer", run)) is not None,
        consent=consent.agrees if consent else None,
        consent_refused=exchange.refusal(MessageRef("consent", run)) is not None,
        withdrawn=withdrawal_of(exchange, run) is not None,
        ended=_has_end(exchange, run),
        takes_part=takes_part,
        looked=takes_part and not sent and has_looked(name),
        sent=sent,
        answered=exchange.is_settled(MessageRef("update", run, round_no)),
        scored=store.score(round_no, name) is not None,
        has_verdict=exchange.message(MessageRef("verdict", run, round_no)) is not None,
    )


def _has_end(exchange: Exchange, run: str) -> bool:
    ends = (MessageRef("final", run), MessageRef("abort", run))
    return any(exchange.message(end) is not None for end in ends)


def late_update(exchange: Exchange, run: RunConfiguration, round_no: int, *, was_late: bool) -> MessageRef | None:
    """Return a site's answer to the round before that counts in this one unless the site answers this one as well.

    Args:
        was_late: whether its verdict in the round before says so.
    """
    ref, asked = MessageRef("update", run.run, round_no - 1), MessageRef("round", run.run, round_no)
    may_count = run.late is not None and was_late and round_no <= run.rounds and exchange.message(asked) is not None
    return ref if may_count and exchange.message(ref) is not None else None


def is_owed_end(name: str, exchange: Exchange, store: Memory, run: str) -> bool:
    """Return whether the end of a run that is over is not signed yet for a site that is to be told."""
    facts = site_facts(name, exchange, store, run, takes_part=False, has_looked=lambda _: False)
    return due_end(facts, final_chosen=store.card() is not None) is not None


def awaited(exchange: Exchange, run: str, round_no: int) -> MessageRef | None:
    """Return what a site owes now: its consent, or its answer to the newest round."""
    if withdrawal_of(exchange, run) is not None:
        return None
    for owed in (MessageRef("consent", run), MessageRef("update", run, round_no)):
        if owed.answers and exchange.message(owed.answers) is not None and exchange.message(owed) is None:
            return owed
    return None


def early_offers(sites: Mapping[str, Exchange], run: str) -> list[OfferEarly]:
    """Return which of these sites are asked now about a run that waits for its turn."""
    return [OfferEarly(name, run) for name, exchange in sites.items() if may_be_offered_early(exchange, run)]


def may_be_offered_early(exchange: Exchange, run: str) -> bool:
    """Return whether a run that waits may be offered now: nothing comes between a round and its verdict."""
    own = exchange.own_messages()
    is_offered = exchange.message(MessageRef("offer", run)) is not None
    return not (is_offered or (own and own[-1].ref.kind == "round"))


def expected(exchange: Exchange) -> list[MessageRef]:
    """Return where the messages lie that a site may still send, by run in the order in which it sends them.

    Of a run that the site has declined or left nothing more comes. Nor of one whose end it had read when it sent what
    has come.
    """
    own = exchange.own_messages()
    answered = {message.manifest.in_reply_to for message in exchange.peer_messages()}
    read = max((message.manifest.seq for message in own if message.digest in answered), default=0)
    answers: dict[str, list[MessageRef]] = {}
    for message in own:
        ref = message.ref
        if ref.kind == "offer":
            answers[ref.run] = [MessageRef("consent", ref.run)]
        elif ref.kind == "round":
            answers[ref.run].append(MessageRef("update", ref.run, ref.round_no))
        elif ref.kind in ("final", "abort") and message.manifest.seq <= read:
            del answers[ref.run]
    refs = []
    for run, of_run in answers.items():
        left, consent = MessageRef("withdrawal", run), consent_of(exchange, run)
        if not exchange.is_settled(left) and (consent is None or consent.agrees):
            refs += [*of_run, left]
    return [ref for ref in refs if not exchange.is_settled(ref)]
