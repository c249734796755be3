"""Show where the newest run stands: who is waited for, since when and why, what comes next, transfers."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.overview import overview, overview_text
from shared.commands import show_status, status_options


@click.command(help=__doc__)
@WORK
@status_options
def command(work: Path, as_json: bool, watch: bool) -> None:
    show_status(lambda: overview(work), overview_text, as_json=as_json, watch=watch)
