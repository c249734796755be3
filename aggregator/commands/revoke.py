"""Stop sharing SITE's folder, on ownCloud or Nextcloud. The folder and its files stay."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.passwords import admin_options, administrator
from aggregator.provision import revoke as carry_out
from shared.commands import say
from shared.errors import ConfigurationError


@click.command(help=__doc__)
@click.argument("site")
@WORK
@click.option("--disable-account", is_flag=True, help="Disable the site's account as well; needs --admin.")
@admin_options
def command(
    site: str, *, work: Path, disable_account: bool, admin: str | None, admin_password_file: Path | None
) -> None:
    if disable_account != (admin is not None):
        raise ConfigurationError(["--disable-account and --admin: go together; give both or neither"])
    for line in carry_out(work, site, administrator(admin, admin_password_file, None)):
        say(line)
