"""What the model says is what the daemons do: some random walks through it, played on their own objects and files.

``python -m tests.model_check.replay --walks 1000`` plays more.
"""

from __future__ import annotations

import pytest

from tests.model_check.replay.walk import Step, walked
from tests.model_check.rules import Rules
from tests.model_check.state import State


def test_the_daemons_do_what_the_model_says() -> None:
    walks = [walked(seed) for seed in range(4)]
    assert sum(walk.has_ended for walk in walks) >= 3
    assert any(walk.state.director.round_no > walk.rules.rounds for walk in walks)  # the closing round
    assert sum(len(walk.told) for walk in walks) >= 600


def _towards_a_gap(step: Step) -> float:
    """Have two messages pile up, the second perhaps under a new key, and a look see that alone."""
    name, _, after = step
    if "folder-sync looks" in name or "no consent" in name:
        return 100.0 if _is_in_trouble(after) else 0.001
    return 100.0 if "withdraw" in name or "rotates" in name else 1.0


def _is_in_trouble(state: State) -> bool:
    return any(folder.desk.in_trouble for folder in state.folders)


@pytest.mark.parametrize("rotations", [False, True])
def test_a_gap_that_a_look_meets_is_played_too(rotations: bool) -> None:
    calm = {"poison": False, "crashes": False, "pauses": False, "trouble": False}
    walk = walked(0, Rules(rounds=1, sites=1, rotations=rotations, **calm), _towards_a_gap)
    assert walk.has_ended
    assert any(map(_is_in_trouble, walk.been))  # where folders can always be reached, by a gap alone


def _towards_lateness(step: Step) -> float:
    """Have south be slow, and deadlines pass."""
    name, _, _ = step
    if "signs no" in name:
        return 1e-6
    return 0.3 if "deadline" in name or "south: site" in name else 1.0


def test_an_answer_that_counts_in_the_next_round_is_played_too() -> None:
    kinds = ("poison", "rotations", "crashes", "pauses", "trouble", "stops", "withdrawals", "looks_may_miss")
    walk = walked(6, Rules(rounds=2, late_counts_next=True, **dict.fromkeys(kinds, False)), _towards_lateness)
    assert walk.has_ended
    counted = {pair for state in walk.been for folder in state.folders for pair in folder.desk.counted}
    assert (1, 2) in counted, "the answer to round 1, in round 2"


def test_a_run_that_is_offered_while_another_is_open_is_played_too() -> None:
    kinds = ("poison", "rotations", "crashes", "pauses", "trouble", "withdrawals", "looks_may_miss", "deadlines")
    walk = walked(0, Rules(rounds=1, sites=1, queue=True, **dict.fromkeys(kinds, False)))
    assert walk.has_ended
    assert {"aggregator: signs offer of octa-2 for north", "aggregator: begins octa-2"} <= set(walk.told)
    assert walk.told.index("aggregator: signs offer of octa-2 for north") < walk.told.index("aggregator: begins octa-2")


def test_a_model_that_says_otherwise_is_found_out() -> None:
    """By one that has a round signed without a look into the folder."""
    calm = {"poison": False, "rotations": False, "withdrawals": False, "pauses": False, "stops": False}
    quick = {"looks_may_miss": False, "crashes": False, "trouble": False}
    with pytest.raises(AssertionError, match=r"due for north: \[\]; by the model: \['SignRound'\]"):
        walked(0, Rules(rounds=1, sites=1, rounds_need_no_look=True, **calm, **quick))
