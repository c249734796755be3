"""Compute a run's decisions again from what lies in the folders, by the code that an aggregator computes them with.

Of every round, in this order:

    answers     each answer that was in time is checked as the aggregator checks it
    scores      with the held-out images, each model's score is measured again; without, it is taken as told
    verdicts    accepted or omitted, θ, ε and the weight follow from these, and from how many images a site trains on
    aggregate   the next global model, and what goes with it, follow from the verdicts' weights and what was sent;
                compared, bit by bit, by the hash that the next round's manifests say of what they bring
    final       which aggregate was chosen, and its hash

Arithmetic is the aggregator's: double precision, in the order of the sites' names, so that hashes agree on any machine.
Scores are computed by torch and agree to the bit on the same platform alone; elsewhere within ``SCORES_AGREE``.

What cannot be computed from the folders is said to be not replayable, and why; never does it count as right. What was
archived is taken in its place, so that what follows can be looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from shared.audit.reading import Reading
from shared.audit.show import metrics_of, rounds_of
from shared.errors import ConfigurationError, NotFoundError, PoisonError
from shared.exchange import names
from shared.exchange.encoding import decode, encode
from shared.exchange.names import Place
from shared.exchange.records import (
    PLAIN,
    Consent,
    FinalCard,
    RunConfiguration,
    Sharing,
    Verdict,
    decimal_text,
    sentence,
)
from shared.exchange.tables import MetricsRow
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of, write_zeros
from shared.folder.durable import link_file
from shared.learning.aggregation import Aggregation, Answer
from shared.learning.answers import UNANSWERED, check_answer, decide
from shared.learning.choice import choose
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL
from shared.learning.model_files import load_tensors, round_tensors, save_tensors
from shared.learning.run_files import RunFiles, Scored
from shared.learning.seeds import seed_for
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tolerance import HeldOutSet, load_checked
from shared.visible import visible

Outcome = Literal["same", "differs", "not replayable"]
SCORES_AGREE = 0.001
"""By how much a score may differ that was measured on another platform."""
_ROUNDING = 1e-9  # of a sum of shares
_BINARY = 2  # classes of the network where no images say how many; what travels does not depend on it


@dataclass(frozen=True)
class Step:
    """One thing that was computed again, or could not be.

    Args:
        round_no: 0 for what is of no round.
        detail: what came out, what differs, or why it is not replayable.
    """

    round_no: int
    what: str
    outcome: Outcome
    detail: str = ""

    def as_json(self) -> dict[str, object]:
        """Plain values, for scripts."""
        return {"round": self.round_no, "what": self.what, "outcome": self.outcome, "detail": self.detail}


class _Files(RunFiles):
    """The run's files as they are made again."""

    def __init__(self, home: Path, run: RunConfiguration, listed: Sharing) -> None:
        super().__init__(home, run.run)
        self._configuration = run
        self._sharing = listed
        self.agreed_so_far = 0

    def configuration(self) -> RunConfiguration:
        """As offered."""
        return self._configuration

    def sharing(self) -> Sharing:
        """As offered."""
        return self._sharing

    def agreed(self, round_no: int) -> int:
        """What is tried at present."""
        return self.agreed_so_far

    def forget(self, round_no: int) -> None:
        """Free the disk of what a round began with, once that is compared; what goes with a final model stays."""
        for path in self._round(round_no).glob("*"):
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith("settled-"):
                path.unlink()


@dataclass
class _Round:
    """One round as it lies in the folders.

    Args:
        asked: by site, the message that asked it.
        verdicts: by site.
        answers: by site, the answer that its verdict is on.
        gone: why the tensor files of a site cannot be looked at.
    """

    number: int
    asked: dict[str, Message] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    answers: dict[str, Message] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)


def replay(readings: Mapping[str, Reading], run: str, *, scratch: Path, heldout: Path | None = None) -> list[Step]:
    """Every step of a run, computed again.

    Args:
        scratch: an empty folder for what is made.
        heldout: the aggregator's labelled images, laid out like a site's.

    Raises:
        ConfigurationError: there is no such run, its offer does not hold, or this software does not know its task or
            method.
        DataError: every problem of the held-out images.
    """
    offers = {site: reading for site, reading in readings.items() if Place("offer", run) in reading.messages}
    if not offers:
        raise ConfigurationError([f"there is no run {run} in these folders"])
    configuration, listed = (
        next((found for reading in offers.values() if (found := getattr(reading, part)(run)) is not None), None)
        for part in ("configuration", "sharing")
    )
    if configuration is None or listed is None:
        raise ConfigurationError([f"run {run}: its offer does not hold; see `dropfed-audit verify`"])
    return list(_Replay(offers, configuration, listed, scratch, heldout).steps())


class _Replay:
    def __init__(
        self,
        readings: Mapping[str, Reading],
        run: RunConfiguration,
        listed: Sharing,
        scratch: Path,
        heldout: Path | None,
    ) -> None:
        self._readings = readings
        self._run = run
        self._sharing = listed
        self._files = _Files(scratch, run, listed)
        self._scratch = scratch
        self._task, self._method = task_named(run.task), open_method(run.method, run.method_options)
        options = self._task.options(run.task_options)
        images = self._task.open_images(heldout, options) if heldout else None
        self._network: nn.Module = build_network(
            self._task,
            self._method,
            options,
            len(images.classes) if images else _BINARY,
            run_seed=run.seed,
            is_private=run.privacy is not None,
        )
        self._groups = self._method.groups(self._network, listed)
        self._aggregation = Aggregation(self._files, self._method, self._groups)
        self._heldout: HeldOutSet | None = None
        if images is not None:
            objective = self._method.objective(run.rounds, run.rounds)
            seed = seed_for(run.seed, "held-out set")
            model = deepcopy(self._network)
            self._heldout = HeldOutSet(self._task, model, images, listed, objective=objective, seed=seed)
            self._scored_with = model
        self._state_is_known = True
        self._aggregates: dict[tuple[int, str], str] = {}  # SHA-256 in the plain form, by round and site

    def steps(self) -> Iterator[Step]:
        run = self._run
        yield from self._offers()
        if (step := self._tensors()).outcome != "same":
            yield step
            return
        yield step
        yield from self._initial()
        numbers = rounds_of(self._readings, run.run)
        for number in numbers:
            with ExitStack() as opened:
                yield from self._round(self._found(number), opened)
            self._files.forget(number - 1)
        yield from self._final(numbers)

    # --- what was offered ----------------------------------------------------------------------------------

    def _offers(self) -> Iterator[Step]:
        if missing := sorted(set(self._run.sites) - self._readings.keys()):
            detail = f"no offer is here of {', '.join(missing)}: what they sent, if anything, cannot be looked at"
            yield Step(0, "folders", "not replayable", detail)
        for name in (names.RUN_CONFIGURATION, names.TENSORS):
            said: dict[str, list[str]] = {}
            for site, reading in self._readings.items():
                entry = reading.messages[Place("offer", self._run.run)].manifest.files[name]
                said.setdefault(entry.sha256, []).append(site)
            told = "; ".join(f"{', '.join(sites)}: {digest}" for digest, sites in said.items())
            yield Step(0, f"offer, {name}", "same" if len(said) == 1 else "differs", told)

    def _tensors(self) -> Step:
        """What travels is what this software computes for the run: nobody was offered something else."""
        computed = sharing(self._task, self._method, self._network)
        if computed == self._sharing:
            return Step(0, "offer, what travels", "same", f"{len(computed.tensors)} tensors each round")
        return Step(0, "offer, what travels", "differs", "this software would offer other tensors for this run")

    def _initial(self) -> Iterator[Step]:
        """The first global model: drawn from the run's seed if it was, else as it was sent."""
        run, files, what = self._run, self._files, "first global model"
        drawn = self._scratch / "drawn.safetensors"
        try:
            round_tensors(self._network, self._sharing.shared, run.wire.numbers)
            save_tensors(self._network, self._sharing.shared, drawn)
        except ValueError:
            drawn.unlink(missing_ok=True)
        for group, tensors in {**self._groups.to_site, **self._groups.at_aggregator}.items():
            write_zeros(files.state_path(0, group), tensors)
        for reading in self._readings.values():
            self._take(reading, Place("offer", run.run), names.START, files.start)
        if self._heldout is not None and files.start.exists():
            load_tensors(self._scored_with, self._sharing.beginning, files.start)
        sent = [reading for reading in self._readings.values() if Place("round", run.run, 1) in reading.messages]
        if drawn.exists():
            link_file(drawn, files.aggregate_path(0))
        if not sent:
            yield Step(0, what, "not replayable", "because no round was sent")
            return
        if drawn.exists() and all(self._is_what_was_sent(reading, 1) for reading in sent):
            self._note(0)
            yield Step(0, what, "same", f"drawn from the run's seed {run.seed}: {entry_of(drawn).sha256}")
            return
        files.aggregate_path(0).unlink(missing_ok=True)
        why = "because it began from published weights, or was drawn by another version of the software"
        if self._adopt(0):
            yield Step(0, what, "not replayable", f"{why}; it is taken as it was sent")
        else:
            yield Step(0, what, "not replayable", f"{why}, and its file is not here")

    # --- a round -------------------------------------------------------------------------------------------

    def _found(self, number: int) -> _Round:
        """What lies in the folders of one round."""
        found = _Round(number)
        for site, reading in self._readings.items():
            asked, answered, settled = (Place(kind, self._run.run, number) for kind in ("round", "update", "verdict"))
            if asked in reading.messages:
                found.asked[site] = reading.messages[asked]
            verdict = reading.record_or_none(settled, names.VERDICT, Verdict)
            if verdict is None:
                continue
            found.verdicts[site] = verdict
            answer = reading.messages.get(answered)
            if answer is not None and reading.messages[settled].manifest.in_reply_to == answer.digest:
                found.answers[site] = answer
        return found

    def _round(self, found: _Round, opened: ExitStack) -> Iterator[Step]:
        number, run = found.number, self._run
        if untold := sorted(found.asked.keys() - found.verdicts.keys()):
            detail = f"because {', '.join(untold)} has no verdict (yet)"
            yield Step(number, "verdicts", "not replayable", detail)
            return
        paths = {site: self._open(site, message, found, opened) for site, message in found.answers.items()}
        answers: dict[str, Answer] = {}
        scored: dict[str, Scored | None] = {}
        for site, verdict in found.verdicts.items():
            if site not in found.answers:
                scored[site] = self._unanswered(verdict)
                continue
            scored[site] = yield from self._check(site, found, paths[site], answers)
        yield from self._verdicts(found, scored, answers)
        sound = {site: answers[site] for site in answers if (each := scored[site]) is not None and not each.reason}
        yield from self._settle(found, sound)
        if number <= run.rounds:
            yield from self._aggregate(found, answers)

    def _open(self, site: str, message: Message, found: _Round, opened: ExitStack) -> dict[str, Path]:
        """The files of an answer that are there, as its manifest says they are."""
        paths = {}
        for name in message.manifest.files:
            try:
                paths[name] = opened.enter_context(self._readings[site].file(message, name))
            except NotFoundError:
                was_let_go = self._readings[site].was_let_go(message.place, name)
                rule = f"was removed, as `keep: {self._run.keep}` lets it"
                found.gone[site] = f"{name} of {site} {rule if was_let_go else 'is missing'}"
            except PoisonError as error:
                found.gone[site] = f"{error}"
        return paths

    @staticmethod
    def _unanswered(verdict: Verdict) -> Scored | None:
        """What an aggregator knows of a site whose answer did not come in time, or was refused as it came."""
        if verdict.status in UNANSWERED:
            return None
        return Scored(score=None, theta=None, reason=verdict.reason or "refused")

    def _check(
        self, site: str, found: _Round, paths: Mapping[str, Path], answers: dict[str, Answer]
    ) -> Generator[Step, None, Scored]:
        """Check one answer as the aggregator does.

        Returns:
            What came out; with the score as told where it cannot be measured.
        """
        number, run, message, told = found.number, self._run, found.answers[site], found.verdicts[site]
        trains = number <= run.rounds
        shown_as = f"{message.place.path}/{names.SITE_MODEL}"
        if self._run.wire.difference and trains and not self._files.aggregate_for(number - 1, site).exists():
            found.gone.setdefault(site, f"it is the difference to aggregate {number - 1}, which is not here")
        if site in found.gone:
            yield Step(number, f"answer of {site}", "not replayable", f"because {found.gone[site]}")
            answers[site] = self._answer(site, paths, told.theta)
            return Scored(score=told.score, theta=told.theta, epsilon=told.epsilon, reason=_reason_of(told))
        try:
            theta, spent = check_answer(message, paths.__getitem__, run, self._sharing, self._method)
            files = dict(paths)
            if trains:
                files[names.SITE_MODEL] = self._plain(site, number, paths[names.SITE_MODEL], shown_as)
                load_checked(self._network, self._sharing.shared, files[names.SITE_MODEL], shown_as)
        except PoisonError as error:
            yield Step(number, f"answer of {site}", "same" if told.status == "omitted" else "differs", str(error))
            return Scored(score=None, theta=None, epsilon=None, reason=sentence(str(error)))
        theta_text, spent_text = (None if value is None else decimal_text(value) for value in (theta, spent))
        answers[site] = self._answer(site, files, theta_text)
        score = told.score if trains else None
        if trains:
            yield from self._score(site, found, files[names.SITE_MODEL], shown_as)
        return Scored(score=score, theta=theta_text, epsilon=spent_text, reason="")

    def _score(self, site: str, found: _Round, model: Path, shown_as: str) -> Iterator[Step]:
        """Measure a score again, if the held-out images are here."""
        told, what = found.verdicts[site].score, f"score of {site}"
        if told is None:
            yield Step(found.number, what, "differs", "the verdict tells none, though nothing is wrong with the answer")
        elif self._heldout is None:
            detail = f"because the held-out images are not here (--heldout); {told} is taken as told"
            yield Step(found.number, what, "not replayable", detail)
        else:
            score = self._heldout.score(model, shown_as)
            if decimal_text(score) == told:
                yield Step(found.number, what, "same", told)
            elif abs(score - float(told)) <= SCORES_AGREE:
                detail = f"{told} was told, {decimal_text(score)} measured here: within {SCORES_AGREE}"
                yield Step(found.number, what, "same", f"{detail}, as another platform may round")
            else:
                yield Step(found.number, what, "differs", f"{told} was told, {decimal_text(score)} measured here")

    def _plain(self, site: str, number: int, model: Path, shown_as: str) -> Path:
        """A site's model in the plain form.

        Raises:
            PoisonError: it does not hold the run's tensors in the run's form.
        """
        if self._run.wire == PLAIN:
            return model
        target, before = self._files.answer_path(number, site), self._files.aggregate_for(number - 1, site)
        decode(model, target, self._sharing.shared, self._run.wire, before, shown_as=shown_as)
        return target

    def _answer(self, site: str, paths: Mapping[str, Path], theta: str | None) -> Answer:
        groups = (*self._sharing.measured, *self._sharing.trained)
        files = {group: paths[name] for group in groups if (name := names.state_file(group)) in paths}
        if names.SITE_MODEL in paths:
            files[MODEL] = paths[names.SITE_MODEL]
        consent = self._readings[site].record_or_none(Place("consent", self._run.run), names.CONSENT, Consent)
        images = consent.training_images if consent and consent.agrees else 0
        return Answer(files, images, None if theta is None else float(theta))

    def _verdicts(
        self, found: _Round, scored: Mapping[str, Scored | None], answers: Mapping[str, Answer]
    ) -> Iterator[Step]:
        """What was decided about each site, and its weight."""
        number, run = found.number, self._run
        for site, verdict in found.verdicts.items():
            withdrawn = Place("withdrawal", run.run) in self._readings[site].messages
            if verdict.status == "withdrawn" and not withdrawn:
                yield Step(number, f"verdict on {site}", "differs", "it says withdrawn, and there is no withdrawal")
            elif site not in found.answers and verdict.status == "omitted":
                detail = "because its answer was refused as it came, and is no message of this folder"
                yield Step(number, f"verdict on {site}", "not replayable", detail)
            elif verdict.status in UNANSWERED:
                detail = f"because deadlines are by the aggregator's clock; it says {verdict.status}"
                yield Step(number, f"verdict on {site}", "not replayable", detail)
        needed = sorted(found.gone.keys() & answers.keys())
        if needed and run.combination.rule == "krum":
            yield Step(number, "weights", "not replayable", f"because {found.gone[needed[0]]}")
            return
        if number <= run.rounds and (why := self._who_may_lack(found)):
            yield Step(number, "weights", "not replayable", f"because {why}")
            return
        left = {site for site, verdict in found.verdicts.items() if verdict.status == "withdrawn"}
        decided = decide(run, number, scored, answer=answers.__getitem__, withdrawn=left, aggregation=self._aggregation)
        for site, verdict in decided.items():
            told = found.verdicts[site]
            if site not in found.answers:
                continue
            differing = [
                f"{name} is told as {getattr(told, name)}, and is {getattr(verdict, name)}"
                for name in ("run", "round", "site", "status", "score", "tolerance", "theta", "weight", "epsilon")
                if getattr(told, name) != getattr(verdict, name)
            ]
            detail = "; ".join(differing) or _shown(verdict)
            yield Step(number, f"verdict on {site}", "differs" if differing else "same", detail)

    def _settle(self, found: _Round, sound: Mapping[str, Answer]) -> Iterator[Step]:
        """What goes with the aggregate that this round's answers were measured with."""
        lacking = [site for site, answer in sound.items() if not self._sharing.measured.keys() <= answer.files.keys()]
        if self._sharing.with_final and lacking:
            detail = f"because {found.gone.get(lacking[0], 'it is not here')}"
            yield Step(found.number, "what goes with the model received", "not replayable", detail)
        elif self._sharing.with_final and sound:
            self._aggregation.settle(found.number, sound)

    # --- the next global model -----------------------------------------------------------------------------

    def _aggregate(self, found: _Round, answers: Mapping[str, Answer]) -> Iterator[Step]:
        number, what = found.number, f"aggregate {found.number}"
        weights = {
            site: float(verdict.weight) for site, verdict in found.verdicts.items() if verdict.weight is not None
        }
        weights = {site: weight for site, weight in weights.items() if weight > 0}
        if (why := self._why_not(found, weights, answers)) is not None:
            taken = "; it is taken as it was sent" if self._adopt(number) else ", nor was it sent on"
            self._state_is_known = not self._groups.at_aggregator
            yield Step(number, what, "not replayable", f"because {why}{taken}")
            return
        next_round = [
            reading
            for reading in self._readings.values()
            if Place("round", self._run.run, number + 1) in reading.messages
        ]
        tried = 0
        for tried in self._numbers_agreed(number):
            self._files.agreed_so_far = tried
            try:
                if weights:
                    self._aggregation.aggregate(number, {site: answers[site] for site in weights}, weights)
                else:
                    self._aggregation.leave(number)
            except OverflowError:
                self._aggregation.leave(number)
            if all(self._is_what_was_sent(reading, number + 1) for reading in next_round):
                break
        else:
            yield Step(number, what, "differs", self._how_it_differs(next_round, number))
            self._state_is_known = not self._groups.at_aggregator
            self._files.forget(number)
            self._adopt(number)
            return
        self._note(number)
        digest = self._aggregates[number, next(iter(self._readings))]
        shares = ", ".join(f"{site} {weight:.4f}" for site, weight in sorted(weights.items())) or "as it was before"
        if not next_round:
            detail = f"because no round has brought it to a site; what comes out is {digest}"
            yield Step(number, what, "not replayable", detail)
            return
        of_agreed = f", {tried} sites having agreed" if self._depends_on_agreed else ""
        yield Step(number, what, "same", f"{shares}{of_agreed}: {digest}")

    def _who_may_lack(self, found: _Round) -> str | None:
        """Whose folder may be missing of those that had a share in a round; None where the shares are whole."""
        absent = sorted(set(self._run.sites) - self._readings.keys())
        total = sum(float(verdict.weight or 0) for verdict in found.verdicts.values())
        if not absent or (abs(total - 1) < _ROUNDING and self._run.combination.rule != "krum"):
            return None
        return f"the folder of {', '.join(absent)} is not here, which may have had a share"

    def _why_not(self, found: _Round, weights: Mapping[str, float], answers: Mapping[str, Answer]) -> str | None:
        """Why the next global model cannot be computed, or None."""
        if why := self._who_may_lack(found):
            return why
        if not self._state_is_known:
            return f"{', '.join(sorted(self._groups.at_aggregator))} of the round before could not be computed"
        if not self._files.aggregate_path(found.number - 1).exists():
            return f"aggregate {found.number - 1} is not here"
        for site in sorted(weights):
            if site in found.gone:
                return found.gone[site]
            if site not in answers or MODEL not in answers[site].files:
                return f"the answer of {site} does not hold"
        return None

    @property
    def _depends_on_agreed(self) -> bool:
        return bool(self._groups.at_aggregator)

    def _numbers_agreed(self, number: int) -> list[int]:
        """How many sites may have agreed when the round was asked: that is known to the aggregator alone."""
        run = self._run.run
        agreed = [
            site
            for site, reading in self._readings.items()
            if (consent := reading.record_or_none(Place("consent", run), names.CONSENT, Consent)) and consent.agrees
        ]
        if not self._depends_on_agreed:
            return [len(agreed)]
        asked = [
            site
            for site in agreed
            if any(Place("round", run, earlier) in self._readings[site].messages for earlier in range(1, number + 1))
        ]
        return list(range(len(agreed), max(len(asked), 1) - 1, -1))

    def _is_what_was_sent(self, reading: Reading, number: int) -> bool:
        """Whether a round's manifest in a folder says just the hashes of what was made here."""
        message = reading.messages[Place("round", self._run.run, number)]
        for group in self._sharing.to_site:
            made = self._files.state_path(number - 1, group)
            said = message.manifest.files.get(names.state_file(group))
            if said is None or not made.exists() or entry_of(made).sha256 != said.sha256:
                return False
        return self._is_model_sent(reading, message)

    def _is_model_sent(self, reading: Reading, message: Message) -> bool:
        site, number, said = reading.opened.site, message.place.round_no, message.manifest.files[names.GLOBAL_MODEL]
        aggregate, wire = self._files.aggregate_for(number - 1, site), self._run.wire.of("round", names.GLOBAL_MODEL)
        if wire == PLAIN:
            return entry_of(aggregate).sha256 == said.sha256
        encoded = self._scratch / "encoded.safetensors"
        if encode(aggregate, encoded, self._sharing.shared, wire).sha256 == said.sha256:
            return True
        if wire.compression == "none":
            return False
        decoded = self._scratch / "decoded.safetensors"  # another version of zstd may compress otherwise
        return self._decoded(reading, message, decoded) and entry_of(decoded) == entry_of(aggregate)

    def _how_it_differs(self, next_round: Iterable[Reading], number: int) -> str:
        said = {
            reading.messages[Place("round", self._run.run, number + 1)].manifest.files[names.GLOBAL_MODEL].sha256
            for reading in next_round
        }
        made = entry_of(self._files.aggregate_path(number)).sha256
        return f"round {number + 1} brought {', '.join(sorted(said))}; computed here is {made}, in the plain form"

    def _adopt(self, number: int) -> bool:
        """Take an aggregate, and what of its state travels, as the next round brought it."""
        place, common = Place("round", self._run.run, number + 1), ""
        for site, reading in self._readings.items():
            message = reading.messages.get(place)
            if message is None:
                continue
            sha256 = message.manifest.files[names.GLOBAL_MODEL].sha256
            if not common and self._decoded(reading, message, self._files.aggregate_path(number)):
                common = sha256
            elif common != sha256:
                self._decoded(reading, message, self._files.own_aggregate_path(number, site))
            for group in self._sharing.to_site:
                self._take(reading, place, names.state_file(group), self._files.state_path(number, group))
        self._note(number)
        return bool(common)

    def _decoded(self, reading: Reading, message: Message, target: Path) -> bool:
        """Write the model that a round brought in the plain form; False if it is not there, or does not hold."""
        wire = self._run.wire.of("round", names.GLOBAL_MODEL)
        shown_as = f"{message.place.path}/{names.GLOBAL_MODEL}"
        try:
            with reading.file(message, names.GLOBAL_MODEL) as path:
                if wire == PLAIN:
                    _copy(path, target)
                else:
                    decode(path, target, self._sharing.shared, wire, shown_as=shown_as)
        except (NotFoundError, PoisonError):
            return False
        return True

    @staticmethod
    def _take(reading: Reading, place: Place, name: str, target: Path) -> None:
        message = reading.messages.get(place)
        if message is None or name not in message.manifest.files or target.exists():
            return
        try:
            with reading.file(message, name) as path:
                _copy(path, target)
        except (NotFoundError, PoisonError):
            return

    def _note(self, number: int) -> None:
        """Keep the hash of an aggregate, so that its file can go."""
        for site in self._readings:
            path = self._files.aggregate_for(number, site)
            if path.exists():
                self._aggregates[number, site] = entry_of(path).sha256

    # --- the end -------------------------------------------------------------------------------------------

    def _final(self, numbers: Iterable[int]) -> Iterator[Step]:
        final = Place("final", self._run.run)
        cards = {
            site: card
            for site, reading in self._readings.items()
            if (card := reading.record_or_none(final, names.CARD, FinalCard)) is not None
        }
        if not cards:
            yield Step(0, "final model", "not replayable", "because the run has not ended in any of these folders")
            return
        card = next(iter(cards.values()))
        if any(other != card for other in cards.values()):
            yield Step(0, "final card", "differs", "not all folders have the same")
        yield self._choice(card, list(numbers))
        for site in cards:
            message = self._readings[site].messages[final]
            yield self._compared(
                f"final model of {site}",
                message.manifest.files[names.FINAL_MODEL].sha256,
                self._aggregates.get((card.chosen_round, site)),
                f"because aggregate {card.chosen_round} is not here",
            )
            for group in self._sharing.with_final:
                made = self._files.settled_path(card.chosen_round + 1, group)
                yield self._compared(
                    f"{names.state_file(group)} with the final model of {site}",
                    message.manifest.files[names.state_file(group)].sha256,
                    entry_of(made).sha256 if made.exists() else None,
                    f"because what was measured with aggregate {card.chosen_round} is not here",
                )

    def _choice(self, card: FinalCard, numbers: list[int]) -> Step:
        """Which aggregate was chosen, by the sites' own tables."""
        run, what = self._run, "choice of the final model"
        found = {number: self._found(number) for number in numbers}
        in_time = self._choose(found, late=False)
        computed = next((each for each in (self._choose(found, late=True), in_time) if _agree(each, card)), None)
        if computed is not None:
            mean = computed.validation.get(str(computed.chosen_round), "none")
            return Step(0, what, "same", f"aggregate {computed.chosen_round}, mean validation score {mean}")
        if absent := sorted(set(run.sites) - self._readings.keys()):
            return Step(0, what, "not replayable", f"because the folder of {', '.join(absent)} is not here")
        if run.keep.startswith("last ") and _agree(
            in_time.model_copy(update={"chosen_round": card.chosen_round}), card
        ):
            detail = f"because `keep: {run.keep}` has aggregates removed while the run goes on; the scores are the same"
            return Step(0, what, "not replayable", detail)
        differing = [
            f"{name} is told as {getattr(card, name)}, and is {getattr(in_time, name)}"
            for name in ("chosen_round", "score_name", "validation", "epsilon")
            if getattr(card, name) != getattr(in_time, name)
        ]
        return Step(0, what, "differs", "; ".join(differing) or "who took part in which round is told otherwise")

    def _choose(self, found: Mapping[int, _Round], *, late: bool) -> FinalCard:
        """The card as it would be; an answer that came late may have been there by then, or not."""
        run = self._run
        tables: dict[int, dict[str, list[MetricsRow]]] = {}
        for number, of_round in found.items():
            for site, reading in self._readings.items():
                if late or site in of_round.answers:
                    try:
                        tables.setdefault(number, {})[site] = metrics_of(reading, run.run, number)
                    except PoisonError:
                        continue
        verdicts = {number: dict(sorted(of_round.verdicts.items())) for number, of_round in found.items()}
        newest = max((number for number in found if number <= run.rounds), default=0)
        return choose(
            run,
            tables,
            verdicts,
            kept=range(newest + 1),
            score_name=self._task.selection_score,
            ended="",
            in_turn=self._method.in_turn,
        )

    @staticmethod
    def _compared(what: str, said: str, made: str | None, why_not: str) -> Step:
        if made is None:
            return Step(0, what, "not replayable", why_not)
        if made == said:
            return Step(0, what, "same", made)
        return Step(0, what, "differs", f"it is {said}, computed here is {made}")


def _copy(source: Path, target: Path) -> None:
    """Never a link: nothing of an archive is touched."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _reason_of(told: Verdict) -> str:
    """Why an answer that cannot be looked at was refused, as far as its verdict tells: it then has no score."""
    is_refused = told.status == "omitted" and told.score is None
    return told.reason or "refused" if is_refused else ""


def _agree(computed: FinalCard, card: FinalCard) -> bool:
    """All but the words; rounds in which nobody took part may not have left anything in the folders."""
    parts = [
        each.model_dump(exclude={"reason", "took_part"})
        | {"took_part": {number: sorted(sites) for number, sites in each.took_part.items() if sites}}
        for each in (computed, card)
    ]
    return parts[0] == parts[1]


def _shown(verdict: Verdict) -> str:
    weight = f", weight {verdict.weight}" if verdict.weight is not None else ""
    return f"{verdict.status}{weight}"


def counts(steps: Iterable[Step]) -> dict[str, int]:
    """How many steps had which outcome."""
    found = dict.fromkeys(("same", "differs", "not replayable"), 0)
    for step in steps:
        found[step.outcome] += 1
    return found


def lines(steps: list[Step]) -> Iterator[str]:
    """One line per step, and one that sums up."""
    for step in steps:
        where = f"round {step.round_no}, {step.what}" if step.round_no else step.what
        yield visible(f"{step.outcome:14}  {where}: {step.detail}")
    yield ", ".join(f"{count} {outcome}" for outcome, count in counts(steps).items())
