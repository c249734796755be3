"""List the runs that were launched here, the newest first: how each ended, or how far it is."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.listing import list_runs, listing_text
from shared.commands import AS_JSON, show


@click.command(help=__doc__)
@WORK
@AS_JSON
def command(work: Path, as_json: bool) -> None:
    show(list_runs(work), listing_text, as_json=as_json)
