"""The site's decisions: what it looks for, what it answers, what it skips."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from site_client.configuration import Policy
from site_client.disclosure import count_text
from site_client.policy import judge
from site_client.rounds import (
    AnswerOffer,
    AnswerRound,
    Look,
    Publish,
    PublishCard,
    ReadFederation,
    SiteFacts,
    Wait,
    Withdraw,
    decide,
)
from tests.federation.running import run_configuration

ANY_OFFER = Look(offers=True)
VERDICT, FINAL, ABORT = MessageRef("verdict", "r", 3), MessageRef("final", "r"), MessageRef("abort", "r")
JOINED = SiteFacts(card_published=True, enrolled=True)


def after(kind: str, round_no: int = 0, **facts: object) -> SiteFacts:
    return replace(JOINED, last=MessageRef(kind, "r", round_no), **facts)  # type: ignore[arg-type]


def test_joining_comes_first() -> None:
    assert decide(SiteFacts(card_published=False, enrolled=False)) == PublishCard()
    assert decide(SiteFacts(card_published=True, enrolled=False)) == ReadFederation()
    assert decide(SiteFacts(card_published=True, enrolled=False, looked=True)) == Wait()


def test_what_is_signed_is_sent_before_anything_else() -> None:
    assert decide(after("round", 3, unpublished=True)) == Publish()


def test_it_looks_only_where_the_next_message_can_lie() -> None:
    assert decide(JOINED) == ANY_OFFER
    assert decide(after("final", agreed=True)) == ANY_OFFER
    assert decide(after("abort", agreed=True)) == ANY_OFFER
    assert decide(after("offer")) == Look((ABORT,))  # the run may never start
    assert decide(after("offer", agreed=False)) == Look((ABORT,), offers=True)
    assert decide(after("offer", agreed=True)) == Look((FINAL, ABORT), later_than=MessageRef("offer", "r"))
    assert decide(after("round", 3, agreed=True)) == Look((VERDICT,))
    assert decide(after("verdict", 3, agreed=True)) == Look((FINAL,), later_than=VERDICT)


def test_it_answers_only_when_nothing_newer_is_there() -> None:
    """So a site that was away reads verdict after round after verdict, and works on the newest round alone."""
    assert decide(after("offer", looked=True)) == AnswerOffer("r")
    assert decide(after("round", 3, agreed=True, looked=True)) == AnswerRound("r", 3)
    assert decide(after("round", 3, agreed=True, looked=True, answered=True)) == Wait()
    assert decide(after("verdict", 3, agreed=True, looked=True)) == Wait()
    assert decide(after("offer", agreed=False, looked=True)) == Wait()


def test_a_paused_site_does_nothing_at_all() -> None:
    assert decide(SiteFacts(card_published=False, enrolled=False, paused=True)) == Wait()
    for facts in (
        after("offer", looked=True),
        after("round", 3, agreed=True, looked=True),
        after("round", 3, agreed=True, unpublished=True),
        after("round", 3, agreed=True, leaving=True),
        after("verdict", 3, agreed=True),
        after("final", looked=True, unkept="r"),
    ):
        assert decide(facts) != Wait()
        assert decide(replace(facts, paused=True)) == Wait()


def test_a_site_that_leaves_says_so_first_and_answers_no_more() -> None:
    leaving = after("round", 3, agreed=True, leaving=True)
    assert decide(leaving) == Withdraw("r")
    assert decide(replace(leaving, unpublished=True)) == Publish()  # what was signed before it comes before it
    left = replace(leaving, leaving=False, withdrawn=True)
    assert decide(left) == Look((VERDICT,))
    assert decide(replace(left, looked=True)) == Wait()
    # The aggregator may have known by then, or have signed something before that.
    assert decide(after("verdict", 3, agreed=True, withdrawn=True)) == Look((FINAL,), later_than=VERDICT, offers=True)
    crossed = Look((FINAL, ABORT), later_than=MessageRef("offer", "r"), offers=True)
    assert decide(after("offer", agreed=True, withdrawn=True)) == crossed


@dataclass
class Folder:
    """What the aggregator published for one site, in order, and what the site makes of it."""

    published: list[MessageRef]
    read: list[MessageRef] = field(default_factory=list)
    answered: set[MessageRef] = field(default_factory=set)
    withdrawn: bool = False

    @property
    def facts(self) -> SiteFacts:
        last = self.read[-1] if self.read else None
        agreed = None if last is None or last not in self.answered else True
        facts = replace(JOINED, last=last, withdrawn=self.withdrawn and last is not None and last.run == "r")
        return replace(facts, agreed=agreed if last and last.kind == "offer" else True, answered=last in self.answered)

    def found(self, look: Look) -> MessageRef | None:
        """The first unread message where the site looks, if one is there."""
        rounds = [ref for ref in self.published if ref.kind == "round"]
        after = look.later_than
        there = [ref for ref in rounds if after and ref.run == after.run and ref.round_no > after.round_no]
        there += [ref for ref in look.refs if ref in self.published]
        there += [ref for ref in self.published if ref.kind == "offer"] if look.offers else []
        return next((ref for ref in there if ref not in self.read), None)

    def live(self) -> None:
        """Do what the site decides until it waits."""
        facts = self.facts
        while (action := decide(facts)) != Wait():
            if isinstance(action, AnswerOffer | AnswerRound):
                assert self.read[-1] == self.published[-1]  # it works on nothing but the newest message
                assert not (facts.withdrawn and isinstance(action, AnswerRound))
                self.answered.add(self.read[-1])
                facts = self.facts
            else:
                assert isinstance(action, Look)
                found = self.found(action)
                if found is not None:
                    assert found == self.published[len(self.read)]  # the aggregator's own order: messages are chained
                    self.read.append(found)
                facts = self.facts if found is not None else replace(self.facts, looked=True)


@st.composite
def asked_of_a_site(draw: st.DrawFn) -> list[MessageRef]:
    """All an aggregator ever says to a site that agrees: some rounds of a run, its end, and another run."""
    rounds = sorted(draw(st.sets(st.integers(1, 8), max_size=5)))
    said = [MessageRef("offer", "r"), *(MessageRef(kind, "r", n) for n in rounds for kind in ("round", "verdict"))]
    is_aborted = not rounds and draw(st.booleans())
    return [*said, MessageRef("abort" if is_aborted else "final", "r"), MessageRef("offer", "next")]


@given(said=asked_of_a_site(), data=st.data())
def test_it_reads_everything_whenever_it_looks(said: list[MessageRef], data: st.DataObject) -> None:
    """However many rounds pass it by, and however rarely it is there: it misses nothing and waits for nothing past."""
    folder = Folder([])
    for ref in said:
        folder.published.append(ref)
        if ref.kind == "offer" or data.draw(st.booleans()):  # an offer is followed by nothing until it is answered
            folder.live()
            assert folder.read == folder.published
    assert folder.read == said
    assert MessageRef("offer", "next") in folder.answered


@given(said=asked_of_a_site(), data=st.data())
def test_a_site_that_left_reads_on_and_takes_up_the_next_run(said: list[MessageRef], data: st.DataObject) -> None:
    """It withdraws after any message; the aggregator notices after any later one, and sends a verdict and no more."""
    left_at = data.draw(st.integers(1, len(said) - 1))
    noticed_at = data.draw(st.integers(left_at, len(said) - 1))
    before = said[:noticed_at]
    folder = Folder(said[:1])
    folder.live()
    folder.published = said[:left_at]
    folder.live()
    folder.withdrawn = folder.read[-1].kind not in ("final", "abort")
    answered = set(folder.answered)
    folder.published = before
    folder.live()
    if before[-1].kind == "round":
        before.append(MessageRef("verdict", "r", before[-1].round_no))
    folder.published = [*before, MessageRef("offer", "next")]
    folder.live()
    assert folder.read == folder.published
    assert folder.answered == answered | {MessageRef("offer", "next")}


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
