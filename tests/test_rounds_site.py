"""The site's decisions: what it looks for, what it answers, what it skips."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.names import Place
from shared.exchange.records import RunConfiguration
from site_client.configuration import Policy
from site_client.policy import count_text, judge
from site_client.rounds import (
    AnswerOffer,
    AnswerRound,
    LookAt,
    LookForFirstRound,
    LookForOffer,
    Publish,
    PublishCard,
    ReadFederation,
    SiteFacts,
    Wait,
    decide,
)
from tests.federation.running import run_configuration

JOINED = SiteFacts(card_published=True, enrolled=True)


def after(kind: str, round_no: int = 0, **facts: object) -> SiteFacts:
    return replace(JOINED, last=Place(kind, "r", round_no), **facts)  # type: ignore[arg-type]


def test_joining_comes_first() -> None:
    assert decide(SiteFacts(card_published=False, enrolled=False)) == PublishCard()
    assert decide(SiteFacts(card_published=True, enrolled=False)) == ReadFederation()
    assert decide(SiteFacts(card_published=True, enrolled=False, looked=True)) == Wait()


def test_what_is_sealed_is_sent_before_anything_else() -> None:
    assert decide(after("round", 3, unpublished=True)) == Publish()


def test_it_looks_only_where_the_next_message_can_lie() -> None:
    assert decide(JOINED) == LookForOffer()
    assert decide(after("final", agreed=True)) == LookForOffer()
    assert decide(after("offer")) == LookForOffer()
    assert decide(after("offer", agreed=False)) == LookForOffer()
    assert decide(after("offer", agreed=True)) == LookForFirstRound("r")
    assert decide(after("round", 3, agreed=True)) == LookAt((Place("verdict", "r", 3),))
    assert decide(after("verdict", 3, agreed=True)) == LookAt((Place("round", "r", 4), Place("final", "r")))


def test_it_answers_only_when_nothing_newer_is_there() -> None:
    """So a site that was away reads verdict after round after verdict, and works on the newest round alone."""
    assert decide(after("offer", looked=True)) == AnswerOffer("r")
    assert decide(after("round", 3, agreed=True, looked=True)) == AnswerRound("r", 3)
    assert decide(after("round", 3, agreed=True, looked=True, answered=True)) == Wait()
    assert decide(after("verdict", 3, agreed=True, looked=True)) == Wait()
    assert decide(after("offer", agreed=False, looked=True)) == Wait()


AGGREGATOR_ORDER = [Place("offer", "r"), *(Place(kind, "r", n) for n in range(1, 5) for kind in ("round", "verdict"))]


@given(published=st.integers(1, len(AGGREGATOR_ORDER)), ends=st.booleans())
def test_it_reads_everything_that_is_there_in_order(published: int, ends: bool) -> None:
    """Whatever is in the folder when it comes back, and then waits or works on the last message."""
    folder = AGGREGATOR_ORDER[:published]
    if ends and folder[-1].kind in ("offer", "verdict"):
        folder = [*folder, Place("final", "r")]
    read = [folder[0]]
    facts = after("offer", agreed=True)
    while not facts.looked:
        action = decide(facts)
        assert isinstance(action, LookAt | LookForFirstRound | LookForOffer)
        if isinstance(action, LookForOffer):
            break  # the run has ended
        rounds = [Place("round", "r", n) for n in range(1, 5)]
        wanted = action.places if isinstance(action, LookAt) else (*rounds, Place("final", "r"))
        found = next((place for place in wanted if place in folder), None)
        facts = replace(facts, looked=True) if found is None else replace(facts, last=found)
        read += [found] if found else []
    assert read == folder
    expected = {"round": AnswerRound("r", read[-1].round_no), "final": LookForOffer()}
    assert decide(facts) == expected.get(read[-1].kind, Wait())


# --- consent ----------------------------------------------------------------------------------------------------

RUN = run_configuration()


def test_the_policy_decides() -> None:
    assert judge(Policy(consent="auto"), RUN, None).answer == "yes"
    assert judge(Policy(consent="ask"), RUN, None).answer == "ask"
    assert judge(Policy(consent="ask"), RUN, True).answer == "yes"
    assert judge(Policy(consent="auto"), RUN, False).answer == "no"


def test_a_person_cannot_widen_the_policy() -> None:
    for run, word in (
        (RUN.model_copy(update={"task": "dr_staging"}), "task dr_staging"),
        (RUN.model_copy(update={"method": "fedavg"}), "method fedavg"),
        (RUN.model_copy(update={"epochs": 6}), "6 epochs"),
    ):
        assert isinstance(run, RunConfiguration)
        judgement = judge(Policy(consent="auto", tasks=["octa_segmentation"], methods=["mean"]), run, True)
        assert judgement.answer == "no"
        assert word in judgement.reason


def test_small_numbers_stay_unnamed() -> None:
    assert [count_text(images, Policy()) for images in (0, 4, 5, 6)] == ["fewer than 5", "fewer than 5", "5", "6"]
