"""List the runs that were offered to this site, the newest first: what it answered, and what each came to."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from shared.commands import AS_JSON, say
from site_client.commands import WORK
from site_client.listing import list_runs, listing_text


@click.command(help=__doc__)
@WORK
@AS_JSON
def command(work: Path, as_json: bool) -> None:
    runs = list_runs(work)
    say(json.dumps([asdict(run) for run in runs], indent=2) if as_json else listing_text(runs))
