"""List the runs that were launched here, the newest first: what each came to, or how far it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.listing import list_runs, listing_text
from shared.commands import AS_JSON, say


@click.command(help=__doc__)
@WORK
@AS_JSON
def command(work: Path, as_json: bool) -> None:
    runs = list_runs(work)
    say(json.dumps([asdict(run) for run in runs], indent=2) if as_json else listing_text(runs))
