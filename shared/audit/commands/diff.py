"""Show what differs between two RUNs: configuration, participants, outcomes."""

from __future__ import annotations

import click

from shared.audit.archive import Archive
from shared.audit.difference import difference, lines
from shared.audit.on_folders import end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.sites import the_run


@click.command(help=__doc__)
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@on_folders
def command(first: str, second: str, archive: Archive, key: str | None, as_json: bool) -> None:
    folders, readings = readings_of(archive, key)
    found = difference(readings, the_run(readings, first), the_run(readings, second))
    show_document({name: list(pair) for name, pair in found.items()}, lines(found, first, second), as_json=as_json)
    end_with(findings_of(folders))
