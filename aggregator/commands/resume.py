"""Go on with RUN after `pause`."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.launched import open_run, unless_running
from shared.commands import say


@click.command(help=__doc__)
@click.argument("run")
@WORK
def command(run: str, work: Path) -> None:
    store = open_run(work, run)
    was_paused = store.paused
    store.resume()
    say(f"{run} {'goes on' if was_paused else 'was not paused'}{unless_running(store, work)}")
