"""Consent: what this hospital answers to an offer, and its withdrawal from a run that it agreed to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from shared.doors.json_text import canonical
from shared.errors import (
    ConfigurationError,
    DropfedError,
    RejectedError,
    Stopped,
)
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.order import consent_of, ending_of
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import sentence
from shared.exchange.weights import check_tensors
from site_client import store
from site_client.commitment import commit, release
from site_client.configuration import SiteConfiguration
from site_client.disclosure import split_counts
from site_client.division import budget_here
from site_client.final import prune_personal
from site_client.policy import judge
from site_client.programs import own_places
from site_client.round_work import RoundWork
from site_client.train import check_offer

logger = logging.getLogger(__name__)


class Consents:
    """Weighs offers by the hospital's policy and its people's decisions."""

    def __init__(self, work: Path, configuration: SiteConfiguration, ledger: Mirror, round_work: RoundWork) -> None:
        self._left_to_people: set[str] = set()
        self._work = work
        self._configuration = configuration
        self._ledger = ledger
        self._round_work = round_work

    @property
    def left_to_people(self) -> str | None:
        """The run, the first of them by name, whose offer waits for a person's yes or no; None where none does."""
        waiting = (run for run in sorted(self._left_to_people) if consent_of(self._ledger, run) is None)
        return next((run for run in waiting if ending_of(self._ledger, run) is None), None)

    def answer_first(self, runs: Iterable[str]) -> bool:
        """Answer the first of these offers that can be answered now; return whether there is one.

        Raises:
            DropfedError: there is none, and this stands in the way of one: it holds up no other.
        """
        trouble = None
        for run in runs:
            try:
                if self._answer(run):
                    return True
            except Stopped:
                raise
            except DropfedError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return False

    def _answer(self, run: str) -> bool:
        configuration, sharing = store.offer(self._ledger, run)
        decided = store.decision(self._work, run)
        site, decision = self._configuration, decided.answer == "yes" if decided else None
        places, answered = own_places(self._work, site), store.answered(self._ledger)
        judgement = judge(site.policy, configuration, decision, site.site, places, answered=answered)
        images = {}
        if judgement.answer == "ask":
            if run not in self._left_to_people:
                command = f"dropfed-site approve {run} --work {quoted(self._work)}"
                why = judgement.reason
                logger.warning("run %s asks for consent (%s): `%s`, or `decline` instead", run, why, command)
            self._left_to_people.add(run)
            return False
        agrees, reason = judgement.answer == "yes", judgement.reason
        if decided is not None and decided.reason:
            reason = sentence(f"{reason}: {decided.reason}")
        if not agrees:
            logger.warning("run %s: declined by the `policy` section of site.yaml: %s", run, reason)
        if agrees:
            try:
                required = check_offer(self._configuration, configuration, sharing)
                if configuration.encrypt != "none":
                    self._ledger.require_keys(run)
                self._check_start(run, sharing)
                self._round_work.beginning(self._round_work.trainer(run))
                count = partial(self._round_work.count, run)
                counts = commit(self._work, self._ledger, self._configuration, configuration, required, count=count)
            except (ConfigurationError, RejectedError) as error:
                agrees, reason = False, sentence("; ".join(str(error).splitlines()))
            else:
                images = split_counts(counts, self._configuration.policy)
        answer = Consent(run=run, agrees=agrees, reason=reason, images=images)
        with store.deciding(self._work):
            # Reading the images may have taken long: what people here have said meanwhile counts.
            self._round_work.go_on_or_stop(None)
            if store.decision(self._work, run) != decided:
                return True
            self._round_work.sign(MessageRef("consent", run), {names.CONSENT: canonical(answer.model_dump())})
        logger.info("run %s: %s: %s", run, "agreed" if agrees else "declined", reason)
        if not agrees and (reserved := budget_here(self._work)) is not None and run in reserved.runs:
            release(self._work, self._ledger, run)  # for a yes that was not signed
        prune_personal(self._work, self._ledger)  # a disk that bears one run bears the next
        return True

    def _check_start(self, run: str, offered: Sharing) -> None:
        """Check that the offer brings exactly what its list says that it brings to begin with.

        Raises:
            RejectedError: saying what is different.
        """
        listed = offered.offered
        start, shown_as = store.offered_start(self._ledger, run), f"{MessageRef('offer', run).path}/{names.START}"
        if (start is not None) != bool(listed.tensors):
            raise RejectedError(shown_as, "is missing from the offer" if start is None else "has no place in the offer")
        if start is not None:
            check_tensors(start, listed, shown_as)

    def withdraw(self, run: str) -> None:
        decided = store.decision(self._work, run)
        withdrawal = Withdrawal(run=run, reason=sentence(decided.reason) if decided else "")
        self._round_work.sign(MessageRef("withdrawal", run), {names.WITHDRAWAL: canonical(withdrawal.model_dump())})
        release(self._work, self._ledger, run)
        logger.warning("run %s: withdrawn; what was signed before still stands", run)
