"""Play the study that STUDY_YAML describes, or go on with it: every arm, fold and seed, and their table.

Ctrl-C or SIGTERM ends it; the same command goes on, and plays nothing twice.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Literal

import click

from shared.commands import FILE_HERE, NamedPath
from studies.play import play_study


@click.command(help=__doc__)
@click.argument("study_yaml", type=FILE_HERE)
@click.option(
    "--output",
    type=NamedPath(file_okay=False),
    help="Folder for the results (default: beside STUDY_YAML).",
)
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Processes, or Ray tasks."
)
@click.option(
    "--at-a-time", type=click.IntRange(min=1), help="Cells to play at a time (default: as many as this machine bears)."
)
def command(study_yaml: Path, output: Path | None, engine: Literal["local", "ray"], at_a_time: int | None) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not play_study(study_yaml, output, engine, at_a_time):
        sys.exit(1)
