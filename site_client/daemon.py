"""The site daemon: reads the facts, lets ``rounds.decide`` say what to do (protocol 6.4), does it, waits."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from shared import service
from shared.errors import ActionRequiredError, DoubtfulError, DropfedError, RejectedError, Stopped
from shared.escaping import quoted
from shared.exchange.channel import Channel
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.order import consent_of, ending_of
from shared.exchange.records.answers import Consent
from shared.exchange.records.messages import Phase
from shared.exchange.records.values import sentence
from shared.exchange.trust import Peer
from shared.folder.contract import UNFINISHED, Folder
from shared.folder.forbearing import ForbearingFolder
from shared.folder.listed import HAS_TAG, ListedFolder
from shared.folder.meter import Direction
from shared.folder.retrying import RetryingFolder
from shared.folder.stopping import cut_after
from shared.learning import standby
from shared.learning.apart import clear_questions
from shared.learning.tasks.contract import Dataset
from shared.polling import Polling
from shared.trouble import Trouble
from site_client import rounds, store
from site_client.arrivals import Arrivals
from site_client.commitment import release
from site_client.configuration import SiteConfiguration, note_running
from site_client.consents import Consents
from site_client.enrolment import Enrolment
from site_client.facts import current, runs_going_on
from site_client.heartbeat import Heartbeat
from site_client.overview import what_it_waits_for
from site_client.rotation import own_key
from site_client.round_work import RoundWork
from site_client.survey_work import SurveyWork
from site_client.trouble import as_trouble

logger = logging.getLogger(__name__)


class Turn(Enum):
    """What one turn of the daemon came to."""

    ACTED = auto()
    """Something was done: decide again."""
    LOOKED = auto()
    """A look found nothing new: decide again, knowing that."""
    IDLE = auto()
    """There is nothing to do now, or trouble: wait."""


class Daemon:
    """One hospital's end of the federation.

    Args:
        stop: set from outside to stop cleanly; the next start goes on.
        give_up_after_s: None tries for ever; otherwise trouble that lasts longer ends the daemon.
    """

    def __init__(
        self,
        work: Path,
        configuration: SiteConfiguration,
        folder: Folder,
        *,
        stop: threading.Event,
        give_up_after_s: float | None = None,
    ) -> None:
        self._work = work
        self._configuration = configuration
        self._stop = stop
        key = own_key(work)
        folder = ForbearingFolder(folder)
        self._heartbeat = Heartbeat(work, configuration, folder, key)
        retrying = RetryingFolder(
            folder,
            name="the folder",
            stop=stop,
            on_trouble=self._heartbeat.note_trouble,
            give_up_after_s=give_up_after_s,
        )
        self._folder = ListedFolder(retrying, has_tag=(work / HAS_TAG).exists())
        peer = Peer(configuration.federation, configuration.site, AGGREGATOR, configuration.aggregator_key)
        self._channel = channel = Channel(
            work,
            self._folder,
            me=configuration.site,
            key=key,
            peer=peer,
            encryption_key=EncryptionKey.found_at(work / ENCRYPTION_KEY_FILE),
        )
        self._ledger, self._outbox = channel.ledger, channel.outbox
        self._receiving: str | None = None  # the run that a message is fetched of
        self._arrivals = Arrivals(self._folder, channel, self._begin_receiving)
        self._enrolment = Enrolment(work, configuration, self._folder, channel, self._arrivals)
        self._round_work = RoundWork(work, configuration, channel, self._heartbeat, stop)
        self._consents = Consents(work, configuration, channel.ledger, self._round_work)
        at_once = ListedFolder(folder)  # what stands in a survey's way is not waited out: it would hold up the runs
        self._surveys = SurveyWork(work, configuration, at_once, channel=channel, key=key, stop=stop)
        self._trouble = Trouble(logger, configuration.site, "goes on.")
        self._stray: DropfedError | None = None  # what the last look has found that is not as it must be

    def run(self, *, once: bool = False) -> None:
        """Work until asked to stop; with ``once``, until there is nothing to do.

        Raises:
            DropfedError: with ``once``, what stands in the way. What lies in the folder and may be anybody's does not.
        """
        polling = Polling(self._configuration.poll_seconds)
        note_running(self._work, self._configuration)
        clear_questions(self._work / store.SCRATCH)
        store.clear_scratch(self._work)  # both of a daemon that was killed: images, perhaps
        self._heartbeat.begin(self._channel)
        service.ready()
        waits = "" if self._enrolment.is_accepted else "; it waits for the aggregator, to accept this site's card"
        logger.info("site %s of %s started%s", self._configuration.site, self._configuration.federation, waits)
        with cut_after(self._stop, self._interrupt):
            with suppress(Stopped):
                if once:
                    self.step()
                    if not self._stop.is_set():
                        self._tell_rest(self._rest())
                turn = Turn.IDLE
                while not (once or self._stop.is_set()):
                    turn = self._take_turn(turn, must_succeed=False)
                    if turn is Turn.IDLE:
                        service.wait(self._stop, self._trouble.backoff_s(polling.interval_s(self._rest_and_follow())))
                    elif turn is Turn.ACTED:
                        polling.restart()
            service.stopping()
            with suppress(OSError):  # what cannot be written does not count, and is fetched anew
                self._channel.ledger.flush()
            with suppress(OSError, DropfedError):  # it ends, whatever keeps it from telling
                self._heartbeat.beat("stopped", self._channel, now=True)
        logger.info("stopped; the next start goes on from here")

    def step(self) -> bool:
        """Look for news, and do all there is to do now.

        Returns:
            Whether there was anything to do.

        Raises:
            DropfedError: what stands in the way.
        """
        self._heartbeat.require_only_copy()
        turn, has_acted = Turn.IDLE, False
        while not self._stop.is_set() and (turn := self._take_turn(turn, must_succeed=True)) is not Turn.IDLE:
            has_acted |= turn is Turn.ACTED
        if isinstance(self._stray, RejectedError) and not self._stop.is_set():
            raise self._stray
        return has_acted

    def permit(self, direction: Direction) -> None:
        """Ask, before each block of a large file, whether it is still wanted. What has moved so far is not lost.

        What is signed must be sent, because later messages build on it (protocol 3.2). So a withdrawal stops downloads
        only.

        Raises:
            Stopped: it is not.
        """
        self._round_work.go_on_or_stop(self._receiving if direction == "down" else None)

    def _interrupt(self) -> None:
        self._folder.interrupt()
        standby.interrupt()  # work with a plug-in's code

    def _begin_receiving(self, ref: MessageRef) -> None:
        self._receiving = ref.run
        self._heartbeat.beat("receiving", self._channel, ref)

    def _rest_and_follow(self) -> str | None:
        """Tell that there is nothing to do; return what kind of message the next one of the aggregator follows, which
        says how long it may take. A disk that does not even give that is reported as in a turn, and ends nothing.
        """
        try:
            self._tell_resting(self._rest_or_trouble())
            last = current(self._ledger)
        except Stopped:
            raise
        except Exception as error:
            self._trouble.begins(as_trouble(error, self._work))
            return None
        return last.ref.kind if last else None

    def _rest(self) -> Phase:
        """Return why there is nothing to do now."""
        if not store.is_paused(self._work):
            waits: Phase = "asked for consent" if self._waits_for_people else "waiting"
            return "outside hours" if self._is_kept_from_training() else waits
        if self._heartbeat.phase != "paused":
            resume = f"`dropfed-site resume --work {quoted(self._work)}`"
            logger.info("paused: nothing is read or answered, and only the heartbeat sent, until %s", resume)
        return "paused"

    @property
    def _waits_for_people(self) -> bool:
        return self._consents.left_to_people is not None or self._surveys.waits_for_people

    def _tell_resting(self, phase: Phase) -> None:
        """Send the heartbeat of a daemon that has nothing to do; a person is asked about another run than the last
        (protocol 4.2).
        """
        asked = self._consents.left_to_people if phase == "asked for consent" else None
        self._heartbeat.beat(phase, self._channel, MessageRef("offer", asked) if asked else None)

    def _rest_or_trouble(self) -> Phase:
        """Return the phase of ``_rest``, or of the trouble that keeps it from being known and was already reported."""
        try:
            return self._rest()
        except Exception:
            return "trouble"

    def _tell_rest(self, resting: Phase) -> None:
        """Log why a ``--once`` run ended."""
        if resting != "paused":  # which was told
            waits_for, _ = what_it_waits_for(self._work, self._configuration, self._ledger)
            logger.info("nothing more to do now; this site waits for %s", waits_for)

    def consent(self, run: str) -> Consent | None:
        """Return what this site answered to the offer of a run, or None."""
        return consent_of(self._ledger, run)

    def images(self, run: str) -> Dataset:
        """Return the hospital's images in the sets of a run that it agreed to."""
        return self._round_work.images(run)

    # --- facts ---------------------------------------------------------------------------------------------

    def _facts(self, before: Turn) -> rounds.SiteFacts:
        return rounds.SiteFacts(
            card_published=self._enrolment.has_published,
            enrolled=self._enrolment.is_accepted,
            paused=store.is_paused(self._work),
            may_train=not self._round_work.seconds_until_training(),
            unpublished=self._outbox.has_unpublished,
            runs=runs_going_on(self._ledger, self._round_work.wants_to_leave),
            unkept=self._round_work.unkept_final(),
            looked=before is Turn.LOOKED,
        )

    def _is_kept_from_training(self) -> bool:
        """Return whether there is a round to answer, and it is not the time for it."""
        facts = self._facts(Turn.LOOKED)
        at_its_time = rounds.decide(replace(facts, may_train=True))
        return not facts.may_train and isinstance(at_its_time, rounds.AnswerRound)

    # --- actions -------------------------------------------------------------------------------------------

    def _take_turn(self, before: Turn, *, must_succeed: bool) -> Turn:
        """Decide and do what is to be done now; what stands in the way is reported, and ends nothing.

        Args:
            before: what the turn before this one came to.
            must_succeed: raise what stands in the way instead.
        """
        service.alive()
        try:
            turn = self._act(rounds.decide(self._facts(before)))
        except Stopped as reason:
            if self._stop.is_set():
                raise
            logger.info("what was on its way is %s", reason)
            return Turn.ACTED
        except Exception as error:  # the last resort: whatever it is, this daemon lives
            trouble = as_trouble(error, self._work)
            if must_succeed:
                if trouble.__cause__ is error:  # nobody expected it
                    logger.error("%s", trouble, exc_info=error)
                raise trouble from None
            self._trouble.begins(trouble)
            with suppress(OSError, DropfedError):  # the log has it
                self._heartbeat.note_trouble(trouble)
            self._round_work.forget()  # what is mended meanwhile is read at the next try
            return Turn.IDLE
        if turn is Turn.ACTED:
            self._trouble.ends()
            if self._heartbeat.trouble != _told(self._stray):
                self._heartbeat.note_trouble(None)
        return turn

    def _act(self, action: rounds.Action) -> Turn:
        """Do an action."""
        match action:
            case rounds.PublishCard():
                self._folder.look_anew()
                self._enrolment.publish_card()
            case rounds.ReadFederation():
                return Turn.ACTED if self._enrolment.read_federation() else Turn.LOOKED
            case rounds.Publish():
                self._heartbeat.beat("sending", self._channel)
                self._outbox.publish()
                self._heartbeat.beat("waiting", self._channel)
            case rounds.Look():
                return self._look_for(action)
            case rounds.AnswerOffers(runs):
                if not self._consents.answer_first(runs):
                    return Turn.IDLE
            case rounds.Withdraw(run):
                self._consents.withdraw(run)
            case rounds.AnswerRound(run, round_no):
                self._round_work.answer_or_leave(MessageRef("round", run, round_no))
            case rounds.KeepFinal(run):
                self._round_work.keep_final(run)
            case rounds.Wait():
                return Turn.IDLE
        return Turn.ACTED

    def _look_for(self, look: rounds.Look) -> Turn:
        """Fetch the first of the messages that is there."""
        self._folder.look_anew()
        try:
            fetched, stray = self._arrivals.look(look), None
        except RejectedError as error:  # it holds up nothing that has come already (protocol 10.2)
            # But for a verdict of the aggregator's: it closes its round, so that is not trained (protocol 6.4).
            if not isinstance(error, DoubtfulError) and any(ref.kind == "verdict" for ref in look.refs):
                raise
            fetched, stray = None, as_trouble(error, self._work)
        if fetched is not None:
            self._note_end(fetched.run)
            return Turn.ACTED
        # Surveys are part of no run, and no run waits for them (protocol 5.1).
        awaits_more = bool(look.refs or look.later_than)
        if self._surveys.work() or (awaits_more and self._outbox.look_back()):
            return Turn.ACTED
        # A name that the server holds locked (protocol 2.2).
        if stray is None and (path := self._folder.held_up()) is not None:
            stray = ActionRequiredError(
                f"{path} has been waiting in the folder for its name, as {path}{UNFINISHED}: the aggregator is off, or "
                "the server holds that name locked; ask the aggregator's people"
            )
        self._note_stray(stray)
        return Turn.LOOKED

    def _note_stray(self, error: DropfedError | None) -> None:
        """Report what a look has found that is not as it must be, and once that it is over."""
        before, self._stray = self._stray, error
        if error is not None and str(error) != str(before):
            logger.log(logging.ERROR if isinstance(error, RejectedError) else logging.WARNING, "%s", error)
        if self._heartbeat.trouble in (None, _told(before)):
            self._heartbeat.note_trouble(error)

    def _note_end(self, run: str) -> None:
        """Take back what an aborted run does not use; have our people know of an end that they may not expect."""
        # How a run ended here (protocol 6.1), also where our withdrawal came too late (protocol 6.8).
        ended = ending_of(self._ledger, run)
        if ended == "aborted":
            release(self._work, self._ledger, run)
            logger.warning("run %s was aborted: %s", run, store.why_aborted(self._ledger, run))
        elif ended == "finished" and self._round_work.wants_to_leave(run):
            logger.warning(
                "run %s was over before the aggregator read that this site withdraws: it has finished the run", run
            )


def _told(trouble: DropfedError | None) -> str | None:
    """Return trouble as the heartbeat tells it."""
    return sentence(str(trouble)) if trouble else None
