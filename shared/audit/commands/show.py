"""Show everything of one ROUND, a number or RUN/NUMBER: configuration, what came, metrics, verdicts."""

from __future__ import annotations

import re

import click

from shared.audit.archive import Archive
from shared.audit.on_folders import end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.show import lines
from shared.audit.show import show as show_round
from shared.audit.sites import the_run
from shared.doors.numbers import whole
from shared.errors import ConfigurationError


@click.command(help=__doc__)
@click.argument("which", metavar="ROUND")
@click.option("--run", metavar="RUN", help="The run, if ROUND is a number and there are several runs.")
@on_folders
def command(which: str, run: str | None, archive: Archive, key: str | None, as_json: bool) -> None:
    named, _, number = which.rpartition("/")
    if not re.fullmatch(r"[0-9]{1,4}", number) or (named and run and named != run):
        raise ConfigurationError([f"{which}: name one round, as in 3, or octa-1/3"])
    folders, readings = readings_of(archive, key)
    document = show_round(readings, the_run(readings, named or run), whole(number.lstrip("0") or "0"))
    show_document(document, lines(document), as_json=as_json)
    end_with(findings_of(folders))
