"""A table that does not belong to its round has its answer omitted, with the reason: no score of it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.model_work import Here
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.records.tensors import Sharing
from shared.exchange.tables import MetricsRow, write_metrics
from shared.learning.aggregation import Aggregation
from shared.learning.choice import received_rows
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups
from shared.learning.round_engine import RoundEngine
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played, daemon_of
from tests.staged import HeldOut

ROW = MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            replace(ROW, scores={"accuracy_of_x": 0.5}),
            "has columns that neither the protocol describes nor the run lists: accuracy_of_x",
        ),
        (replace(ROW, round_no=77), "speaks of another round"),
        (replace(ROW, epoch=8999), "has rows of more epochs than the 1 of this round"),
        (replace(ROW, learning_rate=-1e308), "tells another learning rate than the round's, 0.1"),
    ],
    ids=["column", "round", "epoch", "learning-rate"],
)
def test_an_answer_with_a_table_of_something_else_is_omitted_with_the_reason(
    tmp_path: Path, row: MetricsRow, reason: str
) -> None:
    run, store = Played(tmp_path), RunStore(tmp_path / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    )
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, trains=True) | {names.METRICS: write_metrics([row])}, "round")
    daemon = daemon_of(run, store)
    method = open_method("mean", {})
    engine = RoundEngine(store, method, Aggregation(store, method, Groups()))
    daemon._work = Here(engine, HeldOut())  # which is not asked
    scored = daemon._check("north", 1)
    assert reason in scored.reason
    assert (scored.score, scored.theta, scored.epsilon) == (None, None, None)


def test_a_row_of_another_round_is_of_no_aggregate() -> None:
    tables = {1: {"north": [replace(ROW, round_no=77)]}, 2: {"north": [replace(ROW, round_no=2)]}}
    assert received_rows(tables, "validation") == {1: {"north": replace(ROW, round_no=2)}}
