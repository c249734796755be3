"""Make a signing key of your own in FILE, for `digest --sign`; print its public half, for those who check."""

from __future__ import annotations

from pathlib import Path

import click

from shared.audit.archive import check_target
from shared.commands import NamedPath, say
from shared.errors import ConfigurationError
from shared.exchange.signing import SigningKey


@click.command(help=__doc__)
@click.argument("file", type=NamedPath())
def command(file: Path) -> None:
    if file.exists():
        raise ConfigurationError([f"{file}: is there already; name another file, a key is never overwritten"])
    check_target(file)
    say(SigningKey.made_at(file).public)
