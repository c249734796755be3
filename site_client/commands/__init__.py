"""What IT staff type, a file for each command: its name is that of the file, its help the file's docstring."""

from __future__ import annotations

import click

from shared.commands import NamedPath, work_option

WORK = work_option("site.yaml")
MODEL = click.option(
    "--model",
    type=NamedPath(),
    help="The model (default: the one in the work directory's final/; if that holds several, name one).",
)
FOR = click.option(
    "--for", "duration", metavar="TIME", help="Stop cleanly after a time, as in 90m or 24h (batch jobs)."
)
