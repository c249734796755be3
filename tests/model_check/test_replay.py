"""What the model says is what the daemons do: some random walks through it, played on their own objects and files.

``python -m tests.model_check.replay --walks 1000`` plays more.
"""

from __future__ import annotations

import pytest

from tests.model_check.replay.walk import walked
from tests.model_check.rules import Rules


def test_the_daemons_do_what_the_model_says() -> None:
    walks = [walked(seed) for seed in range(8)]
    assert sum(walk.has_ended for walk in walks) >= 6
    assert sum(walk.state.director.round_no > walk.rules.rounds for walk in walks) >= 4  # the closing round
    assert sum(len(walk.told) for walk in walks) >= 900


def test_a_model_that_says_otherwise_is_found_out() -> None:
    """By one that has a round sealed without a look into the folder."""
    calm = {"poison": False, "rotations": False, "withdrawals": False, "pauses": False, "stops": False}
    quick = {"looks_may_miss": False, "crashes": False, "trouble": False}
    with pytest.raises(AssertionError, match=r"due for north: \[\]; by the model: \['SealRound'\]"):
        walked(0, Rules(rounds=1, sites=1, rounds_need_no_look=True, **calm, **quick))
