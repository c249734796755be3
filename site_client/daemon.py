"""The site daemon: reads the facts, lets ``rounds.decide`` say what to do, does it, waits."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType

from shared import service
from shared.errors import (
    ActionRequiredError,
    AlreadyExistsError,
    ConfigurationError,
    DropfedError,
    NotFoundError,
    RejectedError,
    Stopped,
)
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encoding import decode, encode
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.exchange.names import AGGREGATOR, MAX_RECORD_BYTES, MessageRef
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.messages import Phase
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.values import sentence
from shared.exchange.records.wire import PLAIN, FileEntry, Wire
from shared.exchange.signing import canonical
from shared.exchange.trust import Peer, check_form, open_federation, open_site_card
from shared.exchange.weights import check_tensors
from shared.folder.contract import UNFINISHED, Folder
from shared.folder.durable import write_file
from shared.folder.forbearing import ForbearingFolder
from shared.folder.listed import HAS_TAG, ListedFolder
from shared.folder.meter import Direction
from shared.folder.retrying import RetryingFolder
from shared.folder.stopping import cut_after
from shared.learning.data.sets import Members
from shared.learning.schedules import round_configuration
from shared.learning.tasks.contract import Dataset
from shared.plurals import pluralize
from shared.polling import Polling
from shared.trouble import Trouble
from site_client import rounds, store
from site_client.arrivals import Arrivals
from site_client.commitment import commit, committed, release
from site_client.configuration import FILE, SiteConfiguration, note_running, other_site
from site_client.disclosure import split_counts
from site_client.facts import ending_of, may_leave, site_facts
from site_client.final import keep_final, unkept_final
from site_client.heartbeat import Heartbeat
from site_client.limits import seconds_until
from site_client.overview import what_it_waits_for
from site_client.policy import judge
from site_client.received import received_state
from site_client.rotation import first_key, own_key
from site_client.torchrun import IsTime, work_together
from site_client.train import Files, OnProgress, Trainer, Worked, trainer_at
from site_client.trouble import as_trouble

logger = logging.getLogger(__name__)

REST_S = 30.0  # between two looks at the clock outside the hours for training
TAKING_BACK = "taking-back"
"""Name of the file that is in the work directory while the answers of a lost disk come back from the folder."""


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
        self._arrivals = Arrivals(self._folder, channel, lambda ref: self._heartbeat.beat("receiving", channel, ref))
        self._trouble = Trouble(logger, configuration.site, "goes on.")
        self._card_published = False
        self._resting: Phase = "waiting"
        self._left_alone: set[str] = set()
        self._dataset: tuple[str, Dataset] | None = None

    def run(self, *, once: bool = False) -> None:
        """Work until asked to stop; with ``once``, until there is nothing to do.

        Raises:
            DropfedError: with ``once``, what stands in the way.
        """
        polling = Polling(self._configuration.poll_seconds)
        note_running(self._work, self._configuration)
        self._heartbeat.begin(self._channel)
        service.ready()
        is_enrolled = (self._ledger.root / names.FEDERATION).exists()
        waits = "" if is_enrolled else "; it waits for the aggregator, to accept this site's card"
        logger.info("site %s of %s started%s", self._configuration.site, self._configuration.federation, waits)
        with cut_after(self._stop, self._folder.interrupt):
            with suppress(Stopped):
                if once:
                    self.step()
                    if not self._stop.is_set():
                        self._tell_rest(self._rest())
                turn = Turn.IDLE
                while not (once or self._stop.is_set()):
                    turn = self._take_turn(turn, must_succeed=False)
                    if turn is Turn.IDLE:
                        self._heartbeat.beat(self._rest_or_trouble(), self._channel)
                        service.wait(self._stop, self._trouble.backoff_s(polling.interval_s()))
                    elif turn is Turn.ACTED:
                        polling.restart()
            service.stopping()
            self._heartbeat.beat("stopped", self._channel, now=True)
        logger.info("stopped; the next start goes on from here")

    def step(self) -> bool:
        """Look for news, and do all there is to do now.

        Returns:
            Whether there was anything to do.

        Raises:
            DropfedError: what stands in the way.
        """
        turn, has_acted = Turn.IDLE, False
        while not self._stop.is_set() and (turn := self._take_turn(turn, must_succeed=True)) is not Turn.IDLE:
            has_acted |= turn is Turn.ACTED
        return has_acted

    def permit(self, direction: Direction) -> None:
        """Ask, before each block of a large file, whether it is still wanted. What has moved so far is not lost.

        What is signed is sent, for all that follows it is chained to it; so a withdrawal ends only what comes.

        Raises:
            Stopped: it is not.
        """
        last = self._ledger.last_from_peer()
        self._go_on_or_stop(last.ref.run if last and direction == "down" else None)

    def _rest(self) -> Phase:
        """Why there is nothing to do now."""
        if not store.is_paused(self._work):
            return "outside hours" if self._is_kept_from_training() else self._resting
        if self._heartbeat.phase != "paused":
            resume = f"`dropfed-site resume --work {quoted(self._work)}`"
            logger.info("paused: nothing is read or answered, and only the heartbeat sent, until %s", resume)
        return "paused"

    def _rest_or_trouble(self) -> Phase:
        """As ``_rest``, also where what stands in the way, and was told, keeps it from being known."""
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
        """What this site answered to the offer of a run, or None."""
        return store.consent(self._ledger, run)

    def images(self, run: str) -> Dataset:
        """The hospital's images in the sets of a run that it agreed to, read once per run."""
        if self._dataset is None or self._dataset[0] != run:
            trainer = self._trainer(run)
            self._dataset = (run, trainer.open_dataset(self._members(trainer)))
        return self._dataset[1]

    def _members(self, trainer: Trainer) -> Members:
        return committed(self._work, self._ledger, self._configuration, trainer.run)

    # --- facts ---------------------------------------------------------------------------------------------

    def _facts(self, before: Turn) -> rounds.SiteFacts:
        ledger = self._ledger
        return site_facts(
            ledger,
            card_published=self._card_published,
            enrolled=(ledger.root / names.FEDERATION).exists(),
            paused=store.is_paused(self._work),
            may_train=not self._seconds_until_training(),
            unpublished=self._outbox.has_unpublished,
            wants_to_leave=self._wants_to_leave,
            unkept=unkept_final(self._work, ledger, self._left_alone),
            looked=before is Turn.LOOKED,
        )

    def _wants_to_leave(self, run: str) -> bool:
        """Whether a person decided to withdraw from a run."""
        decided = store.decision(self._work, run)
        return decided is not None and decided.answer == "withdraw"

    def _seconds_until_training(self) -> float:
        return seconds_until(self._configuration.limits.training_hours, datetime.now())

    def _is_kept_from_training(self) -> bool:
        """Whether there is a round to answer, and it is not the time for it."""
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
            self._heartbeat.note_trouble(trouble)
            self._dataset = None  # what is mended meanwhile is read at the next try
            return Turn.IDLE
        if turn is Turn.ACTED:
            self._trouble.ends()
            self._heartbeat.note_trouble(None)
        return turn

    def _act(self, action: rounds.Action) -> Turn:
        """Do an action."""
        match action:
            case rounds.PublishCard():
                self._folder.look_anew()
                self._publish_card()
            case rounds.ReadFederation():
                return self._read_federation()
            case rounds.Publish():
                self._heartbeat.beat("sending", self._channel)
                self._outbox.publish()
                self._heartbeat.beat("waiting", self._channel)
            case rounds.Look():
                return self._look_for(action)
            case rounds.AnswerOffer(run):
                if not self._answer_offer(run):
                    return Turn.IDLE
            case rounds.Withdraw(run):
                self._withdraw(run)
            case rounds.AnswerRound(run, round_no):
                self._answer_round_or_leave_it(MessageRef("round", run, round_no))
            case rounds.KeepFinal(run):
                self._keep_final(run)
            case rounds.Wait():
                return Turn.IDLE
        return Turn.ACTED

    def _look_for(self, look: rounds.Look) -> Turn:
        """Fetch the first of the messages that is there."""
        self._folder.look_anew()
        later = self._arrivals.later_rounds(look.later_than) if look.later_than else []
        fetched = self._arrivals.fetch_first([*later, *look.refs, *(self._arrivals.offers() if look.offers else [])])
        if fetched is not None:
            self._note_end(fetched.run)
            return Turn.ACTED
        if (path := self._folder.held_up()) is not None:
            self._tell_held_up(path)
        return Turn.LOOKED

    def _tell_held_up(self, path: str) -> None:
        trouble = ActionRequiredError(
            f"{path} has been waiting in the folder for its name, as {path}{UNFINISHED}: the aggregator is off, or the "
            "server holds that name locked; ask the aggregator's people"
        )
        if self._heartbeat.trouble != str(trouble):
            logger.warning("%s", trouble)
            self._heartbeat.note_trouble(trouble)

    def _note_end(self, run: str) -> None:
        """Take back what an aborted run does not use; have our people know of an end that they may not expect."""
        ended = ending_of(self._ledger, run)
        if ended == "aborted":
            release(self._work, self._ledger, run)
            logger.warning("run %s was aborted: %s", run, store.why_aborted(self._ledger, run))
        elif ended == "finished" and self._wants_to_leave(run):
            logger.warning(
                "run %s was over before the aggregator read that this site withdraws: it has finished the run", run
            )

    def _publish_card(self) -> None:
        """Put our card into the folder, or take it back from there, and with it every answer that a lost disk held.

        While ``TAKING_BACK`` is there not every answer may be: a daemon that was killed meanwhile goes on with it.
        """
        path, taking_back = self._ledger.root / names.SITE_CARD, self._work / TAKING_BACK
        if path.exists():
            try:
                self._folder.create(names.SITE_CARD, path.read_bytes())
            except AlreadyExistsError as error:
                raise ActionRequiredError(
                    f"{error} `dropfed-site check --work {quoted(self._work)}` compares the two."
                ) from None
        else:
            content = self._folder.read(names.SITE_CARD, max_bytes=MAX_RECORD_BYTES)
            us = self._configuration
            try:
                open_site_card(content, federation=us.federation, site=us.site, secret=None)
            except RejectedError as error:
                raise other_site(f"{names.SITE_CARD} in the folder", error.reason, us) from None
            store.note_restored(self._work)
            write_file(taking_back, b"")
            write_file(path, content)
        self._outbox.publish_keys()
        if not (self._ledger.root / names.FEDERATION).exists():
            self._read_federation()  # with keys that open what a lost disk held
        if taking_back.exists() or self._ledger.own_head.seq == 0:
            for run in self._arrivals.runs():
                updates = [MessageRef("update", run, ref.round_no) for ref in self._arrivals.rounds_of(run)]
                self._channel.inbox.adopt([MessageRef("consent", run), *updates, MessageRef("withdrawal", run)])
        taking_back.unlink(missing_ok=True)
        for run in store.runs_with_noise(self._work):
            if ending_of(self._ledger, run) is not None:
                release(self._work, self._ledger, run)
        if (last := self._ledger.last_from_peer()) is not None:
            self._outbox.prune(last.ref.run)
        self._card_published = True

    def _read_federation(self) -> Turn:
        """Accept the aggregator's list of keys once it is there, if it is this folder's and names ours."""
        self._folder.look_anew()
        try:
            content = self._folder.read(names.FEDERATION, max_bytes=MAX_RECORD_BYTES)
        except NotFoundError:
            return Turn.LOOKED
        federation = open_federation(content, aggregator_key=self._configuration.aggregator_key)
        us = (self._configuration.federation, self._configuration.site)
        if (federation.federation, federation.site) != us:
            raise ActionRequiredError(
                f"{names.FEDERATION} was written for {federation.federation}/{federation.site}: this is another site's "
                f"folder, or somebody put its file here; correct site or url in {FILE}, or tell the aggregator's people"
            )
        if federation.site_key != first_key(self._work):
            raise ActionRequiredError(
                f"{names.FEDERATION} names another key for this site: ask the aggregator for an invite"
            )
        write_file(self._ledger.root / names.FEDERATION, content)
        logger.info("enrolled in %s", federation.federation)
        return Turn.ACTED

    # --- answering -----------------------------------------------------------------------------------------

    def _answer_offer(self, run: str) -> bool:
        configuration, _ = store.offer(self._ledger, run)
        decided = store.decision(self._work, run)
        judgement = judge(self._configuration.policy, configuration, decided.answer == "yes" if decided else None)
        images = {}
        if judgement.answer == "ask":
            if self._resting != "asked for consent":
                command = f"dropfed-site approve {run} --work {quoted(self._work)}"
                logger.warning("run %s asks for consent: `%s`, or `decline` instead", run, command)
            self._resting = "asked for consent"
            return False
        self._resting = "waiting"
        agrees, reason = judgement.answer == "yes", judgement.reason
        if decided is not None and decided.reason:
            reason = sentence(f"{reason}: {decided.reason}")
        if not agrees:
            logger.warning("run %s: declined by the `policy` section of site.yaml: %s", run, reason)
        if agrees:
            trainer = self._trainer(run)
            try:
                required = trainer.check_offer()
                if configuration.encrypt != "none":
                    self._ledger.require_keys(run)
                self._check_start(trainer)
                dataset = commit(self._work, self._ledger, self._configuration, trainer, required)
            except (ConfigurationError, RejectedError) as error:
                agrees, reason = False, sentence("; ".join(str(error).splitlines()))
            else:
                self._dataset = (run, dataset)
                images = split_counts(dataset, self._configuration.policy)
        answer = Consent(run=run, agrees=agrees, reason=reason, images=images)
        self._sign(MessageRef("consent", run), {names.CONSENT: canonical(answer.model_dump())})
        logger.info("run %s: %s: %s", run, "agreed" if agrees else "declined", reason)
        return True

    def _check_start(self, trainer: Trainer) -> None:
        """Demand that the offer brings exactly what its list says we begin with.

        Raises:
            RejectedError: saying what is different.
        """
        run, beginning = trainer.run.run, trainer.sharing.beginning
        start, shown_as = store.start(self._ledger, run), f"{MessageRef('offer', run).path}/{names.START}"
        if (start is not None) != bool(beginning.tensors):
            raise RejectedError(shown_as, "is missing from the offer" if start is None else "has no place in the offer")
        if start is not None:
            check_tensors(start, beginning, shown_as)

    def _withdraw(self, run: str) -> None:
        decided = store.decision(self._work, run)
        withdrawal = Withdrawal(run=run, reason=sentence(decided.reason) if decided else "")
        self._sign(MessageRef("withdrawal", run), {names.WITHDRAWAL: canonical(withdrawal.model_dump())})
        release(self._work, self._ledger, run)
        logger.warning("run %s: withdrawn; what was signed before still stands", run)

    def _answer_round_or_leave_it(self, ref: MessageRef) -> None:
        """A person who pauses the site or withdraws does not have to wait for the end of the training."""
        try:
            self._answer_round(ref)
        except Stopped as reason:
            if self._stop.is_set():
                raise
            logger.info("%s: %s", store.round_name_of(self._ledger, ref), reason)

    def _answer_round(self, ref: MessageRef) -> None:
        """Train from the signed input alone, so that a crash repeats the work and ends at the same bytes."""
        ledger = self._ledger
        configuration = ledger.record(ref, RoundConfiguration)
        trainer = self._trainer(ref.run)
        if configuration != round_configuration(trainer.run, ref.round_no, self._configuration.site):
            raise RejectedError(f"{ref.path}/{names.ROUND_CONFIGURATION}", "asks for something else than was agreed to")
        received = self._received(ref, trainer)
        self._heartbeat.beat("training", self._channel, ref)

        def is_time(percent: int) -> bool:
            return self._is_time(ref, percent)

        update = MessageRef("update", ref.run, ref.round_no)
        model, wire = ledger.path(update, names.SITE_MODEL), trainer.run.wire
        files = Files(
            received=received,
            state=received_state(ledger, ref, trainer.sharing),
            start=store.start(ledger, ref.run),
            personal=store.newest_personal(self._work, ledger, ref.run, before=ref.round_no),
            accepted=store.newest_accepted(self._work, ledger, ref.run, before=ref.round_no),
            trained=model if wire == PLAIN else self._work / store.SCRATCH / "trained.safetensors",
            sent={group: ledger.path(update, names.state_file(group)) for group in trainer.sharing.groups(update.kind)},
            kept=store.personal_path(self._work, ref.run, ref.round_no),
        )
        began = time.monotonic()
        worked = self._work_through(trainer, configuration, files, is_time)
        what = f"trained on {pluralize(worked.images, 'image')}" if configuration.epochs else "validated"
        logger.info("%s: %s in %.0f s", store.round_name_of(ledger, ref), what, time.monotonic() - began)
        answer: dict[str, bytes | Path] = dict(worked.tables)
        known = {}
        for group, entry in worked.sent.items():
            name = names.state_file(group)
            answer[name], known[name] = files.sent[group], entry
        if (trained := worked.trained) is not None:
            answer[names.SITE_MODEL] = model
            if wire != PLAIN:
                trained = encode(files.trained, model, trainer.sharing.shared, wire, received)
            known[names.SITE_MODEL] = trained
        self._go_on_or_stop(ref.run)
        self._sign(update, answer, known=known, wire=wire)
        shutil.rmtree(self._work / store.SCRATCH, ignore_errors=True)

    def _work_through(
        self, trainer: Trainer, configuration: RoundConfiguration, files: Files, is_time: IsTime
    ) -> Worked:
        """Work a round through, by torchrun's processes or here. A private run's noise is one process's to draw."""
        run, site = trainer.run, self._configuration
        if site.launcher == "torchrun" and run.privacy is None:
            self._dataset = None  # each process reads the images itself
            members = self._members(trainer)
            return work_together(trainer, configuration, members, files, work=self._work, site=site, is_time=is_time)
        dataset = self.images(run.run)
        self._require_agreed_count(trainer, dataset)
        trained_before = store.rounds_trained(self._ledger, run.run, before=configuration.round)

        on_progress = self._resting_until(is_time)
        return trainer.work(dataset, configuration, files, on_progress, trained_before=trained_before)

    def _is_time(self, ref: MessageRef, percent: int) -> bool:
        """Tell how far the work is; return whether to go on or to rest.

        Raises:
            Stopped: it is not wanted any more.
        """
        self._go_on_or_stop(ref.run if ref.kind == "round" else None)
        rests = self._seconds_until_training() > 0
        self._heartbeat.beat("outside hours" if rests else "training", self._channel, ref, percent=percent)
        return not rests

    def _resting_until(self, is_time: IsTime) -> OnProgress:
        def on_progress(percent: int) -> None:
            while not is_time(percent):  # what is trained so far is not thrown away
                service.wait(self._stop, REST_S)

        return on_progress

    def _require_agreed_count(self, trainer: Trainer, dataset: Dataset) -> None:
        """Demand for a private run, whose cost is reckoned from it, as many training images as we agreed with.

        Raises:
            ActionRequiredError: there are others now.
        """
        consent = store.consent(self._ledger, trainer.run.run)
        found = split_counts(dataset, self._configuration.policy)["train"]
        if trainer.run.privacy is not None and consent is not None and consent.images["train"] != found:
            raise ActionRequiredError(
                f"run {trainer.run.run} is private, and was agreed to with {consent.images['train']} training images; "
                f"now there are {found}: put them back as they were, or withdraw from the run"
            )

    def _received(self, ref: MessageRef, trainer: Trainer) -> Path:
        """A round's global model in the plain form.

        Raises:
            RejectedError: it does not hold the run's tensors in the run's form.
        """
        path, shown_as = self._ledger.path(ref, names.GLOBAL_MODEL), f"{ref.path}/{names.GLOBAL_MODEL}"
        if not path.exists():
            raise RejectedError(shown_as, "was not fetched, for there was a verdict on the round, now gone")
        if (message := self._ledger.message(ref)) is not None:
            check_form(message, trainer.run.wire)
        wire = trainer.run.wire.of(ref.kind, names.GLOBAL_MODEL)
        if wire == PLAIN:
            check_tensors(path, trainer.sharing.shared, shown_as)
            return path
        plain = self._work / store.SCRATCH / "received.safetensors"
        decode(path, plain, trainer.sharing.shared, wire, shown_as=shown_as)
        return plain

    def _go_on_or_stop(self, run: str | None) -> None:
        """Ask whether the work is still wanted.

        Args:
            run: what it is for, if leaving that run ends it.

        Raises:
            Stopped: it is not.
        """
        if self._stop.is_set():
            raise Stopped("asked to stop")
        if store.is_paused(self._work):
            raise Stopped("put off while the site is paused")
        if run is not None and self._wants_to_leave(run) and may_leave(self._ledger, run):
            raise Stopped("broken off, for the site withdraws")

    def _keep_final(self, run: str) -> None:
        """A final model that cannot be kept is told once and left until the next start: it holds up no other run."""
        release(self._work, self._ledger, run)
        ref = MessageRef("final", run)
        on_progress = self._resting_until(lambda percent: self._is_time(ref, percent))
        try:
            trainer = self._trainer(run)
            dataset = self.images(run)
            last = round_configuration(trainer.run, trainer.run.rounds, self._configuration.site)
            keep_final(self._work, self._ledger, trainer, dataset, last, on_progress=on_progress)
        except Stopped:
            raise
        except DropfedError as error:
            logger.error("run %s: its final model is not made ready for use here: %s", run, error)
            self._left_alone.add(run)

    def _sign(
        self,
        ref: MessageRef,
        files: Mapping[str, bytes | Path],
        *,
        known: Mapping[str, FileEntry] = MappingProxyType({}),
        wire: Wire = PLAIN,
    ) -> None:
        answered = self._ledger.message(ref.answers) if ref.answers else None
        in_reply_to = answered.digest if answered else None
        self._outbox.sign(ref, files, in_reply_to=in_reply_to, known=known, wire=wire)

    def _trainer(self, run: str) -> Trainer:
        configuration, sharing = store.offer(self._ledger, run)
        return trainer_at(self._work, self._configuration, configuration, sharing)
