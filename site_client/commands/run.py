"""Run the daemon. Ctrl-C or TERM stops it cleanly; the next start goes on where it was."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from shared.errors import DropfedError
from shared.folder.lock import require_private
from shared.learning.compute import prepare_compute
from shared.logs import log_to
from shared.service import find_manager
from site_client.commands import FOR, WORK
from site_client.configuration import computing_of, open_folder, read_configuration
from site_client.daemon import Daemon
from site_client.limits import be_nice
from site_client.machine import site_lock
from site_client.stopping import stop_event


@click.command(help=__doc__)
@WORK
@click.option("--once", is_flag=True, help="Do what there is to do now, then end.")
@FOR
def command(work: Path, once: bool, duration: str | None) -> None:
    find_manager()
    work = work.absolute()
    with site_lock(work):
        require_private(work)
        os.umask(0o077)
        stop = stop_event(duration)
        configuration = read_configuration(work)
        log_to(work / "log.txt", configuration.log)
        with _end_logged():
            prepare_compute(computing_of(configuration), configuration.threads)
            be_nice(configuration.limits.nice)
            folder = open_folder(
                work,
                configuration,
                lambda direction: daemon.permit(direction),  # noqa: PLW0108  (it is made after its folder)
            )
            daemon = Daemon(work, configuration, folder, stop=stop, give_up_after_s=60.0 if once else None)
            daemon.run(once=once)


@contextmanager
def _end_logged() -> Iterator[None]:
    """Have the log say why the daemon ends: what a batch job prints is soon lost."""
    try:
        yield
    except DropfedError as error:
        logging.getLogger("site_client").error("the daemon ends: %s", error)
        raise
