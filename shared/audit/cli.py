"""``dropfed-audit``: what an auditor types. Read-only. Exit codes: 0 all holds, 1 findings, 2 wrong usage or input."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shared.commands import Commands
from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from shared.audit.verify import Audit
    from shared.folder.contract import Folder


@click.group(cls=Commands)
@click.version_option(package_name="dropfed")
def main() -> None:
    """Check what left which hospital, when, under whose key, and what became of it."""


@main.command()
@click.argument("folder")
@click.option("--key", metavar="HEX", help="The aggregator's public key, if you know it from elsewhere.")
@click.option("--user", help="Account for a WebDAV address; the password comes from DROPFED_PASSWORD or is asked for.")
@click.option("--ca-file", type=click.Path(path_type=Path, exists=True), help="Trust this certificate authority.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def verify(folder: str, key: str | None, user: str | None, ca_file: Path | None, as_json: bool) -> None:
    """Check FOLDER, a site's drop folder: a local copy or a WebDAV address (or a directory of local copies).

    Exit 0 and one summary line when every signature, hash, chain and name holds; exit 1 and one line per finding
    otherwise.
    """
    from shared.audit.verify import lines  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.verify import verify as verify_folder  # noqa: PLC0415

    if key is not None and re.fullmatch(r"[0-9a-f]{64}", key) is None:
        raise ConfigurationError(
            ["--key: must be the 64 hexadecimal digits, 0-9 and a-f, of the aggregator's public key"]
        )
    audits = {
        name: verify_folder(opened, aggregator_key=key) for name, opened in _folders(folder, user, ca_file).items()
    }
    if as_json:
        click.echo(json.dumps({name: audit.as_json() for name, audit in audits.items()}, indent=2))
    for name, audit in audits.items():
        for line in lines(audit) if not as_json else ():
            click.echo(f"{name}/{line}" if len(audits) > 1 else line)
    if any(audit.findings for audit in audits.values()):
        raise SystemExit(1)
    if not as_json:
        click.echo(_summary(audits))


def _summary(audits: dict[str, Audit]) -> str:
    """One line: how much was checked, and under which aggregator's key."""
    messages = sum(audit.messages for audit in audits.values())
    files = sum(audit.files for audit in audits.values())
    megabytes = sum(audit.size_bytes for audit in audits.values()) / 1e6
    on_their_way = sum(len(audit.in_progress) for audit in audits.values())
    keys = sorted({audit.federation.aggregator_key for audit in audits.values() if audit.federation})
    removed = sum(len(audit.removed) for audit in audits.values())
    more = f", {on_their_way} on their way" if on_their_way else ""
    more += f", {removed} tensor files removed by the runs' own rule" if removed else ""
    scratch = sum(len(audit.scratch) for audit in audits.values())
    more += f", {scratch} scratch folder(s) of a check" if scratch else ""
    return (
        f"{len(audits)} folder(s), {messages} messages{more}, {files} files, {megabytes:.1f} MB: "
        f"every signature, hash, chain and name holds under aggregator key {', '.join(keys)}"
    )


def _folders(folder: str, user: str | None, ca_file: Path | None) -> dict[str, Folder]:
    """The folders to check, by the name to show them under."""
    if folder.startswith(("http://", "https://")):
        from shared.folder.webdav import WebDavFolder  # noqa: PLC0415  (keeps --help instant)

        if user is None:
            raise ConfigurationError([f"{folder}: name the account with --user"])
        password = os.environ.get("DROPFED_PASSWORD") or click.prompt(f"password of {user}", hide_input=True, err=True)
        return {folder: WebDavFolder(folder, user, password, ca_file=ca_file)}
    from shared.exchange import names  # noqa: PLC0415  (keeps --help instant)
    from shared.folder.local import LocalFolder  # noqa: PLC0415

    root = Path(folder)
    if not root.is_dir():
        raise ConfigurationError([f"{folder}: is not a folder; name a copy of a drop folder, or its WebDAV address"])
    found = {path.name for path in root.iterdir()}
    if found & (names.ROOT_FILES | {names.RUNS}):
        return {folder: LocalFolder(root)}
    copies = sorted(path for path in root.iterdir() if path.is_dir())
    if not copies:
        raise ConfigurationError([f"{folder}: holds nothing of a drop folder; name the folder with federation.json"])
    return {str(path): LocalFolder(path) for path in copies}


if __name__ == "__main__":
    main()
