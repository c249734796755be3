"""What the daemon has done with a run's network and its method: here, or apart where plug-ins are needed for it.

Apart, each piece of work is a question to a child process (``shared/learning/apart.py``). What the child makes lies in
``runs/RUN/made`` until it has been checked, and only then where the run's files lie. What a plug-in does wrong is
nobody's doing among the sites: where work on an answer fails, the same work is tried on an answer that moves nothing,
and if that fails as well, nothing is decided and the daemon tries again later.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from aggregator.configuration import AggregatorConfiguration, bounds_of
from aggregator.preparation import Begun, Learning, Prepared, open_learning
from aggregator.store import RunStore
from shared.errors import DropfedError, PluginError, RejectedError, Stopped
from shared.exchange import names
from shared.exchange.names import MessageRef, Name
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.values import Record
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import FileEntry
from shared.exchange.trust import Message
from shared.exchange.weights import LARGEST, check_tensors, entry_of, write_zeros
from shared.folder.durable import put_in_place
from shared.learning.aggregation import Aggregation, Update, leave
from shared.learning.answers import ClosedRound, decide, passes
from shared.learning.apart import AnswerT, Progress, Question, answered, names_of
from shared.learning.methods.contract import MODEL, Groups, Method
from shared.learning.round_engine import RoundEngine, given_weights
from shared.learning.run_files import Late, RunFiles, Scored
from shared.learning.tolerance import HeldOutSet

MADE = "made"
"""Where in a run's home the work of a child lies until it has been checked."""


class ModelWork(Protocol):
    """What is done with a run's network and its method.

    Raises:
        PluginError: a plug-in does what it must not, and nothing has changed.
        Stopped: the daemon is to end.
    """

    def check(self, message: Message, site: str, home: Path, images: int, *, counts_in: int | None = None) -> Scored:
        """Check one answer by itself; ``home``: where its files lie, other arguments as for ``RoundEngine.check``."""
        ...

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """Return what a score must exceed; see ``HeldOutSet.limit``."""
        ...

    def verdicts(self, closed: ClosedRound) -> dict[str, Verdict]:
        """Return the verdict on each site that a round asked, with its weight; see ``RoundEngine.decide``."""
        ...

    def combine(
        self, round_no: int, verdicts: Mapping[str, Verdict], update: Callable[[str], Update]
    ) -> dict[Path, FileEntry]:
        """Make the next global model; see ``RoundEngine.combine``."""
        ...


@dataclass(frozen=True)
class Here:
    """The work of a run without plug-ins, in this process."""

    engine: RoundEngine
    heldout: HeldOutSet

    def check(self, message: Message, site: str, home: Path, images: int, *, counts_in: int | None = None) -> Scored:
        """See ``ModelWork``."""
        score = self.heldout.score
        return self.engine.check(message, site, home.joinpath, score=score, images=images, counts_in=counts_in)

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """See ``ModelWork``."""
        return self.heldout.limit(aggregate, tolerance)

    def verdicts(self, closed: ClosedRound) -> dict[str, Verdict]:
        """See ``ModelWork``."""
        return self.engine.decide(self.engine.without_spoilers(closed))

    def combine(
        self, round_no: int, verdicts: Mapping[str, Verdict], update: Callable[[str], Update]
    ) -> dict[Path, FileEntry]:
        """See ``ModelWork``."""
        return self.engine.combine(round_no, verdicts, update)


def begin_work(prepared: Prepared, store: RunStore, stop: threading.Event) -> ModelWork:
    """Write what a run begins with, if it is new, and return what its work is done by.

    Args:
        store: in which the run was begun.
        stop: ends work that is done apart.
    """
    begun, learning = prepared.begun, prepared.learning
    if learning is None:
        apart = Apart(prepared.work, prepared.configuration, begun, store, stop)
        if begun.is_new:
            apart.begin()
        return UntilStopped(apart, begun, store)
    aggregation = Aggregation(store, learning.method, learning.groups())
    if begun.is_new:
        aggregation.begin(learning.model)
    return Here(RoundEngine(store, learning.method, aggregation), learning.heldout)


# --- apart: what the daemon does -------------------------------------------------------------------------------


class Apart:
    """The work of a run with plug-ins, each piece in a child process."""

    def __init__(
        self,
        work: Path,
        configuration: AggregatorConfiguration,
        begun: Begun,
        store: RunStore,
        stop: threading.Event,
    ) -> None:
        self._here = RunHere(work=work, configuration=configuration, run=begun.run)
        self._bounds = bounds_of(configuration)
        self._run, self._sharing = begun.run, begun.division
        of_sites = {group: TensorList(tensors=listed) for group, listed in begun.division.to_site.items()}
        self._beside = of_sites | begun.told.at_aggregator
        self._at_aggregator = begun.told.at_aggregator
        self._store = store
        self._stop = stop

    def begin(self) -> None:
        """Write what a new run begins with."""
        with self._making(0) as made:
            question = First(here=self._here, made=made.folder)
            self._ask(question)
            if self._sharing.start:
                self._take(made.start, self._store.start, self._sharing.beginning, question)
            self._take_aggregate(made, 0, question)

    def check(self, message: Message, site: str, home: Path, images: int, *, counts_in: int | None = None) -> Scored:
        """See ``ModelWork``."""
        with self._making(counts_in or message.ref.round_no) as made:
            question = Check(
                here=self._here,
                message=message,
                site=site,
                home=home,
                images=images,
                counts_in=counts_in,
                made=made.folder,
            )
            scored = self._ask(question)
        if scored.score is not None:
            self._require_share(float(scored.score), question)
        return scored

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """See ``ModelWork``."""
        question = LimitBelow(here=self._here, aggregate=aggregate, tolerance=tolerance)
        limit = self._ask(question)
        self._require_share(limit, question)
        return limit

    def verdicts(self, closed: ClosedRound) -> dict[str, Verdict]:
        """See ``ModelWork``."""
        round_no = closed.round_no
        with self._making(round_no) as made:
            question = Decide(
                here=self._here,
                round_no=round_no,
                checked=dict(closed.checked),
                limit=closed.limit,
                updates=closed.updates(_sound(closed)),
                withdrawn=list(closed.withdrawn),
                late=dict(closed.late),
                made=made.folder,
            )
            verdicts = self._ask(question)
            self._require_verdicts(verdicts, question)
            for group, listed in self._sharing.with_final.items():
                if (settled := made.settled_path(round_no, group)).exists():
                    to = self._store.settled_path(round_no, group)
                    self._take(settled, to, TensorList(tensors=listed), question)
        return verdicts

    def combine(
        self, round_no: int, verdicts: Mapping[str, Verdict], update: Callable[[str], Update]
    ) -> dict[Path, FileEntry]:
        """See ``ModelWork``."""
        given = given_weights(verdicts)
        if not given:
            self.leave(round_no)
            return {}
        with self._making(round_no) as made:
            question = Combine(
                here=self._here,
                round_no=round_no,
                weights=given,
                updates={site: update(site) for site in given},
                made=made.folder,
            )
            self._ask(question)
            return self._take_aggregate(made, round_no, question)

    def leave(self, round_no: int) -> None:
        """Have a round end as it began."""
        leave(self._store, self._run.sites, self._beside, round_no)

    def _ask(self, question: Question[AnswerT]) -> AnswerT:
        """Return an answer.

        Raises:
            PluginError: naming plug-in and work, whatever stood in the way of that.
        """
        try:
            return answered(question, self._bounds, self._run.plugins, self._goes_on)
        except (PluginError, Stopped):
            raise
        except DropfedError as error:
            raise PluginError(f"{self._named(question)}: {error}") from error

    def _goes_on(self, _percent: int) -> bool:
        if self._stop.is_set():
            raise Stopped("the daemon is to end")
        return True

    def _named(self, question: Question[AnswerT]) -> str:
        return f"{names_of(self._run.plugins)}, {question.step}"

    @contextmanager
    def _making(self, round_no: int) -> Iterator[Made]:
        """Have a child make files of a round; what is not taken over goes with the block's end."""
        folder = self._store.home / MADE
        shutil.rmtree(folder, ignore_errors=True)  # of a daemon that was cut off
        folder.mkdir(parents=True)
        try:
            yield Made(self._store, round_no, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _take_aggregate(self, made: Made, round_no: int, question: Question[AnswerT]) -> dict[Path, FileEntry]:
        """Take over a global model: what goes with it first, itself last; return what manifests say of models."""
        store, shared = self._store, self._sharing.shared
        for group, listed in self._beside.items():
            largest = math.inf if group in self._at_aggregator else LARGEST
            paths = made.state_path(round_no, group), store.state_path(round_no, group)
            self._take(*paths, listed, question, largest=largest)
        owners = [site for site in self._run.sites if made.own_aggregate_path(round_no, site).exists()]
        own = {site: store.own_aggregate_path(round_no, site) for site in owners}
        for site, path in own.items():
            self._take(made.own_aggregate_path(round_no, site), path, shared, question)
        aggregate = store.aggregate_path(round_no)
        self._take(made.aggregate_path(round_no), aggregate, shared, question)
        return {path: entry_of(path) for path in (*own.values(), aggregate)}

    def _take(
        self,
        made: Path,
        path: Path,
        listed: TensorList,
        question: Question[AnswerT],
        *,
        largest: float = LARGEST,
    ) -> None:
        """Put a file that a child has made in its place, if it holds just these tensors.

        Raises:
            PluginError: it does not.
        """
        try:
            check_tensors(made, listed, path.name, largest=largest)
        except (RejectedError, FileNotFoundError) as error:
            what = error.reason if isinstance(error, RejectedError) else "is missing"
            raise PluginError(f"{self._named(question)}: what it made cannot be taken, {path.name} {what}") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(made, path)

    def _require_share(self, score: float, question: Question[AnswerT]) -> None:
        if not 0 <= score <= 1:
            raise PluginError(f"{self._named(question)}: came to the score {score}, which is none from 0 to 1")

    def _require_verdicts(self, verdicts: Mapping[str, Verdict], question: Decide) -> None:
        """Check that the verdicts are on just the sites that were asked, and agree with the checks and the weights.

        Raises:
            PluginError: they are others.
        """
        weights = [each.share for each in verdicts.values()]
        is_weighed = not any(weights) or abs(math.fsum(weights) - 1) <= 1e-6
        if verdicts.keys() != question.checked.keys() or not is_weighed:
            raise PluginError(f"{self._named(question)}: came to other verdicts than one on each site that was asked")
        for site, each in verdicts.items():
            checked = question.checked[site]
            said = (checked.score, checked.theta, checked.epsilon) if checked else (None, None, None)
            is_of_site = (each.run, each.round, each.site) == (self._run.run, question.round_no, site)
            late = question.late.get(site) if checked is None and each.late else None
            is_late = each.late is None or (late is not None and each.late.update == late.update)
            counted = late.scored if late else checked
            may_count = counted is not None and passes(counted, self._run, question.round_no, question.limit)
            told = (each.score, each.theta, each.epsilon)
            if not is_of_site or said != told or not is_late or (each.share and not may_count):
                raise PluginError(f"{self._named(question)}: came to another verdict on {site} than its check allows")


def _sound(closed: ClosedRound) -> list[str]:
    """Return the sites whose answer, of this round or late, passed its check."""
    late = ((site, each.scored) for site, each in closed.late.items() if closed.checked[site] is None)
    found = [*closed.checked.items(), *late]
    return [site for site, each in found if each and not each.reason]


class UntilStopped:
    """The work of a run with plug-ins. Once the PI has asked to stop the run, what a plug-in cannot do holds it up no
    more: no answer counts with which that would have been done.
    """

    def __init__(self, apart: Apart, begun: Begun, store: RunStore) -> None:
        self._apart = apart
        self._run = begun.run
        self._store = store

    def check(self, message: Message, site: str, home: Path, images: int, *, counts_in: int | None = None) -> Scored:
        """See ``ModelWork``."""
        try:
            return self._apart.check(message, site, home, images, counts_in=counts_in)
        except PluginError as error:
            return self._not_counted(error)

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """See ``ModelWork``."""
        try:
            return self._apart.limit(aggregate, tolerance)
        except PluginError as error:
            self._raise_unless_stopped(error)
            return 1.0  # which no score exceeds

    def verdicts(self, closed: ClosedRound) -> dict[str, Verdict]:
        """See ``ModelWork``."""
        try:
            return self._apart.verdicts(closed)
        except PluginError as error:
            none = self._not_counted(error)
            checked = {site: none if each and not each.reason else each for site, each in closed.checked.items()}
            return decide(self._run, replace(closed, checked=checked, late={}), None)

    def combine(
        self, round_no: int, verdicts: Mapping[str, Verdict], update: Callable[[str], Update]
    ) -> dict[Path, FileEntry]:
        """See ``ModelWork``."""
        try:
            return self._apart.combine(round_no, verdicts, update)
        except PluginError as error:
            self._raise_unless_stopped(error)
            self._apart.leave(round_no)
            raise OverflowError(str(error)) from error

    def _not_counted(self, error: PluginError) -> Scored:
        self._raise_unless_stopped(error)
        return Scored.refused(str(error))

    def _raise_unless_stopped(self, error: PluginError) -> None:
        if not self._store.stop_requested:
            raise error


# --- apart: what a child does ------------------------------------------------------------------------------------


class Made(RunFiles):
    """A run's files, of which those that a round makes lie in a folder of their own."""

    def __init__(self, store: RunStore, round_no: int, folder: Path) -> None:
        super().__init__(store.home, store.run)
        self.folder = folder
        self._store = store
        self._round_no = round_no

    def configuration(self) -> RunConfiguration:
        """See ``RunFiles``."""
        return self._store.configuration()

    def sharing(self) -> Sharing:
        """See ``RunFiles``."""
        return self._store.sharing()

    def agreed(self, round_no: int) -> int:
        """See ``RunFiles``."""
        return self._store.agreed(round_no)

    @property
    def start(self) -> Path:
        """See ``RunFiles``."""
        return self._store.start if self._round_no else self.folder / names.START

    def update_path(self, round_no: int, site: str) -> Path:
        """See ``RunFiles``; of the round before, too, where an answer comes late."""
        return self.folder / "answers" / site / names.SITE_MODEL

    def _round(self, round_no: int) -> Path:
        return self.folder if round_no == self._round_no else super()._round(round_no)


class RunHere(Record):
    """Where a run's work is done."""

    work: Path
    configuration: AggregatorConfiguration
    run: RunConfiguration

    def learning(self) -> Learning:
        """Return what the run is computed with."""
        return open_learning(self.work, self.configuration, self.run)

    def making(self, round_no: int, folder: Path) -> Made:
        """Return the run's files, of which a round's are made in a folder."""
        return Made(RunStore(self.work, self.run.run), round_no, folder)


class First(Question[None]):
    """Make the first global model."""

    here: RunHere
    made: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return "making the first model"

    def answer(self, on_progress: Progress) -> None:
        """See ``Question``."""
        learning = self.here.learning()
        Aggregation(self.here.making(0, self.made), learning.method, learning.groups()).begin(learning.model)


class Check(Question[Scored]):
    """What does the check of an answer give?"""

    here: RunHere
    message: Message
    site: Name
    home: Path
    images: int
    counts_in: int | None
    made: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"checking {self.site}'s answer of round {self.message.ref.round_no}"

    def answer(self, on_progress: Progress) -> Scored:
        """See ``Question``."""
        learning, ref = self.here.learning(), self.message.ref
        made = self.here.making(self.counts_in or ref.round_no, self.made)
        aggregation = Aggregation(made, learning.method, learning.groups())
        engine = RoundEngine(made, learning.method, aggregation)
        scored = engine.check(
            self.message,
            self.site,
            self.home.joinpath,
            score=learning.heldout.score,
            images=self.images,
            counts_in=self.counts_in,
        )
        if scored.reason and ref.round_no <= self.here.run.rounds:
            self._try_without(learning, aggregation, ref)
        return scored

    def _try_without(self, learning: Learning, aggregation: Aggregation, ref: MessageRef) -> None:
        """Check an answer that moves nothing in the same way: what is raised then is not the site's doing."""
        still = _still(self.here.making(ref.round_no, self.made), learning.division, ref.round_no, self.images)
        learning.heldout.score(still.files[MODEL], "the model that the site received")
        with suppress(RejectedError):  # that it refuses an answer is no failure of it
            aggregation.require_plausible(ref, self.site, still.files, self.images)


class LimitBelow(Question[float]):
    """What must a score exceed, where the sites had received this aggregate?"""

    here: RunHere
    aggregate: Path
    tolerance: BelowLast

    @property
    def step(self) -> str:
        """See ``Question``."""
        return "scoring the last aggregate on the held-out images"

    def answer(self, on_progress: Progress) -> float:
        """See ``Question``."""
        return self.here.learning().heldout.limit(self.aggregate, self.tolerance)


class Decide(Question[dict[Name, Verdict]]):
    """What becomes of a round's answers?

    Args:
        updates: those that passed their checks.
    """

    here: RunHere
    round_no: int
    checked: dict[Name, Scored | None]
    limit: float | None
    updates: dict[Name, Update]
    withdrawn: list[Name]
    late: dict[Name, Late]
    made: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"weighing the answers of round {self.round_no}"

    def answer(self, on_progress: Progress) -> dict[str, Verdict]:
        """See ``Question``."""
        learning = self.here.learning()
        made = self.here.making(self.round_no, self.made)
        aggregation = Aggregation(made, learning.method, learning.groups())
        engine, update = RoundEngine(made, learning.method, aggregation), self.updates.__getitem__
        closed = ClosedRound(self.round_no, self.checked, self.limit, update, self.withdrawn, self.late)
        closed = engine.without_spoilers(closed)
        beside = self.here.making(self.round_no, self.made / "still")
        try_still_if_none_counts(beside, learning.method, learning.groups(), closed, self.updates)
        return engine.decide(closed)


class Combine(Question[None]):
    """Make the next global model. That it would not be finite, though it was tried out, is the plug-in's doing."""

    here: RunHere
    round_no: int
    weights: dict[Name, float]
    updates: dict[Name, Update]
    made: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"combining the models of round {self.round_no}"

    def answer(self, on_progress: Progress) -> None:
        """See ``Question``."""
        learning = self.here.learning()
        aggregation = Aggregation(self.here.making(self.round_no, self.made), learning.method, learning.groups())
        aggregation.aggregate(self.round_no, self.updates, self.weights)


def try_still_if_none_counts(
    made: Made, method: Method, groups: Groups, closed: ClosedRound, updates: Mapping[str, Update]
) -> None:
    """Do with answers that move nothing what cannot be done with a round's: what is raised then is no site's doing.

    Args:
        made: where that lies.
        closed: as ``RoundEngine.without_spoilers`` gave it; if one of the answers counts by that, nothing is done.
        updates: those that passed their checks.
    """
    round_no = closed.round_no
    if not all(each.reason for site, each in closed.checked.items() if each and site in updates):
        return
    aggregation = Aggregation(made, method, groups)
    for site, given in updates.items():
        still = {site: _still(made, made.sharing(), round_no, given.images, given.theta)}
        with suppress(RejectedError):  # that it refuses an answer is no failure of it
            aggregation.settle(round_no, still)
        if round_no <= made.configuration().rounds:
            with suppress(RejectedError):
                aggregation.try_out(round_no, still)


def _still(made: Made, division: Sharing, round_no: int, images: int, theta: float | None = None) -> Update:
    """Return an answer that moves nothing: the model as it was sent, and zeros beside it."""
    files = {MODEL: made.aggregate_path(round_no - 1)}
    for group, listed in division.groups("update").items():
        files[group] = made.folder / f"still-{names.state_file(group)}"
        write_zeros(files[group], TensorList(tensors=listed))
    return Update(files, images, theta)
