"""A federation in this process whose folders are the aggregator's on a stand-in for ownCloud, shared with the sites.

An hour of the server's locks is half a second here, and its clean-up comes as often.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.canary import password_of
from tests.faults.hurried import QUICKER
from tests.federation.in_process import FederationInProcess
from tests.folder.logins import AGGREGATOR, Login, Logins
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_locks import LockTable

MOUNT = "retina"


@dataclass
class FederationOnCloud(FederationInProcess):
    """As ``FederationInProcess``."""

    server: OwnCloud = field(init=False)  # type: ignore[assignment]  # another server

    def __enter__(self) -> FederationOnCloud:
        sites = self.run.sites
        locks = LockTable(lambda: QUICKER * time.monotonic())
        locks.cleans_up_hourly = True
        users = {user: password_of(user) for user in (AGGREGATOR, *sites)}
        self.server = OwnCloud(self.root / "folders", users, locks=locks)
        for site in sites:
            self.server.share(AGGREGATOR, site, site, MOUNT)
        self.server.start()
        return self

    def folder(self, name: str) -> Path:
        return self.root / "folders" / AGGREGATOR / name


def cloud_logins(sites: Sequence[str]) -> Logins:
    """Who may enter which folder; the addresses lack the server's."""
    files = "/remote.php/dav/files"
    return Logins(
        {site: Login(f"{files}/{site}/{MOUNT}", site, password_of(site)) for site in sites},
        {site: Login(f"{files}/{AGGREGATOR}/{site}", AGGREGATOR, password_of(AGGREGATOR)) for site in sites},
    )
