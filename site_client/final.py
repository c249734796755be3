"""The chosen model with this site's own parts, ready for use: ``final/RUN/model.safetensors`` and ``card.yaml``.

It never leaves the hospital. What stays at a site is taken from the round whose aggregate was chosen, so that head and
encoder belong together; θ is measured once more, with this very model.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from torch import nn

from shared.errors import RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.order import ending_of
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import Count, Record
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.weights import check_tensors
from shared.folder.durable import write_file
from shared.learning.apart import Progress
from shared.learning.kept_card import CARD, KeptCard
from shared.learning.kept_model import all_tensors
from shared.learning.model_files import save_tensors
from shared.learning.schedules import round_configuration
from shared.learning.tasks.contract import Dataset
from shared.learning.tasks.terms import EXTERNAL
from shared.learning.uncertainty import FALLBACK_THETA, youden_threshold
from site_client import store
from site_client.received import received_state
from site_client.train import OnProgress, Trainer, Trains

logger = logging.getLogger(__name__)


def unkept_final(work: Path, ledger: Mirror, left_alone: Collection[str]) -> str | None:
    """Return a run whose final model came but is not kept yet, or None; but for those to be left alone."""
    for path in sorted((ledger.root / names.RUNS).glob(f"*/final/{names.MANIFEST}")):
        run = path.parent.parent.name
        if run not in left_alone and not store.has_final(work, run) and ending_of(ledger, run) == "finished":
            return run
    return None


def prune_personal(work: Path, ledger: Mirror) -> None:
    """Remove what stayed here with the rounds of runs that are over, except what a final model is made with; and what
    they began with, what was trained alone beside them, or is compared with them.

    Raises:
        RejectedError, ActionRequiredError: a final card is not as it was accepted.
    """
    for run in store.runs_with(work, "personal"):
        if (ended := ending_of(ledger, run)) is None:
            continue
        kept = None
        if ended == "finished":  # also where its model is still to be kept
            chosen = ledger.record(MessageRef("final", run), FinalCard).chosen_round
            kept = store.newest_personal(work, ledger, run, before=chosen + 1)
        store.prune_personal(work, run, kept=kept)
    for run in store.runs_with(work, "alone"):
        if ending_of(ledger, run) is not None:
            store.prune_alone(work, run, kept=None)
    for run in store.runs_with(work, "start"):
        if (ended := ending_of(ledger, run)) is not None and (ended != "finished" or store.has_final(work, run)):
            store.start_path(work, run).unlink(missing_ok=True)
    for run in store.runs_with(work, "first"):
        if ending_of(ledger, run) is not None:
            store.first_path(work, run).unlink(missing_ok=True)


class Arrived(Record):
    """A final model that came and was checked, and where what goes with it lies.

    Args:
        home: where it is kept, ready for use.
        model: the chosen model.
        state: what came with it, by group.
        start, personal: see ``train.Files``.
        chosen_round: whose aggregate it is.
        last: of the run's last training round at this site.
    """

    home: Path
    model: Path
    state: dict[str, Path]
    start: Path | None
    personal: Path | None
    chosen_round: Count
    last: RoundConfiguration


def arrived_final(
    work: Path, ledger: Mirror, run: RunConfiguration, offered: Sharing, site: str, *, start: Path | None
) -> Arrived:
    """Return the final model of a run that has come.

    Args:
        start: what this site began with; see ``train.Files``.

    Raises:
        RejectedError: the final message does not hold the run's tensors or a well-formed card.
        ActionRequiredError: its card is not as it was accepted.
    """
    ref = MessageRef("final", run.run)
    received = ledger.path(ref, names.FINAL_MODEL)
    check_tensors(received, offered.shared, f"{ref.path}/{names.FINAL_MODEL}")
    final = ledger.record(ref, FinalCard)
    if final.run != run.run or final.chosen_round > run.rounds:
        raise RejectedError(f"{ref.path}/{names.CARD}", "speaks of another run")
    return Arrived(
        home=store.final_home(work, run.run),
        model=received,
        state=received_state(ledger, ref, offered),
        start=start,
        personal=store.newest_personal(work, ledger, run.run, before=final.chosen_round + 1),
        chosen_round=final.chosen_round,
        last=round_configuration(run, max(run.rounds, 1), site),
    )


class KeepFinal(Trains[None]):
    """Make a final model ready for use."""

    arrived: Arrived

    def answer(self, on_progress: Progress) -> None:
        keep_final(*self.opened(), self.arrived, on_progress=on_progress)


def keep_final(
    trainer: Trainer, dataset: Dataset, arrived: Arrived, *, on_progress: OnProgress = lambda percent: None
) -> None:
    """Put the received final model together with what stays here; the card goes last.

    Args:
        on_progress: of fine-tuning.

    Raises:
        Stopped: by ``on_progress``.
    """
    model = trainer.final_network(
        dataset,
        arrived.last,
        received=arrived.model,
        state=arrived.state,
        start=arrived.start,
        personal=arrived.personal,
        on_progress=on_progress,
    )
    write_final(
        arrived.home,
        trainer,
        dataset,
        model,
        chosen_round=arrived.chosen_round,
        personal_round=int(arrived.personal.stem) if arrived.personal else 0,
    )
    home, is_known = quoted(arrived.home), trainer.run.task != EXTERNAL
    how = f"`dropfed-site predict IMAGES --model {home}`" if is_known else f"by a program of your own, in {home}"
    logger.info("the final model is ready for use: %s", how)


def write_final(
    home: Path, trainer: Trainer, dataset: Dataset, model: nn.Module, *, chosen_round: int, personal_round: int
) -> None:
    """Measure θ of a model that is ready for use, and write it into a folder; the card goes last. Of a network that is
    not known here, nothing can be measured.

    Args:
        chosen_round: whose aggregate it is.
        personal_round: the round after which the site's own parts were kept, if it has some; 0: never.
    """
    run = trainer.run
    theta, status = (FALLBACK_THETA, "not measured") if run.task == EXTERNAL else _theta(trainer, dataset, model)
    save_tensors(model, all_tensors(trainer.sharing, trainer.stays(model)), home / names.FINAL_MODEL)
    card = KeptCard.of_run(
        run,
        classes=list(dataset.classes),
        chosen_round=chosen_round,
        personal_round=None if trainer.sharing.has_whole_model else personal_round,
        theta=theta,
        theta_status=status,
    )
    write_file(home / CARD, dump_yaml(card))


def _theta(trainer: Trainer, dataset: Dataset, model: nn.Module) -> tuple[float, str]:
    found = trainer.measure_uncertainty(model, dataset)
    threshold = youden_threshold(found.uncertainty, found.wrong)
    return threshold.theta, threshold.status
