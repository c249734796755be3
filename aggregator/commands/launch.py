"""Start the run that RUN_YAML describes, or go on with it; ends with the run, and says what it came to.

Of several runs each begins when the one before it has ended, whatever that came to; one that cannot begin holds up
none. The sites are asked about all of them at once: those that can be begun already are offered at the start.

Exits with 0 if the model improved, or was only to be scored and was; with 1 if the run was aborted, with 2 if it cannot
begin, and with 3 if it ended in any other way; with several, with the greatest of these. Ctrl-C or TERM ends it cleanly
before that, with 0: the same command goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import MADE_BY
from aggregator.launch import ended_before, prepare_daemon
from aggregator.preparation import read_run
from aggregator.store import if_another_launch
from shared.commands import FILE_HERE, say
from shared.errors import ConfigurationError, DropfedError
from shared.folder.lock import require_private, work_lock
from shared.learning.outcome import Outcome
from shared.stopping import set_by_signals

ABORTED, CANNOT_BEGIN, NOT_IMPROVED = 1, 2, 3


@click.command(help=__doc__)
@click.argument("run_yaml", type=FILE_HERE, nargs=-1, required=True)
@WORK
@click.option("--accept-any", is_flag=True, help="Exit with 0 however the runs have ended; for scripts.")
def command(run_yaml: tuple[Path, ...], work: Path, accept_any: bool) -> None:
    with work_lock(work, if_another_launch(work), MADE_BY):
        require_private(work)
        os.umask(0o077)
        runs = _runs_of(run_yaml)
        if len(run_yaml) == 1:
            outcome = _run(work, run_yaml[0])
            codes = [] if outcome is None else [_code(outcome, accept_any)]
        else:
            codes = _run_each(work, runs, accept_any)
        if len(codes) < len(run_yaml):
            say(f"interrupted; go on with the same command (work directory {work})")
            return
        sys.exit(max(codes))


def _run_each(work: Path, runs: Mapping[str, Path], accept_any: bool) -> list[int]:
    """Play runs one after the other and sum them up; return the exit code of each, up to one that was interrupted."""
    ends: dict[str, tuple[str, int]] = {}
    for run, path in runs.items():
        later = [each for other, each in runs.items() if other not in (*ends, run)]
        try:
            outcome = ended_before(work, run) or _run(work, path, later)
        except DropfedError as error:
            say(str(error), err=True)
            is_mistake = isinstance(error, ConfigurationError)
            ends[run] = str(error).splitlines()[0], CANNOT_BEGIN if is_mistake else ABORTED
            continue
        if outcome is None:
            break
        ends[run] = outcome.text, _code(outcome, accept_any)
    else:
        say("\n".join([f"{len(ends)} runs:", *(f"  {run}: {text}" for run, (text, _) in ends.items())]))
    return [code for _, code in ends.values()]


def _code(outcome: Outcome, accept_any: bool) -> int:
    if accept_any or outcome.name in ("improved", "scored"):
        return 0
    return ABORTED if outcome.name == "aborted" else NOT_IMPROVED


def _runs_of(paths: tuple[Path, ...]) -> dict[str, Path]:
    """Return the files by their runs: each is a run, and another than the others, before the first begins.

    Raises:
        ConfigurationError: every problem of every file.
    """
    problems: list[str] = []
    files: dict[str, Path] = {}
    for path in paths:
        try:
            run = read_run(path).run
        except ConfigurationError as error:
            problems += error.problems
            continue
        if run in files:
            problems.append(f"{path}: run: {run} is that of {files[run]} too; name each run once")
        files[run] = path
    if problems and len(paths) > 1:  # of one file alone `prepare` tells more
        raise ConfigurationError(problems)
    return files


def _run(work: Path, run_yaml: Path, later: Sequence[Path] = ()) -> Outcome | None:
    """Play a run to its end, and say what it came to; return None where it was interrupted."""
    stop = threading.Event()
    daemon = prepare_daemon(work, run_yaml, stop, later)
    set_by_signals(stop)
    daemon.run()
    outcome, model = daemon.outcome, daemon.final_model
    if outcome is not None:
        say(f"{outcome.text}; the chosen model is {model}" if model else outcome.text, err=model is None)
    return outcome
