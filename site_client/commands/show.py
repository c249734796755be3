"""Show what RUN asks of this site, and exactly what would leave it and what would stay.

For a survey, as in surveys/0001, it shows the very bytes that would leave.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from site_client import surveys
from site_client.commands import WORK
from site_client.offer import describe


@click.command(help=__doc__)
@click.argument("run")
@WORK
def command(run: str, work: Path) -> None:
    say(surveys.describe(work, run) if surveys.is_survey_name(run) else describe(work, run))
