"""Start the run that RUN_YAML describes, or go on with it; ends with the run, and says what it came to.

Several runs are played one after the other: each begins when the one before it has ended, however that ended. A run
that cannot begin is skipped, and tried again each time another run ends. All runs that can begin already are offered to
the sites at the start. Queued runs follow those that are named; if none is named, they are played alone.

Exits with 0 if the model improved, or if the run was only to score a model and did; with 1 if the run was aborted or an
error broke it off; with 2 if its settings or a plug-in do not let it begin; with 3 if it ended in any other way. Of
several runs the greatest code counts. Ctrl-C or TERM ends the command cleanly, with 0; the same command goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import require_aggregator
from aggregator.launch import ended_before, is_told, prepare_daemon, require_named, track_ended
from aggregator.preparation import ended_already, prepare, read_run
from aggregator.store import RunStore, if_another_launch, queued_runs
from shared.commands import FILE_HERE, say
from shared.errors import ConfigurationError, DropfedError, PluginError
from shared.escaping import quoted
from shared.exchange import names
from shared.folder.durable import disk_trouble
from shared.folder.lock import require_private, work_lock
from shared.learning.outcome import Outcome
from shared.stopping import stopped_by_signals

ABORTED, CANNOT_BEGIN, NOT_IMPROVED = 1, 2, 3


@dataclass(frozen=True)
class End:
    """What a run came to in words, and the exit code that says the same."""

    text: str
    code: int


@click.command(help=__doc__)
@click.argument("run_yaml", type=FILE_HERE, nargs=-1)
@WORK
@click.option("--accept-any", is_flag=True, help="Exit with 0 however the runs have ended; for scripts.")
def command(run_yaml: tuple[Path, ...], work: Path, accept_any: bool) -> None:
    require_aggregator(work)
    with work_lock(work, if_another_launch(work)):
        require_private(work)
        os.umask(0o077)
        named = _runs_of(work, run_yaml)
        if not _line(work, named):
            queue = f"`dropfed-aggregator queue RUN.yaml --work {quoted(work)}`"
            raise ConfigurationError([f"{work}: no run waits here; name a RUN.yaml, or have it wait by {queue}"])
        ends = _play(work, named, accept_any)
        if ends is None:
            say(f"interrupted; go on with the same command (work directory {work})")
            return
        if len(ends) > 1:
            say("\n".join([f"{len(ends)} runs:", *(f"  {run}: {end.text}" for run, end in ends.items())]))
        sys.exit(max(end.code for end in ends.values()))


def _play(work: Path, named: Mapping[str, Path], accept_any: bool) -> dict[str, End] | None:
    """Play one run after the other, and those that are queued meanwhile; return their ends, None if interrupted."""
    ended: dict[str, End] = {}
    failed: dict[str, End] = {}  # since a run last ended
    signals: list[int] = []
    while left := {run: path for run, path in _line(work, named).items() if run not in ended | failed}:
        if signals:  # one came while a run that had ended, or failed, was brought to its close
            return None
        run, path = next(iter(left.items()))
        later = {other: each for other, each in named.items() if other not in ended and other != run}
        try:
            require_named(path, run)
            outcome = ended_before(work, path)
            if outcome is not None:
                say(ended_already(run, outcome.text))
                _track(work, RunStore(work, run), signals)
            else:
                if run not in named:
                    say(f"{run}, which was queued, is next")
                outcome = _run(work, path, later, signals)
                failed.clear()
        except (DropfedError, OSError) as error:
            failed[run] = _failed(RunStore(work, run), error)
            continue
        if outcome is None:
            return None
        ended[run] = End(outcome.text, 0 if accept_any else _code(outcome))
        _take_out(work, RunStore(work, run), was_cut_off=bool(signals))
    return ended | failed


def _track(work: Path, store: RunStore, signals: list[int]) -> None:
    """Give what tracks runs what it lacks of one that has ended, whose end does not depend on that.

    Args:
        signals: those that come meanwhile are noted there.
    """
    try:
        with stopped_by_signals(threading.Event(), signals):
            track_ended(work, store)
    except (DropfedError, OSError) as error:
        say(f"{store.run} is not tracked any further: {error}", err=True)


def _take_out(work: Path, store: RunStore, *, was_cut_off: bool) -> None:
    """Take a run that has ended out of the queue; not while its sites were still being told, if that was cut off."""
    try:
        if not was_cut_off or is_told(work, store):
            store.unqueue()
    except (DropfedError, OSError) as error:
        say(f"{store.run} stays in the queue: {error}", err=True)


def _failed(store: RunStore, error: DropfedError | OSError) -> End:
    """Report why a run cannot begin, or go on; one that was stopped before is not tried again."""
    trouble = disk_trouble(error, store.home) if isinstance(error, OSError) else error
    say(str(trouble), err=True)
    if store.stop_requested:
        store.unqueue()
    is_mistake = isinstance(trouble, ConfigurationError | PluginError)
    return End(str(trouble).splitlines()[0], CANNOT_BEGIN if is_mistake else ABORTED)


def _line(work: Path, named: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files of the runs to play, by their names, in order."""
    queued = {store.run: store.home / names.RUN_CONFIGURATION for store in queued_runs(work)}
    return {**named, **{run: path for run, path in queued.items() if run not in named}}


def _code(outcome: Outcome) -> int:
    if outcome.name in ("improved", "scored"):
        return 0
    return ABORTED if outcome.name == "aborted" else NOT_IMPROVED


def _runs_of(work: Path, paths: tuple[Path, ...]) -> dict[str, Path]:
    """Return the files by their runs; check before the first begins that each is a run, and no two the same.

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
    if problems and len(paths) == 1:
        prepare(work, paths[0])  # tells everything
    if problems:
        raise ConfigurationError(problems)
    return files


def _run(work: Path, run_yaml: Path, later: Mapping[str, Path], signals: list[int]) -> Outcome | None:
    """Play a run to its end, and say what it came to; return None where it was interrupted.

    Args:
        signals: those that come meanwhile are noted there.
    """
    stop = threading.Event()
    daemon = prepare_daemon(work, run_yaml, stop, later)
    with stopped_by_signals(stop, signals):
        daemon.run()
    outcome, model = daemon.outcome, daemon.final_model
    if outcome is not None:
        say(f"{outcome.text}; the chosen model is {model}" if model else outcome.text, err=model is None)
    return outcome
