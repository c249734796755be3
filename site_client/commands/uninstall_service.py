"""Undo `install-service`. The work directory stays as it is."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from site_client.commands import WORK
from site_client.configuration import read_configuration
from site_client.installation import uninstall, unit_name


@click.command(help=__doc__)
@WORK
def command(work: Path) -> None:
    say(f"stopped, and removed: {uninstall(unit_name(read_configuration(work)))}")
