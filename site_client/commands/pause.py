"""Have the daemon do nothing until `resume` but send its heartbeat.

It reads nothing, trains nothing and sends nothing else. Training or a transfer in progress is interrupted, and repeated
or resumed later.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from shared.escaping import quoted
from site_client import store
from site_client.commands import WORK
from site_client.configuration import require_site


@click.command(help=__doc__)
@WORK
def command(work: Path) -> None:
    require_site(work)
    with store.deciding(work):
        store.pause(work)
    say(f"paused; go on with `dropfed-site resume --work {quoted(work)}`")
