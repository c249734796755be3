"""Start the run that RUN_YAML describes, or go on with it; ends with the run, and says what it came to.

Exits with 0 if the model improved, with 1 if the run was aborted, and with 3 if it ended in any other way.
Ctrl-C or TERM ends it cleanly before that, with 0: the same command goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import MADE_BY
from aggregator.daemon import Daemon
from aggregator.launch import prepare_daemon
from aggregator.store import if_another_launch
from shared.commands import FILE_HERE, say
from shared.folder.lock import require_private, work_lock
from shared.stopping import set_by_signals

NOT_IMPROVED = 3


@click.command(help=__doc__)
@click.argument("run_yaml", type=FILE_HERE)
@WORK
@click.option("--accept-any", is_flag=True, help="Exit with 0 however the run has ended; for scripts.")
def command(run_yaml: Path, work: Path, accept_any: bool) -> None:
    stop = threading.Event()
    with work_lock(work, if_another_launch(work), MADE_BY):
        require_private(work)
        os.umask(0o077)
        daemon = prepare_daemon(work, run_yaml, stop)
        set_by_signals(stop)
        _run(daemon, work, accept_any=accept_any)


def _run(daemon: Daemon, work: Path, *, accept_any: bool) -> None:
    daemon.run()
    outcome, model = daemon.outcome, daemon.final_model
    if outcome is None:
        say(f"interrupted; go on with the same command (work directory {work})")
        return
    say(f"{outcome.text}; the chosen model is {model}" if model else outcome.text, err=model is None)
    if outcome.name not in ("improved", "scored") and not accept_any:
        sys.exit(1 if outcome.name == "aborted" else NOT_IMPROVED)
