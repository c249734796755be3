"""The chosen model with this site's own parts, ready for use: ``final/RUN/model.safetensors`` and ``card.yaml``.

It never leaves the hospital. What stays at a site is taken from the round whose aggregate was chosen, so that head and
encoder belong together; θ is measured once more, with this very model.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from shared.errors import RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.weights import check_tensors
from shared.folder.durable import write_file
from shared.learning.kept_model import CARD, KeptCard, all_tensors
from shared.learning.model_files import save_tensors
from shared.learning.tasks.contract import Dataset
from shared.learning.uncertainty import youden_threshold
from site_client import store
from site_client.facts import ending_of
from site_client.received import received_state
from site_client.train import OnProgress, Trainer

logger = logging.getLogger(__name__)

FINAL = "final"


def unkept_final(work: Path, ledger: Mirror, left_alone: Collection[str]) -> str | None:
    """Return a run whose final model came but is not kept yet, or None; but for those to be left alone."""
    for path in sorted((ledger.root / names.RUNS).glob(f"*/final/{names.MANIFEST}")):
        run = path.parent.parent.name
        if run not in left_alone and not (_home(work, run) / CARD).exists() and ending_of(ledger, run) == "finished":
            return run
    return None


def keep_final(
    work: Path,
    ledger: Mirror,
    trainer: Trainer,
    dataset: Dataset,
    configuration: RoundConfiguration,
    *,
    on_progress: OnProgress = lambda percent: None,
) -> None:
    """Put the received final model together with what stays here; the card goes last.

    Args:
        configuration: of the run's last training round.
        on_progress: of fine-tuning.

    Raises:
        Stopped: by ``on_progress``.
        RejectedError: the final message does not hold the run's tensors or a well-formed card.
        ActionRequiredError: its card is not as it was accepted.
    """
    run, ref = trainer.run, MessageRef("final", trainer.run.run)
    received = ledger.path(ref, names.FINAL_MODEL)
    check_tensors(received, trainer.sharing.shared, f"{ref.path}/{names.FINAL_MODEL}")
    final = ledger.record(ref, FinalCard)
    if final.run != run.run or final.chosen_round > run.rounds:
        raise RejectedError(f"{ref.path}/{names.CARD}", "speaks of another run")
    personal = store.newest_personal(work, ledger, run.run, before=final.chosen_round + 1)
    model = trainer.final_network(
        dataset,
        configuration,
        received=received,
        state=received_state(ledger, ref, trainer.sharing),
        start=store.start(ledger, run.run),
        personal=personal,
        on_progress=on_progress,
    )
    found = trainer.measure_uncertainty(model, dataset)
    threshold = youden_threshold(found.uncertainty, found.wrong)
    home = _home(work, run.run)
    save_tensors(model, all_tensors(trainer.sharing, trainer.stays(model)), home / names.FINAL_MODEL)
    card = KeptCard(
        run=run.run,
        task=run.task,
        task_options=run.task_options,
        method=run.method,
        method_options=run.method_options,
        privacy=run.privacy,
        rounds=run.rounds,
        classes=list(dataset.classes),
        chosen_round=final.chosen_round,
        personal_round=None if trainer.sharing.has_whole_model else int(personal.stem) if personal else 0,
        theta=threshold.theta,
        theta_status=threshold.status,
    )
    write_file(home / CARD, dump_yaml(card))
    logger.info("the final model is ready for use: `dropfed-site predict IMAGES --model %s`", quoted(home))


def _home(work: Path, run: str) -> Path:
    return work / FINAL / run
