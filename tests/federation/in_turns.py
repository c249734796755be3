"""A whole federation in this process, whose daemons take turns over folders of this disk: no server, and nothing waits.

The daemons are those of hospitals, as studies play them. What is real beside them in other harnesses, sockets and
processes, changes no byte of what they come to.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from threadpoolctl import threadpool_limits

from shared.exchange.records.run import RunConfiguration
from site_client.configuration import Policy
from studies import daemons
from tests.federation.running import POLICY, Setting, make_data


@contextmanager
def as_before() -> Iterator[None]:
    """Put back what a process has one of, and a run changes: its log, and the number of its threads."""
    handlers, hook, threads = logging.getLogger().handlers[:], sys.excepthook, torch.get_num_threads()
    try:
        yield
    finally:
        logging.getLogger().handlers = handlers
        logging.captureWarnings(False)
        sys.excepthook = hook
        torch.set_num_threads(threads)


def in_turns(
    root: Path,
    run: RunConfiguration,
    *,
    data: Path | None = None,
    images: int = 20,
    policy: Policy = POLICY,
    weights: Path | None = None,
) -> Setting:
    """Play a run to its end; return the work directories and folders that it leaves below ``root``.

    Where an earlier run has left some, they are those of the same federation.

    Args:
        data: ready data folders, as for ``Setting``.
        weights: where published weights lie, if the run begins with some.
    """
    setting = Setting(root, run, images, data or root / "data", policy)
    if data is None:
        make_data(run, root / "data", images)
    of_sites = {site: setting.data_of(site) for site in run.sites}
    # What else computes has a thread too: a probe's linear algebra would take all there are.
    with as_before(), threadpool_limits(1), patch.object(daemons, "POLICY", policy):
        daemons.run_exchange(run, of_sites, root, heldout=setting.data_of("heldout"), weights=weights)
    return setting
