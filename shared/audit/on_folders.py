"""What the auditor's commands share: which folders they open, how, and how findings end them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from shared.audit.archive import Archive, open_archive
from shared.audit.reading import Reading
from shared.audit.sites import by_site, read_folders, unnamed
from shared.audit.verify import verified
from shared.commands import AS_JSON, FILE_HERE, NamedPath, ask_password, say
from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.plurals import pluralize

KEY = re.compile(r"[0-9a-f]{64}")


def on_folders(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument FOLDER..., given on as ``archive``, and the options that say how it is opened."""

    @wraps(command)
    def opened(
        folder: tuple[str, ...],
        *,
        user: str | None,
        ca_file: Path | None,
        key: str | None,
        secret_key: Path | None,
        **options: Any,
    ) -> Any:
        check_key("--key", key, "aggregator")
        if "" in folder:  # which would be the present one
            raise ConfigurationError(["FOLDER: is empty; name a folder"])
        ask = partial(ask_password, instead="set DROPFED_PASSWORD")
        archive = open_archive(folder, user=user, ca_file=ca_file, ask_password=ask, secret_key=secret_key)
        return command(archive=archive, key=key, **options)

    for decorate in (
        AS_JSON,
        click.option("--ca-file", type=NamedPath(exists=True), help="Trust this certificate authority."),
        click.option(
            "--secret-key",
            metavar="FILE",
            type=FILE_HERE,
            help="The encryption.key of the site or of the aggregator, to open what is encrypted.",
        ),
        click.option("--user", help="Account for WebDAV. Its password is taken from DROPFED_PASSWORD, or asked for."),
        click.option("--key", metavar="HEX", help="The aggregator's public key, if you know it from elsewhere."),
        click.argument("folder", nargs=-1, required=True),
    ):
        opened = decorate(opened)
    return opened


def check_key(option: str, key: str | None, whose: str) -> None:
    """Refuse what is no public key.

    Raises:
        ConfigurationError: naming the option.
    """
    if key is not None and KEY.fullmatch(key) is None:
        raise ConfigurationError(
            [f"{option}: must be the 64 hexadecimal digits, 0-9 and a-f, of the {whose}'s public key"]
        )


def readings_of(archive: Archive, key: str | None) -> tuple[dict[str, Reading], dict[str, Reading]]:
    """Return every folder by its name, and by its site those that say whose they are; print why others are left out."""
    folders = read_folders(archive, key)
    readings = by_site(folders)
    for name, why in unnamed(folders).items():
        say(escape(f"{name}: is left out: federation.json {why}"), err=True)
    return folders, readings


def show_document(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a document of plain values and dataclasses, as JSON or as lines."""
    if as_json:
        say(json.dumps(document, indent=2, default=asdict))
        return
    for line in lines:
        say(line)


def end_with(findings: str) -> None:
    """Print that these folders have findings, though they were not what was asked for, and exit with 1."""
    if findings:
        say(f"{findings} beside this: run `dropfed-audit verify` on these folders", err=True)
        raise SystemExit(1)


def findings_of(folders: Mapping[str, Reading]) -> str:
    """Return how many findings ``verify`` has on these folders, as text; "" if there are none."""
    count = sum(len(verified(reading).findings) for reading in folders.values())
    return pluralize(count, "finding") if count else ""
