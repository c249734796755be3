"""Move what is new between the server and the directory in which a daemon without a network works.

`exchange` in site.yaml names that directory. Ctrl-C or TERM ends the command cleanly; the next start goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from shared.folder.lock import require_private
from shared.logs import log_to
from site_client.commands import FOR, WORK
from site_client.configuration import read_configuration
from site_client.moving import move
from site_client.stopping import stop_event


@click.command(help=__doc__)
@WORK
@click.option("--once", is_flag=True, help="Move what there is to move now, then end.")
@FOR
def command(work: Path, once: bool, duration: str | None) -> None:
    work = work.absolute()
    configuration = read_configuration(work)
    require_private(work)
    os.umask(0o077)
    log_to(work / "move.log", configuration.log)
    move(work, configuration, stop_event(duration), once=once)
