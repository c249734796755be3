"""What the sites report of each aggregate, read from the mirrors of their folders, and which one is chosen by it."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.store import RunStore, metrics_of
from shared.errors import PoisonError
from shared.exchange.channel import Channel
from shared.exchange.records import FinalCard, RunConfiguration
from shared.exchange.tables import MetricsRow, Split
from shared.learning.choice import Tables, best_of, choose, received_rows, validation_means


def received_model_rows(
    store: RunStore, channels: Mapping[str, Channel], split: Split
) -> dict[int, dict[str, MetricsRow]]:
    """By aggregate number and site: the row of the received model on ``split``. What is absent is absent."""
    return received_rows(_tables(store, channels), split)


def best_so_far(store: RunStore, channels: Mapping[str, Channel], score_name: str) -> int:
    """The aggregate that would be chosen now."""
    return best_of(_kept(store), validation_means(received_model_rows(store, channels, "validation"), score_name))


def choose_final(
    store: RunStore,
    channels: Mapping[str, Channel],
    run: RunConfiguration,
    score_name: str,
    ended: str,
    *,
    in_turn: bool = False,
) -> FinalCard:
    """Choose among the aggregates that are kept; arguments as for ``choice.choose``."""
    verdicts = {round_no: store.verdicts(round_no) or {} for round_no in range(1, store.round_no + 1)}
    tables = _tables(store, channels)
    return choose(run, tables, verdicts, kept=_kept(store), score_name=score_name, ended=ended, in_turn=in_turn)


def _tables(store: RunStore, channels: Mapping[str, Channel]) -> Tables:
    """Every table that can be read."""
    tables: dict[int, dict[str, list[MetricsRow]]] = {}
    for round_no in range(1, store.round_no + 1):
        for site in store.participants(round_no):
            try:
                tables.setdefault(round_no, {})[site] = metrics_of(channels[site], store.run, round_no)
            except PoisonError:
                continue
    return tables


def _kept(store: RunStore) -> list[int]:
    return [number for number in range(store.round_no + 1) if store.aggregate_path(number).exists()]
