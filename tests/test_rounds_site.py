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
    AnswerOffers,
    AnswerRound,
    KeepFinal,
    Look,
    Publish,
    PublishCard,
    ReadFederation,
    RunFacts,
    SiteFacts,
    Wait,
    Withdraw,
    decide,
)
from tests.federation.running import run_configuration

ANY_OFFER = Look(offers=True)
VERDICT, FINAL, ABORT = MessageRef("verdict", "r", 3), MessageRef("final", "r"), MessageRef("abort", "r")
JOINED = SiteFacts(card_published=True, enrolled=True)


OF_RUN = ("agreed", "leaving", "withdrawn", "answered")


def after(kind: str, round_no: int = 0, *, run: str = "r", **facts: object) -> SiteFacts:
    """What a site knows whose one run goes on."""
    of_run = {name: facts.pop(name) for name in OF_RUN if name in facts}
    one = RunFacts(MessageRef(kind, run, round_no), **of_run)  # type: ignore[arg-type]
    return replace(JOINED, runs=(one,), **facts)  # type: ignore[arg-type]


def together(*facts: SiteFacts) -> SiteFacts:
    """What a site knows several runs of which go on."""
    return replace(facts[0], runs=tuple(run for each in facts for run in each.runs))


def test_joining_comes_first() -> None:
    assert decide(SiteFacts(card_published=False, enrolled=False)) == PublishCard()
    assert decide(SiteFacts(card_published=True, enrolled=False)) == ReadFederation()
    assert decide(SiteFacts(card_published=True, enrolled=False, looked=True)) == Wait()


def test_what_is_signed_is_sent_before_anything_else() -> None:
    assert decide(after("round", 3, unpublished=True)) == Publish()


def test_it_looks_only_where_the_next_message_can_lie() -> None:
    assert decide(JOINED) == ANY_OFFER
    assert decide(after("offer")) == Look((ABORT,), offers=True)  # the run may never start; and others may wait
    assert decide(after("offer", agreed=False)) == Look((ABORT,), offers=True)
    assert decide(after("offer", agreed=True)) == Look((FINAL, ABORT), (MessageRef("offer", "r"),), offers=True)
    assert decide(after("round", 3, agreed=True)) == Look((VERDICT,))
    assert decide(after("verdict", 3, agreed=True)) == Look((FINAL,), (VERDICT,), offers=True)


def test_while_a_run_is_played_nothing_of_those_that_wait_is_looked_for() -> None:
    waiting = after("offer", run="s", agreed=True)
    playing = after("verdict", 3, agreed=True)
    assert decide(together(playing, waiting)) == Look((FINAL,), (VERDICT,), offers=True)
    assert decide(together(after("round", 3, agreed=True), waiting)) == Look((VERDICT,))
    both = decide(together(after("offer", agreed=True), waiting))
    assert isinstance(both, Look)
    assert both.later_than == (MessageRef("offer", "r"), MessageRef("offer", "s"))  # either may have its turn first


def test_a_round_is_answered_before_an_offer_that_a_person_decides_about() -> None:
    asked = after("round", 3, agreed=True, looked=True)
    waiting = after("offer", run="s", looked=True)
    assert decide(together(asked, waiting)) == AnswerRound("r", 3)
    answered = after("round", 3, agreed=True, answered=True, looked=True)
    assert decide(together(answered, waiting, after("offer", run="t"))) == AnswerOffers(("s", "t"))
    assert decide(together(replace(answered, unkept="q"), waiting)) == KeepFinal("q")  # it waits for nobody


def test_it_answers_only_when_nothing_newer_is_there() -> None:
    """So a site that was away reads verdict after round after verdict, and works on the newest round alone."""
    assert decide(after("offer", looked=True)) == AnswerOffers(("r",))
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
        replace(JOINED, looked=True, unkept="r"),
    ):
        assert decide(facts) != Wait()
        assert decide(replace(facts, paused=True)) == Wait()


def test_a_site_that_leaves_says_so_first_and_answers_no_more() -> None:
    leaving = after("round", 3, agreed=True, leaving=True)
    assert decide(leaving) == Withdraw("r")
    assert decide(replace(leaving, unpublished=True)) == Publish()  # what was signed before it comes before it
    left = after("round", 3, agreed=True, withdrawn=True)
    assert decide(left) == Look((VERDICT,))
    assert decide(replace(left, looked=True)) == Wait()
    # The aggregator may have known by then, or have signed something before that.
    assert decide(after("verdict", 3, agreed=True, withdrawn=True)) == Look((FINAL,), (VERDICT,), offers=True)
    crossed = Look((FINAL, ABORT), (MessageRef("offer", "r"),), offers=True)
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
        newest = {ref.run: ref for ref in self.read}
        going_on = [ref for ref in newest.values() if ref.kind not in ("final", "abort")]
        return replace(JOINED, runs=tuple(map(self._of_run, going_on)))

    def _of_run(self, last: MessageRef) -> RunFacts:
        has_agreed = MessageRef("offer", last.run) in self.answered
        withdrawn = self.withdrawn and last.run == "r"
        return RunFacts(last, True if has_agreed else None, withdrawn=withdrawn, answered=last in self.answered)

    def found(self, look: Look) -> MessageRef | None:
        """The next message, if it is there and the site looks for it; messages are chained."""
        unread = self.published[len(self.read) :]
        later = {last.run: last.round_no for last in look.later_than}
        for ref in unread[:1]:
            is_later = ref.kind == "round" and ref.run in later and ref.round_no > later[ref.run]
            if is_later or ref in look.refs or (ref.kind == "offer" and look.offers):
                return ref
        return None

    def live(self) -> None:
        """Do what the site decides until it waits."""
        facts = self.facts
        while (action := decide(facts)) != Wait():
            if isinstance(action, AnswerOffers | AnswerRound):
                assert self.read == self.published  # it works only when it has read all there is
                assert not (isinstance(action, AnswerRound) and action.run == "r" and self.withdrawn)
                refs = (
                    [MessageRef("offer", run) for run in action.runs]
                    if isinstance(action, AnswerOffers)
                    else [MessageRef("round", action.run, action.round_no)]
                )
                self.answered.update(refs)
                facts = self.facts
            else:
                assert isinstance(action, Look)
                found = self.found(action)
                if found is not None:
                    self.read.append(found)
                facts = self.facts if found is not None else replace(self.facts, looked=True)


@st.composite
def asked_of_a_site(draw: st.DrawFn) -> list[MessageRef]:
    """All an aggregator ever says to a site that agrees: some rounds of a run, its end, and another run.

    That is offered at the end or before, but not between a round and its verdict.
    """
    rounds = sorted(draw(st.sets(st.integers(1, 8), max_size=5)))
    is_aborted = not rounds and draw(st.booleans())
    said = [[MessageRef(kind, "r", n) for kind in ("round", "verdict")] for n in rounds]
    said = [[MessageRef("offer", "r")], *said, [MessageRef("abort" if is_aborted else "final", "r")]]
    said.insert(draw(st.integers(1, len(said))), [MessageRef("offer", "next")])
    return [ref for refs in said for ref in refs]


@given(said=asked_of_a_site(), data=st.data())
def test_it_reads_everything_whenever_it_looks(said: list[MessageRef], data: st.DataObject) -> None:
    """However many rounds pass it by, and however rarely it is there: it misses nothing and waits for nothing past."""
    folder = Folder([])
    for ref in said:
        folder.published.append(ref)
        if ref.kind == "offer" or data.draw(st.booleans()):  # an offer is followed by nothing until it is answered
            folder.live()
            assert folder.read == folder.published
    folder.live()
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
    folder.withdrawn = not any(ref.kind in ("final", "abort") for ref in folder.read)
    answered = set(folder.answered)
    folder.published = before
    folder.live()
    if before[-1].kind == "round":
        before.append(MessageRef("verdict", "r", before[-1].round_no))
    following = MessageRef("offer", "next")
    folder.published = [*before, *([] if following in before else [following])]
    folder.live()
    assert folder.read == folder.published
    folder.published.append(first := MessageRef("round", "next", 1))
    folder.live()
    assert folder.answered == answered | {following, first}


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
