"""Nothing that may happen between the daemons leads where it must not: every interleaving of small models.

``make model-check`` explores the whole. What is here are parts of it that take seconds, and each gap that there was,
found by the same means when the old rule is put back.
"""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.facts import expected
from shared.exchange.names import MessageRef
from tests.at_length import shown_by
from tests.model_check.explorer import Exploration, beginning, steps
from tests.model_check.properties import ViolationError
from tests.model_check.rules import Rules
from tests.model_check.state import NEXT

_DEADLINES_ALONE: dict[str, bool] = dict.fromkeys(
    (
        *("looks_may_miss", "poison", "rotations", "withdrawals"),
        *("pauses", "stops", "crashes", "trouble"),
    ),
    False,
)
_QUEUE: dict[str, Any] = _DEADLINES_ALONE | {
    "is_reduced": True,
    "queue": True,
    "sites": 1,
    "rounds": 1,
    "declines": False,
}
"""The second site never joins, so the deadline for consent passes; only a consent that is lost could hold up a run."""
PARTS = {
    "one folder, a round and the closing one, all accidents, each as often as it likes": (
        Rules(is_reduced=True, sites=1, rounds=1),
        15_000,
    ),
    "two folders, a round and the closing one, looks that miss anything, crashes, deadlines": (
        Rules(is_reduced=True, rounds=1, poison=False, pauses=False, stops=False, withdrawals=False),
        24_000,
    ),
    "two folders, two rounds and the closing one, late answers that count in the next, deadlines": (
        Rules(is_reduced=True, late_counts_next=True, **_DEADLINES_ALONE),
        91_000,
    ),
    "one folder, two runs of a round and the closing one, crashes, deadlines": (
        Rules(**_QUEUE | {"crashes": True}),
        7_300,
    ),
    "one folder, a round and the closing one, each single step, withdrawals, stops, deadlines": (
        Rules(sites=1, rounds=1, poison=False, rotations=False, pauses=False, trouble=False, crashes=False),
        14_000,
    ),
}


FEW = (
    "one folder, a round and the closing one, all accidents, each as often as it likes",
    "two folders, a round and the closing one, looks that miss anything, crashes, deadlines",
    "one folder, two runs of a round and the closing one, crashes, deadlines",
)


@pytest.mark.parametrize("part", shown_by(FEW, PARTS))
def test_every_state_is_as_it_must_be_and_has_a_way_to_the_end(part: str) -> None:
    rules, least = PARTS[part]
    found = Exploration(rules).run()
    assert found.counterexample is None, str(found.counterexample)
    assert found.hopeless == 0
    assert found.states >= least  # fewer: something does not happen any more that may
    assert found.ends > 0


GAPS = {
    "a run that is aborted is told to nobody": (
        Rules(is_reduced=True, rounds=1, quorum=2, poison=False, withdrawals=False, aborts_untold=True),
        "a site that was offered the run is never told its end",
        "south: site signs yes consent",
    ),
    "a round is signed for a site that may have withdrawn": (
        Rules(is_reduced=True, sites=1, rounds=1, rounds_need_no_look=True),
        "a round is signed for a site whose folder was not looked into since the round was opened",
        "aggregator: OpenRound",
    ),
    "a withdrawal and the final model cross": (
        Rules(is_reduced=True, sites=1, rounds=1, stops=False, poison=False, crossings_undefined=True),
        "the run has not ended alike for the site (withdrawn), the aggregator (finished) and an auditor (withdrawn)",
        "north: site reads final",
    ),
    "a run that waits is offered between a round and its verdict": (
        Rules(**_QUEUE | {"offers_come_anywhere": True}),
        "runs/octa-2/offer may not follow runs/octa-1/rounds/0001/to_site, the aggregator's message before it",
        "aggregator: signs round 1 for north",
    ),
    "the turn of the next run comes before the run before it has ended": (
        Rules(**_QUEUE | {"turns_overlap": True}),
        "runs/octa-2/offer may not follow runs/octa-1/rounds/0001/to_site, the aggregator's message before it",
        "aggregator: begins octa-2",
    ),
}


def test_an_early_consent_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the model can fail: by looks that do not take it while the other run is open."""
    early = MessageRef("consent", NEXT)
    monkeypatch.setattr("aggregator.look.expected", lambda known: [ref for ref in expected(known) if ref != early])
    found = Exploration(Rules(**_QUEUE)).run()
    assert found.counterexample is not None
    assert found.counterexample.what == "no way leads to the run's end"


def test_an_answer_that_counted_and_would_again_is_found() -> None:
    """So the property can fail: by an aggregator that does not ask what the answer's own verdict was."""
    rules = Rules(is_reduced=True, late_counts_next=True, late_counts_anyway=True, **_DEADLINES_ALONE)
    found = Exploration(rules).run()
    assert found.counterexample is not None
    assert found.counterexample.what == "an update counts twice"
    assert found.counterexample.trace[-1][0] == "aggregator: decides", "and then the second round closes"


@pytest.mark.parametrize("gap", GAPS)
def test_each_gap_that_there_was_is_found_where_the_old_rule_is_put_back(gap: str) -> None:
    rules, what, last = GAPS[gap]
    found = Exploration(rules).run()
    assert found.counterexample is not None
    assert found.counterexample.what == what
    assert found.counterexample.trace[-1][0] == last


WITHDRAWS_IN_A_PAUSE = """
    north: site starts
    north: folder-sync enrols it
    aggregator: decides
    aggregator: signs offer for north
    north: site is enrolled
    north: folder-sync uploads offer
    north: folder-sync publishes offer
    north: site reads offer
    north: site finds nothing
    north: site signs yes consent
    north: site uploads consent
    north: site publishes consent
    north: folder-sync looks
    aggregator: the deadline passes
    aggregator: the PI pauses the run
    north: site has decided to withdraw
    north: site signs withdrawal
    north: site uploads withdrawal
    north: site publishes withdrawal
    aggregator: the PI resumes the run
    aggregator: decides
    aggregator: OpenRound
    aggregator: decides
"""


def after(trace: str, rules: Rules) -> list[str]:
    """What may come next once these steps were taken."""
    state = beginning(rules)
    for wanted in trace.split("\n")[1:-1]:
        state = next(found for name, _, found in steps(state, rules) if name == wanted.strip())
    return [name for name, _, _ in steps(state, rules)]


def test_a_withdrawal_signed_in_a_pause_is_read_before_a_round_is_signed() -> None:
    with pytest.raises(ViolationError, match="whose folder was not looked into since the round was opened"):
        after(WITHDRAWS_IN_A_PAUSE, Rules(sites=1, rounds_need_no_look=True))
    then = after(WITHDRAWS_IN_A_PAUSE, Rules(sites=1))
    assert "north: folder-sync looks" in then
    assert not [name for name in then if "signs round" in name]
