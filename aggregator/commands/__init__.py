"""What the PI types, a file for each command: its name is that of the file, its help the file's docstring."""

from __future__ import annotations

import click

from shared.commands import NamedPath, work_option

WORK = work_option("aggregator.yaml")
MODEL = click.option(
    "--model",
    type=NamedPath(exists=True, file_okay=False),
    required=True,
    help="Folder that `export` made, or a site's WORK/final/RUN.",
)
