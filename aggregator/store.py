"""What the aggregator remembers of one run: files in its work directory, nothing else.

    runs/RUN/run.yaml  tensors.yaml  [start.safetensors]     what was offered, byte for byte
    runs/RUN/told-by-code.json                what of the run only its task's and its method's code tell
    runs/RUN/rounds/0000/aggregate.safetensors       the first global model
    runs/RUN/rounds/0007/opened.json          who was asked to take part, and who could have been
    runs/RUN/rounds/0007/limit.json           what a score must exceed, where that follows from the last aggregate
    runs/RUN/rounds/0007/scores/SITE.json     a site's score, or why its answer is refused
    runs/RUN/rounds/0007/closed.json          every participant's verdict
    runs/RUN/rounds/0007/aggregate.safetensors       the next global model
    runs/RUN/rounds/0007/own/SITE.safetensors        the next global model of one site, where each has its own
    runs/RUN/rounds/0007/state-GROUP.safetensors     what a method has beside the model
    runs/RUN/rounds/0007/settled-GROUP.safetensors   what goes with the aggregate of round 6, should it be chosen
    runs/RUN/rounds/0007/sent/all.safetensors        what the round sends, if its form is not the plain one, or
    runs/RUN/rounds/0007/sent/SITE.safetensors       sends to one site alone; gone with the round's end
    runs/RUN/rounds/0007/answers/SITE/model.safetensors      a site's model in the plain form, likewise
    runs/RUN/rounds/0007/late/SITE.safetensors       a site's model of round 6 as it counts here, likewise
    runs/RUN/ciphertext/0.safetensors         what goes to several sites encrypted, while they are sent it
    runs/RUN/made/                            what a plug-in's process makes, until it has been checked
    runs/RUN/trouble.txt                      what a plug-in does wrong; gone once it works
    runs/RUN/waited.json                      seconds waited in the present stage
    runs/RUN/queued                           `launch` plays the run when those before it have ended; gone once it has
    runs/RUN/pause                            the PI paused the run; gone once it goes on
    runs/RUN/stop                             the PI asked to stop
    runs/RUN/final/card.json                  which aggregate was chosen; its presence ends the run
    runs/RUN/aborted.txt                      why the run ended without ever starting

A step is done when its file is there. The sites' own models and tables lie in the mirrors of their folders
(``sites/SITE/mirror``), where they stay.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from shared.doors.json_text import canonical
from shared.doors.numbers import finite
from shared.doors.schema import AnyRecord
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef, Name
from shared.exchange.order import Exchange, consent_of
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.answers import Abort, Withdrawal
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.values import Count, Record, ShareText, decimal_text, sentence
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.trust import open_record
from shared.exchange.weights import TensorFile, write_tensors
from shared.folder.durable import sync_folder, write_file
from shared.folder.lock import is_at_work
from shared.learning.run_files import RunFiles, Scored
from shared.trouble import held_against

MOST_NAMED = 3  # settings that differ
_TOLD = "told-by-code.json"
_WAITED = "waited.json"
_TURN = "turn.txt"
"""Name of the file in a work directory that names the run which was launched last."""


class ToldByCode(Record):
    """``told-by-code.json``: what a run's task and method tell of it, for who reads or ends it without their plug-ins.

    Args:
        score_name: the column of ``metrics.csv`` by which the final model will be chosen.
        in_turn: whether sites are asked in turn: then the newest aggregate is chosen.
        at_aggregator: the tensors that the method keeps here beside the model, by group.
    """

    score_name: str
    in_turn: bool
    at_aggregator: dict[Name, TensorList]


class Asking(Record):
    """Sites asked at one time, and all that were available then; the run's seed puts those in order."""

    asked: list[Name]
    available: list[Name]


class Opened(Record):
    """``opened.json``: who was asked when the round was opened, then who was asked besides."""

    askings: list[Asking]


class Limit(Record):
    """``limit.json``: what a site's score must exceed in a round."""

    tolerance: ShareText


class Closed(Record):
    """``closed.json``."""

    verdicts: dict[Name, Verdict]


class Waited(Record):
    """``waited.json``: whole seconds waited so far in a stage (round number, 0 for consent)."""

    round: Count
    seconds: Count


class RunStore(RunFiles):
    """One run's files below ``work``."""

    def __init__(self, work: Path, run: str) -> None:
        super().__init__(work / "runs" / run, run)
        self._work = work
        self._card, self._aborted = self.home / "final" / names.CARD, self.home / "aborted.txt"
        self._trouble, self._ciphertexts = self.home / "trouble.txt", self.home / "ciphertext"

    @property
    def goes_on_by(self) -> str:
        """The command that goes on with the run as it was begun, whatever became of the file that it was begun by."""
        return f"`dropfed-aggregator launch {quoted(self.home / names.RUN_CONFIGURATION)} --work {quoted(self._work)}`"

    @property
    def taken_back_by(self) -> str:
        """The command that takes the run out of the queue."""
        return f"`dropfed-aggregator stop {self.run} --work {quoted(self._work)}`"

    # --- what was offered ----------------------------------------------------------------------------------

    def begin(self, configuration: RunConfiguration, sharing: Sharing, told: ToldByCode | None = None) -> None:
        """Fix the run's configuration.

        Args:
            told: a run that an older version began without it gets it by the next call.

        Raises:
            ConfigurationError: a run of this name was begun with another one, or what is kept of it is damaged.
        """
        self.require_same(configuration, sharing)
        if not (self.home / names.RUN_CONFIGURATION).exists():
            write_file(self.home / "begun", str(time.time()).encode())
        if told is not None and not (self.home / _TOLD).exists():
            self._write(self.home / _TOLD, told)
        for name, record in _offered(configuration, sharing).items():
            if not (path := self.home / name).exists():
                write_file(path, dump_yaml(record))

    def told_by_code(self) -> ToldByCode | None:
        """Return what the run's task and method told of it; None of a run that an older version began.

        Raises:
            ActionRequiredError: its file is damaged.
        """
        return self._read(
            self.home / _TOLD,
            ToldByCode,
            "put it back from a backup, or remove it, and launch the run with its plug-ins",
        )

    @property
    def begun_at(self) -> float:
        """When the run was begun, in seconds: as written then, for a copied directory has times of its own."""
        try:
            return finite((self.home / "begun").read_bytes().decode())
        except (OSError, ValueError):  # begun by a version that did not write it
            return (self.home / names.RUN_CONFIGURATION).stat().st_mtime

    def was_begun_as(self, configuration: RunConfiguration) -> bool:
        """Return whether the run was begun with just this configuration, also by a version in which a run said less."""
        path = self.home / names.RUN_CONFIGURATION
        return path.exists() and path.read_bytes() == dump_yaml(configuration)

    def begun(self) -> RunConfiguration | None:
        """Return the configuration that the run was begun with; None if it was not.

        Raises:
            ConfigurationError: its file is damaged.
        """
        return self.configuration() if (self.home / names.RUN_CONFIGURATION).exists() else None

    def require_same(self, configuration: RunConfiguration, sharing: Sharing) -> None:
        """Check that the run, if it was begun at all, was begun with this configuration; nothing is written.

        Raises:
            ConfigurationError: as ``begin``.
        """
        for name, record in reversed(_offered(configuration, sharing).items()):
            path = self.home / name
            if path.exists() and path.read_bytes() != dump_yaml(record):
                begun = self._begun(name, type(record))
                differ = [key for key, value in begun if value != getattr(record, key)]
                more = f" and {len(differ) - MOST_NAMED} more" if len(differ) > MOST_NAMED else ""
                which = f" ({', '.join(differ[:MOST_NAMED])}{more})" if differ else ""
                if self.waits_in_queue:
                    remedy = f"take that back with {self.taken_back_by}, and give the new run a new name"
                else:
                    remedy = f"give the new run a new name, or go on with this one as it was begun: {self.goes_on_by}"
                raise ConfigurationError(
                    [
                        f"run {self.run} {'is queued' if self.waits_in_queue else 'was begun'} with another "
                        f"configuration{which}, which is in {path}: {remedy}"
                    ]
                )

    def configuration(self) -> RunConfiguration:
        """Return the run's configuration as offered."""
        return self._begun(names.RUN_CONFIGURATION, RunConfiguration)

    def sharing(self) -> Sharing:
        """Return what travels in this run and what stays."""
        return self._begun(names.TENSORS, Sharing)

    def _begun(self, name: str, kind: type[AnyRecord]) -> AnyRecord:
        path = self.home / name
        try:
            return parse_yaml(path.read_bytes(), kind, str(path))
        except ConfigurationError as error:
            raise ConfigurationError(
                [f"{error.problems[0]}: the file is damaged; put it back from {self._kept_too}"]
            ) from None

    @property
    def _kept_too(self) -> str:
        """Where what was offered lies besides, once it was."""
        return f"a backup or from sites/SITE/mirror/{MessageRef('offer', self.run).path}, which has it too"

    def offer_files(self, configuration: RunConfiguration, sharing: Sharing) -> dict[str, bytes | Path]:
        """Return the payloads of the offer.

        Raises:
            ConfigurationError: what is kept of the run is not this any more.
        """
        files: dict[str, bytes | Path] = {}
        for name, record in _offered(configuration, sharing).items():
            path, content = self.home / name, dump_yaml(record)
            if not path.exists() or path.read_bytes() != content:
                raise ConfigurationError(
                    [f"{path}: is missing, or was changed since the run began; put it back from {self._kept_too}"]
                )
            files[name] = content
        if not sharing.from_file:
            return files | ({names.START: self.start} if self.start.exists() else {})
        path, offered = self.home / "offered-start.safetensors", sharing.offered
        if offered.tensors and not path.exists():
            write_tensors(path, offered, TensorFile(self.start).tensor)
        return files | ({names.START: path} if offered.tensors else {})

    # --- rounds --------------------------------------------------------------------------------------------

    @property
    def round_no(self) -> int:
        """The newest opened round; 0 before the first."""
        opened = (path.parent.name for path in self.home.glob("rounds/[0-9][0-9][0-9][0-9]/opened.json"))
        return max((int(name) for name in opened), default=0)

    def prune_aggregates(self, kept: Collection[int]) -> None:
        """Remove the aggregates of all rounds but these, and what goes with them; the first one, 0, always stays."""
        for round_no in range(1, self.round_no + 1):
            if round_no not in kept:
                self.aggregate_path(round_no).unlink(missing_ok=True)
                shutil.rmtree(self._round(round_no) / "own", ignore_errors=True)
                for path in self._round(round_no).glob(names.state_file("*")):
                    path.unlink(missing_ok=True)

    def ask(self, round_no: int, participants: tuple[str, ...], available: tuple[str, ...]) -> None:
        """Fix who takes part in a round, or who does besides; the first time opens the round."""
        asking = Asking(asked=list(participants), available=list(available))
        self._write(self._opened(round_no), Opened(askings=[*self._askings(round_no), asking]))

    def agreed(self, round_no: int) -> int:
        """Return how many sites had agreed to the run when somebody was last asked in a round; withdrawn ones count."""
        rounds = range(1, round_no + 1)
        return len({site for number in rounds for asking in self._askings(number) for site in asking.available})

    def participants(self, round_no: int) -> tuple[str, ...]:
        """Return the sites that take part in an opened round."""
        return tuple(site for asking in self._askings(round_no) for site in asking.asked)

    def _opened(self, round_no: int) -> Path:
        return self._round(round_no) / "opened.json"

    def _askings(self, round_no: int) -> list[Asking]:
        opened = self._read(self._opened(round_no), Opened)
        return opened.askings if opened else []

    def sent_path(self, round_no: int, site: str | None) -> Path:
        """Return the global model, or that of one site alone, in the form in which a round sends it."""
        return self._round(round_no) / "sent" / f"{site or 'all'}{names.WEIGHTS_SUFFIX}"

    def clear_round(self, round_no: int) -> None:
        """Remove what stands in other files in another form, once the round needs it no more, nor of the one before
        what came late.
        """
        for number, folder in (
            (round_no, "sent"),
            (round_no, "answers"),
            (round_no, "late"),
            (round_no - 1, "answers"),
        ):
            shutil.rmtree(self._round(number) / folder, ignore_errors=True)

    def ciphertext_path(self, number: int) -> Path:
        """Return where a file that goes to several sites lies encrypted."""
        return self._ciphertexts / f"{number}{names.WEIGHTS_SUFFIX}"

    def clear_ciphertexts(self) -> None:
        """Remove the run's encrypted files; what is on its way to a site lies with the site's files too."""
        shutil.rmtree(self._ciphertexts, ignore_errors=True)

    def write_limit(self, round_no: int, limit: float) -> None:
        """Record what a score must exceed in a round."""
        self._write(self._limit(round_no), Limit(tolerance=decimal_text(limit)))

    def limit(self, round_no: int) -> float | None:
        """Return what a score must exceed in a round, or None if that was not measured yet."""
        limit = self._read(self._limit(round_no), Limit)
        return finite(limit.tolerance) if limit else None

    def _limit(self, round_no: int) -> Path:
        return self._round(round_no) / "limit.json"

    def write_score(self, round_no: int, site: str, scored: Scored) -> None:
        """Record what the check of a site's answer gave."""
        self._write(self._round(round_no) / "scores" / f"{site}.json", scored)

    def score(self, round_no: int, site: str) -> Scored | None:
        """Return what the check of a site's answer gave, or None if it was not checked yet."""
        return self._read(self._round(round_no) / "scores" / f"{site}.json", Scored)

    def close_round(self, round_no: int, verdicts: dict[str, Verdict]) -> None:
        """Fix the verdicts."""
        self._write(self._round(round_no) / "closed.json", Closed(verdicts=verdicts))

    def verdicts(self, round_no: int) -> dict[str, Verdict] | None:
        """Return the verdicts of a closed round, or None while it is open."""
        closed = self._read(self._round(round_no) / "closed.json", Closed)
        return closed.verdicts if closed else None

    def has_aggregate(self, round_no: int) -> bool:
        """Return whether the models of a round are combined."""
        return self.aggregate_path(round_no).exists()

    # --- waiting and ending --------------------------------------------------------------------------------

    def waited_s(self, round_no: int) -> int:
        """Return the recorded seconds waited so far in a stage."""
        remedy = "remove it, and the time until the deadline begins anew"
        waited = self._read(self.home / _WAITED, Waited, remedy)
        return waited.seconds if waited and waited.round == round_no else 0

    def write_waited(self, round_no: int, seconds: float) -> None:
        """Record the waiting, so that a restart resumes the deadline."""
        self._write(self.home / _WAITED, Waited(round=round_no, seconds=int(seconds)))

    def note_trouble(self, text: str) -> None:
        """Record what a plug-in does wrong; empty once it works."""
        if text:
            write_file(self._trouble, text.encode())
        else:
            self._trouble.unlink(missing_ok=True)

    @property
    def trouble(self) -> str:
        """What a plug-in does wrong; empty if nothing."""
        try:
            return self._trouble.read_text("utf-8", errors="replace")
        except FileNotFoundError:  # also where it ends just now
            return ""

    def queue(self) -> None:
        """Have a run that is begun wait for its turn; one that does keeps its place."""
        if not self.is_queued:
            last = max(store.place_in_queue for store in runs_in(self._work))
            write_file(self.home / "queued", str(last + 1).encode())

    def unqueue(self) -> None:
        """Have `launch` play the run no more unless it is named."""
        (self.home / "queued").unlink(missing_ok=True)

    @property
    def is_queued(self) -> bool:
        """Whether `launch` plays the run when those before it have ended."""
        return (self.home / "queued").exists()

    @property
    def waits_in_queue(self) -> bool:
        """Whether the run is queued, and no `launch` has come to it yet."""
        return self.is_queued and not self.round_no and last_launched(self._work) != self.run

    @property
    def place_in_queue(self) -> int:
        """Its place in the order of those that were queued, from 1; 0 if it is not."""
        with suppress(FileNotFoundError):  # another command took it back just now
            said = (self.home / "queued").read_text("ascii", errors="replace")
            return int(said) if re.fullmatch("[0-9]{1,9}", said) else 0  # of an older version it is empty
        return 0

    def pause(self) -> None:
        """Have the daemon ask nobody new until ``resume``."""
        write_file(self.home / "pause", b"")

    def resume(self) -> None:
        """Have the daemon go on."""
        (self.home / "pause").unlink(missing_ok=True)
        sync_folder(self.home)

    @property
    def paused(self) -> bool:
        """Whether the PI paused the run."""
        return (self.home / "pause").exists()

    def request_stop(self) -> None:
        """Ask the daemon to close the run."""
        write_file(self.home / "stop", b"")

    @property
    def stop_requested(self) -> bool:
        """Whether the PI asked to stop."""
        return (self.home / "stop").exists()

    def final_files(self, site: str) -> dict[str, bytes | Path]:
        """Return the payloads of a site's final message."""
        card = self.card()
        if card is None:
            raise ValueError("no model is chosen yet")
        model = self.own_aggregate_path(card.chosen_round, site)
        files: dict[str, bytes | Path] = {
            names.CARD: self._card.read_bytes(),
            names.FINAL_MODEL: model if model.exists() else self.final_model,
        }
        for group in self.sharing().with_final:
            files[names.state_file(group)] = self.settled_path(card.chosen_round + 1, group)
        return files

    def write_card(self, card: FinalCard) -> None:
        """Fix the choice; the model must be in place already."""
        self._write(self._card, card)

    def card(self) -> FinalCard | None:
        """Return the choice, or None while the run goes on."""
        return self._read(self._card, FinalCard)

    def abort(self, reason: str) -> None:
        """Record why the run ends without having started."""
        write_file(self._aborted, reason.encode())

    def aborted(self) -> str | None:
        """Return why the run ended without having started, or None."""
        path = self._aborted
        return path.read_text("utf-8", errors="replace") if path.exists() else None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or will never start; its sites may still have to be told."""
        return self.card() is not None or self.aborted() is not None

    def abort_files(self) -> dict[str, bytes | Path]:
        """Return the payloads of the message to a site that gets no final model."""
        reason = self.aborted() or "the run has ended, and by then no answer of this site to the offer had come"
        return {names.ABORT: canonical(Abort(run=self.run, reason=sentence(reason)).model_dump())}

    @property
    def stage_began(self) -> float:
        """When the final model was chosen, else the newest round opened, else the run begun: seconds since 1970."""
        stages = (self._card, self._opened(self.round_no), self.home / names.RUN_CONFIGURATION)
        return next(stage for stage in stages if stage.exists()).stat().st_mtime

    def marks(self) -> dict[str, int]:
        """Return, by path, when each small file of the run was written, and of the turn if the run goes on: every
        decision changes it. How long was waited is none.
        """
        is_over = self._card.exists() or self._aborted.exists()
        marks, of_turn = {}, () if is_over else (self._work / _TURN,)
        for path in (*self.home.glob("*"), *self.home.glob("rounds/*/*.json"), self._card, *of_turn):
            with suppress(FileNotFoundError):
                if path.name != _WAITED and path.is_file():
                    marks[str(path)] = path.stat().st_mtime_ns
        return marks

    # --- files ---------------------------------------------------------------------------------------------

    def _write(self, path: Path, record: Record) -> None:
        write_file(path, canonical(record.model_dump()))

    def _read(self, path: Path, kind: type[AnyRecord], remedy: str = "put it back from a backup") -> AnyRecord | None:
        try:
            return open_record(path.read_bytes(), kind, str(path)) if path.exists() else None
        except RejectedError as error:
            raise ActionRequiredError(f"{error}: the file is damaged; {remedy}") from None


def _offered(configuration: RunConfiguration, sharing: Sharing) -> dict[str, Record]:
    """Return what of an offer is settings, by file; the run's own, whose presence says that it was begun, last."""
    return {names.TENSORS: sharing, names.RUN_CONFIGURATION: configuration}


def runs_in(work: Path) -> list[RunStore]:
    """Return every run begun in a work directory, oldest first."""
    begun = [path.parent.name for path in work.glob(f"runs/*/{names.RUN_CONFIGURATION}")]
    stores = [RunStore(work, run) for run in begun if re.fullmatch(names.NAME_PATTERN, run)]
    return sorted(stores, key=lambda store: store.begun_at)


def configurations_of(work: Path, task: str) -> Iterator[RunConfiguration]:
    """Yield the runs of a task, newest first; one that is damaged is left out."""
    for store in reversed(runs_in(work)):
        with suppress(DropfedError):
            if (run := store.configuration()).task == task:
                yield run


def open_runs(work: Path) -> list[RunStore]:
    """Return the runs begun in a work directory that have not ended."""
    return [store for store in runs_in(work) if not store.is_over]


def queued_runs(work: Path) -> list[RunStore]:
    """Return the runs that `launch` plays without being told their names, in their order; one may have ended, and its
    sites are not all told yet.
    """
    return sorted((store for store in runs_in(work) if store.is_queued), key=lambda store: store.place_in_queue)


def take_turn(work: Path, run: str) -> None:
    """Note whose turn it is."""
    write_file(work / _TURN, run.encode())


def last_launched(work: Path) -> str | None:
    """Return the run that `launch` came to last, as it was noted; None if it never came to any."""
    try:
        return (work / _TURN).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None


def run_in_turn(work: Path) -> RunStore | None:
    """Return the run whose turn it is, or was last; None if none was begun.

    While a daemon is at work it is the one that was launched last, also where that has ended and its sites are still to
    be told. Else, of runs that are open, one alone has rounds; before that it is the one that was launched last, or
    else that was begun first; of runs that have ended it is the one that was launched last.
    """
    begun, still_open, launched = runs_in(work), open_runs(work), last_launched(work)
    by_launch = [store for store in begun if store.run == launched]
    at_work = by_launch if is_at_work(work) else []
    by_turn = [store for store in still_open if store.round_no]
    by_turn += [store for store in still_open if store.run == launched]
    return next(iter([*at_work, *by_turn, *still_open, *by_launch, *begun[-1:]]), None)


def if_another_launch(work: Path) -> str:
    """Return what to say to a second launch where a daemon works."""
    in_turn = run_in_turn(work)
    if in_turn is None or in_turn.is_over:
        return "another daemon works in this directory; nothing was begun; wait for it to end, or stop it first"
    run = in_turn.run
    return (
        f"another daemon works in this directory; run {run} goes on there, and nothing was begun: watch it by "
        f"`dropfed-aggregator status --work {quoted(work)}`, and "
        f"have yours follow it by `dropfed-aggregator queue RUN.yaml --work {quoted(work)}`, or end it for good by "
        f"`dropfed-aggregator stop {run} --work {quoted(work)}`"
    )


def withdrawal_of(ledger: Exchange, run: str) -> str | None:
    """Return why a site withdrew from a run, or None; a withdrawal that is refused or ill-formed counts all the same.

    Raises:
        ActionRequiredError: it is not as it was accepted.
    """
    ref = MessageRef("withdrawal", run)
    if (refusal := ledger.refusal(ref)) is not None:
        return sentence(refusal)
    if ledger.message(ref) is None:
        return None
    try:
        with held_against(ref.path):
            return ledger.record(ref, Withdrawal).reason or "it gave no reason"
    except RejectedError as error:
        return sentence(str(error))


def training_images(ledger: Mirror, run: str) -> int:
    """Return how many images a site that agreed said it trains on."""
    consent = consent_of(ledger, run)
    if consent is None or not consent.agrees:
        raise ValueError("a site that did not agree trains on nothing")
    return consent.training_images
