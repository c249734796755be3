"""``dropfed-aggregator study``: a study from its file to its tables, told as it goes on."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aggregator.studies.configuration import read_study
from aggregator.studies.matrix import Cell, expand
from aggregator.studies.pages import write_study_pages
from aggregator.studies.results import CELLS, folder_of, result_of, table_rows, write_table
from aggregator.studies.running import LOG, Engine, Finished, as_many_as_fit, run_cells
from shared.counted import counted
from shared.durations import duration_text
from shared.visible import visible


def play_study(path: Path, home: Path, engine: Engine, at_a_time: int | None) -> bool:
    """Play what is not finished of a study, and write its table.

    Args:
        path: ``STUDY.yaml``.
        home: where its cells and tables are; made if it is not there.

    Returns:
        Whether every cell is finished.

    Raises:
        ConfigurationError: every problem of the study.
    """
    study = read_study(path)
    cells = expand(study, path.parent)
    (home / CELLS).mkdir(parents=True, exist_ok=True)
    done = sum(result_of(home, cell) is not None for cell in cells)
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    console.print(
        f"{study.study}: {counted(len(cells), 'cell')}, {done} of them finished before; they lie in {home / CELLS}"
    )
    at_a_time = at_a_time or as_many_as_fit()
    with _Told(console, len(cells), done, at_a_time) as told:
        failed = run_cells(cells, home, engine=engine, at_a_time=at_a_time, on_finished=told.finished)
    console.print(f"the table: {write_table(home, cells)}")
    rows = list(table_rows(home, cells))
    if rows:
        console.print(f"the page:  {write_study_pages(study, home, cells, rows)}")
    for finished in failed:
        log = folder_of(home, finished.cell) / LOG
        console.print(visible(f"{name_of(finished.cell)} failed: {finished.trouble} (all of it: {log})"))
    return not failed


def name_of(cell: Cell) -> str:
    """What people call a cell."""
    turn = f", fold {cell.turn.outer}/{cell.turn.inner}" if cell.turn else ""
    return f"{cell.way}, seed {cell.configuration.run.seed}{turn}"


class _Told:
    """How far a study is: a bar on a terminal, elsewhere a line for each cell."""

    def __init__(self, console: Console, cells: int, done: int, at_a_time: int) -> None:
        self._console, self._cells, self._done, self._at_a_time = console, cells, done, at_a_time
        self._began, self._finished_now = time.monotonic(), 0
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar = self._progress.add_task("", total=cells, completed=done)

    def __enter__(self) -> _Told:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def finished(self, finished: Finished) -> None:
        self._finished_now += 1
        self._done += 1
        each_s = (time.monotonic() - self._began) / self._finished_now
        left = duration_text(each_s * (self._cells - self._done))
        how = "failed" if finished.trouble is not None else f"{finished.seconds:.0f} s"
        self._progress.update(self._bar, completed=self._done, description=f"about {left} left")
        line = f"[{self._done}/{self._cells}] {name_of(finished.cell)}: {how}; about {left} left"
        self._console.print(visible(line))
