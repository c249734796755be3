"""Show what RUN asks of this site, and exactly what would leave it and what would stay."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from site_client.commands import WORK
from site_client.offer import describe


@click.command(help=__doc__)
@click.argument("run")
@WORK
def command(run: str, work: Path) -> None:
    say(describe(work, run))
