"""Whether a study's folders can be read: told before the first cell is played, rather than by every cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from shared.errors import ConfigurationError, DataError, PluginError
from shared.exchange.reading import check_record
from shared.exchange.records.run import Plugin
from shared.learning.blame import blaming
from shared.learning.data.splits import SplitPlan
from shared.learning.plugins import required_by
from shared.learning.seeds import no_secret, split_seed
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import open_anew
from studies.matrix import IMAGES_PER_SITE, Cell

_SHOWN = 10
"""So many problems of a folder are told, and how many more there are."""


def require_readable(cells: Iterable[Cell]) -> None:
    """Check that every folder can be read, and divided as the cells will: in each of their ways, by the first seed.

    Raises:
        ConfigurationError: what is wrong, by folder.
    """
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(_way_of_reading(cell), cell)
    if problems := dict.fromkeys(problem for cell in first.values() for problem in _problems(cell)):
        raise ConfigurationError([*problems])


def _way_of_reading(cell: Cell) -> str:
    """Return a key that is equal for cells that read alike, as all turns of a cross-validation do."""
    return json.dumps([cell.configuration.run.task_options, {**_split(cell), "folds": None}], sort_keys=True)


def _split(cell: Cell) -> dict[str, object]:
    wanted = cell.configuration.images_per_site
    return cell.configuration.run_with(None if wanted == "fewest" else wanted).split


def _problems(cell: Cell) -> Iterator[str]:
    configuration, task = cell.configuration, task_named(cell.configuration.run.task)
    options = task.options(configuration.run.task_options)
    split, plugins = check_record(_split(cell), SplitPlan, "run: split"), required_by(configuration.run)
    for site, folder in configuration.data.items():
        seed, secret = split_seed(configuration.run.seed, site), no_secret(configuration.run.seed, site)
        divided = partial(open_anew, task, options=options, plan=split, seed=seed, secret=secret)
        yield from _folder_problems(f"data: {site}", folder, plugins, divided)
    for key, opened in (("out_of_distribution", task.open_unlabelled), ("heldout", task.open_images)):
        if (folder := getattr(configuration, key)) is not None:
            yield from _folder_problems(key, folder, plugins, partial(opened, options=options))


def _folder_problems(key: str, folder: str, plugins: Sequence[Plugin], read: Callable[[Path], object]) -> Iterator[str]:
    """Yield what is wrong with a folder, by the key that names it and the keys of a study."""
    try:
        with blaming(plugins, f"{key} ({folder})"):
            read(Path(folder))
    except PluginError as error:
        yield str(error)
    except DataError as error:
        for problem in error.problems[:_SHOWN]:
            yield f"{key} ({folder}): {problem.replace('train_images:', f'{IMAGES_PER_SITE}:')}"
        if (more := len(error.problems) - _SHOWN) > 0:
            yield f"{key} ({folder}): and {more} more like these"
