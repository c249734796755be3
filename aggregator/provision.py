"""Make each site's folder on a server, share it with the site, and take the share back.

First everything is looked at; ``plan`` lists what is missing, and that alone is then done, step by step. So a second
call changes nothing, and one that follows a broken-off one does the rest. On ownCloud and Nextcloud the aggregator's
account owns all folders, ``FEDERATION/SITE``, and shares each with its site

    account   by an account made here by an administrator, with which the folder is shared;
    share     by an account that was there before, with which the folder is shared;
    link      by a public link with a password.

On any other WebDAV server the folders are made, and people are told which accounts and rights to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from aggregator.configuration import FILE, SiteAccess, read_configuration
from aggregator.hosts import OWN_PASSWORD, Cloud, Host, kept
from aggregator.owncloud import OwnCloud, link_url, path_among_files, product_of, server_of
from aggregator.provision_plan import Login, Step, Wish, plan, require_sense
from aggregator.setup import invite_path, misfits, settle
from aggregator.site import read_invite
from shared.errors import ActionRequiredError, ConfigurationError
from shared.folder.address import folder_here
from shared.folder.durable import write_file
from shared.folder.lock import make_work
from shared.settings import kept_password


def recognise(wish: Wish, owner: str, admin: str | None) -> str | None:
    """Return what a server is, before anybody's password is asked for; see ``product_of``.

    Args:
        owner, admin: names of the accounts that are to be used.

    Raises:
        ConfigurationError: every problem of a wish that cannot be fulfilled there.
        DropfedError: the server cannot be reached, or is under maintenance.
    """
    require_sense(wish, owner, admin)
    product = product_of(server_of(wish.server), wish.ca_file)
    if product is not None and wish.shared_by is None:
        raise ConfigurationError([f"--by: is missing; on {product} say how sites enter: account, share or link"])
    return product


def provision(
    work: Path, wish: Wish, product: str | None, owner: Login, admin: Login | None, *, is_dry: bool
) -> Iterator[str]:
    """Do what is missing; yield a line for each thing done, or that would be done, and for what is left to people.

    Args:
        product: what the server was recognised as.
        owner: the aggregator's account; without a password, in a dry run where there is no product, the server's
            folders are not looked into.
        admin: who may make accounts and set quotas; means nothing where there is no product.

    Raises:
        DropfedError: the first thing that stands in the way. The same call goes on from there.
    """
    server = server_of(wish.server)
    host = Cloud(work, wish, server, owner, admin) if product else Host(work, wish, wish.server, owner)
    facts = {site: host.look(site) for site in wish.accounts}
    accesses = {site: host.access(site) for site in wish.accounts}
    if problems := misfits(work, wish.federation, accesses):
        raise ConfigurationError(problems)
    steps = plan(host.wish, facts, host.quota())
    if kept(work / OWN_PASSWORD) != owner.password:
        steps.insert(0, Step("write", OWN_PASSWORD))
    if is_dry:
        yield "this would be done:" if steps else "nothing is missing"
        yield from (f"  {step}" for step in steps)
    elif steps:
        yield from _carry_out(work, host, steps, accesses, owner)
        yield from host.left_to_people()
        facts = {site: host.look(site) for site in wish.accounts}
    else:
        yield "nothing was missing, and nothing was changed"
    yield from host.warnings(facts)


def _carry_out(
    work: Path, host: Host, steps: Sequence[Step], accesses: Mapping[str, SiteAccess], owner: Login
) -> Iterator[str]:
    make_work(work)
    for site in (None, *accesses):  # one after the other, so that what was broken off leaves whole sites
        its = [step for step in steps if step.site == site]
        on_server = [step for step in its if step.verb != "write"]
        for step in on_server:
            host.do(step)
            yield f"done: {step}"
        if site is None and len(its) > len(on_server):
            write_file(work / OWN_PASSWORD, owner.password.encode(), private=True)
            yield f"wrote {work / OWN_PASSWORD}"
        elif site is not None and its:
            entrance = host.entrance(site)
            invites = {site: read_invite(work, site)} if invite_path(work, site).exists() else {}
            for path in settle(work, host.wish.federation, {site: accesses[site]}, {site: entrance}, invites):
                yield f"wrote {path}"
            if site in invites and (invites[site].url, invites[site].user) != (entrance.url, entrance.user):
                yield f"{site}: its invite has changed; if it has joined, its site.yaml and password have to follow"


def revoke(work: Path, site: str, admin: Login | None) -> Iterator[str]:
    """Remove every share of a site's folder; yield what was done, and what that means.

    Args:
        admin: disables the site's account as well; None leaves it as it is.

    Raises:
        DropfedError: what stands in the way. The same call goes on from there.
    """
    configuration = read_configuration(work)
    access = configuration.sites.get(site)
    if access is None:
        known = ", ".join(sorted(configuration.sites))
        raise ConfigurationError([f"{site}: is not in {work / FILE}; the sites there are {known}"])
    if folder_here(access.url) is not None:
        raise ActionRequiredError(
            f"{access.url} is a folder of this machine, which no server shares, and nothing was taken back: take the "
            "rights in it from the site's account here"
        )
    invite = read_invite(work, site)
    path = path_among_files(access.url, access.user)
    if path is None:
        raise ActionRequiredError(
            f"{access.url} is not among {access.user}'s files on ownCloud or Nextcloud, and nothing was taken back: "
            f"have whoever runs the server take account {invite.user}'s rights there, or disable it."
        )
    server = server_of(access.url)
    ca_file = work / access.ca_file if access.ca_file else None
    if admin is not None and invite.url == link_url(server):
        raise ConfigurationError(["--disable-account: this site enters by a public link, and has no account here"])
    cloud = OwnCloud(server, access.user, kept_password(work / access.password_file, FILE), ca_file=ca_file)
    for share in cloud.shares(path):
        cloud.remove_share(share.id)
        yield f"done: took the folder back from {share}"
    if admin is not None:
        administrator = OwnCloud(server, admin.user, admin.password, ca_file=ca_file)
        account = administrator.account(invite.user)
        if account is not None and account.is_enabled:
            administrator.let_in(invite.user, enabled=False)
            yield f"done: disable account {invite.user}"
    above = [str(folder) for folder in PurePosixPath(path).parents][:-1]
    still_open = [(folder, share) for folder in above for share in cloud.shares(folder)]
    for folder, share in still_open:
        yield f"warning: the folder above, {folder}, is still open to {share}; take that back too"
    if not still_open:
        yield f"now only {access.user} can enter {access.url}; it stays, with all that is in it"
    yield f"what {site} has received stays with it; runs that list it go on asking it, and wait or go on without it"
    yield "`dropfed-aggregator provision` lets it in again"
