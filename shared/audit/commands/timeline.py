"""Show every message in order: when, who, what, how large, which key, what it answers, its outcome.

Times come from each sender's own clock and only inform; the order is that of the chains.
"""

from __future__ import annotations

import click

from shared.audit.archive import Archive
from shared.audit.on_folders import end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.timeline import lines
from shared.audit.timeline import timeline as timeline_of


@click.command(help=__doc__)
@on_folders
def command(archive: Archive, key: str | None, as_json: bool) -> None:
    folders, readings = readings_of(archive, key)
    events = timeline_of(readings)
    show_document(events, lines(events), as_json=as_json)
    end_with(findings_of(folders))
