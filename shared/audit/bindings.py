"""What each record of a run must say because of those that it follows from, as far as one folder shows them.

    offer       this site among the run's sites
    consent     a no tells of no images
    round       no number beyond the closing round; to a site that agreed
    update      the rates of its round, row by row; of no more images than the consent; how good the received model is
    verdict     what its status demands: an answer that is named, or none; after ``withdrawn`` nothing of its run; of
                one that came late, the answer to the round before, if the verdict on that says late; a score, the
                run's tolerance, or one that can follow from it, and how the two compare; a weight; the θ and ε that
                the answer itself tells; no reason of another verdict
    abort       not to a site whose no had been read; likewise ``final``
    final       a card of the run's own task, method and score, whose chosen aggregate, validation and shares can be,
                and whose shares, ε and validation of this site are those of its verdicts and answers; as model, the
                aggregate that the round after the chosen one brought

What takes the other folders, or computing again, is ``replay``'s. A record that does not hold, or that no key opens, is
found elsewhere, and nothing is compared with it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from shared.audit.reading import HiddenError, Reading
from shared.doors.numbers import finite, whole
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import BelowLast, RoundConfiguration, RunConfiguration, round_name
from shared.exchange.records.values import decimal_text, fewest, most
from shared.exchange.records.verdicts import CameLate, FinalCard, Verdict
from shared.exchange.records.wire import PLAIN
from shared.exchange.tables import EPSILON, MetricsRow, epsilon_in, require_learning_rate
from shared.exchange.trust import Message
from shared.learning.answers import LIMIT_DECIMALS, REASONS, SOUND, UNANSWERED, comparison, limit_below
from shared.learning.choice import received_rows, validation_means
from shared.learning.combinations import open_rule
from shared.learning.methods import terms_class
from shared.learning.schedules import is_scored
from shared.learning.spoilers import TOGETHER
from shared.learning.tasks import SELECTION_SCORES


def find_loose_records(reading: Reading) -> None:
    """Note every record of a folder that says what it may not, by those it follows from."""
    for message in reading.messages.values():
        run = reading.configuration(message.ref.run)
        if run is None:
            continue
        check = _CHECKS.get(message.ref.kind)
        with reading.looking_at(message.ref.path, message.manifest.created):
            for name, what in check(reading, message, run) if check else ():
                reading.find(f"{message.ref.path}/{name}", what, message.manifest.created)


def _offer(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    if reading.opened.site not in run.sites:
        yield names.RUN_CONFIGURATION, f"offers {reading.opened.site} a run that it has no part in"


def _consent(reading: Reading, message: Message, _run: RunConfiguration) -> Iterator[tuple[str, str]]:
    consent = reading.consent(message.ref.run)
    if consent is not None and not consent.agrees and consent.images:
        yield names.CONSENT, "tells of images though it says no"


def _round(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    ref = message.ref
    if ref.round_no > run.rounds + 1:
        yield names.MANIFEST, f"is of a round after the closing one, {run.rounds + 1}"
    consent = reading.consent(ref.run)
    if consent is not None and not consent.agrees:
        yield names.MANIFEST, "asks a site that has declined"


def _update(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    table = reading.readable_table(message.ref.run, message.ref.round_no)
    asked = MessageRef("round", message.ref.run, message.ref.round_no)
    configuration = reading.record_or_none(asked, RoundConfiguration)
    if configuration is not None:
        try:
            require_learning_rate(table, names.METRICS, configuration.learning_rate)
        except RejectedError as error:
            yield names.METRICS, error.reason
    tells = any(row.split != "train" for row in table)
    if not is_scored(run, message.ref.round_no):
        if tells:
            yield (
                names.METRICS,
                f"tells scores in a round in which the run, by score_every: {run.score_every}, asks none",
            )
    elif table and not any((row.epoch, row.split) == (0, "validation") for row in table):
        yield names.METRICS, "does not tell how the received model did on the validation images"
    if run.privacy is not None and any(_tells_training(row) for row in table):
        yield names.METRICS, "tells what was measured on training images, and the run is private"
    consent = reading.consent(run.run)
    if consent is not None and reading.opened.protocol > 1:  # until then images could be added while a run went on
        for split, told in sorted({(row.over, row.images) for row in table}):
            agreed = consent.images.get(split, "0")
            if fewest(told) > most(agreed):  # fewer there may be: of what was lost since, nothing is told
                yield names.METRICS, f"tells of {told} {split} images, and the consent of {agreed}"


def _tells_training(row: MetricsRow) -> bool:
    is_told = any(value is not None for name, value in row.scores.items() if name != EPSILON)
    return row.split == "train" and (is_told or row.loss is not None)


# --- verdicts ----------------------------------------------------------------------------------------------


def _verdict(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    verdict = reading.record_or_none(message.ref, Verdict)
    if verdict is None:
        return
    answer = reading.messages.get(MessageRef("update", run.run, message.ref.round_no))
    by_itself = (*_by_tolerance(verdict, run), *_by_score(verdict, run), *_by_weight(verdict, run))
    by_words = _by_reason(verdict, run) if reading.opened.protocol > 1 else ()  # which early versions chose otherwise
    by_others = (*_by_status(reading, message, verdict, answer, run), *_by_late(reading, verdict, run))
    for what in (*by_others, *by_itself, *by_words):
        yield names.VERDICT, what
    if answer is not None:
        for what in _by_answer(reading, verdict, answer, run):
            yield names.VERDICT, what


def _by_status(
    reading: Reading, message: Message, verdict: Verdict, answer: Message | None, run: RunConfiguration
) -> Iterator[str]:
    status, reply, trains = verdict.status, message.manifest.in_reply_to, verdict.round <= run.rounds
    if status in SOUND and (answer is None or reply != answer.digest):
        yield f"says {status}, and names no answer that is here"
    if status in UNANSWERED and reply is not None:
        yield f"says {status}, and names an answer"
    if status in UNANSWERED and answer is None and (verdict.theta, verdict.epsilon) != (None, None):
        yield f"says {status}, and tells the θ or ε of an answer"
    if status == "withdrawn" and not reading.by_ref.get(MessageRef("withdrawal", run.run)):
        yield "says withdrawn, and there is no withdrawal"
    if status == "withdrawn" and reading.opened.protocol > 1:
        sent = (later for later in reading.sent_by(AGGREGATOR) if later.ref.run == run.run)
        after = next((later.ref.path for later in sent if later.manifest.seq > message.manifest.seq), None)
        if after is not None:
            yield f"says withdrawn, and {after} follows it, a message of the same run"
    if status in SOUND and status != ("accepted" if trains else "validated"):
        yield f"says {status} in {'a round that trains' if trains else 'the closing round'}"
    if (verdict.weight is not None) != (status == "accepted"):
        yield f"says {status}, {'without a weight' if verdict.weight is None else f'with weight {verdict.weight}'}"


def _by_tolerance(verdict: Verdict, run: RunConfiguration) -> Iterator[str]:
    """Yield why a verdict's tolerance is not the run's, or cannot follow from an aggregate's score, <= 1."""
    told = verdict.tolerance
    if not isinstance(run.tolerance, BelowLast):
        wanted = None if run.tolerance is None else decimal_text(run.tolerance)
        if told != wanted:
            yield f"tells the tolerance {told}, the run's is {wanted}"
    elif verdict.round > run.rounds:
        if told is not None:
            yield f"tells the tolerance {told} in the closing round, where no model is scored"
    elif told is None or finite(told) > limit_below(1.0, run.tolerance):
        yield f"tells the tolerance {told}, and the run's is {run.tolerance.below_last} below a score"
    elif round(finite(told), LIMIT_DECIMALS) != finite(told):
        yield f"tells the tolerance {told}, which is not rounded to {LIMIT_DECIMALS} decimals"


def _limit(verdict: Verdict, run: RunConfiguration) -> float | None:
    """Return what the score had to exceed."""
    if isinstance(run.tolerance, BelowLast):
        return None if verdict.tolerance is None else finite(verdict.tolerance)
    return run.tolerance


def _by_score(verdict: Verdict, run: RunConfiguration) -> Iterator[str]:
    is_scored, limit = verdict.status == "accepted" and run.tolerance is not None, _limit(verdict, run)
    if verdict.score is None:
        if is_scored:
            yield "accepts a model without a score"
        return
    if run.tolerance is None or verdict.round > run.rounds or verdict.status not in ("accepted", "omitted"):
        yield f"tells a score, {verdict.score}, where no model is scored"
    # What passes by itself may be left out for what comes of it with the others': only ``replay`` can tell.
    elif (
        limit is not None
        and not verdict.reason.startswith(TOGETHER)
        and ((finite(verdict.score) > limit) != (verdict.status == "accepted"))
    ):
        yield f"says {verdict.status} at score {verdict.score} and tolerance {limit}"


def _by_late(reading: Reading, verdict: Verdict, run: RunConfiguration) -> Iterator[str]:
    """Yield why the answer to the round before cannot have come into this one as it says."""
    late, before = verdict.late, verdict.round - 1
    if late is None:
        return
    if run.late is None:
        yield "tells of an answer that came late, and the run counts none"
    if verdict.status != "late" or verdict.round > run.rounds:
        yield f"says {verdict.status} in {round_name(run, verdict.round)}, and tells of the answer to the one before"
    answer = reading.messages.get(MessageRef("update", run.run, before))
    if answer is None or answer.digest != late.update:
        yield f"tells of an answer to {round_name(run, before)} that came late, and names none that is here"
    told = reading.record_or_none(MessageRef("verdict", run.run, before), Verdict)
    if told is not None and told.status != "late":
        yield f"tells of the answer to round {before} as late, and the verdict on that says {told.status}"
    yield from _by_score_of_late(late, _limit(verdict, run), run)


def _by_score_of_late(late: CameLate, limit: float | None, run: RunConfiguration) -> Iterator[str]:
    counts = late.weight is not None
    if late.score is None and counts and run.tolerance is not None:
        yield "counts an answer that came late without a score"
    if late.score is not None and run.tolerance is None:
        yield f"tells a score of an answer that came late, {late.score}, where no model is scored"
    elif late.score is not None and limit is not None and (finite(late.score) > limit) != counts:
        yield f"{'counts' if counts else 'omits'} an answer that came late at score {late.score} and tolerance {limit}"


def _by_weight(verdict: Verdict, run: RunConfiguration) -> Iterator[str]:
    """Yield what is wrong with the weight of a run's only site.

    It has the whole weight, if the rule needs no more than one site. Of several sites a rule may leave some out.
    """
    if verdict.weight is None or len(run.sites) > 1:
        return
    due = 1.0 if open_rule(run.combination).fewest <= 1 else 0.0
    if abs(finite(verdict.weight) - due) > _ROUNDING:
        yield f"tells the weight {verdict.weight} of the run's only site, whose weight is {due}"


def _by_reason(verdict: Verdict, run: RunConfiguration) -> Iterator[str]:
    is_accepted, reason = verdict.status == "accepted", verdict.reason
    of_others = [words for status, words in REASONS.items() if status != verdict.status]
    own = comparison(verdict.score, _limit(verdict, run), exceeds=is_accepted)
    is_another = reason.startswith("score ") and not (
        verdict.status in ("accepted", "omitted") and reason.startswith(own)
    )
    if is_another or reason in of_others or (is_accepted and reason.startswith(TOGETHER)):
        yield f"says {verdict.status}, and its reason is that of another verdict"


def _by_answer(reading: Reading, verdict: Verdict, answer: Message, run: RunConfiguration) -> Iterator[str]:
    """Yield where θ and ε are not what the answer reports, or are told although something was wrong with it."""
    is_sound = verdict.status in SOUND or verdict.score is not None or verdict.reason.startswith(TOGETHER)
    reliability = reading.record_or_none(answer.ref, Reliability)
    if not is_sound:
        theta = None
    elif reliability is not None:
        theta = decimal_text(reliability.theta)
    else:
        theta = verdict.theta if names.RELIABILITY in answer.manifest.files else None
    if verdict.theta != theta:
        yield f"tells the θ {verdict.theta}, the answer {theta}"
    table = reading.readable_table(answer.ref.run, answer.ref.round_no)
    spent = epsilon_in(table) if is_sound and run.privacy is not None else None
    if table and verdict.epsilon != (told := None if spent is None else decimal_text(spent)):
        yield f"tells the ε {verdict.epsilon}, the answer {told}"


# --- the final model ---------------------------------------------------------------------------------------


def _after_no(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Yield that an end was signed for a site that had declined, when that was read (protocol 6.1 and 6.8)."""
    consent, answered = reading.consent(run.run), reading.refs.get(message.manifest.in_reply_to or "")
    if consent is None or consent.agrees or answered is None or reading.opened.protocol == 1:
        return
    if reading.messages[answered].manifest.seq >= reading.messages[MessageRef("consent", run.run)].manifest.seq:
        yield names.MANIFEST, "was signed although the site's no to the offer was known"


def _final(reading: Reading, message: Message, run: RunConfiguration) -> Iterator[tuple[str, str]]:
    yield from _after_no(reading, message, run)
    card = reading.record_or_none(message.ref, FinalCard)
    if card is None:
        return
    by_itself = chain(_of_its_run(card, run), _of_its_choice(card, run))
    by_this_site = chain(
        _of_this_site(reading, card, run), _of_its_epsilon(reading, card, run), _of_its_validation(reading, card, run)
    )
    for what in chain(by_itself, by_this_site):
        yield names.CARD, what
    after = reading.messages.get(MessageRef("round", run.run, card.chosen_round + 1))
    if after is not None and _differ(reading, message, after):
        yield names.FINAL_MODEL, f"is not the aggregate {card.chosen_round} that round {card.chosen_round + 1} brought"


def _of_its_run(card: FinalCard, run: RunConfiguration) -> Iterator[str]:
    due = {"task": run.task, "method": run.method, "score_name": SELECTION_SCORES.get(run.task, card.score_name)}
    for key, wanted in due.items():
        if (told := getattr(card, key)) != wanted:
            yield f"tells the {key} {told}, the run's is {wanted}"
    last = run.rounds
    if card.chosen_round > last or any(whole(number) > last for number in card.validation):
        yield f"speaks of an aggregate after the last, {last}"
    if any(not 0 < whole(number) <= last + 1 for number in card.took_part):
        yield f"speaks of a round that is none of 1 to {last + 1}"
    opened = max(map(whole, card.took_part), default=0)
    if card.chosen_round > opened:
        yield f"tells the chosen_round {card.chosen_round}, and of rounds up to {opened}"
    if any(whole(number) >= opened for number in card.validation):
        yield f"tells the validation of an aggregate that none of its rounds, up to {opened}, brought"
    named = {site for sites in card.took_part.values() for site in sites} | card.epsilon.keys()
    if strangers := sorted(named - set(run.sites)):
        yield f"names {', '.join(strangers)}, no site of the run"
    for number, sites in card.took_part.items():
        if sites != sorted(set(sites)):
            yield f"does not name each site once, and by name, in round {number}"
    if card.took_part.get(str(last + 1)):
        yield "says that a site took part in the closing round"
    if card.epsilon and run.privacy is None:
        yield "tells an ε, and the run is not private"


def _of_its_choice(card: FinalCard, run: RunConfiguration) -> Iterator[str]:
    """Yield what is wrong where the chosen aggregate has not the best mean; which it need not, where files of rounds
    were removed: then it is the best of those left.
    """
    means = {whole(number): finite(mean) for number, mean in card.validation.items()}
    if not means or run.keep.startswith("last ") or _is_in_turn(run):
        return
    best = min(means, key=lambda number: (-means[number], number))
    if card.chosen_round != best:
        yield f"tells the chosen_round {card.chosen_round}, and the best validation is that of {best}"


def _is_in_turn(run: RunConfiguration) -> bool:
    try:
        return terms_class(run.method).in_turn
    except ConfigurationError:  # found at the offer
        return True


def _of_this_site(reading: Reading, card: FinalCard, run: RunConfiguration) -> Iterator[str]:
    site = reading.opened.site
    for number in range(1, run.rounds + 2):
        ref = MessageRef("verdict", run.run, number)
        verdict = reading.record_or_none(ref, Verdict)
        if verdict is not None or ref not in reading.messages:
            had_share = verdict is not None and verdict.share > 0
            if had_share != (site in card.took_part.get(str(number), ())):
                yield f"says of {site} that it {'took no' if had_share else 'took'} part in round {number}"


def _of_its_epsilon(reading: Reading, card: FinalCard, run: RunConfiguration) -> Iterator[str]:
    """Yield where the ε of this site is none that its answers tell, or less than in one that a verdict names: only such
    an answer was surely read before the card was made.
    """
    site, least, spent = reading.opened.site, 0.0, dict[str, float]()
    updates = (MessageRef("update", run.run, number) for number in range(1, run.rounds + 2))
    answers = [answer for ref in updates if (answer := reading.messages.get(ref)) is not None]
    for answer in answers:
        if (epsilon := epsilon_in(reading.readable_table(run.run, answer.ref.round_no))) is not None:
            spent[decimal_text(epsilon)] = epsilon
            if MessageRef("verdict", run.run, answer.ref.round_no) in reading.answers.get(answer.digest, ()):
                least = max(least, epsilon)
    told = card.epsilon.get(site)
    is_told = told in spent or (bool(answers) and not spent)  # a table that does not hold is found where it is read
    holds = not least if told is None else is_told and spent.get(told, least) >= least
    if run.privacy is not None and not holds:
        yield f"tells the ε {told} of {site}, whose answers tell {', '.join(spent) or 'none'}"


def _of_its_validation(reading: Reading, card: FinalCard, run: RunConfiguration) -> Iterator[str]:
    """Yield where the card and this site's own scores differ; in a run of one site these are all that it may hold."""
    site = reading.opened.site
    refs = {number: MessageRef("update", run.run, number) for number in range(1, run.rounds + 2)}
    tables = {number: reading.readable_table(run.run, number) for number in refs}
    rows = received_rows({number: {site: table} for number, table in tables.items()}, "validation")
    told = validation_means(rows, card.score_name)
    for aggregate, own in told.items():
        verdict = reading.record_or_none(MessageRef("verdict", run.run, aggregate + 1), Verdict)
        if verdict is not None and verdict.status in SOUND and str(aggregate) not in card.validation:
            yield f"tells no validation of aggregate {aggregate}, of which {site} reported {own}"
    for number, mean in card.validation.items() if run.sites == [site] else ():
        after = whole(number) + 1
        does_not_hold = refs.get(after) in reading.messages and not tables[after]
        if not does_not_hold and told.get(whole(number)) != finite(mean):
            whose = f"of which {site}, the only site, reported {told.get(whole(number), 'none')}"
            yield f"tells the validation {mean} of aggregate {number}, {whose}"


def _differ(reading: Reading, final: Message, after: Message) -> bool:
    """Return whether the final model is another than what a round brought, where both are told in the plain form."""
    if after.manifest.files[names.GLOBAL_MODEL].wire != PLAIN:
        return False
    try:
        return reading.digest(final, names.FINAL_MODEL) != reading.digest(after, names.GLOBAL_MODEL)
    except (HiddenError, RejectedError):
        return False


_ROUNDING = 1e-6
"""How far the weights of a round may be from 1 in all."""
_CHECKS = {
    "offer": _offer,
    "consent": _consent,
    "round": _round,
    "update": _update,
    "verdict": _verdict,
    "abort": _after_no,
    "final": _final,
}
