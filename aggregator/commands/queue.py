"""Have the run that RUN_YAML describes wait for its turn, whether or not another goes on.

If an aggregator is at work, it asks the sites as soon as no round is open in their folders. `launch` plays the run when
those before it have ended. Without RUN_YAML: list the queued runs that have no round yet, and those that have ended but
whose hospitals are not all told. To take a run out of the queue, `stop` it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import require_aggregator
from aggregator.launch import begin_early
from aggregator.launched import is_being_told
from aggregator.overview import waiting_text
from aggregator.preparation import ended_already, read_run
from aggregator.store import RunStore, last_launched, queued_runs
from shared.check import Finding, report
from shared.commands import FILE_HERE, say
from shared.errors import ConfigurationError
from shared.escaping import quoted
from shared.exchange.mirror import Mirror
from shared.folder.lock import is_at_work, require_private


@click.command(help=__doc__)
@click.argument("run_yaml", type=FILE_HERE, required=False)
@WORK
def command(run_yaml: Path | None, work: Path) -> None:
    require_aggregator(work)
    if run_yaml is None:
        waiting = [store for store in queued_runs(work) if store.is_over or not store.round_no]
        known: dict[str, Mirror | None] = {}  # each site's messages are read once for all runs
        say("\n".join(_line(work, store, known) for store in waiting) or f"{work}: no run waits")
        return
    require_private(work)
    os.umask(0o077)
    store = RunStore(work, read_run(run_yaml).run)
    if store.is_over:
        raise ConfigurationError([ended_already(store.run)])
    if store.stop_requested:
        raise ConfigurationError([f"{store.run} was stopped; to run it again, give it a new name"])
    is_queued = store.waits_in_queue
    if is_at_work(work) and last_launched(work) == store.run:
        raise ConfigurationError([f"{store.run} goes on already: `dropfed-aggregator status --work {quoted(work)}`"])
    begun = begin_early(work, run_yaml, threading.Event())
    if not is_queued:
        store.queue()
    launch = f"`dropfed-aggregator launch --work {quoted(work)}`"
    starts = "" if is_at_work(work) else f"; the aggregator is not running: {launch} starts it"
    report([Finding("ok", f"{store.run} is queued{' already' if is_queued else ''}{starts}"), *begun.remarks])


def _line(work: Path, store: RunStore, known: dict[str, Mirror | None]) -> str:
    if is_being_told(store, work):
        return f"{store.run}: has ended, and its hospitals are being told"
    if store.is_over:
        return f"{store.run}: has ended; `launch` tells the hospitals that were not told, `stop` takes it out"
    return waiting_text(work, store, known)
