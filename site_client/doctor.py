"""``dropfed-site check``: what works here and what does not, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from shared.check import Finding, look_at_images, look_at_server, with_problems
from shared.errors import NotFoundError, PoisonError
from shared.exchange.names import FEDERATION, MAX_RECORD_BYTES
from shared.exchange.trust import open_federation
from shared.folder.contract import Folder
from shared.learning.tasks import TASK_NAMES
from site_client.configuration import SiteConfiguration, open_folder


def examine(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    """Look at the folder, what its server can do, the aggregator's key and the data.

    In the folder a scratch folder is made and removed; nothing else is changed.
    """
    yield from with_problems(lambda: _folder(work, configuration))
    if not configuration.data:
        tasks = " or ".join(TASK_NAMES)
        yield Finding("warning", f"site.yaml: data: names no folder yet; add `data: {{TASK: DIR}}` with {tasks}")
    for task, folder in configuration.data.items():
        yield from with_problems(partial(look_at_images, task, work / folder))


def _folder(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    folder = open_folder(work, configuration)
    yield from look_at_server(folder)
    yield _aggregator(folder, configuration)


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
