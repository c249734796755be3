"""Go on after `pause`."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from site_client import store
from site_client.commands import WORK
from site_client.configuration import require_site
from site_client.decisions import when_sent


@click.command(help=__doc__)
@WORK
def command(work: Path) -> None:
    require_site(work)
    was_paused = store.is_paused(work)
    store.resume(work)
    say(f"the daemon goes on {when_sent(work)}" if was_paused else "it was not paused; nothing was changed")
