"""Show what left the hospital SITE: every file, its bytes, hash and tensors, and which request it answers.

With --json each tensor is listed by its name, type and shape.
"""

from __future__ import annotations

import click

from shared.audit.archive import Archive
from shared.audit.on_folders import end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.sent import lines
from shared.audit.sent import sent as sent_by
from shared.errors import ConfigurationError


@click.command(help=__doc__)
@click.argument("site")
@on_folders
def command(site: str, archive: Archive, key: str | None, as_json: bool) -> None:
    folders, readings = readings_of(archive, key)
    if site not in readings:
        raise ConfigurationError([f"{site}: these folders are of {', '.join(readings)}; name one of them"])
    found = sent_by(readings[site])
    show_document(found, lines(found), as_json=as_json)
    end_with(findings_of({name: reading for name, reading in folders.items() if reading is readings[site]}))
