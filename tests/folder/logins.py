"""Who may enter which folder on a server that tests run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import requests
from requests.auth import AuthBase, HTTPBasicAuth, HTTPDigestAuth

from shared.folder.webdav import WebDavFolder
from tests.canary import password_of

SITE = "north"
PASSWORD = password_of("gehéim: ü")  # one that fails unless it goes out as UTF-8 and is split at the first colon
AUTH = HTTPBasicAuth(SITE.encode(), PASSWORD.encode())
AGGREGATOR = "aggregator"
AGGREGATOR_PASSWORD = password_of(AGGREGATOR)
PASSWORDS = {SITE: PASSWORD, "south": password_of("south")}  # each site's


@dataclass(frozen=True)
class Login:
    """How one user reaches one folder; ``ca_file`` for https."""

    url: str
    user: str
    password: str
    ca_file: Path | None = None
    is_digest: bool = False

    def open(self) -> WebDavFolder:
        return WebDavFolder(self.url, self.user, self.password, ca_file=self.ca_file)

    def at(self, url: str) -> Login:
        return replace(self, url=url)

    def new_folder(self, name: str) -> Login:
        """Make a folder below this one, and return the way there."""
        made = self.at(f"{self.url}/{name}")
        assert made.request("MKCOL").status_code == 201
        return made

    def request(self, method: str, path: str = "") -> requests.Response:
        """Ask something of a folder behind the client's back; ``path`` is percent-encoded."""
        user, password = self.user.encode(), self.password.encode()
        auth: AuthBase = HTTPBasicAuth(user, password)
        if self.is_digest:
            auth = HTTPDigestAuth(self.user, self.password)
        verify = True if self.ca_file is None else str(self.ca_file)
        return requests.request(method, f"{self.url}/{path}", auth=auth, verify=verify, timeout=60)


@dataclass(frozen=True)
class Logins:
    """By site: its own login, and the aggregator's to the same folder."""

    sites: Mapping[str, Login]
    aggregator: Mapping[str, Login]


def logins(url_of: Callable[[str], str], *, ca_file: Path | None = None, is_digest: bool = False) -> Logins:
    """Return the usual logins: at one address, each site under its own name and the aggregator."""

    def login(site: str, user: str, password: str) -> Login:
        return Login(url_of(site).rstrip("/"), user, password, ca_file, is_digest)

    return Logins(
        {site: login(site, site, password) for site, password in PASSWORDS.items()},
        {site: login(site, AGGREGATOR, AGGREGATOR_PASSWORD) for site in PASSWORDS},
    )


def passwords_of(site: str) -> dict[str, str]:
    """Return the passwords of all who may enter a site's folder."""
    return {site: PASSWORDS[site], AGGREGATOR: AGGREGATOR_PASSWORD}
