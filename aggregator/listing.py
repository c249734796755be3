"""Every run of a work directory, one line each; no daemon needs to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aggregator.configuration import require_aggregator
from aggregator.run_view import RunView, open_run_files, view_of
from aggregator.store import RunStore, runs_in
from shared.columns import column_lines
from shared.errors import DropfedError
from shared.exchange.records.values import time_text
from shared.moments import moment_text


@dataclass(frozen=True)
class ListedRun:
    """One run in a list.

    Args:
        began: when it was launched first.
        state: what it came to if it has ended, else how far it is; or what is wrong with its files.
        task, method: None where its files cannot be read.
    """

    run: str
    began: str
    state: str
    task: str | None = None
    method: str | None = None


def list_runs(work: Path) -> list[ListedRun]:
    """Return every run that was launched in a work directory, the newest first.

    Raises:
        ConfigurationError: there is no such directory, or it is no aggregator's.
    """
    require_aggregator(work)
    return [_listed(work, store) for store in reversed(runs_in(work))]


def listing_text(runs: Sequence[ListedRun]) -> str:
    """Return the list for people."""
    if not runs:
        return "no run was launched here yet"
    rows = [[each.run, moment_text(each.began), _by(each), each.state] for each in runs]
    return "\n".join(column_lines([["run", "launched", "what", "state"], *rows]))


def _by(listed: ListedRun) -> str:
    return f"{listed.task} by {listed.method}" if listed.task else ""


def _listed(work: Path, store: RunStore) -> ListedRun:
    began = time_text(store.begun_at)
    try:
        return ListedRun(store.run, began, *_told(work, store.run, tuple(sorted(store.marks().items()))))
    except DropfedError as error:
        return ListedRun(store.run, began, str(error))


@lru_cache(maxsize=1000)
def _told(work: Path, run: str, _marks: tuple[tuple[str, int], ...]) -> tuple[str, str, str]:
    """Return state, task and method of a run; read once for each state of its files, for the dashboard asks often."""
    store = RunStore(work, run)
    view = view_of(open_run_files(work, store), with_open_round=store.is_over)
    return _state(store, view), view.configuration.task, view.configuration.method


def _state(store: RunStore, view: RunView) -> str:
    if view.outcome is not None:
        return view.outcome.text
    if store.stop_requested:
        return "being closed"
    if store.waits_in_queue:
        return "queued"
    opened, rounds = len(view.rounds), view.configuration.rounds
    where = f"round {opened} of {rounds}" if opened else f"before round 1 of {rounds}"
    return f"{'paused' if store.paused else 'open'}, {where if opened <= rounds else 'the closing round'}"
