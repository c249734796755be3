"""Show what this site waits for and since when, what comes next, its transfers and its limits."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import show_status, status_options
from site_client.commands import WORK
from site_client.overview import overview, overview_text


@click.command(help=__doc__)
@WORK
@status_options
def command(work: Path, as_json: bool, watch: bool) -> None:
    show_status(lambda: overview(work), overview_text, as_json=as_json, watch=watch)
