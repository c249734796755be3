"""The aggregator daemon: reads the facts, lets ``rounds.decide`` say what to do, does it, waits.

What is done in which order stands in protocol 6.4 and 6.5. This thread does everything local (sign, score, combine);
one folder-sync worker per site moves files (``folder_sync.py``), so a site that cannot be reached holds up nobody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from aggregator import rounds
from aggregator.facts import awaited, early_offers, late_update, may_be_offered_early, run_facts, site_facts
from aggregator.folder_sync import FolderSync
from aggregator.model_work import ModelWork
from aggregator.results import best_so_far, choose_final, no_gain, run_outcome, run_standstills
from aggregator.store import RunStore, training_images, withdrawal_of
from shared.doors.json_text import canonical
from shared.doors.numbers import finite
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError, PluginError, Stopped
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encoding import encode
from shared.exchange.encryption import Ciphertext, encrypt
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import PLAIN, FileEntry, encrypts
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of
from shared.folder.durable import disk_trouble
from shared.folder.stopping import cut_after
from shared.learning.aggregation import Update, choose
from shared.learning.answers import UNANSWERED, ClosedRound, limit_of
from shared.learning.outcome import Outcome, Standstill
from shared.learning.round_engine import PlainFiles, given_weights, log_omitted
from shared.learning.run_files import Late, Scored
from shared.learning.schedules import round_configuration
from shared.trouble import Trouble, UnexpectedError, tolerate_unwritable

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0  # until the PI's wishes and the clock are looked at again
WAITING_SAVED_EVERY_S = 10.0
LONGEST_STRETCH_S = 60.0  # between two looks at the clock, unless this process was frozen, or had much to do
LONGEST_RETURN_S = 300.0  # until the folders are looked into again, once it is back
DISK_TROUBLE_PAUSE_S = 10.0


def tell_not_offered(run: object, error: DropfedError | OSError) -> None:
    """Log why a run, or the one that a file describes, is not offered before its turn."""
    why = "; ".join(str(error).splitlines())
    logger.warning("%s cannot be offered yet, and is tried again when its turn comes: %s", run, why)


class Daemon:
    """Runs one run to its end.

    Args:
        sites: the run's sites; their folder-sync workers are started and ended here.
        work: does what needs the run's network or its method.
        in_turn: whether the method asks one site after the other.
        score_name: the validation score by which the final model is chosen.
        stop: set from outside to stop cleanly; the run goes on at the next start.
        beside: its block lasts as long as the run does.
        waiting: returns the runs that come later, in their order; they may become more. Their sites are asked already
            whether they agree.
        open_sites: returns sites by their names, for those of such runs alone.
        others_wait: returns whether any other run is to be played after this one, also one that cannot be begun yet.
    """

    def __init__(
        self,
        store: RunStore,
        sites: Sequence[FolderSync],
        *,
        work: ModelWork,
        in_turn: bool,
        score_name: str,
        stop: threading.Event,
        news: threading.Event,
        beside: AbstractContextManager[None] | None = None,
        waiting: Callable[[], Sequence[RunStore]] = tuple,
        open_sites: Callable[[Collection[str]], Sequence[FolderSync]] = lambda _names: (),
        others_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._run = store.configuration()
        self._sharing = store.sharing()
        self._sites = {site.name: site for site in sites}
        self._all_sites = self._sites
        self._list_waiting = waiting
        self._open_sites = open_sites
        self._others_wait = others_wait
        self._waiting_runs: dict[str, tuple[RunStore, RunConfiguration, Sharing]] = {}
        self._not_offered: set[str] = set()  # waiting runs that are offered in their own turn alone
        self._work = work
        self._in_turn = in_turn
        self._plain_files = PlainFiles(store, self._run, self._sharing)
        self._score_name = score_name
        self._stop = stop
        self._news = news
        self._beside = beside or nullcontext()
        self._waiting = _Waiting(store)
        self._entries: dict[Path, FileEntry] = {}
        self._ciphertexts: dict[Path, Ciphertext] = {}
        self._left_out: set[str] = set()
        self._put_off: dict[rounds.Action, float] = {}  # until when, of what has failed
        self._standstills: set[Standstill] = set()  # that the log has told of
        self._has_ended = False  # and that stays so, whatever a worker that is stopped meets yet
        self._looks_for_round, self._looks_at_stop, self._looks_for_time = _Looks(), _Looks(), _Looks()
        self._trouble = Trouble(logger, store.run, "goes on.")

    def run(self) -> None:
        """Work until the run has ended and everything is in the folders, or until asked to stop."""
        with self._beside, cut_after(self._stop, self._interrupt):
            self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        self._store.note_trouble("")
        for site in self._all_sites.values():
            site.start()
        try:
            while not self._stop.is_set() and self._goes_on():
                pass
        finally:
            self._stop.set()
            for site in self._all_sites.values():
                site.join()
            self._forget_ciphertexts()

    def _goes_on(self) -> bool:
        """Do what can be done now, or wait for news; return whether there is more to come.

        What nobody expected, and no action of its own can be put off for, is waited out longer and longer.
        """
        try:
            if self._is_over() and not any(site.has_to_prune for site in self._sites.values()):
                self._has_ended = True
                self._tell_who_was_not_told()
                return False
            self._news.clear()
            self._see_who_waits()
            actions = [*rounds.decide(self._facts()), *self._early_offers()]
            has_acted = [self._act_or_put_off(action) for action in actions if not self._stop.is_set()]
            for site in self._all_sites.values():
                if site.channel is not None:
                    site.attend(awaited(site.channel.ledger, self._run.run, self._store.round_no))
            if not any(has_acted):
                self._news.wait(LONGEST_WAIT_S)
        except DropfedError:
            raise
        except OSError as error:
            self._wait_for_disk(error)
        except Exception as error:
            self._trouble.begins(UnexpectedError(error))
            self._stop.wait(self._trouble.backoff_s(LONGEST_WAIT_S))
        return True

    def _wait_for_disk(self, error: OSError) -> None:
        self._trouble.begins(disk_trouble(error, self._store.home))
        self._stop.wait(DISK_TROUBLE_PAUSE_S)

    def _interrupt(self) -> None:
        for site in self._all_sites.values():
            site.interrupt()

    def look_soon(self, site: str) -> None:
        """Have a site's folder looked into at once, by whoever knows that there is something new."""
        self._sites[site].look_soon()

    @property
    def outcome(self) -> Outcome | None:
        """What the run came to, once its end is in the folders, but for those that nobody waits for; else None."""
        return run_outcome(self._store, self._ledgers) if self._is_over() else None

    @property
    def trouble(self) -> str:
        """What a plug-in does wrong; empty if nothing."""
        return self._store.trouble

    @property
    def final_model(self) -> Path | None:
        """The chosen model once it is in the folders, but for those that nobody waits for; that ends the run."""
        return self._store.final_model if self._store.card() and self._is_over() else None

    def _see_who_waits(self) -> None:
        """Take in the runs that wait now; one that cannot be offered holds up nobody."""
        known = {self._run.run, *self._waiting_runs, *self._not_offered}
        for store in self._list_waiting():
            if store.run in known:
                continue
            try:
                if store.is_over:
                    continue
                run, sharing = store.configuration(), store.sharing()
                others = {site.name: site for site in self._open_sites(set(run.sites) - self._all_sites.keys())}
            except (DropfedError, OSError) as error:
                self._leave_for_its_turn(store.run, error)
                continue
            for site in others.values():
                site.start()
            self._all_sites = self._all_sites | others  # another thread may go through the old ones
            self._waiting_runs[store.run] = store, run, sharing

    def _leave_for_its_turn(self, run: str, error: DropfedError | OSError) -> None:
        """Offer a waiting run no more before its turn: what is wrong with it is no matter of the run that goes on."""
        self._waiting_runs.pop(run, None)
        self._not_offered.add(run)
        tell_not_offered(run, error)

    def _early_offers(self) -> list[rounds.OfferEarly]:
        """Return what can be asked now about the runs that wait (protocol 6.2); once this run is over, they ask in
        their own turn.
        """
        offers: list[rounds.OfferEarly] = []
        for store, run, _ in list(self._waiting_runs.values()):
            if not (self._store.is_over or store.stop_requested):
                sites = [self._all_sites[name] for name in run.sites]
                try:
                    able = {
                        site.name: site.channel.ledger for site in sites if site.channel and not site.cannot_have(run)
                    }
                except ActionRequiredError as error:
                    self._leave_for_its_turn(run.run, error)
                    continue
                offers += early_offers(able, run.run)
        return offers

    def _is_over(self) -> bool:
        if self._has_ended or not self._store.is_over:
            return self._has_ended
        is_all_signed = not rounds.decide(self._facts())
        return is_all_signed and not any(self._is_to_be_told(site) for site in self._sites.values())

    def _is_to_be_told(self, site: FolderSync) -> bool:
        """Return whether a site is waited for that the end has not reached. Not where a person has to put something
        right there and other runs wait: it is told once that is done, by the next run with it or the same launch.
        """
        if site.channel is None or not site.channel.outbox.has_unpublished:
            return False
        return not (site.cannot_publish and self._others_wait())

    def _tell_who_was_not_told(self) -> None:
        for name, channel in self._channels.items():
            if channel.outbox.has_unpublished:
                logger.warning(
                    "%s is not told that run %s is over: see what stands in the way there; it is told by the next run "
                    "that it takes part in, or if this one is launched again",
                    name,
                    self._run.run,
                )

    # --- facts ---------------------------------------------------------------------------------------------

    @property
    def _channels(self) -> Mapping[str, Channel]:
        return {name: site.channel for name, site in self._sites.items() if site.channel is not None}

    @property
    def _ledgers(self) -> Mapping[str, Mirror]:
        return {name: channel.ledger for name, channel in self._channels.items()}

    def _facts(self) -> rounds.RunFacts:
        store = self._store
        if store.paused:
            self._looks_for_round.begin()
        return run_facts(
            self._run,
            store,
            {site.name: self._exchange(site) for site in self._sites.values()},
            in_turn=self._in_turn,
            waited_s=self._waiting.seconds(store.round_no, passes=self._time_passes()),
            has_looked=self._has_looked,
            has_looked_since_stop=store.stop_requested and self._has_looked_since_stop(),
            gains_nothing=no_gain(store, self._ledgers, self._score_name),
        )

    def _site_facts(self, site: str) -> rounds.SiteFacts:
        participants = self._store.participants(self._store.round_no)
        exchange, takes_part = self._exchange(self._sites[site]), site in participants
        return site_facts(
            site, exchange, self._store, self._run.run, takes_part=takes_part, has_looked=self._has_looked
        )

    def _has_looked(self, site: str) -> bool:
        """Return whether a site's folder was looked into since it was asked to take part in the newest round
        (protocol 6.8).

        A look that has shown a withdrawal which cannot be taken yet is none.
        """
        if self._store.paused:
            return False
        has_come = self._looks_for_round.has_come(self._sites[site])
        return has_come and not self._sites[site].has_unread_withdrawal

    def _time_passes(self) -> bool:
        """Return whether the deadline comes nearer: not while the run is paused, and not while this process was away.

        When it is back it looks into each folder first (protocol 6.4). One that it cannot look into, or that takes long
        to move what is there, holds up the others no longer than a connection needs to come back.
        """
        looks = self._looks_for_time
        if was_away := self._waiting.was_away:
            looks.begin()
        lacks_looks = bool(self._not_looked_into(looks)) and looks.asked_for_s() < LONGEST_RETURN_S
        return not (was_away or lacks_looks or self._store.paused or self._store.stop_requested)

    def _has_looked_since_stop(self) -> bool:
        """Return whether each folder that can be reached was looked into since the PI asked to stop.

        An answer that lies there already counts: nobody is told that it never came. What does not hold there may never
        do, and no stop waits for it.
        """
        return all(site.is_in_trouble for site in self._not_looked_into(self._looks_at_stop))

    def _not_looked_into(self, looks: _Looks) -> list[FolderSync]:
        """Return the sites into whose folders the look that is asked for has not come, whatever it would find."""
        return [site for site in self._sites.values() if not looks.has_come_whole_or_not(site)]

    def _exchange(self, site: FolderSync) -> Mirror | None:
        return None if site.channel is None or self._leaves_out(site) else site.channel.ledger

    def _leaves_out(self, site: FolderSync) -> bool:
        """Return whether the run is encrypted and a site that was enrolled only since the launch has no key for it."""
        reason = site.cannot_have(self._run)
        if reason is not None and site.name not in self._left_out:
            self._left_out.add(site.name)
            logger.error("%s is not asked: %s", site.name, reason)
        return reason is not None

    # --- actions -------------------------------------------------------------------------------------------

    def _act_or_put_off(self, action: rounds.Action) -> bool:
        """Do an action; return whether it was tried. A full disk is told once and waited out, the daemon lives on.

        What nobody expected, and what a plug-in does wrong, puts off this action alone, longer and longer, while others
        are done.
        """
        if time.monotonic() < self._put_off.get(action, 0.0):
            return False
        try:
            self._act(action)
        except Stopped:
            return False
        except PluginError as error:
            self._put_off_for(action, error)
            self._store.note_trouble(str(error))
        except (DropfedError, OSError) as error:
            trouble = disk_trouble(error, self._store.home) if isinstance(error, OSError) else error
            if isinstance(action, rounds.OfferEarly):  # what is wrong there is no matter of the run that goes on
                self._put_off_for(action, trouble)
            elif isinstance(error, OSError):
                self._wait_for_disk(error)
            else:
                raise
        except Exception as error:
            self._put_off_for(action, UnexpectedError(error))
        else:
            self._put_off.pop(action, None)
            if not self._put_off and self._trouble.ends():
                self._store.note_trouble("")
        return True

    def _put_off_for(self, action: rounds.Action, error: DropfedError) -> None:
        self._trouble.begins(error)
        self._put_off[action] = time.monotonic() + self._trouble.backoff_s(LONGEST_WAIT_S)

    def _act(self, action: rounds.Action) -> None:
        store, run = self._store, self._run
        match action:
            case rounds.OpenRound(round_no, participants, available):
                store.clear_round(round_no - 1)
                self._forget_ciphertexts()
                self._looks_for_round.begin()
                # Who is asked is fixed before anybody is (protocol 6.4, step 1; protocol 6.9).
                store.ask(round_no, participants, available)
                which = f"round {round_no} of {run.rounds}" if round_no <= run.rounds else "the closing round"
                logger.info("%s is open for %s", which, ", ".join(participants))
                self._prune_aggregates(round_no)
            case rounds.AskMore(round_no, participants, available):
                store.ask(round_no, participants, available)
                self._waiting.restart(round_no)  # the deadline begins anew (protocol 6.9)
                logger.warning("round %d has no quorum: %s is asked too", round_no, ", ".join(participants))
            case rounds.Score(site, round_no):
                scored = self._check(site, round_no)
                if self._is_on_disk(site, MessageRef("update", run.run, round_no)):
                    store.write_score(round_no, site, scored)
            case rounds.CloseRound(round_no):
                # With that each verdict stands, on the disk before the first is signed (protocol 6.4, step 6).
                verdicts = self._verdicts(round_no)
                store.close_round(round_no, verdicts)
                log_omitted(round_no, verdicts)
                self._tell_standstills()
            case rounds.Aggregate(round_no):
                self._aggregate(round_no)
            case rounds.ChooseFinal(reason):
                self._choose_final(reason)
            case rounds.Abort(reason):
                logger.error("the run is aborted: %s", reason)
                store.abort(reason)
            case _:
                self._sign_message(action)

    def _sign_message(self, action: rounds.Sign) -> None:
        """Sign what an action says for a site, unless the site has left, or was heard of, since it was decided."""
        store, run, site = self._store, self._run.run, action.site
        match action:
            case rounds.OfferEarly(run=waiting):
                self._offer_early(self._all_sites[site], waiting)
            case rounds.SignOffer():
                files = self._offer_files(store, self._run, self._sharing)
                self._sign(site, MessageRef("offer", run), files, self._sites[site].card_digest)
            case rounds.SignRound(round_no=round_no):
                newest = self._newest_of(site)
                if self._site_facts(site).may_be_sent_round:
                    self._sign(site, MessageRef("round", run, round_no), self._round_files(round_no, site), newest)
            case rounds.SignVerdict(round_no=round_no):
                verdict = (store.verdicts(round_no) or {})[site]
                content = canonical(verdict.model_dump())
                # A late answer may arrive while we write: only the closed round says what was answered
                # (protocol 3.2).
                answer = self._ledgers[site].message(MessageRef("update", run, round_no))
                reply = answer.digest if answer and verdict.status not in UNANSWERED else None
                self._sign(site, MessageRef("verdict", run, round_no), {names.VERDICT: content}, reply)
            case rounds.SignFinal() | rounds.SignAbort():
                newest = self._newest_of(site)
                # Who agreed gets the model, who never answered the abort (protocol 6.1).
                if rounds.due_end(self._site_facts(site), final_chosen=store.card() is not None) == action:
                    is_final = isinstance(action, rounds.SignFinal)
                    files = store.final_files(site) if is_final else store.abort_files()
                    self._sign(site, MessageRef("final" if is_final else "abort", run), files, newest)

    def _offer_early(self, site: FolderSync, waiting: str) -> None:
        """Sign the offer of a run that waits, unless it was left for its turn since that was decided."""
        if waiting not in self._waiting_runs or site.channel is None:
            return
        store, run, sharing = self._waiting_runs[waiting]
        if may_be_offered_early(site.channel.ledger, waiting):
            try:
                files = self._offer_files(store, run, sharing)
            except ConfigurationError as error:
                self._leave_for_its_turn(waiting, error)
            else:
                site.channel.outbox.sign(MessageRef("offer", waiting), files, in_reply_to=site.card_digest)

    def _offer_files(self, store: RunStore, run: RunConfiguration, sharing: Sharing) -> Mapping[str, bytes | Path]:
        """Return the payloads of a run's offer, which are the same for every site.

        Raises:
            ConfigurationError: what is kept of the run is not this, or not what another site was offered.
        """
        ref = MessageRef("offer", run.run)
        for name, site in self._all_sites.items():
            ledger = site.channel.ledger if site.channel else None
            if ledger and ledger.message(ref) and ledger.configuration(run.run) not in (None, run):
                path, offered = store.home / names.RUN_CONFIGURATION, ledger.path(ref, names.RUN_CONFIGURATION)
                raise ConfigurationError([f"{path}: is not what {name} was offered; put that back from {offered}"])
        return store.offer_files(run, sharing)

    def _newest_of(self, site: str) -> str:
        """Return the digest that a message signed now answers (protocol 3.2): of the site's newest accepted message, or
        of its card.

        It is read before the facts are once more: a message that the folder-sync worker accepts in between is not
        answered, and one that forbids the action is seen.
        """
        newest = self._ledgers[site].last_from_peer()
        return newest.digest if newest else self._sites[site].card_digest

    def _choose_final(self, ended: str) -> None:
        store, run, in_turn = self._store, self._run, self._in_turn
        store.clear_round(store.round_no)
        self._forget_ciphertexts()
        # The best by the sites' own validation (protocol 6.5).
        card = choose_final(store, self._ledgers, run, self._score_name, ended, in_turn=in_turn)
        choose(store, self._sharing, card.chosen_round)
        store.write_card(card)
        if run.keep == "best":
            store.prune_aggregates({card.chosen_round})
        newest = min(store.round_no, run.rounds)
        if card.chosen_round < newest and str(newest) not in card.validation:
            logger.info("aggregate %d was scored by no site, and so was not considered", newest)
        logger.info("aggregate %d was chosen, and goes to every site that is left: %s", card.chosen_round, card.reason)

    def _tell_standstills(self) -> None:
        """Log what keeps the run from coming to anything: once when it begins, and once when it is over."""
        found = run_standstills(self._store, self._ledgers, self._score_name)
        for kind in found.keys() - self._standstills:
            logger.warning("%s", found[kind])
        for kind in self._standstills - found.keys():
            logger.info("no longer so: %s", kind)
        self._standstills = set(found)

    def _prune_aggregates(self, round_no: int) -> None:
        """Keep of our own aggregates as many as the run's rule keeps of the rounds, and the best one."""
        if self._run.keep.startswith("last "):
            oldest = round_no - int(self._run.keep.removeprefix("last "))
            best = best_so_far(self._store, self._ledgers, self._score_name, in_turn=self._in_turn)
            self._store.prune_aggregates({best, *range(oldest, round_no + 1)})

    def _sign(self, site: str, ref: MessageRef, files: Mapping[str, bytes | Path], in_reply_to: str | None) -> None:
        shared = {name: content for name, content in files.items() if isinstance(content, Path)}
        hidden = {name for name in shared if encrypts(self._run.encrypt, name)}
        known = {name: self._entry_of(path) for name, path in shared.items() if name not in hidden}
        encrypted = {name: self._ciphertext_of(shared[name]) for name in hidden}
        self._channels[site].outbox.sign(
            ref, files, in_reply_to=in_reply_to, known=known, encrypted=encrypted, wire=self._run.wire
        )

    def _entry_of(self, model: Path) -> FileEntry:
        """Return what manifests say of a model, which is never changed and goes to many sites."""
        if model not in self._entries:
            self._entries[model] = entry_of(model)
        return self._entries[model]

    def _ciphertext_of(self, model: Path) -> Ciphertext:
        """Return the encrypted model, the same for all sites, so that one upload serves them
        (protocol 9.3).

        No key is written down: after a restart, a new key is drawn.
        """
        if model not in self._ciphertexts:
            target = self._store.ciphertext_path(len(self._ciphertexts))
            self._ciphertexts[model] = encrypt(model, target)
        return self._ciphertexts[model]

    def _forget_ciphertexts(self) -> None:
        self._ciphertexts.clear()
        self._store.clear_ciphertexts()

    def _round_files(self, round_no: int, site: str) -> dict[str, bytes | Path]:
        """Return the payloads of a round at a site (protocol 6.3)."""
        state = {
            names.state_file(group): self._store.state_path(round_no - 1, group) for group in self._sharing.to_site
        }
        return {
            names.ROUND_CONFIGURATION: dump_yaml(round_configuration(self._run, round_no, site)),
            names.GLOBAL_MODEL: self._to_send(round_no, site),
            **state,
        }

    def _to_send(self, round_no: int, site: str) -> Path:
        """Return the global model that a round sends to a site, in the run's form (protocol 9.2)."""
        wire = self._run.wire.of("round", names.GLOBAL_MODEL)
        aggregate = self._store.aggregate_for(round_no - 1, site)
        if wire == PLAIN:
            return aggregate
        is_own = aggregate != self._store.aggregate_path(round_no - 1)
        sent = self._store.sent_path(round_no, site if is_own else None)
        if not sent.exists():
            self._entries[sent] = encode(aggregate, sent, self._sharing.shared, wire)
        return sent

    def _check(self, site: str, round_no: int) -> Scored:
        """Return the tolerance check of one answer."""
        ledger, ref = self._ledgers[site], MessageRef("update", self._run.run, round_no)
        if (refusal := ledger.refusal(ref)) is not None:
            return Scored.refused(refusal)
        if (message := ledger.message(ref)) is None:
            raise ValueError(f"{ref.path} was not answered")
        self._limit(round_no)  # with the images that the answer is scored with: they may be others after a restart
        return self._work.check(message, site, ledger.path(ref, names.MANIFEST).parent, self._images(site))

    def _limit(self, round_no: int) -> float | None:
        return limit_of(self._run, round_no, partial(self._measured_limit, round_no))

    def _measured_limit(self, round_no: int, tolerance: BelowLast) -> float:
        """Return what follows from the last aggregate (protocol 7.9): measured once and kept, so that all answers of a
        round, whatever becomes of this process, are held against the same.
        """
        store = self._store
        limit = store.limit(round_no)
        if limit is None:
            limit = self._work.limit(store.aggregate_path(round_no - 1), tolerance)
            store.write_limit(round_no, limit)
            logger.info("round %d: a model counts if it scores above %s on the held-out images", round_no, limit)
        return limit

    def _verdicts(self, round_no: int) -> dict[str, Verdict]:
        participants, limit = self._store.participants(round_no), self._limit(round_no)
        checked = {site: self._store.score(round_no, site) for site in participants}
        update = partial(self._update, round_no)
        # What came after it was decided to close the round came too late: such an answer is not checked, and whoever
        # gave it did not leave before.
        answer = MessageRef("update", self._run.run, round_no)
        left = {site for site in participants if withdrawal_of(self._ledgers[site], self._run.run) is not None}
        answered = {site for site in participants if self._ledgers[site].is_settled(answer)}  # of those who left, all
        came_late = {site: self._check_late(round_no, site) for site in participants if site not in answered}
        late = {site: each for site, each in came_late.items() if each is not None}
        return self._work.verdicts(ClosedRound(round_no, checked, limit, update, left - answered, late))

    def _late(self, round_no: int, site: str) -> Message | None:
        """Return a site's answer to the round before that counts in this one (protocol 6.10), unless the site has
        answered here.
        """
        before, ledger = (self._store.verdicts(round_no - 1) or {}).get(site), self._ledgers[site]
        ref = late_update(ledger, self._run, round_no, was_late=before is not None and before.status == "late")
        return ledger.message(ref) if ref else None

    def _check_late(self, round_no: int, site: str) -> Late | None:
        """Return the tolerance check of an answer that came late.

        It is the same whenever it is made, and so is not kept before the round is closed.
        """
        if (message := self._late(round_no, site)) is None or not self._is_on_disk(site, message.ref):
            return None
        home, images = self._ledgers[site].path(message.ref, names.MANIFEST).parent, self._images(site)
        scored = self._work.check(message, site, home, images, counts_in=round_no)
        return Late(update=message.digest, scored=scored)

    def _is_on_disk(self, site: str, ref: MessageRef) -> bool:
        """Return whether a message is settled, whatever crashes: no score and no verdict is of one that is not.

        If it could not be written, that may have been told to the folder-sync worker, which waits for the same write.
        """
        self._ledgers[site].flush()
        return self._ledgers[site].is_settled(ref)

    def _update(self, round_no: int, site: str) -> Update:
        """Return a site's answer that passed the checks."""
        ledger, scored = self._ledgers[site], self._store.score(round_no, site)
        if scored is None and (late := self._late(round_no, site)) is not None:
            file, of_round = partial(ledger.path, late.ref), late.ref.round_no
            return Update(self._plain_files.of(site, of_round, file, counts_in=round_no), self._images(site))
        theta = finite(scored.theta) if scored and scored.theta else None
        files = self._plain_files.of(
            site, round_no, partial(ledger.path, MessageRef("update", self._run.run, round_no))
        )
        return Update(files, self._images(site), theta)

    def _images(self, site: str) -> int:
        return training_images(self._ledgers[site], self._run.run)

    def _aggregate(self, round_no: int) -> None:
        verdicts = self._store.verdicts(round_no) or {}
        stays = "the global model stays as it was"
        try:
            self._entries |= self._work.combine(round_no, verdicts, partial(self._update, round_no))
        except OverflowError as error:
            logger.error("round %d: %s: %s", round_no, error, stays)
            return
        if given_weights(verdicts):
            return
        if self._store.stop_requested and all(verdict.status in UNANSWERED for verdict in verdicts.values()):
            logger.info("round %d was stopped before anybody had answered: %s", round_no, stays)
            return
        is_any = any(each.status == "accepted" for each in verdicts.values())
        many = "too few models were" if is_any else "no model was"
        logger.error("round %d: %s accepted, %s", round_no, many, stays)


class _Looks:
    """Looks into folders that something waits for. They are not written down: a restart asks for them anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have only looks count that are asked for from now on."""
        self._asked: dict[str, int] = {}
        self._began_at = time.monotonic()

    def asked_for_s(self) -> float:
        """Return how many seconds ago that was."""
        return time.monotonic() - self._began_at

    def has_come(self, site: FolderSync) -> bool:
        """Return whether the look into a site's folder has come that is asked for when this is called first."""
        return site.looked >= self._number(site)

    def has_come_whole_or_not(self, site: FolderSync) -> bool:
        """Return the same, also of a look that has found something which does not hold."""
        return max(site.looked, site.looked_in_doubt) >= self._number(site)

    def _number(self, site: FolderSync) -> int:
        if site.name not in self._asked:
            self._asked[site.name] = site.request_look()
        return self._asked[site.name]


class _Waiting:
    """Seconds waited in the present stage, on the monotonic clock, resumed from the store after a restart."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._round_no = -1
        self._seconds = 0.0
        self._at = 0.0
        self._saved_at = 0.0
        self._seen = _clocks()

    @property
    def was_away(self) -> bool:
        """Whether nobody looked at the clock for long, as when the machine stood still or slept."""
        return any(now - seen > LONGEST_STRETCH_S for now, seen in zip(_clocks(), self._seen, strict=True))

    def seconds(self, round_no: int, *, passes: bool) -> float:
        """Return the seconds waited so far in this stage; those since the last look at the clock count if time
        ``passes``.
        """
        self._seen = _clocks()
        now = time.monotonic()
        if round_no != self._round_no:
            self._begin(round_no, self._store.waited_s(round_no))
        if passes:
            self._seconds += now - self._at
        self._at = now
        if now - self._saved_at >= WAITING_SAVED_EVERY_S:
            self._save(round_no, self._seconds)
            self._saved_at = now
        return self._seconds

    def restart(self, round_no: int) -> None:
        """Begin the present stage's waiting anew."""
        self._save(round_no, 0)
        self._begin(round_no, 0)

    def _save(self, round_no: int, seconds: float) -> None:
        """Write down the seconds waited. If the disk refuses, the deadline after a restart is that much later."""
        with tolerate_unwritable(self._store.home):
            self._store.write_waited(round_no, seconds)

    def _begin(self, round_no: int, seconds: float) -> None:
        self._round_no, self._seconds = round_no, seconds
        self._at = self._saved_at = time.monotonic()


def _clocks() -> tuple[float, float]:
    """Return the time by the clock that nobody sets, which stands still while a machine sleeps, and by the one that
    goes on.
    """
    return time.monotonic(), time.time()
