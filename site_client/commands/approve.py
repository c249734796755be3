"""Agree to RUN, if the policy asks a person; RUN may be a survey, as in surveys/0001."""

from __future__ import annotations

from pathlib import Path

import click

from site_client.commands import WORK
from site_client.decisions import decide


@click.command(help=__doc__)
@click.argument("run")
@WORK
def command(run: str, work: Path) -> None:
    decide(work, run, "yes")
