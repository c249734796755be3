"""Pause RUN: no round is opened and no deadline comes nearer.

Offers still go out, and answers to the open round are still taken.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.launched import open_run
from shared.commands import say
from shared.errors import ConfigurationError
from shared.escaping import quoted


@click.command(help=__doc__)
@click.argument("run")
@WORK
def command(run: str, work: Path) -> None:
    store = open_run(work, run)
    if store.stop_requested:
        raise ConfigurationError([f"{run} is being closed, and cannot be paused any more"])
    store.pause()
    say(f"{run} is paused; go on with `dropfed-aggregator resume {run} --work {quoted(work)}`")
