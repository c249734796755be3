"""What provisioning wants, finds and has to do. ``plan`` is pure: what is there goes in, small steps come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aggregator.configuration import FILE
from aggregator.owncloud import EVERYTHING, Account, Share, bytes_of, kept_quota, server_of
from aggregator.setup import Entrance, led, misnamed
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.records.messages import Invite
from shared.folder.address import folder_here

NO_ADMIN = "--admin: is missing; only an administrator makes accounts and sets quotas"
SharedBy = Literal["account", "share", "link"]
Verb = Literal[
    "write",
    "make folder",
    "make account",
    "enable account",
    "share the folder with account",
    "accept the share as account",
    "open a public link to",
    "permit everything to",
    "limit all folders together to",
]


@dataclass(frozen=True)
class Login:
    """Somebody's name and password on the server."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Wish:
    """What is to be there.

    Args:
        server: its address, or that of anything on it.
        accounts: by site, the name of its account.
        shared_by: how a folder is shared with its site; None on plain WebDAV.
        quota: of the account that owns all folders, as in "50 GB"; None leaves it as it is.
        tells_passwords: invites hold the sites' passwords.
    """

    server: str
    federation: str
    accounts: Mapping[str, str]
    shared_by: SharedBy | None = None
    quota: str | None = None
    tells_passwords: bool = False
    ca_file: Path | None = None


@dataclass(frozen=True)
class Step:
    """One thing to do; ``site`` is None if it is about all of them."""

    verb: Verb
    target: str
    site: str | None = None

    def __str__(self) -> str:
        return f"{self.site + ': ' if self.site else ''}{self.verb} {self.target}"


@dataclass(frozen=True)
class Facts:
    """What is there of one site.

    Attributes:
        path: of its folder, among the aggregator's files.
        account: its account, if an administrator looked and found it.
        is_ours: that account was made here.
        share: of the folder, with this site.
        is_pending: its account did not accept that yet.
        others: further shares of the same folder.
        entrance: the address that the share gives the site.
        invite: as it was written before.
        is_named: in ``aggregator.yaml``.
    """

    path: str
    has_folder: bool
    account: Account | None = None
    is_ours: bool = False
    share: Share | None = None
    is_pending: bool = False
    others: tuple[Share, ...] = ()
    entrance: Entrance | None = None
    invite: Invite | None = None
    is_named: bool = False


def require_sense(wish: Wish, owner: str, admin: str | None) -> None:
    """Raise ConfigurationError, with every problem, if a wish cannot be fulfilled wherever it is.

    Args:
        owner, admin: names of accounts.
    """
    problems = [*_misfits_of_server(wish.server), *misnamed((wish.federation, *wish.accounts))]
    known_as = str if wish.shared_by is None else str.casefold  # ownCloud knows accounts whatever the case
    of_account: dict[str, str] = {known_as(owner): "the aggregator"}
    for site, account in wish.accounts.items():
        if wish.shared_by != "link" and (other := of_account.setdefault(known_as(account), site)) != site:
            problems.append(f"--site {site}: has the account of {other}, {account}; give each its own")
        if not account.isprintable() or set(account) & set("/\\") or account != account.strip():
            problems.append(f"--site {site}: its account's name cannot be used; take another")
    if wish.quota is not None:
        problems += _misfits_of_quota(wish.quota)
    if admin is None and (wish.shared_by == "account" or wish.quota is not None):
        problems.append(NO_ADMIN)
    if wish.shared_by == "share" and wish.tells_passwords:
        problems.append("--passwords-in-invites: nobody here knows the passwords of accounts that were there before")
    if problems:
        raise ConfigurationError(problems)


def _misfits_of_server(address: str) -> Iterator[str]:
    if folder_here(address) is not None:
        yield "SERVER: is a folder of this machine, which no server shares; invite sites to theirs by init"
        return
    try:
        server_of(address)
    except ActionRequiredError as error:
        yield f"SERVER: {error}"


def _misfits_of_quota(quota: str) -> Iterator[str]:
    size = bytes_of(quota)
    if not size:
        yield "--quota: must be an amount, as in '50 GB'"
    elif bytes_of(kept_quota(size)) != size:
        yield f"--quota: a server would keep {quota} as {kept_quota(size)}; write that"


def plan(wish: Wish, facts: Mapping[str, Facts], quota: int | None) -> list[Step]:
    """List what is missing.

    Args:
        quota: what the owner of all folders may keep now, in bytes.

    Raises:
        ConfigurationError: an account is there already, and is not ours.
    """
    problems = [
        f"account {wish.accounts[site]} is on the server already and was not made here: if it is {site}'s own, take "
        f"--by share; or name another, --site {site}=ACCOUNT"
        for site, found in facts.items()
        if wish.shared_by == "account" and found.account is not None and not found.is_ours
    ]
    if problems:
        raise ConfigurationError(problems)
    steps = []
    if wish.quota is not None and quota != bytes_of(wish.quota):
        steps.append(Step("limit all folders together to", wish.quota))
    for site, found in facts.items():
        if not found.has_folder:
            steps.append(Step("make folder", found.path, site))
        if wish.shared_by is not None:
            steps += _share_steps(wish.shared_by, wish.accounts[site], site, found)
        if not found.is_named:
            steps.append(Step("write", FILE, site))
        if found.invite is None or found.entrance is None or led(found.invite, found.entrance) != found.invite:
            steps.append(Step("write", f"invites/{site}.json", site))
    return steps


def _share_steps(shared_by: SharedBy, account: str, site: str, found: Facts) -> Iterator[Step]:
    if shared_by == "account" and found.account is None:
        yield Step("make account", account, site)
    elif shared_by == "account" and found.account is not None and not found.account.is_enabled:
        yield Step("enable account", account, site)
    if found.share is None and shared_by == "link":
        yield Step("open a public link to", found.path, site)
    elif found.share is None:
        yield Step("share the folder with account", account, site)
    elif found.share.permissions & EVERYTHING != EVERYTHING:
        yield Step("permit everything to", str(found.share), site)
    if found.is_pending:
        yield Step("accept the share as account", account, site)
