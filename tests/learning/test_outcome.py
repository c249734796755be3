"""What a run came to, in one sentence, and what keeps it from coming to anything."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.records.run import StopAfter
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.tables import MetricsRow
from shared.learning.choice import choose, gains_nothing, reported_scores
from shared.learning.outcome import Outcome, Scores, chosen_text, outcome_of, standstills
from tests.federation.running import run_configuration
from tests.played import scored_verdict

SITES = ("north", "south")
RUN = run_configuration(rounds=3)


def card(took_part: dict[int, list[str]], chosen: int) -> FinalCard:
    return FinalCard(
        run=RUN.run,
        task=RUN.task,
        method=RUN.method,
        chosen_round=chosen,
        score_name="dice_mean",
        validation={},
        took_part={str(round_no): sites for round_no, sites in took_part.items()},
        reason="best mean validation dice_mean over the sites",
    )


def came_to(took_part: dict[int, list[str]], chosen: int, scores: Scores) -> Outcome:
    found = outcome_of(RUN, card(took_part, chosen), None, scores)
    assert found is not None
    return found


ALL = {1: ["north", "south"], 2: ["north", "south"], 3: ["north"], 4: []}
NONE: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}


def test_a_run_that_goes_on_has_none_and_an_aborted_one_says_why() -> None:
    assert outcome_of(RUN, None, None, {}) is None
    aborted = outcome_of(RUN, None, "only 0 of 2 sites agreed, the quorum is 2", {})
    assert aborted is not None and aborted.name == "aborted"
    assert aborted.text == "aborted: only 0 of 2 sites agreed, the quorum is 2"


def test_it_is_told_over_the_sites_that_told_both_scores() -> None:
    found = came_to(ALL, 3, {0: {"north": 0.2, "south": 0.9}, 3: {"north": 0.25}})
    assert (found.name, found.before, found.after, found.sites) == ("improved", 0.2, 0.25, 1)
    assert found.text == (
        "improved: mean validation dice_mean 0.200 before training, 0.250 after, over 1 site, "
        "by the validation images that chose it"
    )
    newest = card(ALL, 3).model_copy(update={"reason": "the newest aggregate: where sites are asked in turn, …"})
    in_turn = outcome_of(RUN, newest, None, {0: {"north": 0.2}, 3: {"north": 0.25}})
    assert in_turn is not None and in_turn.text.endswith("0.250 after, over 1 site"), "no scores chose it"
    found = came_to(ALL, 3, {0: {"north": 0.2, "south": 0.9}, 3: {"north": 0.2, "south": 0.9}})
    assert (found.name, found.has_improved) == ("no better than before training", False)


def test_a_rise_that_is_not_shown_is_none() -> None:
    found = came_to(ALL, 3, {0: {"north": 0.0801}, 3: {"north": 0.0804}})
    assert found.text == (
        "no better than before training: mean validation dice_mean 0.080 before training, 0.080 after, over 1 site"
    )
    assert came_to(ALL, 3, {0: {"north": 0.0801}, 3: {"north": 0.0806}}).name == "improved"


def test_without_scores_of_both_it_cannot_be_told() -> None:
    for scores in ({}, {0: {"north": 0.2}}, {0: {"north": 0.2}, 3: {"south": 0.9}}):
        found = came_to(ALL, 3, scores)
        assert (found.name, found.has_improved) == ("cannot be told", None)
        assert found.text.startswith("cannot be told whether the model improved: no site reported")


def test_a_model_that_no_answer_entered_has_never_improved() -> None:
    """Parts that stay at the sites may have: their scores rise, and the model that was chosen is as it was."""
    better = {0: {"north": 0.1}, 3: {"north": 0.9}}
    assert came_to(NONE, 3, better).name == "nothing was accepted"
    assert (
        came_to({**NONE, 3: ["north"]}, 2, {0: {"north": 0.1}, 2: {"north": 0.9}}).name
        == "no better than before training"
    )
    assert chosen_text(card(NONE, 3)).startswith("the model that the run began with")
    assert chosen_text(card(ALL, 3)) == "the aggregate of round 3"


def test_a_run_that_ended_early_says_when_and_what_it_came_to() -> None:
    found = came_to({1: ["north"]}, 1, {0: {"north": 0.1}, 1: {"north": 0.5}})
    assert (found.name, found.has_improved) == ("stopped", True)
    assert found.text.startswith("stopped after round 1 of 3; improved: ")
    found = came_to({}, 0, {})
    assert (found.name, found.has_improved) == ("stopped", False)
    assert found.text.startswith("stopped before its first round; nothing was accepted: ")


def test_why_stop_after_ended_a_run_is_what_its_card_says_whatever_comes_later() -> None:
    run = RUN.model_copy(update={"stop_after": StopAfter(rounds=1)})
    flat: Scores = {aggregate: {"north": 0.5} for aggregate in range(3)}
    why = gains_nothing(StopAfter(rounds=1), flat)
    signed = card({1: ["north"], 2: ["north"]}, 1).model_copy(update={"reason": f"best of all; {why}"})
    for later in (flat, {**flat, 1: {"north": 0.5, "south": 0.9}, 2: {"north": 0.5, "south": 0.95}}):
        found = outcome_of(run, signed, None, later)
        assert found is not None and found.text.endswith(f"; {why}, after round 2 of 3")
    by_hand = outcome_of(run, card({1: ["north"], 2: ["north"]}, 1), None, flat)
    assert by_hand is not None and by_hand.name == "stopped"


scores_of = st.dictionaries(st.sampled_from(SITES), st.floats(0, 1))


@given(
    st.dictionaries(st.integers(0, 4), scores_of),
    st.dictionaries(st.integers(1, 4), st.lists(st.sampled_from(SITES), unique=True)),
    st.integers(0, 3),
)
def test_improved_is_said_only_of_a_model_with_answers_in_it_that_scores_higher(
    scores: dict[int, dict[str, float]], took_part: dict[int, list[str]], chosen: int
) -> None:
    found = came_to(took_part, chosen, scores)
    assert found.text.startswith(found.name)
    assert (found.name == "stopped") == (4 not in took_part)
    if found.has_improved:
        assert any(took_part.get(round_no) for round_no in range(1, chosen + 1))
        assert found.before is not None and found.after is not None and found.after > found.before
    if not any(took_part.values()):
        assert "nothing was accepted" in found.text and not found.has_improved


def test_a_number_beyond_1_is_no_score() -> None:
    row = MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5})
    rows = {0: {"north": row, "south": replace(row, scores={"dice_mean": 7.0})}}
    assert reported_scores(rows, "dice_mean") == {0: {"north": 0.5}}


def test_the_card_says_that_nothing_was_accepted_whatever_was_scored() -> None:
    """What stays at the sites may make an aggregate score higher that is byte for byte the first one."""
    tables = {
        number: {"north": [MetricsRow(number, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.1 * number})]}
        for number in (1, 2, 3, 4)
    }
    verdicts = {number: {"north": scored_verdict(RUN.run, number, None)} for number in (1, 2, 3, 4)}
    made = choose(RUN, tables, verdicts, kept=range(4), score_name="dice_mean", ended="")
    assert made.reason == "no answer was accepted: this is the model that the run began with"
    made = choose(
        RUN,
        tables,
        verdicts | {1: {"north": scored_verdict(RUN.run, 1, "1.0")}},
        kept=[0],
        score_name="dice_mean",
        ended="",
    )
    assert made.reason.endswith(
        "that of round 0, the model that the run began with; no aggregate that was validated did better"
    )


def test_two_rounds_without_a_model_are_trouble_until_one_has_a_model_again() -> None:
    def told(*weights: str | None) -> str | None:
        verdicts = {
            number: {"north": scored_verdict(RUN.run, number, weight)} for number, weight in enumerate(weights, 1)
        }
        return standstills(RUN, verdicts, {}, "dice_mean").get("no model accepted")

    assert told() is told(None) is told("1.0", None) is told(None, None, "1.0") is None
    text = told("1.0", None, None)
    assert text is not None and text.startswith("no model was accepted in 2 rounds in a row, 2 to 3: ")
    assert told("1.0", None, None, None) == text, "the closing round trains nothing"


def test_five_rounds_without_a_higher_mean_are_trouble() -> None:
    def told(*means: float) -> str | None:
        scores = {number: {"north": mean} for number, mean in enumerate(means)}
        return standstills(RUN, {}, scores, "dice_mean").get("no progress")

    assert told() is told(0.5) is told(0.5, 0.1, 0.1, 0.1, 0.1) is told(0.1, 0.2, 0.3, 0.4, 0.5, 0.6) is None
    text = told(0.5, 0.1, 0.1, 0.1, 0.5, 0.1)
    assert text is not None
    assert text.startswith(
        "no progress in 5 rounds: the mean validation dice_mean was 0.500 with the model that the run"
    )
    text = told(0.1, 0.5, 0.1, 0.1, 0.1, 0.5, 0.1)
    assert text is not None and "with the aggregate of round 1, and no higher since" in text


def test_sites_that_score_in_turn_do_not_hide_it() -> None:
    in_turn = [("east", "north"), ("north", "south"), ("east", "south")]
    scores = {number: dict.fromkeys(in_turn[number % 3], 0.5 if number else 0.9) for number in range(13)}
    assert "no progress in 12 rounds" in standstills(RUN, {}, scores, "dice_mean")["no progress"]
    alone = {number: {"north": 0.1 * number} for number in range(1, 6)}
    scores = {0: {"north": 0.6, "south": 0.6}} | alone | {6: {"north": 0.6, "south": 0.5}}
    assert standstills(RUN, {}, scores, "dice_mean") == {}, "one lower mean"


def test_rounds_that_no_site_scores_are_no_standstill() -> None:
    def told(*means: float) -> bool:
        scores = {10 * number: {"north": mean} for number, mean in enumerate(means)}
        return "no progress" in standstills(RUN, {}, scores, "dice_mean")

    assert not told(0.5, 0.4) and not told(0.5, *[0.4] * 4) and told(0.5, *[0.4] * 5)


def test_means_over_other_sites_are_no_standstill() -> None:
    scores = {0: {"north": 0.9}} | {number: {"south": 0.1 * number} for number in range(1, 8)}
    assert standstills(RUN, {}, scores, "dice_mean") == {}
