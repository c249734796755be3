"""What can be looked at and done on a server: on any WebDAV server, and on ownCloud and Nextcloud.

An account that is there already, or a link, is believed to be ours only if the site's invite leads to it, or if the
password kept here fits it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from aggregator.configuration import FILE, SiteAccess, read_configuration
from aggregator.owncloud import ACCOUNT, LINK, OwnCloud, Share, files_url, link_url
from aggregator.provision_plan import NO_ADMIN, Facts, Login, Step, Wish
from aggregator.setup import Entrance, invite_path
from aggregator.site import read_invite
from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import escape
from shared.exchange.names import AGGREGATOR
from shared.exchange.reading import check_record
from shared.folder.contract import check_path
from shared.folder.durable import write_file
from shared.folder.webdav import WebDavFolder
from shared.settings import read_password

OWN_PASSWORD = f"passwords/{AGGREGATOR}"  # no site is called so
SITES_PASSWORDS = "passwords-for-sites"


class Host:
    """A WebDAV server: it has folders, and whoever runs it does the rest.

    Args:
        owner: without a password nothing on the server is looked at.
    """

    def __init__(self, work: Path, wish: Wish, address: str, owner: Login) -> None:
        self.wish = replace(wish, shared_by=None, quota=None)
        self._quota = wish.quota
        self._work = work
        self._owner = owner
        self._files = WebDavFolder(address, owner.user, owner.password, ca_file=wish.ca_file)
        if owner.password:
            self._files.check()
        self._named = read_configuration(work).sites if (work / FILE).exists() else {}

    def path(self, site: str) -> str:
        """Return where a site's folder is, among the aggregator's files."""
        return site

    def access(self, site: str) -> SiteAccess:
        """Return the aggregator's access to a site's folder."""
        values = {
            "url": f"{self._files.url}/{self.path(site)}/",
            "user": self._owner.user,
            "password_file": OWN_PASSWORD,
        }
        ca_file = str(self.wish.ca_file.resolve()) if self.wish.ca_file else None
        return check_record(values | {"ca_file": ca_file}, SiteAccess, f"--site {site}")

    def quota(self) -> int | None:
        """Return what the aggregator's account may keep, in bytes; None without a limit, or if it is not reported."""
        return None

    def look(self, site: str) -> Facts:
        """Find out what is there, and change nothing."""
        path, invite = self.path(site), invite_path(self._work, site)
        return Facts(
            path=path,
            has_folder=self._has_folder(path),
            entrance=Entrance(self.access(site).url, self.wish.accounts[site]),
            invite=read_invite(self._work, site) if invite.exists() else None,
            is_named=site in self._named,
        )

    def _has_folder(self, path: str) -> bool:
        if not self._owner.password:
            return False
        found = self._files.find(path)
        return found is not None and found.is_folder

    def warnings(self, facts: Mapping[str, Facts]) -> Iterator[str]:
        """Yield what people should know, besides what is missing."""
        if not self._owner.password:
            yield f"which of the folders are there already was not looked at, for want of {self._owner.user}'s password"

    def do(self, step: Step) -> None:
        """Do one step on the server; by WebDAV alone, folders can be made and nothing else."""
        self._files.make_folder(step.target)

    def entrance(self, site: str) -> Entrance:
        """Return how the site enters, now that all is done.

        Raises:
            ActionRequiredError: it cannot, although its folder was just shared.
        """
        return Entrance(self.access(site).url, self.wish.accounts[site])

    def left_to_people(self) -> Iterator[str]:
        """Yield what nobody can do from here."""
        yield "this server's accounts and rights cannot be set from here. Ask whoever runs it for:"
        for site, account in self.wish.accounts.items():
            yield (
                f"  an account {account} with a password of its own, that may list, read, write, rename and delete in "
                f"{self.access(site).url} and all below, and may not enter any other site's folder"
            )
        yield f"  the same rights for account {self._owner.user} in all of these folders"
        if self._quota is not None:
            yield f"  all of these folders together limited to {self._quota}"
        yield "then hand over the invites:"
        for site, account in self.wish.accounts.items():
            yield f"  {site}: {invite_path(self._work, site)}, and by another way the password of {account}"


class Cloud(Host):
    """ownCloud or Nextcloud, as the aggregator's account and, where one is at hand, an administrator see it."""

    def __init__(self, work: Path, wish: Wish, server: str, owner: Login, admin: Login | None) -> None:
        super().__init__(work, wish, files_url(server, owner.user), owner)
        self.wish = wish
        self._server = server
        self._cloud = self._as(owner)
        self._admin = self._as(admin) if admin else None
        self._has_new_password: set[str] = set()

    def _as(self, login: Login) -> OwnCloud:
        return OwnCloud(self._server, login.user, login.password, ca_file=self.wish.ca_file)

    def path(self, site: str) -> str:
        return f"{self.wish.federation}/{site}"

    def quota(self) -> int | None:
        if self._admin is None or self.wish.quota is None:
            return None
        account = self._admin.account(self._owner.user)
        return account.quota if account else None

    def look(self, site: str) -> Facts:
        found = super().look(site)
        shares = self._cloud.shares(found.path) if found.has_folder else ()
        share = next((share for share in shares if self._is_its(share, site, found)), None)
        account = None
        if self._admin is not None and self.wish.shared_by == "account":
            account = self._admin.account(self.wish.accounts[site])
        is_ours = account is not None and self._is_ours(site, found)
        is_open = is_ours and account is not None and account.is_enabled
        mounted = self._mounted(site, share) if share and is_open else share
        return replace(
            found,
            account=account,
            is_ours=is_ours,
            share=share,
            is_pending=mounted is None and share is not None,
            others=tuple(other for other in shares if other is not share),
            entrance=self._entrance(site, mounted or share) if share else None,
        )

    def _is_its(self, share: Share, site: str, found: Facts) -> bool:
        """Return whether a share is that site's."""
        if self.wish.shared_by != "link":
            # servers know an account whatever the case of its letters, and tell its name as it was made
            account = (share.share_with or "").casefold()
            return share.share_type == ACCOUNT and account == self.wish.accounts[site].casefold()
        if share.share_type != LINK:
            return False
        is_invited = found.invite is not None and found.invite.user == share.token
        return is_invited or (self._link_name(site) in (share.name, share.label) and self._password(site) is not None)

    def _is_ours(self, site: str, found: Facts) -> bool:
        """Return whether an account that is there was made here."""
        account, invite, password = self.wish.accounts[site], found.invite, self._password(site)
        if invite is not None and invite.user.casefold() == account.casefold():
            return (invite.url or "").startswith(f"{files_url(self._server, invite.user)}/")
        if password is None:
            return False
        try:
            self._as(Login(account, password)).files.check()
        except ActionRequiredError:
            return False
        return True

    def _mounted(self, site: str, share: Share) -> Share | None:
        """Return a share as its account finds it; None if it is still to be accepted.

        The owner does not always know under which name it is found. Where the password is not here any more, or was
        changed, we have to rely on that.
        """
        if (password := self._password(site)) is None:
            return share
        try:
            return self._as(Login(self.wish.accounts[site], password)).received(share.id)
        except ActionRequiredError:
            return share

    def warnings(self, facts: Mapping[str, Facts]) -> Iterator[str]:
        for site, found in facts.items():
            for other in found.others:
                yield (
                    f"warning: {site}: its folder is open to {other} too; take that back on the server, or take back "
                    f"everything by `dropfed-aggregator revoke {site}` and run this again"
                )
            if found.share is not None and found.share.expiration is not None:
                yield f"warning: {site}: its share ends on {escape(found.share.expiration)}; have it prolonged"
        if any(found.has_folder for found in facts.values()):
            for other in self._cloud.shares(self.wish.federation):
                yield f"warning: {self.wish.federation}, with all sites' folders, is open to {other}; take that back"

    def do(self, step: Step) -> None:
        site = step.site or ""
        match step.verb:
            case "limit all folders together to":
                self._require_admin().set_quota(self._owner.user, step.target)
            case "make account":
                self._require_admin().make_account(step.target, self._new_password(site))
            case "enable account":
                self._require_admin().let_in(step.target, enabled=True)
            case "share the folder with account":
                share = self._cloud.share(self.path(site), step.target)
                if self.wish.shared_by == "account" and self._mounted(site, share) is None:
                    self._accept(site, share)
            case "open a public link to":
                self._cloud.open_link(step.target, self._new_password(site), self._link_name(site))
            case "permit everything to":
                self._cloud.permit_everything(self._share_of(site).id)
            case "accept the share as account":
                self._accept(site, self._share_of(site))
            case _:
                super().do(step)

    def _require_admin(self) -> OwnCloud:
        if self._admin is None:
            raise ConfigurationError([NO_ADMIN])
        return self._admin

    def _share_of(self, site: str) -> Share:
        share = self.look(site).share
        if share is None:
            raise self._vanished(site)
        return share

    def _vanished(self, site: str) -> ActionRequiredError:
        return ActionRequiredError(
            f"{self._server} does not show the share of {self.path(site)} any more: run this again."
        )

    def _accept(self, site: str, share: Share) -> None:
        self._as(Login(self.wish.accounts[site], self._password(site) or "")).accept(share.id)

    def entrance(self, site: str) -> Entrance:
        found = self.look(site)
        if found.entrance is None:
            raise self._vanished(site)
        if found.invite is None or site in self._has_new_password:  # else the site may have changed its password
            self._try(site, found.entrance)
        return found.entrance

    def _try(self, site: str, entrance: Entrance) -> None:
        """Enter a folder as its site will, where its password is known."""
        if self.wish.shared_by == "share" or (password := self._password(site)) is None:
            return
        try:
            WebDavFolder(entrance.url, entrance.user, password, ca_file=self.wish.ca_file).check()
        except ActionRequiredError as error:
            hint = " Nextcloud opens links only if sharing with other servers is on in its settings." * (
                self.wish.shared_by == "link"
            )
            raise ActionRequiredError(f"{site} cannot enter its folder: {error}{hint}") from None

    def _entrance(self, site: str, share: Share) -> Entrance:
        password = self._password(site) if self.wish.tells_passwords else None
        if share.share_type == LINK and share.token is not None:
            return Entrance(link_url(self._server), share.token, password)
        account = share.share_with or self.wish.accounts[site]
        try:
            target = check_path((share.file_target or "").strip("/"))
        except ValueError:
            raise ActionRequiredError(
                f"{self._server} does not tell where {account} finds the folder that is shared with it: "
                "check whether its version is one that this was made for."
            ) from None
        return Entrance(files_url(self._server, account, target), account, password)

    def _link_name(self, site: str) -> str:
        return f"dropfed {self.path(site)}"

    def _password(self, site: str) -> str | None:
        return kept(self._work / SITES_PASSWORDS / site)

    def _new_password(self, site: str) -> str:
        """Return a password for a site, on disk before the server knows it; an unused one is taken again."""
        password = self._password(site)
        if password is None or invite_path(self._work, site).exists():
            # longer than any policy asks, and with all the kinds of characters that some ask for
            password = f"{secrets.token_urlsafe(32)}-Aa1"
            write_file(self._work / SITES_PASSWORDS / site, password.encode(), private=True)
        self._has_new_password.add(site)
        return password

    def left_to_people(self) -> Iterator[str]:
        yield "now hand over the invites:"
        for site, account in self.wish.accounts.items():
            invite, password = invite_path(self._work, site), self._work / SITES_PASSWORDS / site
            if self.wish.shared_by == "share":
                yield f"  {site}: {invite}; account {account} keeps its password, and accepts the share if it is asked"
            elif self.wish.tells_passwords:
                yield f"  {site}: {invite}, as you would hand over a password: it holds one"
            else:
                yield f"  {site}: {invite}, and by another way the password in {password}"


def kept(path: Path) -> str | None:
    """Return a password that is kept in a file; None if there is no such file."""
    return read_password(path) if path.exists() else None
