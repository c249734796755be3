"""Write a page that an ethics board can read.

It shows who, what, when, consents, outcomes, what never left, and findings. It is one file that loads nothing. Exit 1
if there are findings.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from shared.audit import report as report_of
from shared.audit.archive import Archive, check_target
from shared.audit.on_folders import on_folders, readings_of
from shared.audit.verify import verified
from shared.commands import NamedPath, require_replaceable, say
from shared.errors import ConfigurationError
from shared.folder.durable import write_file
from shared.plurals import pluralize


@click.command(help=__doc__)
@click.option("--html", type=NamedPath(dir_okay=False), help="The page to write.")
@on_folders
def command(html: Path | None, archive: Archive, key: str | None, as_json: bool) -> None:
    if html is None and not as_json:
        raise ConfigurationError(["--html: name the page to write, or ask for --json"])
    if html is not None:
        check_target(html, archive.places)
        require_replaceable(html, ".html")
    folders = readings_of(archive, key)[0]
    audits = {name: verified(reading) for name, reading in folders.items()}
    document = report_of.report(folders, audits, is_key_compared=key is not None)
    if html is not None:
        write_file(html, report_of.page(document).encode())
        say(f"wrote {html}", err=True)
    if as_json:
        say(json.dumps(document, indent=2))
    if document["findings"]:
        count = len(document["findings"])
        say(f"{pluralize(count, 'finding')}: the page shows them", err=True)
        raise SystemExit(1)
