"""What a site may do next: what ``site_client.rounds`` decides, and what its people and accidents do.

Each step of a daemon is one of its actions; a message takes three: signed, its payload in the folder, its manifest
there. A look is one step, and may miss anything: so it stands for one that began before something was published, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.errors import RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Head
from shared.exchange.trust import check_order
from site_client import rounds
from site_client.facts import may_answer, may_leave, runs_going_on
from tests.model_check.exchanges import CARD, Signed, called, known_at_hospital, told_messages
from tests.model_check.rules import Rules
from tests.model_check.state import RUN, RUNS, Folder, Hospital, Says, Sent

Step = tuple[str, bool, Folder]
"""What happens, whether it is an accident or a person's wish that a run may do without, and what is then there."""


def decided(folder: Folder, rules: Rules) -> rounds.Action:
    """What the site's daemon would do now."""
    hospital = folder.hospital
    known = known_at_hospital(hospital, folder.desk)
    facts = rounds.SiteFacts(
        card_published=hospital.started,
        enrolled=hospital.knows,
        paused=False,
        may_train=True,
        unpublished=hospital.published < len(hospital.sent),
        runs=runs_going_on(known, lambda run: run in hospital.wants_out),
        unkept=None,
        looked=hospital.looked,
    )
    return rules.site_decides(facts)


def steps(folder: Folder, rules: Rules) -> Iterator[Step]:
    """All that may happen at a site."""
    if not folder.hospital.comes:
        return
    yield from ((name, False, folder._replace(hospital=after)) for name, after in _daemon_steps(folder, rules))
    yield from ((name, True, folder._replace(hospital=after)) for name, after in _accidents(folder, rules))


def _daemon_steps(folder: Folder, rules: Rules) -> Iterator[tuple[str, Hospital]]:
    desk, hospital = folder
    done = hospital._replace(looked=False)
    match decided(folder, rules):
        case rounds.PublishCard():
            shows_key = hospital.rotated is not None
            yield (
                "starts",
                done._replace(started=True, is_here=True, shows_key=shows_key, knows=hospital.knows or desk.enrolled),
            )
        case rounds.ReadFederation():
            if desk.enrolled:
                yield "is enrolled", done._replace(knows=True)
            else:
                yield "finds nothing", hospital._replace(looked=True)
        case rounds.Publish():
            yield _publishes(done)
        case rounds.Look() as look:
            yield from _looks(folder, look, rules)
        case rounds.AnswerOffers(runs):
            yield from _answers(hospital, runs, rules)
        case rounds.AnswerRound(run, round_no):
            yield from _signs(hospital, rules, Sent("update", round_no, run=run))
        case rounds.Withdraw(run):
            yield from _signs(hospital, rules, Sent("withdrawal", run=run))
        case rounds.Wait():
            if hospital.looked:
                yield "rests", done


def _answers(hospital: Hospital, runs: Sequence[str], rules: Rules) -> Iterator[tuple[str, Hospital]]:
    """Answer one of these offers; or none yet, for its people may decide about another first."""
    for run in runs:
        yield from _signs(hospital, rules, Sent("consent", 0, "yes", run))
        if rules.declines:
            yield from _signs(hospital, rules, Sent("consent", 0, "no", run))
    if rules.queue:
        yield "waits for its people", hospital._replace(looked=False)


def _looks(folder: Folder, look: rounds.Look, rules: Rules) -> Iterator[tuple[str, Hospital]]:
    desk, hospital = folder
    found = _found(folder, look)
    if found is not None:
        yield f"reads {called(desk.told[hospital.read])}", hospital._replace(read=hospital.read + 1, looked=False)
    if found is None or rules.looks_may_miss:
        yield "misses it" if found else "finds nothing", hospital._replace(looked=True)


def _publishes(hospital: Hospital) -> tuple[str, Hospital]:
    """The next step of bringing what is signed into the folder."""
    newest = hospital.sent[hospital.published]
    what = called(newest)
    if not hospital.has_payload:
        return f"uploads {what}", hospital._replace(has_payload=True)
    return f"publishes {what}", hospital._replace(has_payload=False, published=hospital.published + 1)


def _signs(hospital: Hospital, rules: Rules, message: Sent) -> Iterator[tuple[str, Hospital]]:
    """Sign a message, which may be poison."""
    may_be_poison = rules.poison and not any(each.says == "poison" for each in hospital.sent)
    variants: tuple[Says, ...] = (message.says, "poison") if may_be_poison and message.says != "no" else (message.says,)
    for says in variants:
        what = f"{'poison in place of ' if says == 'poison' else ''}{message.says} {called(message)}"
        yield (
            f"signs {' '.join(what.split())}",
            hospital._replace(sent=(*hospital.sent, message._replace(says=says)), looked=False),
        )


def _found(folder: Folder, look: rounds.Look) -> Signed | None:
    """The aggregator's next message, if it is published where the site looks.

    Raises:
        AssertionError: it is there, and the site would refuse it.
    """
    desk, hospital = folder
    if hospital.read == desk.published:
        return None
    messages = told_messages(desk.told)
    message = messages[hospital.read]
    if not _is_looked_for(message.ref, look):
        return None
    known = known_at_hospital(hospital, desk)
    head = messages[hospital.read - 1].head if hospital.read else Head()
    try:
        check_order(message, message.ref, head=head, answers=may_answer(known, message.ref, CARD))
    except RejectedError as error:
        raise AssertionError(f"the site refuses the aggregator's message: {error}") from None
    return message


def _is_looked_for(ref: MessageRef, look: rounds.Look) -> bool:
    if ref.kind == "offer":
        return look.offers
    if ref.kind == "round":
        return any(ref.run == last.run and ref.round_no > last.round_no for last in look.later_than)
    return ref in look.refs


def _accidents(folder: Folder, rules: Rules) -> Iterator[tuple[str, Hospital]]:
    desk, hospital = folder
    stopped = hospital._replace(started=False, looked=False)
    if rules.crashes and stopped != hospital:
        yield "dies", stopped
    for run in RUNS if rules.withdrawals else ():
        if run not in hospital.wants_out and may_leave(known_at_hospital(hospital, desk), run):
            what = "has decided to withdraw" if run == RUN else f"has decided to withdraw from {run}"
            yield what, hospital._replace(wants_out=(*hospital.wants_out, run))
    if rules.rotations and hospital.knows and hospital.sent and hospital.rotated is None:
        yield "stops, and rotates its key", stopped._replace(rotated=len(hospital.sent))


def finds(folder: Folder, rules: Rules) -> bool:
    """Whether a look of the site would find something."""
    action = decided(folder._replace(hospital=folder.hospital._replace(looked=False)), rules)
    return isinstance(action, rounds.Look) and _found(folder, action) is not None


def is_quiet(folder: Folder, rules: Rules) -> bool:
    """Whether the site has read and sent all that there is, or never came."""
    desk, hospital = folder
    if not hospital.is_here:
        return True
    is_all_read = hospital.read == desk.published == len(desk.told) and hospital.published == len(hospital.sent)
    return is_all_read and isinstance(
        decided(Folder(desk, hospital._replace(started=True, knows=True, looked=True)), rules), rounds.Wait
    )
