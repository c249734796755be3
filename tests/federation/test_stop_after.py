"""A run that gains nothing more ends before its last round: by the daemons, simulator and replay alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.run_view import view_run
from aggregator.store import RunStore, ToldByCode
from shared.errors import ConfigurationError
from shared.exchange.records.run import StopAfter
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import MetricsRow
from shared.learning.choice import Scores, gains_nothing
from shared.learning.outcome import reason_text
from shared.learning.run_checks import check_together
from studies.simulation import Outcome, _beside, run_rounds
from tests.audit.recorded import Recorded
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import as_before, in_turns
from tests.federation.running import run_configuration


def of_means(*means: float) -> Scores:
    return {aggregate: {"north": mean} for aggregate, mean in enumerate(means)}


def test_the_newest_aggregates_are_held_against_the_best_before_them() -> None:
    rule = StopAfter(rounds=2, gain=0.01)
    assert gains_nothing(rule, of_means(0.5, 0.5)) == "", "two aggregates after the first are still to come"
    assert gains_nothing(rule, of_means(0.5, 0.4, 0.52)) == ""
    assert gains_nothing(rule, of_means(0.5, 0.505, 0.4)).startswith(
        "ended by stop_after: the best of the aggregates 1 to 2 gained +0.0050 on the best one before"
    )
    assert gains_nothing(rule, of_means(0.1, 0.5, 0.3, 0.5)), "what was best long ago is still the best"


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(1, 4), st.floats(0, 0.99))
def test_a_run_whose_every_aggregate_gains_more_goes_on(means: list[float], rounds: int, gain: float) -> None:
    rule, rising = StopAfter(rounds=rounds, gain=gain), [number * (gain + 0.01) for number in range(len(means))]
    assert gains_nothing(rule, of_means(*rising)) == ""
    flat = of_means(*[0.5] * len(means))
    assert bool(gains_nothing(rule, flat)) == (len(means) > rounds)


def test_means_over_other_sites_do_not_compare() -> None:
    scores: Scores = {0: {"north": 0.9}, 1: {"north": 0.1, "south": 0.1}, 2: {"north": 0.1, "south": 0.1}}
    assert gains_nothing(StopAfter(rounds=2), scores) == ""
    assert gains_nothing(StopAfter(rounds=1), scores)


@pytest.mark.parametrize("settings", [{"sites_per_round": 1}, {"method": "sequential"}])
def test_it_needs_all_sites_in_each_round(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="stop_after: compares aggregates over the same sites, and not all"):
        check_together(run_configuration(quorum=1, stop_after={"rounds": 2}, **settings))


def test_a_number_of_sites_a_round_that_is_all_of_them_means_all() -> None:
    run = run_configuration()
    settings = {"rounds": 3, "stop_after": {"rounds": 2}, "baseline": "local", "late": "next"}
    check_together(run_configuration(quorum=1, sites_per_round=len(run.sites), **settings))


def test_daemons_simulator_and_replay_end_after_the_same_round(tmp_path: Path) -> None:
    run = run_configuration(rounds=6, stop_after={"rounds": 1, "gain": 0.95})
    home = tmp_path / "run"
    setting = in_turns(home, run)
    store = RunStore(setting.aggregator, run.run)
    assert store.told_by_code() == ToldByCode(score_name="dice_mean", in_turn=False, at_aggregator={}), (
        "known from the run's begin on"
    )
    view = view_run(setting.aggregator, store)
    assert [each.round for each in view.rounds] == [1, 2], "the first aggregate is scored in round 2"
    assert view.outcome is not None and view.outcome.name in ("improved", "no better than untrained")
    assert view.outcome.text.endswith(", after round 2 of 6") and "ended by stop_after" in view.outcome.text
    assert view.card is not None and "ended by stop_after" in view.card.reason
    assert "stop_after" not in reason_text(view.card, view.outcome)
    ends = {step.what: step for step in replayed(home / "folders", run.run)}
    assert (ends["end of the run"].outcome, ends["end of the run"].detail) == ("same", "after round 2 of 6")
    assert ends["choice of the final model"].outcome == "same"
    with as_before():
        played = run_rounds(run, {site: setting.data_of(site) for site in run.sites}, tmp_path / "simulated")
    assert list(played.tables) == [1, 2] and played.card.chosen_round == view.chosen_round


def test_sites_that_are_each_trained_alone_need_not_end_after_the_same_round() -> None:
    run, card = run_configuration(), FinalCard.model_construct()

    def ended(site: str, after: int) -> Outcome:
        tables: dict[int, dict[str, list[MetricsRow]]] = {number: {site: []} for number in range(1, after + 1)}
        verdicts = {number: {site: Verdict.model_construct()} for number in tables}
        return Outcome(run, card, {site: after}, tables, verdicts, {}, 0, 0)

    for parts in ([ended("north", 2), ended("south", 3)], [ended("south", 3), ended("north", 2)]):
        found = _beside(parts)
        for by_round in (found.tables, found.verdicts):
            assert [sorted(by_round[number]) for number in (1, 2, 3)] == [["north", "south"]] * 2 + [["south"]]


def test_a_run_that_went_on_regardless_is_noticed(tmp_path: Path) -> None:
    run = run_configuration(
        run="octa-1", sites=["east", "north", "south"], rounds=3, quorum=1, stop_after={"rounds": 1, "gain": 0.5}
    )
    played = Recorded(tmp_path, run).play()
    (differs,) = [step for step in not_same(replayed(played.folders, run.run)) if step.outcome == "differs"]
    assert (differs.what, differs.outcome) == ("end of the run", "differs")
    assert differs.detail.startswith(
        "round 4 was opened; the run has, after round 2, ended by stop_after: aggregate 1 gained"
    )
