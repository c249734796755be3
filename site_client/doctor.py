"""``dropfed-site check``: what works here and what does not, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import DataError, DropfedError, NotFoundError, PassingError, PoisonError
from shared.exchange.names import FEDERATION, MAX_RECORD_BYTES
from shared.exchange.trust import open_federation
from shared.folder.contract import Folder
from shared.learning.data.splits import SPLIT_FILE, read_split_file
from shared.learning.tasks import TASK_NAMES, task_named
from site_client.configuration import SiteConfiguration, open_folder


@dataclass(frozen=True)
class Finding:
    """One line of the check."""

    grade: Literal["ok", "warning", "problem"]
    text: str


def examine(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    """Look at the folder, the aggregator's key and the data; nothing is changed."""
    yield from _folder(work, configuration)
    if not configuration.data:
        tasks = " or ".join(TASK_NAMES)
        yield Finding("warning", f"site.yaml: data: names no folder yet; add `data: {{TASK: DIR}}` with {tasks}")
    for task, folder in configuration.data.items():
        yield from _data(task, work / folder)


def _folder(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    try:
        folder = open_folder(work, configuration)
        folder.check()
        yield Finding("ok", f"{configuration.url} answers, and the password is right")
        yield _aggregator(folder, configuration)
    except PassingError as error:
        yield Finding("problem", f"{error}; if it stays so, ask your network people")
    except DropfedError as error:
        yield Finding("problem", str(error))


def _aggregator(folder: Folder, configuration: SiteConfiguration) -> Finding:
    try:
        federation = open_federation(
            folder.read(FEDERATION, max_bytes=MAX_RECORD_BYTES), aggregator_key=configuration.aggregator_key
        )
    except NotFoundError:
        return Finding("warning", "the aggregator has not accepted this site's card yet; it does once it runs")
    except PoisonError as error:
        return Finding("problem", f"{error}: do not go on, and tell the aggregator's people")
    return Finding("ok", f"enrolled in {federation.federation}, aggregator key {federation.aggregator_key[:16]}…")


def _data(task_name: str, root: Path) -> Iterator[Finding]:
    try:
        task = task_named(task_name)
        found = task.open_images(root, task.options({}))
        if (root / SPLIT_FILE).exists():
            read_split_file(root / SPLIT_FILE, [sample.id for sample in found.samples])
    except DataError as error:
        yield from (Finding("problem", f"{task_name}: {problem}") for problem in error.problems)
    except DropfedError as error:
        yield Finding("problem", str(error))
    else:
        classes = ", ".join(found.classes)
        yield Finding("ok", f"{task_name}: {len(found.samples)} labelled images in {root}; classes: {classes}")
