"""Check every signature, hash, chain, name and content.

Exit 0 with one summary line if everything holds. Otherwise exit 1 with one line per finding, and how much else holds.
Exit 2 if it could not be checked.
"""

from __future__ import annotations

import json

import click

from shared.audit.archive import Archive
from shared.audit.on_folders import on_folders
from shared.audit.sites import read_folders, remarks, titles
from shared.audit.verify import holding, lines, summary, verified
from shared.commands import say
from shared.errors import ConfigurationError
from shared.escaping import escape


@click.command(help=__doc__)
@on_folders
def command(archive: Archive, key: str | None, as_json: bool) -> None:
    folders = read_folders(archive, key)
    audits = {name: verified(reading) for name, reading in folders.items()}
    is_used = any(audit.opened or audit.findings or not audit.encrypted for audit in audits.values())
    if archive.secret_key is not None and not is_used:
        raise ConfigurationError(["--secret-key: opens nothing here; it is the key of neither side of this folder"])
    if as_json:
        say(json.dumps({name: audit.as_json() for name, audit in audits.items()}, indent=2))
    called = titles(folders)
    for name, audit in audits.items():
        between = "/" if called[name] == name else ": "
        for line in lines(audit) if not as_json else ():
            say(escape(f"{called[name]}{between}{line}") if len(audits) > 1 else line)
    for path in archive.passed_over:
        say(escape(f"{path}: was left beside the folders by somebody's desktop; it was not looked into"), err=True)
    for remark in remarks(folders):
        say(escape(remark), err=True)
    if any(audit.findings for audit in audits.values()):
        say(holding(audits), err=True)
        raise SystemExit(1)
    if not as_json:
        say(summary({called[name]: audit for name, audit in audits.items()}, is_key_compared=key is not None))
