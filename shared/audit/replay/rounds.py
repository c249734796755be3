"""One round computed again: what was sent, what was decided about it, and what was made of it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from shared.audit import protocol_1
from shared.audit.reading import Reading
from shared.audit.replay.models import Models
from shared.audit.replay.steps import Step, lacking
from shared.doors.numbers import finite
from shared.errors import NotFoundError, RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Consent, Reliability
from shared.exchange.records.run import BelowLast
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import CameLate, Verdict
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of
from shared.learning.aggregation import Aggregation, Update
from shared.learning.answers import SOUND, UNANSWERED, ClosedRound, passes
from shared.learning.methods.contract import MODEL, Groups, Method
from shared.learning.round_engine import RoundEngine, given_weights
from shared.learning.run_files import Late, Scored
from shared.learning.tolerance import HeldOutSet, load_checked
from shared.plurals import pluralize

SCORES_AGREE = 0.001
"""How much a score may differ and count as the same: another platform may round otherwise."""
_ELSEWHERE = "these may be other held-out images, or another kind of processor, which may answer single ones otherwise"
_ROUNDING = 1e-9  # of a sum of shares


@dataclass
class Round:
    """One round as it lies in the folders.

    Args:
        asked: by site, the message that asked it.
        verdicts: by site.
        answered: by site, the update that its verdict is on.
        late: by site, its answer to the round before, where the verdict tells of that.
        gone: why the tensor files of a site cannot be looked at.
    """

    number: int
    asked: dict[str, Message] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    answered: dict[str, Message] = field(default_factory=dict)
    late: dict[str, Message] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)


def find_round(readings: Mapping[str, Reading], run: str, number: int) -> Round:
    """Return what lies in the folders of one round."""
    found = Round(number)
    for site, reading in readings.items():
        asked, answer, settled = (MessageRef(kind, run, number) for kind in ("round", "update", "verdict"))
        if asked in reading.messages:
            found.asked[site] = reading.messages[asked]
        verdict = reading.record_or_none(settled, Verdict)
        if verdict is None:
            continue
        found.verdicts[site] = verdict
        update = reading.messages.get(answer)
        if update is not None and reading.messages[settled].manifest.in_reply_to == update.digest:
            found.answered[site] = update
        elif verdict.late is not None and (late := _late(reading, run, number, verdict.late)) is not None:
            found.late[site] = late
    return found


def _late(reading: Reading, run: str, number: int, told: CameLate) -> Message | None:
    """Return the answer to the round before that a verdict tells of, if the verdict on it says that it came late."""
    update = reading.messages.get(MessageRef("update", run, number - 1))
    before = reading.record_or_none(MessageRef("verdict", run, number - 1), Verdict)
    was_late = before is not None and before.status == "late"
    return update if was_late and update is not None and update.digest == told.update else None


class Replayer:
    """Goes through the rounds of a run in their order.

    Args:
        readings: the folders of the sites that got an offer.
        network: one of the run's, to look into models with.
        heldout: the aggregator's labelled images, where they are here.
    """

    def __init__(
        self,
        readings: Mapping[str, Reading],
        models: Models,
        method: Method,
        groups: Groups,
        *,
        network: nn.Module,
        heldout: HeldOutSet | None,
    ) -> None:
        self._readings = readings
        self._models = models
        self._run = models.configuration()
        self._sharing = models.sharing()
        self._method = method
        self._groups = groups
        self._network = network
        self._heldout = heldout
        self._aggregation = Aggregation(models, method, groups)
        self._engine = RoundEngine(models, method, self._aggregation)
        self._state_is_known = True

    def steps(self, found: Round) -> Iterator[Step]:
        """Yield every step of a round."""
        with ExitStack() as opened:
            yield from self._round(found, opened)
        # An answer that comes late into the next round began from what this one began with.
        self._models.forget(found.number - (2 if self._run.late else 1))

    def _round(self, found: Round, opened: ExitStack) -> Iterator[Step]:
        number, run = found.number, self._run
        if without_verdict := sorted(found.asked.keys() - found.verdicts.keys()):
            yield lacking(number, "verdicts", f"no verdict (yet) on {', '.join(without_verdict)}")
            return
        named = {**found.answered, **found.late}
        paths = {site: self._open(site, message, found, opened) for site, message in named.items()}
        updates: dict[str, Update] = {}
        scored: dict[str, Scored | None] = {}
        late: dict[str, Late] = {}
        for site, verdict in found.verdicts.items():
            if site in found.answered:
                scored[site] = yield from self._check(site, found, found.answered[site], paths[site], updates)
                continue
            scored[site] = None if verdict.status in UNANSWERED else Scored.refused(verdict.reason or "refused")
            if site in found.late:
                checked = yield from self._check(site, found, found.late[site], paths[site], updates)
                late[site] = Late(update=found.late[site].digest, scored=checked)
            elif verdict.late is not None:
                what = f"answer of {site} to round {number - 1}, which came late"
                yield Step(
                    number, what, "differs", "it is reported, and is not here, or has a verdict that says otherwise"
                )
        limit = yield from self._limit(found)
        left = {site for site, verdict in found.verdicts.items() if verdict.status == "withdrawn"}
        closed = ClosedRound(number, scored, limit, updates.__getitem__, left, late)
        closed, untried = self._together(found, closed, updates)
        yield from self._verdicts(found, closed, updates, untried)
        sound = {site: updates[site] for site in updates if (each := closed.checked[site]) and not each.reason}
        yield from self._settle(found, sound)
        if number <= run.rounds:
            yield from self._aggregate(found, updates)

    def _open(self, site: str, message: Message, found: Round, opened: ExitStack) -> dict[str, Path]:
        """Return the files of an answer that are there, as its manifest says they are."""
        paths = {}
        for name in message.manifest.files:
            try:
                paths[name] = opened.enter_context(self._readings[site].file(message, name))
            except NotFoundError:
                was_pruned = self._readings[site].was_pruned(message.ref, name)
                rule = f"was removed, as `keep: {self._run.keep}` lets it"
                found.gone[site] = f"{name} of {site} {rule if was_pruned else 'is missing'}"
            except RejectedError as error:
                found.gone[site] = f"{error}"
        return paths

    def _check(
        self, site: str, found: Round, message: Message, paths: Mapping[str, Path], updates: dict[str, Update]
    ) -> Generator[Step, None, Scored]:
        """Check one answer as the aggregator does.

        Args:
            message: the answer: to this round, or one to the round before that came late.

        Returns:
            What came out; with the score as reported if it cannot be measured.
        """
        number, told, of_round = found.number, found.verdicts[site], message.ref.round_no
        what = f"answer of {site}" if of_round == number else f"answer of {site} to round {of_round}, which came late"
        trains, counts_in = number <= self._run.rounds, None if of_round == number else number
        late = told.late if counts_in else None
        told_score = late.score if late else told.score
        if self._run.wire.difference and trains and not self._models.aggregate_for(of_round - 1, site).exists():
            found.gone.setdefault(site, f"it is the difference to aggregate {of_round - 1}, which is not here")
        if trains and not self._aggregation.can_compare(of_round, site):
            found.gone.setdefault(site, f"what it received in round {of_round} is not here")
        if counts_in and not self._has_both(of_round - 1, number - 1):
            found.gone.setdefault(site, f"aggregate {of_round - 1} or {number - 1} is not here")
        if site in found.gone:
            yield lacking(number, what, found.gone[site])
            updates[site] = self._update(site, self._by_group(paths), told.theta)
            return Scored(score=told_score, theta=told.theta, epsilon=told.epsilon, reason=_reason_of(late or told))
        scored = self._engine.check(
            message,
            site,
            paths.__getitem__,
            score=self._look_into,
            images=self._images(site),
            form=protocol_1.Reliability if message.manifest.protocol == 1 else Reliability,
            counts_in=counts_in,
        )
        if scored.reason:
            is_omitted = late.weight is None if late else told.status == "omitted"
            yield Step(number, what, "same" if is_omitted else "differs", scored.reason)
            return scored
        files = self._engine.files(site, of_round, paths.__getitem__, counts_in=counts_in)
        updates[site] = self._update(site, files, scored.theta)
        if trains:
            yield from self._score(site, found, told_score, files[MODEL], f"{message.ref.path}/{names.SITE_MODEL}")
        return scored.model_copy(update={"score": told_score if trains else None})

    def _has_both(self, *aggregates: int) -> bool:
        return all(self._models.aggregate_path(aggregate).exists() for aggregate in aggregates)

    def _look_into(self, model: Path, shown_as: str) -> None:
        """Check that a file is a model of the run."""
        load_checked(self._network, self._sharing.shared, model, shown_as)

    def _score(self, site: str, found: Round, told: str | None, model: Path, shown_as: str) -> Iterator[Step]:
        """Measure a score again, if the held-out images are here."""
        what = f"score of {site}"
        if self._run.tolerance is None:
            return
        if told is None:
            yield Step(found.number, what, "differs", "the verdict tells none, though nothing is wrong with the answer")
        elif self._heldout is None:
            yield lacking(
                found.number, what, f"the held-out images are not here (--heldout); {told} is taken as reported"
            )
        else:
            score = self._heldout.score(model, shown_as) or 0.0
            if decimal_text(score) == told:
                yield Step(found.number, what, "same", told)
            elif abs(score - finite(told)) <= SCORES_AGREE:
                detail = f"{told} was reported, {decimal_text(score)} measured here: within {SCORES_AGREE}"
                yield Step(found.number, what, "same", f"{detail}, as another platform may round")
            else:
                detail = f"{told} was reported, {decimal_text(score)} measured here; {_ELSEWHERE}"
                yield Step(found.number, what, "differs", detail)

    def _limit(self, found: Round) -> Generator[Step, None, float | None]:
        """Yield what a score had to exceed: what follows from an aggregate is measured again, if it can be.

        Returns:
            The run's own tolerance, or what the verdicts tell: of several that differ, the first site's.
        """
        tolerance, what = self._run.tolerance, "tolerance"
        if not isinstance(tolerance, BelowLast):
            return tolerance
        told = [verdict.tolerance for _, verdict in sorted(found.verdicts.items()) if verdict.tolerance is not None]
        if found.number > self._run.rounds or not told:
            return None  # where one should be told, the verdicts differ
        limit, aggregate = finite(told[0]), self._models.aggregate_path(found.number - 1)
        if self._heldout is None or not aggregate.exists():
            is_not = f"aggregate {found.number - 1} is not here"
            why = "the held-out images are not here (--heldout)" if self._heldout is None else is_not
            yield lacking(found.number, what, f"{why}; {told[0]} is taken as reported")
            return limit
        measured = self._heldout.limit(aggregate, tolerance)
        agree = abs(measured - limit) <= SCORES_AGREE
        platform = "" if measured == limit else f" was reported, {measured} measured here"
        platform += "" if agree else f"; {_ELSEWHERE}"
        yield Step(found.number, what, "same" if agree else "differs", f"{told[0]}{platform}")
        return limit

    def _by_group(self, paths: Mapping[str, Path]) -> dict[str, Path]:
        """Return what there is of an answer's tensor files."""
        named = {group: names.state_file(group) for group in (*self._sharing.measured, *self._sharing.trained)}
        return {group: paths[name] for group, name in {MODEL: names.SITE_MODEL, **named}.items() if name in paths}

    def _update(self, site: str, files: Mapping[str, Path], theta: str | None) -> Update:
        return Update(files, self._images(site), None if theta is None else finite(theta))

    def _images(self, site: str) -> int:
        """Return on how many images a site has said that it trains."""
        consent = self._consent(site)
        return consent.training_images if consent and consent.agrees else 0

    def _together(
        self, found: Round, closed: ClosedRound, updates: Mapping[str, Update]
    ) -> tuple[ClosedRound, str | None]:
        """Return what came out, once all answers were tried together; and why they could not be."""
        checked, run = closed.checked, self._run
        accepted = {
            site: 1.0 for site, each in checked.items() if each and passes(each, run, found.number, closed.limit)
        }
        gone = checked.keys() & found.gone.keys()
        if why := found.gone[min(gone)] if gone else self._why_not(found, accepted, updates):
            return closed, why
        return self._engine.without_spoilers(closed), None

    def _verdicts(
        self, found: Round, closed: ClosedRound, updates: Mapping[str, Update], untried: str | None
    ) -> Iterator[Step]:
        """Yield what was decided about each site, and its weight.

        Args:
            untried: why the answers could not be tried together, if they could not: one that was left out for what
                comes of it with the others then cannot be told from one that should have counted.
        """
        number, run = found.number, self._run
        yield from self._by_the_clock(found)
        needed = sorted(found.gone.keys() & updates.keys())
        if needed and run.combination.rule == "krum":
            yield lacking(number, "weights", found.gone[needed[0]])
            return
        if number <= run.rounds and (why := self._missing_of_shares(found)):
            yield lacking(number, "weights", why)
            return
        decided = self._engine.decide(closed)
        left_out = [site for site, verdict in decided.items() if _is_left_out(found.verdicts[site], verdict)]
        if untried is not None and left_out:
            yield lacking(number, "weights", untried)
            return
        for site, verdict in decided.items():
            told = found.verdicts[site]
            if site not in found.answered:
                if told.late is not None and verdict.late is not None:
                    yield _compared_late(number, site, told.late, verdict.late)
                continue
            differing = [
                f"{name} is reported as {getattr(told, name)}, and is {getattr(verdict, name)}"
                for name in (
                    "run",
                    "round",
                    "site",
                    "status",
                    "score",
                    "tolerance",
                    "theta",
                    "weight",
                    "epsilon",
                    "late",
                )
                if getattr(told, name) != getattr(verdict, name)
            ]
            detail = "; ".join(differing) or _shown(verdict)
            yield Step(number, f"verdict on {site}", "differs" if differing else "same", detail)

    def _by_the_clock(self, found: Round) -> Iterator[Step]:
        """Yield what was decided about sites whose answer is none, or none in time."""
        number, run = found.number, self._run.run
        for site, verdict in found.verdicts.items():
            what, withdrawn = f"verdict on {site}", MessageRef("withdrawal", run) in self._readings[site].messages
            if verdict.status == "withdrawn" and not withdrawn:
                yield Step(number, what, "differs", "it says withdrawn, and there is no withdrawal")
            elif site not in found.answered and verdict.status == "omitted":
                yield lacking(number, what, "its answer was refused as it came, and is no message of this folder")
            elif site not in found.answered and verdict.status in SOUND:
                yield lacking(number, what, "the answer is not here")
            elif verdict.status in UNANSWERED:
                yield lacking(number, what, f"deadlines are by the aggregator's clock; it says {verdict.status}")

    def _settle(self, found: Round, sound: Mapping[str, Update]) -> Iterator[Step]:
        """Yield what goes with the aggregate that this round's answers were measured with."""
        gone = [site for site, update in sound.items() if not self._sharing.measured.keys() <= update.files.keys()]
        if self._sharing.with_final and gone:
            why = found.gone.get(gone[0], "it is not here")
            yield lacking(found.number, "what goes with the model received", why)
        elif self._sharing.with_final and sound:
            self._aggregation.settle(found.number, sound)

    def _aggregate(self, found: Round, updates: Mapping[str, Update]) -> Iterator[Step]:
        number, what = found.number, f"aggregate {found.number}"
        given = given_weights(found.verdicts)
        if (why := self._why_not(found, given, updates)) is not None:
            taken = "; it is taken as it was sent" if self._models.adopt(number) else ", nor was it sent on"
            self._state_is_known = not self._groups.at_aggregator
            yield lacking(number, what, f"{why}{taken}")
            return
        next_round = self._models.brought(number + 1)
        tried = 0
        for tried in self._numbers_agreed(number):
            self._models.agreed_so_far = tried
            with suppress(OverflowError):
                self._engine.combine(number, found.verdicts, updates.__getitem__)
            if all(self._models.are_what_was_sent(reading, number + 1) for reading in next_round):
                break
        else:
            yield Step(number, what, "differs", self._how_it_differs(next_round, number))
            self._state_is_known = not self._groups.at_aggregator
            self._models.forget(number)
            self._models.adopt(number)
            return
        self._models.note(number)
        digest = self._models.digests[number, next(iter(self._readings))]
        shares = ", ".join(f"{site} {weight:.4f}" for site, weight in sorted(given.items())) or "as it was before"
        if not next_round:
            yield lacking(number, what, f"no round has brought it to a site; what comes out is {digest}")
            return
        of_agreed = f", {pluralize(tried, 'site')} having agreed" if self._depends_on_agreed else ""
        yield Step(number, what, "same", f"{shares}{of_agreed}: {digest}")

    def _missing_of_shares(self, found: Round) -> str | None:
        """Return what is missing here of that from which the shares in a round follow; None if nothing is."""
        for site, verdict in sorted(found.verdicts.items()):
            if verdict.status not in SOUND and not verdict.share:
                continue
            if site not in found.answered and site not in found.late:
                return f"the answer of {site}, which was accepted, is not here"
            if self._consent(site) is None:
                return f"the consent of {site} cannot be read here"
        absent = sorted(set(self._run.sites) - self._readings.keys())
        total = sum(verdict.share for verdict in found.verdicts.values())
        if not absent or (abs(total - 1) < _ROUNDING and self._run.combination.rule != "krum"):
            return None
        return f"what {', '.join(absent)} sent cannot be read here, and may have had a share"

    def _why_not(self, found: Round, weights: Mapping[str, float], updates: Mapping[str, Update]) -> str | None:
        """Return why the next global model cannot be computed, or None."""
        if why := self._missing_of_shares(found):
            return why
        if not self._state_is_known:
            return f"{', '.join(sorted(self._groups.at_aggregator))} of the round before could not be computed"
        if not self._models.aggregate_path(found.number - 1).exists():
            return f"aggregate {found.number - 1} is not here"
        for site in sorted(weights):
            if site in found.gone:
                return found.gone[site]
            if site not in updates or MODEL not in updates[site].files:
                return f"the answer of {site} does not hold"
        return None

    def _consent(self, site: str) -> Consent | None:
        return self._readings[site].consent(self._run.run)

    @property
    def _depends_on_agreed(self) -> bool:
        return bool(self._groups.at_aggregator)

    def _numbers_agreed(self, number: int) -> list[int]:
        """Return how many sites may have agreed when the round was asked: that is known to the aggregator alone."""
        run = self._run.run
        agreed = [site for site in self._readings if (consent := self._consent(site)) and consent.agrees]
        if not self._depends_on_agreed:
            return [len(agreed)]
        rounds = {MessageRef("round", run, earlier) for earlier in range(1, number + 1)}
        asked = [site for site in agreed if rounds & self._readings[site].messages.keys()]
        return list(range(len(agreed), max(len(asked), 1) - 1, -1))

    def _how_it_differs(self, next_round: Iterable[Reading], number: int) -> str:
        ref = MessageRef("round", self._run.run, number + 1)
        said = {reading.digest(reading.messages[ref], names.GLOBAL_MODEL) for reading in next_round}
        made = entry_of(self._models.aggregate_path(number)).sha256
        return f"round {number + 1} brought {', '.join(sorted(said))}; computed here is {made}, in the plain form"


def _compared_late(number: int, site: str, told: CameLate, computed: CameLate) -> Step:
    """Return whether what a verdict tells of the answer to the round before is what comes out of that here."""
    parts = {name: (getattr(told, name), getattr(computed, name)) for name in ("score", "weight")}
    differing = [f"{name} is reported as {one}, and is {other}" for name, (one, other) in parts.items() if one != other]
    detail = "; ".join(differing) or (f"it counts here, weight {told.weight}" if told.weight else told.reason)
    what = f"verdict on the answer of {site} to round {number - 1}"
    return Step(number, what, "differs" if differing else "same", detail)


def _reason_of(told: Verdict | CameLate) -> str:
    """Return why an answer that cannot be looked at was refused, as far as its verdict tells: it then has no score."""
    is_omitted = told.weight is None if isinstance(told, CameLate) else told.status == "omitted"
    return told.reason or "refused" if is_omitted and told.score is None else ""


def _is_left_out(told: Verdict, computed: Verdict) -> bool:
    """Return whether a verdict has omitted what counts by itself, though its score was reported."""
    return told.status == "omitted" and told.score is not None and computed.status in SOUND


def _shown(verdict: Verdict) -> str:
    weight = f", weight {verdict.weight}" if verdict.weight is not None else ""
    return f"{verdict.status}{weight}"
