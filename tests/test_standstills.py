"""What keeps a run that goes on from coming to anything is named by ``status``, by the dashboard and for scripts."""

from __future__ import annotations

import pytest

from aggregator.dashboard.state import page_state
from aggregator.overview import overview, overview_text
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.records.tensors import Sharing
from shared.exchange.tables import MetricsRow, write_metrics
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played, scored_verdict

ROUNDS = 9


@pytest.fixture
def store(run: Played) -> RunStore:
    """A run of many rounds, to which its one site has agreed."""
    store = RunStore(run.drop.parent / "aggregator", RUN)
    store.begin(
        run_configuration(run=RUN, sites=["north"], quorum=1, rounds=ROUNDS),
        Sharing(tensors=TENSORS.tensors, start={}, personal=[]),
    )
    run.offer_and_consent(rounds=ROUNDS)
    return store


def close_round(store: RunStore, round_no: int, weight: str | None) -> None:
    """The one site's answer is accepted with this weight, or omitted."""
    store.ask(round_no, ("north",), ("north",))
    store.close_round(round_no, {"north": scored_verdict(RUN, round_no, weight)})


def troubles(run: Played) -> list[str]:
    """What all who tell of it say."""
    work = run.drop.parent / "aggregator"
    state = overview(work)
    told = [line.removeprefix("trouble: ") for line in overview_text(state).splitlines() if line.startswith("trouble:")]
    assert told == state.trouble == page_state(work)["run"]["overview"]["trouble"]
    return told


def test_two_rounds_in_a_row_without_an_accepted_model(run: Played, store: RunStore) -> None:
    close_round(store, 1, None)
    assert troubles(run) == []
    close_round(store, 2, None)
    (text,) = troubles(run)
    assert text.startswith(
        "no model was accepted in 2 rounds in a row, 1 to 2: `dropfed-aggregator report octa-1` tells"
    )
    close_round(store, 3, "1.0")
    assert troubles(run) == []
    close_round(store, 4, None)
    close_round(store, 5, None)
    assert troubles(run)[0].startswith("no model was accepted in 2 rounds in a row, 4 to 5: ")
    store.abort("as the test says")
    assert troubles(run) == [], "it is over"


def test_five_rounds_without_progress(run: Played, store: RunStore) -> None:
    """Aggregate 1 scores 0.5, and none after it scores more."""
    for round_no in range(1, 8):
        table = [MetricsRow(round_no, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5 if round_no > 1 else 0.1})]
        run.send("round", round_no, run.to_site(round_no), "consent")
        answer = {names.METRICS: write_metrics(table), names.SITE_MODEL: run.model(0.25)}
        run.send("update", round_no, dict(answer), "round")
        close_round(store, round_no, "1.0")
        found = troubles(run)
        assert len(found) == (round_no == 7), found
    text = (
        "no progress in 5 rounds: the mean validation dice_mean was 0.500 with the aggregate of round 1, and no higher"
    )
    assert found[0].startswith(text) and "`dropfed-aggregator stop octa-1`" in found[0]
