"""List the runs offered to this site, the newest first: its answer to each, and how each ended."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import AS_JSON, show
from site_client.commands import WORK
from site_client.listing import list_runs, listing_text


@click.command(help=__doc__)
@WORK
@AS_JSON
def command(work: Path, as_json: bool) -> None:
    show(list_runs(work), listing_text, as_json=as_json)
