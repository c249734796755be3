"""A round's work at the hospital, from the signed round that came to the signed update that leaves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from shared import service
from shared.errors import (
    ActionRequiredError,
    DropfedError,
    RejectedError,
    Stopped,
)
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encoding import decode, encode
from shared.exchange.names import MessageRef
from shared.exchange.order import consent_of
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.values import sentence
from shared.exchange.records.wire import PLAIN, FileEntry, Wire
from shared.exchange.tables import read_metrics, require_of_round
from shared.exchange.trust import check_form, open_yaml
from shared.exchange.weights import check_tensors
from shared.folder.durable import link_file
from shared.learning.apart import IsTime, names_of
from shared.learning.data.sets import Members
from shared.learning.plugins import require_agreement
from shared.learning.schedules import round_configuration
from shared.learning.tasks.contract import Dataset
from shared.learning.tasks.terms import EXTERNAL
from shared.plurals import pluralize
from site_client import store
from site_client.apart import ALLOWED_IN, answered
from site_client.beginning import beginning
from site_client.commitment import committed, release
from site_client.configuration import SiteConfiguration
from site_client.disclosure import Counts, split_counts
from site_client.facts import may_leave
from site_client.final import KeepFinal, arrived_final, keep_final, unkept_final
from site_client.heartbeat import Heartbeat
from site_client.limits import seconds_until
from site_client.outside import called, trained_outside
from site_client.received import received_state
from site_client.torchrun import work_together
from site_client.train import CountsOf, Files, OnProgress, Train, Trainer, Worked, trainer_at

logger = logging.getLogger(__name__)

REST_S = 30.0  # between two looks at the clock outside the hours for training
KEPT_AGAIN_AFTER_S = 600.0  # after which a final model that could not be made ready is tried again


class RoundWork:
    """Answers rounds and keeps final models; a crash repeats the work from what is signed, and ends at the same bytes.

    Args:
        stop: set from outside to stop cleanly.
    """

    def __init__(
        self,
        work: Path,
        configuration: SiteConfiguration,
        channel: Channel,
        heartbeat: Heartbeat,
        stop: threading.Event,
    ) -> None:
        self._work = work
        self._scratch = work / store.SCRATCH
        self._configuration = configuration
        self._channel = channel
        self._ledger = channel.ledger
        self._heartbeat = heartbeat
        self._stop = stop
        self._unready: dict[str, tuple[float, str]] = {}  # by run, until when its final model is left alone, and why
        self._opened: tuple[str, Members, Dataset] | None = None

    # --- what a run's work is done with ----------------------------------------------------------------------

    def images(self, run: str) -> Dataset:
        """Return the hospital's images in the sets of a run that it agreed to, as far as their blocks are whole now.

        Each time every file is hashed. Images that are the same by that are not read again.
        """
        trainer = self.trainer(run)
        return self._open(trainer, self._members(trainer))

    def _open(self, trainer: Trainer, members: Members) -> Dataset:
        run = trainer.run.run
        if self._opened is None or self._opened[:2] != (run, members):
            self.forget()  # before others take its memory
            self._opened = (run, members, trainer.open_dataset(members))
        return self._opened[2]

    def _are_as_opened(self, trainer: Trainer) -> bool:
        """Return whether the images of a run are still those that were read, by the bytes of their files."""
        return self._opened is not None and self._opened[:2] == (trainer.run.run, self._members(trainer))

    def _members(self, trainer: Trainer) -> Members:
        return committed(self._work, self._ledger, self._configuration, trainer.run)

    def count(self, run: str, members: Members) -> Counts:
        """Return how many images these units are, in the run's sets. They are read, and kept for its rounds, but with a
        plug-in, which reads them elsewhere.
        """
        trainer, site = self.trainer(run), self._configuration
        if trainer.run.plugins:
            asked = CountsOf(work=self._work, site=site, run=trainer.run, sharing=trainer.sharing, members=members)
            return answered(asked, site, trainer.run.plugins, lambda percent: self._goes_on(run), self._scratch)
        return Counts.of(self._open(trainer, members))

    def _goes_on(self, run: str) -> bool:
        """Return True while the work is wanted, or raise ``Stopped``."""
        self.go_on_or_stop(run)
        return True

    def forget(self) -> None:
        """Have the images read anew."""
        self._opened = None

    def trainer(self, run: str) -> Trainer:
        """Return what trains in a run that was offered.

        Raises:
            RejectedError, ActionRequiredError: the offer does not hold.
            ConfigurationError: the plug-ins that are here now are not the run's.
        """
        configuration, sharing = store.offer(self._ledger, run)
        require_agreement(configuration.plugins, self._configuration.policy.plugins, ALLOWED_IN)
        return trainer_at(self._work, self._configuration, configuration, sharing)

    def beginning(self, trainer: Trainer) -> Path | None:
        """Return what this site begins a run with; see ``beginning.beginning``."""
        return beginning(self._work, self._configuration, self._ledger, trainer.run, trainer.sharing)

    def sign(
        self,
        ref: MessageRef,
        files: Mapping[str, bytes | Path],
        *,
        known: Mapping[str, FileEntry] = MappingProxyType({}),
        wire: Wire = PLAIN,
    ) -> None:
        """Sign a message that answers the one that its kind answers; arguments as for ``Outbox.sign``."""
        answered = self._ledger.message(ref.answers) if ref.answers else None
        in_reply_to = answered.digest if answered else None
        self._channel.outbox.sign(ref, files, in_reply_to=in_reply_to, known=known, wire=wire)

    # --- whether it is wanted now ----------------------------------------------------------------------------

    def wants_to_leave(self, run: str) -> bool:
        """Return whether a person decided to withdraw from a run."""
        decided = store.decision(self._work, run)
        return decided is not None and decided.answer == "withdraw"

    def seconds_until_training(self) -> float:
        """Return the seconds until the hours in which this site may train; 0 in them."""
        return seconds_until(self._configuration.limits.training_hours, datetime.now())

    def go_on_or_stop(self, run: str | None) -> None:
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
        if run is not None and self.wants_to_leave(run) and may_leave(self._ledger, run):
            raise Stopped("broken off, for the site withdraws")

    # --- rounds ----------------------------------------------------------------------------------------------

    def answer_or_leave(self, ref: MessageRef) -> None:
        """Answer a round, or stop training as soon as a person pauses the site or withdraws."""
        try:
            self._answer_round(ref)
        except Stopped as reason:
            if self._stop.is_set():
                raise
            logger.info("%s: %s", store.round_name_of(self._ledger, ref), reason)

    def _answer_round(self, ref: MessageRef) -> None:
        """Work on a round from its signed message alone, and sign the update: a crash repeats the work and ends at the
        same bytes.
        """
        ledger = self._ledger
        # 1. The round asks for exactly what the offer said that we agreed to (protocol 6.3).
        configuration = ledger.record(ref, RoundConfiguration)
        trainer = self.trainer(ref.run)
        if configuration != round_configuration(trainer.run, ref.round_no, self._configuration.site):
            raise RejectedError(f"{ref.path}/{names.ROUND_CONFIGURATION}", "asks for something else than was agreed to")
        # 2. The global model is checked (protocol 9.1), and brought into the plain form (protocol 9.2).
        received = self._received(ref, trainer)
        self._heartbeat.beat("training", self._channel, ref)

        def is_time(percent: int) -> bool:
            return self._is_time(ref, percent)

        # 3. Where files go: what leaves, to the update's place in the mirror; what stays, to ``personal/``
        #    (protocol 7.1).
        accepted = store.newest_accepted(self._work, ledger, ref.run, before=ref.round_no)
        if accepted is not None and trainer.sharing.has_whole_model:  # else the chosen round's head may be an older one
            store.prune_before(accepted)
        update = MessageRef("update", ref.run, ref.round_no)
        model, wire = ledger.path(update, names.SITE_MODEL), trainer.run.wire
        files = Files(
            received=received,
            state=received_state(ledger, ref, trainer.sharing),
            start=self.beginning(trainer),
            personal=store.newest_personal(self._work, ledger, ref.run, before=ref.round_no),
            accepted=accepted,
            lost=store.lost_round(self._work, ledger, ref.run, before=ref.round_no),
            trained=model if wire == PLAIN else self._scratch / store.TRAINED,
            sent={group: ledger.path(update, names.state_file(group)) for group in trainer.sharing.groups(update.kind)},
            kept=store.personal_path(self._work, ref.run, ref.round_no),
            alone=self._trained_alone(ref, trainer),
            alone_kept=store.alone_path(self._work, ref.run, ref.round_no) if trainer.run.baseline else None,
            first=self._first(ref, received) if trainer.run.paired else None,
        )
        # 4. The received model is measured (protocol 8.3 and 8.4), and trained on our images.
        began = time.monotonic()
        worked = self._work_through(trainer, configuration, files, is_time)
        what = f"trained on {pluralize(worked.images, 'image')}" if configuration.epochs else "validated"
        logger.info("%s: %s in %.0f s", store.round_name_of(ledger, ref), what, time.monotonic() - began)
        # 5. The tables and the tensors that leave are the update (protocol 6.3), in the run's form. It is signed
        #    after one last look whether a person has paused the site or withdrawn.
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
        self.go_on_or_stop(ref.run)
        self.sign(update, answer, known={} if trainer.run.plugins else known, wire=wire)
        store.clear_scratch(self._work)

    def _first(self, ref: MessageRef, received: Path) -> Path | None:
        """Return round 1's global model, which is kept here in that round and compared with those of later ones."""
        path = store.first_path(self._work, ref.run)
        if ref.round_no == 1:
            link_file(received, path)
            return None
        return path if path.exists() else None

    def _trained_alone(self, ref: MessageRef, trainer: Trainer) -> Path | None:
        """Return the model that this site has trained by itself so far, if the run has it train one. What an answer
        that was never signed has left is made anew.
        """
        if trainer.run.baseline is None:
            return None
        found = store.newest_alone(self._work, self._ledger, ref.run, before=ref.round_no)
        store.prune_alone(self._work, ref.run, kept=found)
        if found is None and ref.round_no > 1:
            logger.warning(
                "run %s: no model was trained alone here from the first round on, so none is scored", ref.run
            )
        return found

    def _work_through(
        self, trainer: Trainer, configuration: RoundConfiguration, files: Files, is_time: IsTime
    ) -> Worked:
        """Work a round through: by torchrun's processes, in a plug-in's own process, by a program of the hospital's, or
        here; asked in this order. Torchrun never has a private run, whose noise one process must draw.
        """
        run, site = trainer.run, self._configuration
        # 1. By torchrun's processes, each of which reads the images; with a plug-in, in a process of its own.
        by_torchrun = site.launcher == "torchrun" and run.privacy is None and run.program_at(site.site) is None
        if by_torchrun:
            self.forget()  # each process reads the images itself
        if by_torchrun or (run.plugins and site.launcher == "daemon"):
            asked = Train(
                work=self._work,
                site=site,
                run=run,
                sharing=trainer.sharing,
                members=self._members(trainer),
                round=configuration,
                files=files,
            )
            if by_torchrun:
                worked = work_together(asked, is_time)
            else:
                worked = answered(asked, site, run.plugins, is_time, self._scratch)
            if not run.plugins:
                return worked
            return as_promised(worked, trainer, configuration, files, names_of(run.plugins))
        # 2. By the program that the hospital installed. A round without epochs needs it only for the task that nothing
        #    else can score.
        dataset = self.images(run.run)
        if run.program_at(site.site) is not None and (configuration.epochs or run.task == EXTERNAL):
            worked = trained_outside(
                trainer,
                dataset,
                configuration,
                files,
                work=self._work,
                site=site,
                is_time=is_time,
                are_the_same=lambda: self._are_as_opened(trainer),
            )
            return as_promised(worked, trainer, configuration, files, called(run, site))
        # 3. Here, by this software.
        self._require_agreed_count(trainer, dataset)
        trained_before = store.rounds_trained(self._ledger, run.run, before=configuration.round)

        on_progress = self._resting_until(is_time)
        return trainer.work(dataset, configuration, files, on_progress, trained_before=trained_before)

    def _is_time(self, ref: MessageRef, percent: int) -> bool:
        """Report how far the work is; return whether to go on or to rest.

        Raises:
            Stopped: it is not wanted any more.
        """
        self.go_on_or_stop(ref.run if ref.kind == "round" else None)
        rests = self.seconds_until_training() > 0
        self._heartbeat.beat("outside hours" if rests else "training", self._channel, ref, percent=percent)
        return not rests

    def _resting_until(self, is_time: IsTime) -> OnProgress:
        def on_progress(percent: int) -> None:
            while not is_time(percent):  # what is trained so far is not thrown away
                service.wait(self._stop, REST_S)

        return on_progress

    def _require_agreed_count(self, trainer: Trainer, dataset: Dataset) -> None:
        """Check that a private run, whose cost depends on it, has as many training images as we agreed with.

        Raises:
            ActionRequiredError: there are others now.
        """
        consent = consent_of(self._ledger, trainer.run.run)
        found = split_counts(Counts.of(dataset), self._configuration.policy)["train"]
        if trainer.run.privacy is not None and consent is not None and consent.images["train"] != found:
            raise ActionRequiredError(
                f"run {trainer.run.run} is private, and was agreed to with {consent.images['train']} training images; "
                f"now there are {found}: put them back as they were, or withdraw from the run"
            )

    def _received(self, ref: MessageRef, trainer: Trainer) -> Path:
        """Return a round's global model in the plain form.

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
        plain = self._scratch / store.RECEIVED
        decode(path, plain, trainer.sharing.shared, wire, shown_as=shown_as)
        return plain

    # --- the final model -------------------------------------------------------------------------------------

    def unkept_final(self) -> str | None:
        """Return a run whose final model came and is not kept yet, or None."""
        left_alone = {run for run, (until, _) in self._unready.items() if time.monotonic() < until}
        return unkept_final(self._work, self._ledger, left_alone)

    def keep_final(self, run: str) -> None:
        """Keep a final model. If it cannot be kept, report that and try again later: no other run waits for it."""
        release(self._work, self._ledger, run)
        ref = MessageRef("final", run)

        def is_time(percent: int) -> bool:
            return self._is_time(ref, percent)

        try:
            trainer = self.trainer(run)
            site, start = self._configuration.site, self.beginning(trainer)
            arrived = arrived_final(self._work, self._ledger, trainer.run, trainer.sharing, site, start=start)
            if trainer.run.plugins:
                asked = KeepFinal(
                    work=self._work,
                    site=self._configuration,
                    run=trainer.run,
                    sharing=trainer.sharing,
                    members=self._members(trainer),
                    arrived=arrived,
                )
                answered(asked, self._configuration, trainer.run.plugins, is_time, self._scratch)
            else:
                keep_final(trainer, self.images(run), arrived, on_progress=self._resting_until(is_time))
        except Stopped:
            raise
        except DropfedError as error:
            why = sentence(str(error)).rstrip(".")
            if self._unready.get(run, (0.0, ""))[1] != why:
                logger.error("run %s: its final model is not ready for use: %s. Trying again now and then.", run, why)
            self._unready[run] = time.monotonic() + KEPT_AGAIN_AFTER_S, why
            self.forget()  # what is mended meanwhile is read at the next try


def as_promised(
    worked: Worked, trainer: Trainer, configuration: RoundConfiguration, files: Files, whose: str
) -> Worked:
    """Return what others' code came to, if it is what the offer says, column by column and tensor by tensor.

    Args:
        whose: what people call the code.

    Raises:
        ActionRequiredError: it is not.
    """
    run, sharing, trains = trainer.run, trainer.sharing, configuration.epochs > 0
    try:
        table = read_metrics(worked.tables[names.METRICS], names.METRICS)
        require_of_round(
            table,
            names.METRICS,
            round_no=configuration.round,
            epochs=None,
            own=run.scores,
            has_baseline=run.baseline is not None,
        )
        if names.RELIABILITY in worked.tables:
            open_yaml(worked.tables[names.RELIABILITY], Reliability, names.RELIABILITY)
        if trains:
            check_tensors(files.trained, sharing.shared, names.SITE_MODEL)
        for group, listed in sharing.groups("update", trains=trains).items():
            check_tensors(files.sent[group], TensorList(tensors=listed), names.state_file(group))
    except (RejectedError, KeyError, OSError) as error:
        raise ActionRequiredError(
            f"{whose}: what it made of round {configuration.round} stays here, for the offer says "
            f"otherwise ({error}); ask who wrote it"
        ) from None
    tables = {name: worked.tables[name] for name in (names.METRICS, names.RELIABILITY) if name in worked.tables}
    return replace(worked, tables=tables)
