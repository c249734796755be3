"""Compute a run's decisions again from what lies in the folders, by the code that an aggregator computes them with.

Of every round, in this order:

    answers     each answer that was in time is checked as the aggregator checks it
    scores      with the held-out images, each model's score is measured again; without, it is taken as reported
    tolerance   likewise, where what a score had to exceed follows from the last aggregate
    verdicts    accepted or omitted, θ, ε and the weight follow from these, and from how many images a site trains on
    aggregate   the next global model, and what goes with it, follow from the verdicts' weights and what was sent;
                compared, bit by bit, by the hash that the next round's manifests say of what they bring
    final       which aggregate was chosen, and its hash

Arithmetic is the aggregator's: double precision, in a set order, and nothing whose last digit a processor decides, so
that hashes agree on any machine. Scores and the first model are computed by torch, and agree to the bit on the same
platform alone.

What cannot be computed from the folders is said to be not replayable, and why; never does it count as right. What was
archived is taken in its place, so that what follows can be looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

from shared.audit.reading import Reading
from shared.audit.replay.models import Models
from shared.audit.replay.rounds import Replayer, Round, find_round
from shared.audit.replay.steps import Step, lacking
from shared.audit.sites import not_opened, rounds_of, settings_of, sharing_of
from shared.errors import ConfigurationError, DropfedError, FaultError, RejectedError
from shared.exchange import names
from shared.exchange.ledger import readable_tables
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.weights import entry_of, write_zeros
from shared.folder.durable import link_file
from shared.learning.answers import SOUND
from shared.learning.apart import WITH_PLUGINS
from shared.learning.choice import Tables, choose, ends_early
from shared.learning.methods import open_method
from shared.learning.model_files import load_tensors, round_tensors, save_tensors
from shared.learning.models.options import published_weights
from shared.learning.plugins import unpermitted
from shared.learning.sharing import ANY_CLASSES, network_of, published, sharing
from shared.learning.tasks import task_named
from shared.learning.tolerance import HeldOutSet
from shared.plurals import pluralize
from shared.trouble import UnexpectedError

logger = logging.getLogger(__name__)


def replay(
    readings: Mapping[str, Reading],
    run: str,
    *,
    scratch: Path,
    heldout: Path | None,
    weights: Path | None,
) -> list[Step]:
    """Return every step of a run, computed again.

    Args:
        scratch: an empty folder for what is made.
        heldout: the aggregator's labelled images, laid out like a site's.
        weights: the folder of published weights that the run's sites took from their own copy; scores need them.

    Raises:
        ConfigurationError: there is no such run, its offer does not hold, this software does not know its task or
            method, it needs plug-ins that this process may not import, or its published weights are not there.
        DataError: every problem of the held-out images.
    """
    offers, configuration, listed = offered(readings, run)
    if unpermitted(configuration.plugins):
        needed = ", ".join(f"{each.name} {each.version} ({each.sha256})" for each in configuration.plugins)
        raise ConfigurationError(
            [f"run {run} was computed with the plug-in {needed}; install its wheel, and pass {WITH_PLUGINS} to run it"]
        )
    return list(_Replay(offers, configuration, listed, scratch, heldout=heldout, weights=weights).steps())


def offered(readings: Mapping[str, Reading], run: str) -> tuple[dict[str, Reading], RunConfiguration, Sharing]:
    """Return the folders that a run was offered in and can be read in, and what was offered.

    Raises:
        ConfigurationError: there is no such run, no key opens it, or its offer does not hold.
    """
    offers = {site: reading for site, reading in readings.items() if MessageRef("offer", run) in reading.messages}
    if not offers:
        raise ConfigurationError([f"there is no run {run} in these folders"])
    if all(reading.hides(run) for reading in offers.values()):
        raise not_opened(run)
    offers = {site: reading for site, reading in offers.items() if not reading.hides(run)}
    configuration, listed = settings_of(offers, run), sharing_of(offers, run)
    if configuration is None or listed is None:
        raise ConfigurationError([f"run {run}: its offer does not hold; see `dropfed-audit verify`"])
    return offers, configuration, listed


class _Replay:
    def __init__(
        self,
        readings: Mapping[str, Reading],
        run: RunConfiguration,
        listed: Sharing,
        scratch: Path,
        *,
        heldout: Path | None,
        weights: Path | None,
    ) -> None:
        self._readings = readings
        self._run = run
        self._sharing = listed
        self._models = Models(scratch, readings, run, listed)
        self._task, self._method = task_named(run.task), open_method(run.method, run.method_options)
        options = self._task.options(run.task_options)
        images = self._task.open_images(heldout, options) if heldout else None
        classes = len(images.classes) if images else ANY_CLASSES
        takes_published = images is not None and listed.from_file
        begin = published(run, self._task, [_required(run, weights)]) if takes_published else lambda _: None
        self._network = network_of(run, self._task, self._method, classes, prepare=begin)
        self._groups = self._method.groups(self._network, listed)
        self._heldout: HeldOutSet | None = None
        if images is not None:
            self._scored_with = deepcopy(self._network)
            self._heldout = HeldOutSet.of_run(
                run, self._task, self._method, self._scored_with, images=images, sharing=listed
            )

    def steps(self) -> Iterator[Step]:
        """Yield every step of the run."""
        yield from self._offers()
        travels = self._tensors()
        yield travels
        if travels.outcome != "same":
            return
        yield from _or_why_not(0, "first global model", self._initial())
        numbers = rounds_of(self._readings, self._run.run)
        found = {number: find_round(self._readings, self._run.run, number) for number in numbers}
        replayer = Replayer(
            self._readings, self._models, self._method, self._groups, network=self._network, heldout=self._heldout
        )
        for of_round in found.values():
            yield from _or_why_not(of_round.number, "round", replayer.steps(of_round))
        yield from _or_why_not(0, "final model", self._final(found))

    def _offers(self) -> Iterator[Step]:
        if missing := sorted(set(self._run.sites) - self._readings.keys()):
            whose = ", ".join(missing)
            yield lacking(0, "folders", f"the folder of {whose} is not here, or encrypted, or never had an offer")
        for name in (names.RUN_CONFIGURATION, names.TENSORS):
            said: dict[str, list[str]] = {}
            for site, reading in self._readings.items():
                offer = reading.messages[MessageRef("offer", self._run.run)]
                said.setdefault(reading.digest(offer, name), []).append(site)
            told = "; ".join(f"{', '.join(sites)}: {digest}" for digest, sites in said.items())
            yield Step(0, f"offer, {name}", "same" if len(said) == 1 else "differs", told)

    def _tensors(self) -> Step:
        """Return whether what travels is what this software computes for the run, and nothing else was offered."""
        computed = sharing(self._task, self._method, self._network)
        if computed == self._sharing:
            return Step(0, "offer, what travels", "same", f"{pluralize(len(computed.tensors), 'tensor')} each round")
        return Step(0, "offer, what travels", "differs", "this software would offer other tensors for this run")

    def _initial(self) -> Iterator[Step]:
        """Yield the first global model: drawn from the run's seed if it was, else as it was sent."""
        run, models, what = self._run, self._models, "first global model"
        drawn = self._models.home / "drawn.safetensors"
        try:
            round_tensors(self._network, self._sharing.shared, run.wire.numbers)
            save_tensors(self._network, self._sharing.shared, drawn)
        except ValueError:
            drawn.unlink(missing_ok=True)
        for group, tensors in {**self._groups.to_site, **self._groups.at_aggregator}.items():
            write_zeros(models.state_path(0, group), tensors)
        for reading in self._readings.values():
            self._models.take(reading, MessageRef("offer", run.run), names.START, models.start)
        if self._heldout is not None and models.start.exists():
            load_tensors(self._scored_with, self._sharing.offered, models.start)
        sent = models.brought(1)
        if drawn.exists():
            link_file(drawn, models.aggregate_path(0))
        if not sent:
            yield lacking(0, what, "no round was sent")
            return
        if run.start is None and drawn.exists() and all(models.are_what_was_sent(reading, 1) for reading in sent):
            models.note(0)
            yield Step(0, what, "same", f"drawn from the run's seed {run.seed}: {entry_of(drawn).sha256}")
            return
        models.aggregate_path(0).unlink(missing_ok=True)
        adopted, start = models.adopt(0), run.start
        why = "it began from published weights, or was drawn by another version of the software or on another processor"
        if adopted and start is not None:
            if entry_of(models.aggregate_path(0)).sha256 == start.sha256:
                yield Step(0, what, "same", f"the model of {start.name} that the run names: {start.sha256}")
                return
            why = f"it is not the model of {start.name} that the run names, whose SHA-256 is {start.sha256}"
        taken = "; it is taken as it was sent" if adopted else ", and its file is not here"
        yield lacking(0, what, f"{why}{taken}")

    def _final(self, found: Mapping[int, Round]) -> Iterator[Step]:
        final = MessageRef("final", self._run.run)
        cards = {
            site: card
            for site, reading in self._readings.items()
            if (card := reading.record_or_none(final, FinalCard)) is not None
        }
        if not cards:
            yield lacking(0, "final model", "the run has not ended in any of these folders")
            return
        card = next(iter(cards.values()))
        if any(other != card for other in cards.values()):
            yield Step(0, "final card", "differs", "not all folders have the same")
        if self._run.stop_after is not None:
            yield self._end(found)
        yield self._choice(card, found)
        for site in cards:
            message = self._readings[site].messages[final]
            yield self._compared(
                f"final model of {site}",
                self._readings[site].digest(message, names.FINAL_MODEL),
                self._models.digests.get((card.chosen_round, site)),
                f"aggregate {card.chosen_round} is not here",
            )
            for group in self._sharing.with_final:
                made = self._models.settled_path(card.chosen_round + 1, group)
                yield self._compared(
                    f"{names.state_file(group)} with the final model of {site}",
                    self._readings[site].digest(message, names.state_file(group)),
                    entry_of(made).sha256 if made.exists() else None,
                    f"what was measured with aggregate {card.chosen_round} is not here",
                )

    def _end(self, found: Mapping[int, Round]) -> Step:
        """Return whether the run went on where its ``stop_after`` has it end; others may end it earlier."""
        what, last = "end of the run", max(found, default=0)
        for number in sorted(found)[:-1]:
            until = {earlier: of_round for earlier, of_round in found.items() if earlier <= number}
            ends = [
                ends_early(self._run, self._tables(until, late=late), self._task.selection_score)
                for late in (False, True)
            ]
            if all(ends):
                return Step(
                    0, what, "differs", f"round {last} was opened; the run has, after round {number}, {ends[0]}"
                )
        return Step(0, what, "same", f"after round {last} of {self._run.rounds}")

    def _choice(self, card: FinalCard, found: Mapping[int, Round]) -> Step:
        """Return which aggregate was chosen, by the sites' own tables."""
        run, what = self._run, "choice of the final model"
        in_time = self._choose(found, late=False)
        computed = next((each for each in (self._choose(found, late=True), in_time) if _agree(each, card)), None)
        if computed is not None:
            mean = computed.validation.get(str(computed.chosen_round), "none")
            return Step(0, what, "same", f"aggregate {computed.chosen_round}, mean validation score {mean}")
        if absent := sorted(set(run.sites) - self._readings.keys()):
            return lacking(0, what, f"what {', '.join(absent)} measured cannot be read here")
        if unread := self._unread(found):
            return lacking(0, what, unread)
        as_chosen = in_time.model_copy(update={"chosen_round": card.chosen_round})
        if run.keep.startswith("last ") and _agree(as_chosen, card):
            removed = f"`keep: {run.keep}` has aggregates removed while the run goes on"
            return lacking(0, what, f"{removed}; the scores are the same")
        differing = [
            f"{name} is reported as {getattr(card, name)}, and is {getattr(in_time, name)}"
            for name in ("chosen_round", "score_name", "validation", "epsilon")
            if getattr(card, name) != getattr(in_time, name)
        ]
        return Step(0, what, "differs", "; ".join(differing) or "who took part in which round is reported otherwise")

    def _unread(self, found: Mapping[int, Round]) -> str | None:
        """Return the first verdict, or table of a sound answer, that cannot be read here, if there is one."""
        for number, of_round in sorted(found.items()):
            for site in sorted(of_round.asked):
                if site not in of_round.verdicts:
                    return f"the verdict on {site} in round {number} cannot be read here"
                if of_round.verdicts[site].status not in SOUND:
                    continue
                try:
                    rows = self._readings[site].table(self._run.run, number)
                except RejectedError as error:
                    return str(error)
                if not rows:
                    return f"what {site} measured in round {number} is not here"
        return None

    def _choose(self, found: Mapping[int, Round], *, late: bool) -> FinalCard:
        """Return the card as it would be; an answer that came late may have been there by then, or not."""
        run, tables = self._run, self._tables(found, late=late)
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

    def _tables(self, found: Mapping[int, Round], *, late: bool) -> Tables:
        """Return the tables of rounds; ``late``: also those that came after their round was closed."""
        return {
            number: {site: rows for site, rows in of_sites.items() if late or site in found[number].answered}
            for number, of_sites in readable_tables(self._readings, self._run.run, found).items()
        }

    @staticmethod
    def _compared(what: str, said: str, made: str | None, why_not: str) -> Step:
        if made is None:
            return lacking(0, what, why_not)
        if made == said:
            return Step(0, what, "same", made)
        return Step(0, what, "differs", f"it is {said}, computed here is {made}")


def _or_why_not(number: int, what: str, steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps; one more, where an error that nobody expected ends them."""
    try:
        yield from steps
    except FaultError as error:
        yield Step(number, what, "not replayable", f"because of {error}")
    except (DropfedError, OSError, MemoryError):
        raise
    except Exception as error:
        logger.exception("%s of round %d cannot be computed again", what, number)
        yield Step(number, what, "not replayable", f"because of {UnexpectedError(error)}")


def _required(run: RunConfiguration, weights: Path | None) -> Path:
    """Return the folder of published weights.

    Raises:
        ConfigurationError: none is named.
    """
    if weights is None:
        needed = published_weights(run.task_options)
        which = f"{needed.file}, SHA-256 {needed.sha256}, from {needed.source}"
        raise ConfigurationError([f"scores need the published weights {which}; name their folder by --weights"])
    return weights


def _agree(computed: FinalCard, card: FinalCard) -> bool:
    """Return all but the words; rounds in which nobody took part may not have left anything in the folders."""
    parts = [
        each.model_dump(exclude={"reason", "took_part"})
        | {"took_part": {number: sorted(sites) for number, sites in each.took_part.items() if sites}}
        for each in (computed, card)
    ]
    return parts[0] == parts[1]
