"""What must hold: ``expect`` says so where a step is taken, ``check_end`` of a folder once the run is over there."""

from __future__ import annotations

from shared.exchange.names import MessageRef
from shared.exchange.order import Order, Replies
from tests.model_check.exchanges import CARD, Signed, known_at_desk, known_at_hospital, sent_messages, told_messages
from tests.model_check.rules import Rules
from tests.model_check.state import RUNS, Director, Folder, Hospital


class ViolationError(AssertionError):
    """A state that must not be."""


def expect(condition: bool, otherwise: str) -> None:
    """Demand that something holds.

    Raises:
        ViolationError: ``otherwise``, in words.
    """
    if not condition:
        raise ViolationError(otherwise)


def check_counted(counted: tuple[tuple[int, int], ...]) -> None:
    """Check which of a site's answers have counted, each with its round and the round that it counted in.

    Raises:
        ViolationError: one did twice, or otherwise than in its round or the one after.
    """
    own = [of_round for of_round, _ in counted]
    expect(len(own) == len(set(own)), "an update counts twice")
    expect(all(of_round <= in_round <= of_round + 1 for of_round, in_round in counted), "an update counts too late")


def check_end(director: Director, folder: Folder, rules: Rules) -> None:
    """Check one folder when the run is over, the folder says so, and its site has read all of it.

    Raises:
        ViolationError: somebody was not told something, or the two sides and an auditor do not have it alike.
    """
    desk, hospital = folder
    told, sent = told_messages(desk.told), sent_messages(hospital.sent, desk.told)
    by_ref = {message.ref: message for message in told}
    for message in told:
        verdict = MessageRef("verdict", message.ref.run, message.ref.round_no)
        expect(message.ref.kind != "round" or verdict in by_ref, f"{message.ref.path} has no verdict")
    final = MessageRef("final", director.run)
    expect(director.chosen or final not in by_ref, "a final model was sent that was not chosen")
    for run in (run for run in RUNS if MessageRef("offer", run) in by_ref):  # others it was not offered
        _check_ended(run, folder, rules)
    replies = check_order_of(told, sent)
    for message in sent:
        _check_reply(replies, message)


def _check_ended(run: str, folder: Folder, rules: Rules) -> None:
    desk, hospital = folder
    messages = [*told_messages(desk.told), *sent_messages(hospital.sent, desk.told)]
    by_audit = rules.ending_by_audit(messages, agreed=agreed_to(run, hospital), run=run)
    by_site = rules.ending_at_site(known_at_hospital(hospital, desk), run)
    known = known_at_desk(desk, hospital.sent[: desk.accepted + desk.refused])
    by_aggregator = rules.ending_at_aggregator(known, run)
    expect(by_site is not None, "a site that was offered the run is never told its end")
    who = f"the site ({by_site}), the aggregator ({by_aggregator}) and an auditor ({by_audit})"
    expect(by_site == by_aggregator == by_audit, f"the run has not ended alike for {who}")


def agreed_to(run: str, hospital: Hospital) -> bool | None:
    """What a site's consent to a run says; None without one."""
    says = (message.says for message in hospital.sent if (message.kind, message.run) == ("consent", run))
    return {"yes": True, "no": False, "poison": True}.get(next(says, ""))


def check_order_of(told: tuple[Signed, ...], sent: tuple[Signed, ...]) -> Replies:
    """Check what ``verify`` says of the order of the aggregator's messages; return what answers what.

    Raises:
        ViolationError: one comes where it may not: as a round of a run before another has ended.
    """
    replies, order = Replies(CARD, sent), Order()
    for message in told:
        _check_reply(replies, message)
        replies.take(message)
        left = (run for run in RUNS if replies.had_read(MessageRef("withdrawal", run), message.in_reply_to))
        fault = order.fault(message.ref, frozenset(left).__contains__)
        expect(fault is None, f"{message.ref.path} {fault}")
        order.take(message.ref)
    return replies


def _check_reply(replies: Replies, message: Signed) -> None:
    fault = replies.fault(message.ref, message.in_reply_to)
    expect(fault is None, f"{message.ref.path} {fault}")
