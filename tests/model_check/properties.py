"""What must hold: ``expect`` says so where a step is taken, ``check_end`` of a folder once the run is over there."""

from __future__ import annotations

from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.order import Replies, may_follow
from tests.model_check.exchanges import CARD, Signed, known_at_desk, known_at_hospital, sent_messages, told_messages
from tests.model_check.rules import Rules
from tests.model_check.state import RUN, Director, Folder


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
    if not desk.told:
        return  # it was not offered the run
    told, sent = told_messages(desk.told), sent_messages(hospital.sent, desk.told)
    by_ref = {message.ref: message for message in told}
    for message in told:
        verdict = MessageRef("verdict", RUN, message.ref.round_no)
        expect(message.ref.kind != "round" or verdict in by_ref, f"{message.ref.path} has no verdict")
    agreed = {"yes": True, "no": False, "poison": True}.get(hospital.sent[0].says) if hospital.sent else None
    by_audit = rules.ending_by_audit([*told, *sent], agreed=agreed)
    by_site = rules.ending_at_site(known_at_hospital(hospital, desk))
    by_aggregator = rules.ending_at_aggregator(known_at_desk(desk, hospital.sent[: desk.accepted + desk.refused]))
    expect(by_site is not None, "a site that was offered the run is never told its end")
    who = f"the site ({by_site}), the aggregator ({by_aggregator}) and an auditor ({by_audit})"
    expect(by_site == by_aggregator == by_audit, f"the run has not ended alike for {who}")
    expect(director.chosen or MessageRef("final", RUN) not in by_ref, "a final model was sent that was not chosen")
    _check_as_auditor(told, sent)


def _check_as_auditor(told: tuple[Signed, ...], sent: tuple[Signed, ...]) -> None:
    """What ``verify`` says of the order of the messages."""
    replies = Replies(CARD, sent)
    for before, message in zip((None, *told), told, strict=False):
        follows = before is None or may_follow(before.ref, message.ref)
        expect(follows, f"{message.ref.path} may not follow {before.ref.path if before else AGGREGATOR}")
        fault = replies.fault(message.ref, message.in_reply_to)
        expect(fault is None, f"{message.ref.path} {fault}")
        replies.take(message)
    for message in sent:
        fault = replies.fault(message.ref, message.in_reply_to)
        expect(fault is None, f"{message.ref.path} {fault}")
