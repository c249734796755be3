"""What the sites report of each aggregate, read from the mirrors of their folders: which one is chosen by it, what the
run came to, and what keeps it from coming to anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aggregator.store import RunStore
from shared.exchange.ledger import readable_tables
from shared.exchange.mirror import Mirror
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import FinalCard
from shared.learning.choice import best_of, choose, ends_early, received_rows, reported_scores, validation_means
from shared.learning.outcome import Outcome, Standstill, outcome_by_tables, standstills


def best_so_far(store: RunStore, ledgers: Mapping[str, Mirror], score_name: str, *, in_turn: bool) -> int:
    """Return the aggregate that would be chosen now; arguments as for ``choice.choose``."""
    if in_turn:
        return max(_kept(store))
    rows = received_rows(readable_tables(ledgers, store.run, range(1, store.round_no + 1)), "validation")
    return best_of(_kept(store), validation_means(rows, score_name))


def choose_final(
    store: RunStore,
    ledgers: Mapping[str, Mirror],
    run: RunConfiguration,
    score_name: str,
    ended: str,
    *,
    in_turn: bool,
) -> FinalCard:
    """Choose among the aggregates that are kept; arguments as for ``choice.choose``."""
    verdicts = {round_no: store.verdicts(round_no) or {} for round_no in range(1, store.round_no + 1)}
    tables = readable_tables(ledgers, store.run, verdicts)
    return choose(run, tables, verdicts, kept=_kept(store), score_name=score_name, ended=ended, in_turn=in_turn)


def no_gain(store: RunStore, ledgers: Mapping[str, Mirror], score_name: str) -> str:
    """Return why a run's ``stop_after`` ends it after its newest round; empty while that is open, or if it goes on."""
    run = store.configuration()
    if run.stop_after is None or store.is_over or store.verdicts(store.round_no) is None:
        return ""
    return ends_early(run, readable_tables(ledgers, store.run, range(1, store.round_no + 1)), score_name)


def run_outcome(store: RunStore, ledgers: Mapping[str, Mirror]) -> Outcome | None:
    """Return what a run came to; None while it goes on."""
    if not store.is_over:
        return None
    tables = partial(readable_tables, ledgers, store.run)
    return outcome_by_tables(store.configuration(), store.card(), store.aborted(), tables)


def run_standstills(store: RunStore, ledgers: Mapping[str, Mirror], score_name: str) -> dict[Standstill, str]:
    """Return what keeps a run that goes on from coming to anything, a sentence each."""
    if store.is_over:
        return {}
    rounds = range(1, store.round_no + 1)
    verdicts = {round_no: closed for round_no in rounds if (closed := store.verdicts(round_no)) is not None}
    rows = received_rows(readable_tables(ledgers, store.run, verdicts), "validation")
    return standstills(store.configuration(), verdicts, reported_scores(rows, score_name), score_name)


def _kept(store: RunStore) -> list[int]:
    return [number for number in range(store.round_no + 1) if store.aggregate_path(number).exists()]
