"""What the aggregator makes of the sites' own tables in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.results import best_so_far, choose_final
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.records.run import Privacy
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import Verdict
from shared.exchange.tables import EPSILON, MetricsRow, write_metrics
from shared.learning.choice import choose
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played, ended_run


def verdict(weight: str) -> Verdict:
    """On an answer that was accepted in round 1."""
    found = {"status": "accepted", "score": "0.5", "tolerance": "0.1", "theta": None, "weight": weight, "reason": "ok"}
    return Verdict.model_validate({"run": RUN, "round": 1, "site": "north", **found})


PRIVACY = Privacy(max_grad_norm=1.0, delta=0.01, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("others", "which"),
    [
        (["north", "south"], "the sites"),
        (["south"], "the sites that reported it, not the same ones for each aggregate"),
    ],
)
def test_the_card_says_where_the_means_are_over_different_sites(others: list[str], which: str) -> None:
    run = run_configuration(run=RUN, sites=["north", "south"], quorum=1)
    tables = {
        round_no: {site: [MetricsRow(round_no, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5})] for site in sites}
        for round_no, sites in ((1, ["north", "south"]), (2, others))
    }
    took_part = {"north": verdict("1.0")}
    card = choose(run, tables, {1: took_part, 2: {}}, kept=[1], score_name="dice_mean", ended="")
    assert card.reason == "best mean validation dice_mean over the sites", "one aggregate alone was kept"
    card = choose(run, tables, {1: took_part, 2: {}}, kept=[0, 1], score_name="dice_mean", ended="")
    assert card.reason.startswith(f"best mean validation dice_mean over {which}")


@pytest.mark.parametrize(("privacy", "told"), [(PRIVACY, {"north": "1.5"}), (None, {})])
def test_an_answer_that_came_late_has_been_paid_for_too(
    privacy: Privacy | None, told: dict[str, str], tmp_path: Path
) -> None:
    played = Played(tmp_path)
    played.offer_and_consent()
    configuration = {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: played.model(0.5)}
    played.send("round", 1, dict(configuration), "consent")
    row = MetricsRow(1, 1, "validation", "10", 0.1, 0.5, {EPSILON: 1.5})
    played.send("update", 1, {names.METRICS: write_metrics([row]), names.SITE_MODEL: played.model(0.25)}, "round")
    run = run_configuration(run=RUN, sites=["north"], quorum=1, privacy=privacy)
    store = RunStore(tmp_path / "work", RUN)
    store.begin(run, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    store.aggregate_path(0).parent.mkdir(parents=True)
    played.model(0.5).rename(store.aggregate_path(0))
    store.ask(1, ("north",), ("north",))  # and no verdict knows of the answer
    card = choose_final(store, {"north": played.aggregator.ledger}, run, "dice_mean", "", in_turn=False)
    assert card.epsilon == told


def test_where_sites_are_asked_in_turn_the_newest_aggregate_is_the_best_so_far(tmp_path: Path) -> None:
    played, store = ended_run(tmp_path)  # whose aggregate 0 no site has scored
    for aggregate in (0, 1, 2):
        store.aggregate_path(aggregate).parent.mkdir(parents=True, exist_ok=True)
        store.aggregate_path(aggregate).touch()
    ledgers = {"north": played.aggregator.ledger}
    assert best_so_far(store, ledgers, "dice_mean", in_turn=False) == 1
    assert best_so_far(store, ledgers, "dice_mean", in_turn=True) == 2
