"""``dropfed-study run``: a study from its file to its tables, told as it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aggregator.report.page import PAGE
from shared.commands import say
from shared.durations import duration_text
from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.exchange.drop_folder import lies_in
from shared.folder.durable import disk_trouble
from shared.learning.plugins import permit_installed
from shared.plurals import pluralize
from studies.configuration import StudyConfiguration, read_study
from studies.matrix import Cell, expand
from studies.pages import write_study_pages
from studies.results import CELLS, folder_of, result_of
from studies.running import LOG, Engine, Finished, as_many_as_fit, run_cells
from studies.table import TABLE, read_results, write_table
from studies.tuning import trials, with_rates

_WRITTEN = (TABLE, PAGE, "tables", "figures")
"""What a study writes beside its cells."""

Ended = Literal["all", "some", "stopped"]
"""Which cells are finished: all of them; some, for others failed; or those that were when a person stopped it."""


def play_study(path: Path, output: Path | None, engine: Engine, at_a_time: int | None) -> bool:
    """Play what is not finished of a study, and write its table.

    Args:
        path: ``STUDY.yaml``.
        output: where its cells and tables are, made if it is not there; None: beside the file.

    Returns:
        Whether every cell is finished.

    Raises:
        ConfigurationError: every problem of the study.
        ActionRequiredError, TransientError: the disk is full, or lets nothing be written there.
    """
    permit_installed()  # a researcher's own plug-ins, on their own machine
    study = read_study(path)
    home = output or path.with_suffix("")
    try:
        _require_place(home, path, study)
        tried = trials(study, study.tune, path.parent) if study.tune is not None else None
        cells = expand(study, path.parent) if tried is None else tried.all
    except ConfigurationError as error:
        raise ConfigurationError([f"{path}: {problem}" for problem in error.problems]) from None
    play = partial(_play, home=home, engine=engine, at_a_time=at_a_time or as_many_as_fit())
    left_out: list[str] = []
    try:
        if tried is not None:
            if play(f"{study.study}, choosing learning rates", cells) == "stopped":
                return False
            tried, left_out = tried.ended(home)
            if not tried.cells:
                say("no arm has a learning rate yet, so there is no table")
                return False
            study = with_rates(tried.study, tried.taken(home))
            cells = expand(study, path.parent)
        ended = play(study.study, cells)
        for arm in left_out:
            say(
                escape(f"{arm} is not played: a trial of its learning rates has not ended; mend the arm or take it out")
            )
        results = read_results(home, cells)
        if lost := results.loc[results["rounds_without_a_model"] > 0, "configuration"].nunique():
            say(
                f"in {pluralize(lost, 'finished cell')} some round ended without any site's model: the page's table of "
                "chosen rounds says of which arms, and each cell's log.txt why"
            )
        say(f"the table: {write_table(home, results)}")
        say(f"the page:  {write_study_pages(study, home, cells, results, tried.table(home) if tried else None)}")
    except OSError as error:  # which need not tell the file
        raise disk_trouble(error, home) from error
    return ended == "all" and not left_out


def _play(what: str, cells: Sequence[Cell], *, home: Path, engine: Engine, at_a_time: int) -> Ended:
    """Play what is not finished of these cells, and say so."""
    (home / CELLS).mkdir(parents=True, exist_ok=True)
    cells = [*{cell.name: cell for cell in cells}.values()]  # arms of the same settings are played once
    done = sum(result_of(home, cell) is not None for cell in cells)
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    say(f"{what}: {pluralize(len(cells), 'cell')}, {done} of them finished before; they lie in {home / CELLS}")
    if done < len(cells):
        say("every folder is read before the first cell")
    stopped, told = False, _Told(console, home, len(cells), done)
    with told.progress:
        try:
            run_cells(cells, home, engine=engine, at_a_time=at_a_time, on_finished=told.finished)
        except KeyboardInterrupt:
            stopped = True
    for finished in told.failed:
        log = folder_of(home, finished.cell) / LOG
        say(escape(f"{name_of(finished.cell)} failed: {finished.trouble} (all of it: {log})"))
    if told.failed:
        say("the same command plays what failed again, from its first round")
    if stopped:
        say("stopped; the same command goes on, and plays no finished cell again")
        return "stopped"
    return "some" if told.failed else "all"


def _require_place(home: Path, path: Path, study: StudyConfiguration) -> None:
    """Check that results get no other place than their own.

    Raises:
        ConfigurationError: they would lie where the file is, in place of what no study wrote, or among some site's
            images, which would then be others with each run.
    """
    if home == path:
        raise ConfigurationError([f"results would lie in its place; call it {path.name}.yaml, or say --output"])
    others = [home / name for name in _WRITTEN if (home / name).exists()]
    if others and not (home / CELLS).exists():
        remedy = "remove it, or say another place with --output"
        raise ConfigurationError([f"{others[0]}: is there without a study's cells, and stays; {remedy}"])
    for folder in study.folders.values():
        if lies_in(home, path.parent / folder):
            raise ConfigurationError([f"data: results would lie in {folder}; say another place with --output"])


def name_of(cell: Cell) -> str:
    """Return what people call a cell."""
    turn = f", fold {cell.turn.outer}/{cell.turn.inner}" if cell.turn else ""
    left_out = f" without {site}" if (site := cell.configuration.left_out) else ""
    return f"{cell.arm}{left_out}, seed {cell.configuration.run.seed}{turn}"


class _Told:
    """How far a study is: a bar on a terminal, elsewhere a line for each cell."""

    def __init__(self, console: Console, home: Path, cells: int, done: int) -> None:
        self._console, self._home = console, home
        self._cells, self._done, self._done_before = cells, done, done
        self._began = time.monotonic()
        self.failed: list[Finished] = []
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar = self.progress.add_task("", total=cells, completed=done)

    def finished(self, finished: Finished) -> None:
        if finished.trouble is not None:
            self.failed.append(finished)
        self._done += 1
        each_s = (time.monotonic() - self._began) / (self._done - self._done_before)
        open_cells = self._cells - self._done
        left = f"about {duration_text(each_s * open_cells)} left" if open_cells else "all have ended"
        how = "failed" if finished.trouble is not None else f"{finished.seconds:.0f} s"
        if finished.rounds_without_a_model:
            log = folder_of(self._home, finished.cell) / LOG
            how += f", but in {finished.rounds_without_a_model} of its rounds no site's model counted: {log} tells why"
        self.progress.update(self._bar, completed=self._done, description=left)
        line = f"[{self._done}/{self._cells}] {name_of(finished.cell)}: {how}; {left}"
        self._console.print(escape(line))
