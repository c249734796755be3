"""Make a work directory: configuration, signing key, one invite per site.

Run it again with another --site to invite another site: it is added to aggregator.yaml, all else stays as it is.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.setup import initialise, invite_path
from shared.commands import say, values_by_name
from shared.exchange.drop_folder import require_no_drop_folder_around
from shared.folder.address import folder_here, is_near


@click.command(help=__doc__)
@WORK
@click.option("--federation", required=True, help="Name of the federation: lower-case letters, digits, '-', '_', '.'.")
@click.option(
    "--site", "sites", multiple=True, required=True, metavar="NAME=URL", help="A site and its folder; once per site."
)
@click.option("--user", default="aggregator", show_default=True, help="The aggregator's account on the server.")
@click.option(
    "--site-url",
    "site_urls",
    multiple=True,
    metavar="NAME=URL",
    help="The folder's address as its site reaches it, if it is another.",
)
def command(work: Path, federation: str, sites: tuple[str, ...], user: str, site_urls: tuple[str, ...]) -> None:
    form = "NAME=URL, as in north=https://cloud.example.org/dav/north/"
    urls, theirs = values_by_name("--site", sites, form), values_by_name("--site-url", site_urls, form)
    require_no_drop_folder_around(work)
    made = initialise(work, federation, urls, user, theirs)
    for path in made:
        say(f"wrote {path}")
    for name, url in (urls | theirs).items():
        invite = invite_path(work, name)
        if invite in made and folder_here(url) is None and is_near(url):
            remedy = "write into it, as url, where the hospital reaches its folder"
            say(f"warning: {invite} has an address that other networks do not reach: {remedy}", err=True)
    if not made:
        say(f"nothing was missing in {work}, and nothing was changed")
        return
    say("next: put each folder's password into the password_file that aggregator.yaml names (owner-only),")
    say("      name the held-out images in aggregator.yaml, and give each site its file from invites/")
