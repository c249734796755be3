"""Train together with the daemon on another machine, as machine number NODE.

The daemon's machine is number 0, and `nodes` in its site.yaml says how many machines there are. WORK and the images lie
on a disk that both machines reach by the same paths.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from shared.folder.lock import require_private
from shared.logs import log_to
from site_client.commands import FOR, WORK
from site_client.configuration import read_configuration
from site_client.limits import be_nice
from site_client.stopping import stop_event
from site_client.torchrun import assist as assist_daemon
from site_client.torchrun import require_node


@click.command(help=__doc__)
@click.argument("node", type=click.IntRange(min=1))
@WORK
@FOR
def command(node: int, work: Path, duration: str | None) -> None:
    stop = stop_event(duration)
    work = work.absolute()
    configuration = read_configuration(work)
    require_node(node, configuration)
    require_private(work)
    os.umask(0o077)
    log_to(work / f"log-{node}.txt", configuration.log)
    be_nice(configuration.limits.nice)
    assist_daemon(work, node, stop)
