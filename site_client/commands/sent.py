"""Show what left this hospital: each file, its hash, what it answers, whether the folder has it.

The command reads the work directory alone; no daemon needs to run.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import show
from site_client.commands import WORK
from site_client.sent import sent as all_sent
from site_client.sent import sent_text


@click.command(help=__doc__)
@WORK
@click.option("--since", metavar="DATE|DAYS", help="Only what was signed since a date, or in the last so many days.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts; with every tensor's name and shape.")
def command(work: Path, since: str | None, as_json: bool) -> None:
    show(all_sent(work, since), sent_text, as_json=as_json)
