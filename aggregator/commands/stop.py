"""End RUN for good: the best model so far becomes the final one.

The open round ends with the answers that have come. A run that has ended, but is still queued because not every
hospital has been told, leaves the queue.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.launched import find_run, is_being_told, require_open, unless_running
from shared.commands import require_yes, say


@click.command(help=__doc__)
@click.argument("run")
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(run: str, work: Path, yes: bool) -> None:
    store = find_run(work, run)
    if store.is_over and store.is_queued and not is_being_told(store, work):
        store.unqueue()
        untold = "who was not told is told by the next run, or if it is launched again"
        say(f"{run} has ended, and leaves the queue; {untold}")
        return
    require_open(store)
    if not (yes or store.stop_requested):
        require_yes(f"End {run} for good? It cannot go on after that; `pause` holds it up for as long as you like.")
        require_open(store)  # it may have ended while the question stood
    store.request_stop()
    say(f"{run} is being closed with the best model so far{unless_running(store, work)}")
