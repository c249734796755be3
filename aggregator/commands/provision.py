"""Make each site's folder, share it with the site, and write the invites.

SERVER is an ownCloud, a Nextcloud, or any other WebDAV server. What is there already stays as it is, so run the
command again to add a site, or to go on after it was interrupted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import click

from aggregator.commands import WORK
from aggregator.hosts import OWN_PASSWORD
from aggregator.passwords import PASSWORD_VARIABLE, admin_options, administrator, read_or_ask
from aggregator.provision import provision as carry_out
from aggregator.provision import recognise
from aggregator.provision_plan import Login, Wish
from shared.commands import FILE_HERE, say
from shared.errors import ConfigurationError


@click.command(help=__doc__)
@click.argument("server")
@WORK
@click.option("--federation", required=True, help="Name of the federation: lower-case letters, digits, '-', '_', '.'.")
@click.option(
    "--site",
    "sites",
    multiple=True,
    required=True,
    metavar="NAME[=ACCOUNT]",
    help="A site, and its account if that has another name; once per site.",
)
@click.option(
    "--by",
    "shared_by",
    type=click.Choice(["account", "share", "link"]),
    help="How sites enter: account (made here), share (with an account that is there already), link (a public link).",
)
@click.option(
    "--user", default="aggregator", show_default=True, help="The aggregator's account, which owns the folders."
)
@click.option(
    "--password-file",
    type=FILE_HERE,
    help=f"File with its password (default: as kept in WORK, {PASSWORD_VARIABLE}, or asked for).",
)
@admin_options
@click.option("--quota", metavar="AMOUNT", help="How much all folders together may hold, as in '50 GB'.")
@click.option("--ca-file", type=FILE_HERE, help="Trust this certificate authority.")
@click.option("--passwords-in-invites", is_flag=True, help="Put each site's password into its invite.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
def command(
    server: str,
    *,
    work: Path,
    federation: str,
    sites: tuple[str, ...],
    shared_by: Literal["account", "share", "link"] | None,
    user: str,
    password_file: Path | None,
    admin: str | None,
    admin_password_file: Path | None,
    quota: str | None,
    ca_file: Path | None,
    passwords_in_invites: bool,
    dry_run: bool,
) -> None:
    accounts = {name: account or name for name, _, account in (site.partition("=") for site in sites)}
    if len(accounts) < len(sites):
        raise ConfigurationError(["--site: names a site twice; keep one"])
    wish = Wish(server, federation, accounts, shared_by, quota, tells_passwords=passwords_in_invites, ca_file=ca_file)
    product = recognise(wish, user, admin)  # before a password is asked for
    say(f"{server} is {product}" if product else f"{server}: WebDAV, but neither ownCloud nor Nextcloud")
    kept = work / OWN_PASSWORD
    if password_file is None and kept.exists():
        password_file = kept
    is_told = password_file is not None or os.environ.get(PASSWORD_VARIABLE)
    needs_none = dry_run and product is None and not is_told  # then the folders are not looked into
    owner = Login(user, "" if needs_none else read_or_ask("--password-file", password_file, PASSWORD_VARIABLE, user))
    admin_login = administrator(admin, admin_password_file, owner) if product else None
    for line in carry_out(work, wish, product, owner, admin_login, is_dry=dry_run):
        say(line)
