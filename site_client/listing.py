"""Every run that was offered to this site, one line each, from the work directory alone; no daemon needs to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.columns import column_lines
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.mirror import Mirror
from shared.exchange.order import consent_of
from shared.exchange.trust import Message
from shared.moments import moment_text
from site_client import store
from site_client.configuration import require_here
from site_client.overview import how_ended, left_text
from site_client.rotation import read_ledger


@dataclass(frozen=True)
class ListedRun:
    """One run in a list.

    Args:
        offered: when the aggregator signed the offer, by its clock.
        state: how it ended for this site, else how far it is; or what is wrong with its files.
        answers: how many rounds this site has answered.
        model: the folder of the final model, if this site has it.
        task, method: None where its offer cannot be read.
    """

    run: str
    offered: str
    state: str
    answers: int
    model: str | None
    task: str | None = None
    method: str | None = None


def list_runs(work: Path) -> list[ListedRun]:
    """Return every run that was offered here, the newest first.

    Raises:
        ConfigurationError: there is no such directory, or it is no site's.
        ActionRequiredError: what lies here is not as it was left.
    """
    require_here(work)
    ledger = read_ledger(work)
    return [_listed(work, ledger, offer) for offer in reversed(store.offers(ledger))]


def listing_text(runs: Sequence[ListedRun]) -> str:
    """Return the list for people."""
    if not runs:
        return "no run was offered to this site yet"
    rows = [[each.run, moment_text(each.offered), _by(each), str(each.answers), each.state] for each in runs]
    return "\n".join(column_lines([["run", "offered", "what", "answers", "state"], *rows]))


def _by(listed: ListedRun) -> str:
    return f"{listed.task} by {listed.method}" if listed.task else ""


def _listed(work: Path, ledger: Mirror, offer: Message) -> ListedRun:
    run, created = offer.ref.run, offer.manifest.created
    answers = sum(message.ref.kind == "update" and message.ref.run == run for message in ledger.own_messages())
    kept = str(store.final_home(work, run)) if store.has_final(work, run) else None
    try:
        settings, _ = store.offer(ledger, run)
        state = _state(work, ledger, run)
    except (ActionRequiredError, RejectedError) as error:
        return ListedRun(run, created, str(error), answers, kept)
    return ListedRun(run, created, state, answers, kept, settings.task, settings.method)


def _state(work: Path, ledger: Mirror, run: str) -> str:
    if (ended := how_ended(work, ledger, run)) is not None:
        return ended
    goes_on = "agreed, and goes on" if consent_of(ledger, run) else "offered, and not answered yet"
    return left_text(ledger, run) or goes_on
