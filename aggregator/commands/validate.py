"""List every reason why `launch` would refuse RUN_YAML, and what to consider first.

Nothing is sent or written. The initial model is made and scored on the held-out images, as `launch` does it, which may
take a minute.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.preparation import prepare
from aggregator.store import RunStore
from shared.check import Finding, report
from shared.commands import AS_JSON, FILE_HERE
from shared.plurals import pluralize


@click.command(help=__doc__)
@click.argument("run_yaml", type=FILE_HERE)
@WORK
@AS_JSON
def command(run_yaml: Path, work: Path, as_json: bool) -> None:
    prepared = prepare(work, run_yaml)
    run = prepared.begun.run
    store, what = RunStore(work, run.run), f"{run.task} by {run.method}, {pluralize(run.rounds, 'round')}"
    if store.stop_requested:
        what = "it was stopped, and is closed with the best model so far"
    can_be = [] if store.is_over else [Finding("ok", f"{run_yaml}: {run.run} can be launched: {what}")]
    report([*can_be, *prepared.begun.remarks], as_json=as_json)
