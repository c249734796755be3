"""A round as the aggregator decides it, once: check → decide and weigh → combine.

The daemon plays it as the answers come. The audit's replay plays it again from the folders. The simulator plays it for
sites that it plays as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.encoding import decode
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import PLAIN, FileEntry
from shared.exchange.trust import Message
from shared.exchange.weights import LARGEST, check_tensors
from shared.learning.aggregation import Aggregation, Update
from shared.learning.answers import ClosedRound, check_update, decide, without_spoilers
from shared.learning.late import move_on
from shared.learning.methods.contract import MODEL, Method
from shared.learning.run_files import RunFiles, Scored
from shared.trouble import held_against

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlainFiles:
    """The tensor files of a run's answers in the plain form."""

    store: RunFiles
    run: RunConfiguration
    sharing: Sharing

    def of(
        self, site: str, round_no: int, file: Callable[[str], Path], *, counts_in: int | None = None
    ) -> dict[str, Path]:
        """Return a site's files of a round, by group; that of its model is made where it came in another form, or late.

        Args:
            file: where a file of the answer lies, by name.
            counts_in: the round that it counts in; None: its own.

        Raises:
            RejectedError: its model does not hold the run's tensors in the run's form, or cannot count in that round.
        """
        trains = round_no <= self.run.rounds
        files = {MODEL: self._model(site, round_no, file(names.SITE_MODEL))} if trains else {}
        if counts_in is not None:
            files[MODEL] = self._moved_on(site, round_no, files[MODEL], counts_in)
        return files | {group: file(names.state_file(group)) for group in self.sharing.groups("update", trains=trains)}

    def _model(self, site: str, round_no: int, model: Path) -> Path:
        if self.run.wire == PLAIN:
            return model
        plain, before = self.store.update_path(round_no, site), self.store.aggregate_for(round_no - 1, site)
        if not plain.exists():
            decode(model, plain, self.sharing.shared, self.run.wire, before, shown_as=self._shown_as(round_no))
        return plain

    def _moved_on(self, site: str, round_no: int, model: Path, counts_in: int) -> Path:
        moved, store, shown_as = self.store.late_path(counts_in, site), self.store, self._shown_as(round_no)
        if not moved.exists():
            check_tensors(model, self.sharing.shared, shown_as)
            base, now = store.aggregate_path(round_no - 1), store.aggregate_path(counts_in - 1)
            move_on(model, base, now, self.sharing, moved, shown_as=shown_as)
        return moved

    def _shown_as(self, round_no: int) -> str:
        return f"{MessageRef('update', self.run.run, round_no).path}/{names.SITE_MODEL}"


class RoundEngine:
    """Plays the rounds of one run, in their order.

    Args:
        store: the run's files.
    """

    def __init__(self, store: RunFiles, method: Method, aggregation: Aggregation) -> None:
        self._store = store
        self._run = store.configuration()
        self._sharing = store.sharing()
        self._plain_files = PlainFiles(store, self._run, self._sharing)
        self._method = method
        self._aggregation = aggregation

    def check(
        self,
        message: Message,
        site: str,
        file: Callable[[str], Path],
        *,
        score: Callable[[Path, str], float | None],
        images: int,
        form: type[Reliability] = Reliability,
        counts_in: int | None = None,
    ) -> Scored:
        """Check one answer by itself.

        Args:
            file: where a file of the answer lies, by name.
            score: what its model scores, in [0, 1], by its path and the one to show; raises ``RejectedError`` of one
                that is not a model of the run.
            images: on how many the site has said that it trains.
            form: of ``reliability.yaml``.
            counts_in: the round that it counts in, as a model that ``late.move_on`` makes; None: its own, as it came.

        Returns:
            What came out, or the reason why it cannot count.
        """
        ref = message.ref
        try:
            with held_against(ref.path):
                # 1. It holds what its round and the method have it hold (protocol 6.3); its table, θ and ε are
                #    well-formed (protocol 8.3 and 8.4).
                theta, spent = check_update(message, file, self._run, self._sharing, self._method, form=form)
                update = Update(self.files(site, ref.round_no, file, counts_in=counts_in), images, theta)
                return self.check_tensors_of(ref.round_no, site, update, spent, score=score)
        except RejectedError as error:
            return Scored.refused(str(error))

    def check_tensors_of(
        self,
        round_no: int,
        site: str,
        update: Update,
        spent: float | None,
        *,
        score: Callable[[Path, str], float | None],
    ) -> Scored:
        """Do steps 2 to 4 of ``check``; other arguments as for that.

        Args:
            round_no: that it answers.
            update: of which all but the tensors has been checked.
            spent: the ε that the site says.

        Raises:
            RejectedError: it cannot count.
        """
        ref, trains, found = MessageRef("update", self._run.run, round_no), round_no <= self._run.rounds, None
        # 2. What came beside the model holds the method's tensors (protocol 9.1).
        for group, listed in self._sharing.groups(ref.kind, trains=trains).items():
            largest, shown_as = self._method.largest.get(group, LARGEST), f"{ref.path}/{names.state_file(group)}"
            check_tensors(update.files[group], TensorList(tensors=listed), shown_as, largest=largest)
        if trains:
            # 3. Its model holds the run's tensors (protocol 9.1), and is scored (protocol 7.9).
            found = score(update.files[MODEL], f"{ref.path}/{names.SITE_MODEL}")
            # 4. What came beside the model can follow from how far training has moved that (protocol 7.3).
            self._aggregation.require_plausible(ref, site, update.files, update.images)
        return Scored(score=_text(found), theta=_text(update.theta), epsilon=_text(spent), reason="")

    def files(
        self, site: str, round_no: int, file: Callable[[str], Path], *, counts_in: int | None = None
    ) -> dict[str, Path]:
        """Return a site's tensor files of a round in the plain form, by group; arguments as for ``check``.

        Raises:
            RejectedError: its model does not hold the run's tensors in the run's form.
        """
        return self._plain_files.of(site, round_no, file, counts_in=counts_in)

    def without_spoilers(self, closed: ClosedRound) -> ClosedRound:
        """Return a round in which those answers do not count that cannot be worked on with the others."""
        return without_spoilers(self._run, closed, self._aggregation)

    def decide(self, closed: ClosedRound) -> dict[str, Verdict]:
        """Return the verdict on each site that a round asked, with its weight; ``without_spoilers`` comes before."""
        return decide(self._run, closed, self._aggregation)

    def combine(
        self, round_no: int, verdicts: Mapping[str, Verdict], update: Callable[[str], Update]
    ) -> dict[Path, FileEntry]:
        """Make the next global model of the answers that have a weight; without one the round ends as it began.

        Returns:
            What a manifest says of each model that was made.

        Raises:
            OverflowError: something of it would not be finite; the round has ended as it began.
        """
        # 1. No model has a weight: the aggregate before is sent again (protocol 7.2).
        given = given_weights(verdicts)
        if not given:
            self._aggregation.leave(round_no)
            return {}
        # 2. The models are combined by their weights. Of what could not be sent nothing is kept.
        try:
            return self._aggregation.aggregate(round_no, {site: update(site) for site in given}, given)
        except OverflowError:
            self._aggregation.leave(round_no)
            raise


def given_weights(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    """Return the weights above 0 of a round, by site; in (0, 1]."""
    return {site: verdict.share for site, verdict in verdicts.items() if verdict.share > 0}


def log_omitted(round_no: int, verdicts: Mapping[str, Verdict]) -> None:
    """Log whose answer to a round does not count, and why."""
    for site, verdict in verdicts.items():
        if verdict.status == "omitted":
            logger.warning("round %d: the answer of %s does not count: %s", round_no, site, verdict.reason)


def _text(number: float | None) -> str | None:
    return None if number is None else decimal_text(number)
