"""Every run of a work directory, one line each; no daemon needs to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.configuration import require_aggregator
from aggregator.run_view import RunView, open_run_files, view_of
from aggregator.store import RunStore, runs_in
from shared.columns import column_lines
from shared.errors import DropfedError
from shared.exchange.mirror import Mirror
from shared.exchange.records.values import time_text
from shared.folder.durable import disk_trouble
from shared.moments import moment_text

_told: dict[tuple[Path, str], tuple[dict[str, int], tuple[str, str, str]]] = {}
"""State, task and method of each run, and of which of its files: the dashboard asks often."""


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
    runs = [(store, store.marks()) for store in reversed(runs_in(work))]
    known: dict[str, Mirror | None] = {}  # each site's messages are read once for all runs, and after what marks them
    return [_listed(work, store, marks, known) for store, marks in runs]


def listing_text(runs: Sequence[ListedRun]) -> str:
    """Return the list for people."""
    if not runs:
        return "no run was launched here yet"
    rows = [[each.run, moment_text(each.began), _by(each), each.state] for each in runs]
    return "\n".join(column_lines([["run", "launched", "what", "state"], *rows]))


def _by(listed: ListedRun) -> str:
    return f"{listed.task} by {listed.method}" if listed.task else ""


def _listed(work: Path, store: RunStore, marks: dict[str, int], known: dict[str, Mirror | None]) -> ListedRun:
    began, place = time_text(store.begun_at), (work, store.run)
    try:
        if place not in _told or _told[place][0] != marks:
            view = view_of(open_run_files(work, store, known=known), with_open_round=store.is_over)
            _told[place] = marks, (_state(store, view), view.configuration.task, view.configuration.method)
        return ListedRun(store.run, began, *_told[place][1])
    except DropfedError as error:
        return ListedRun(store.run, began, str(error))
    except OSError as error:
        return ListedRun(store.run, began, str(disk_trouble(error, store.home)))


def _state(store: RunStore, view: RunView) -> str:
    if view.outcome is not None:
        return view.outcome.text
    if store.stop_requested:
        return "being closed"
    if store.waits_in_queue:
        return "queued, paused" if store.paused else "queued"
    opened, rounds = len(view.rounds), view.configuration.rounds
    where = f"round {opened} of {rounds}" if opened else f"before round 1 of {rounds}"
    return f"{'paused' if store.paused else 'open'}, {where if opened <= rounds else 'the closing round'}"
