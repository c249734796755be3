"""The runs of a work directory, found by the names that people type."""

from __future__ import annotations

from pathlib import Path

from aggregator.configuration import require_aggregator
from aggregator.store import RunStore, last_launched, runs_in
from shared.errors import ConfigurationError
from shared.folder.lock import is_at_work


def unless_running(store: RunStore, work: Path) -> str:
    """Return what else must be done if no aggregator is at work, as the end of a sentence."""
    if is_at_work(work):
        return ""
    return f"; the aggregator is not running: {store.goes_on_by} starts it"


def find_run(work: Path, run: str) -> RunStore:
    """Return a run that was launched here.

    Raises:
        ConfigurationError: there is no such directory, or no such run here.
    """
    here = runs_here(work)
    store = next((store for store in runs_in(work) if store.run == run), None)
    if store is None:
        raise ConfigurationError([f"{work}: there is no run {run} here; {here}"])
    return store


def runs_here(work: Path) -> str:
    """List the runs that were launched here, as the end of a sentence.

    Raises:
        ConfigurationError: there is no such directory.
    """
    require_aggregator(work)
    runs = [store.run for store in runs_in(work)]
    return f"the runs here are {', '.join(runs)}" if runs else "no run was launched here yet"


def open_run(work: Path, run: str) -> RunStore:
    """Return a run that has not ended.

    Raises:
        ConfigurationError: there is no such directory, no such run here, or it has ended.
    """
    require_open(store := find_run(work, run))
    return store


def require_open(store: RunStore) -> None:
    """Check that a run has not ended.

    Raises:
        ConfigurationError: it has.
    """
    run = store.run
    if (card := store.card()) is not None:
        raise ConfigurationError([f"{run} has ended already: {card.reason}; its model is {store.final_model}"])
    if (reason := store.aborted()) is not None:
        raise ConfigurationError([f"{run} was aborted: {reason}; launch a new run"])


def is_being_told(store: RunStore, work: Path) -> bool:
    """Return whether an aggregator is at work that tells the sites of a run's end."""
    return store.is_over and is_at_work(work) and last_launched(work) == store.run
