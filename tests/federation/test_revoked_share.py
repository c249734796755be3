"""A site notices soon that its folder is shared with it no longer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.setup import initialise
from shared import polling
from shared.errors import ActionRequiredError, NotFoundError
from shared.exchange.names import AGGREGATOR, SITE_CARD, STATUS
from shared.folder import retrying
from shared.folder.listed import ListedFolder
from shared.folder.retrying import ROOT_SEEN_EVERY_S, RetryingFolder
from shared.folder.webdav import WebDavFolder
from site_client import heartbeat
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.setup import join, read_invite
from tests.federation.waited import Waited
from tests.folder.owncloud import OwnCloud

REVOKED_AT_S = ROOT_SEEN_EVERY_S + 20  # not long after the daemon has looked at the folder itself
NOTICED_WITHIN_S = 60.0


class Revoking(Waited):
    """At some time the share is taken back.

    Attributes:
        noticed_at: when the site's own status first said so.
    """

    def __init__(self, work: Path, share: Path) -> None:
        super().__init__()
        self.noticed_at: float | None = None
        self._work, self._share = work, share

    def pass_over(self, pause_s: float) -> None:
        trouble = json.loads((self._work / STATUS).read_bytes())["body"]["trouble"]
        if trouble and "still shared with user" in trouble:
            self.noticed_at = self.now
            self.set()
        super().pass_over(pause_s)
        if self.now >= REVOKED_AT_S:
            self._share.unlink(missing_ok=True)
        if self.now > REVOKED_AT_S + 2 * ROOT_SEEN_EVERY_S:
            self.set()


class Site:
    """A site that has joined, and its folder, which the aggregator shares with it."""

    def __init__(self, home: Path, cloud: OwnCloud) -> None:
        cloud.share(AGGREGATOR, "north", "north", "retina")
        self.work, self.url = home / "north", f"{cloud.url}/remote.php/dav/files/north/retina"
        initialise(home / "aggregator", "retina", {"north": self.url}, AGGREGATOR)
        self.invite = read_invite(home / "aggregator" / "invites" / "north.json")
        join(self.work, self.invite, data={}, url=None, password=None)
        self.shared = cloud.store.root / AGGREGATOR / "north"
        self.mount = cloud.store.root / "north" / "retina"

    def open(self) -> WebDavFolder:
        return WebDavFolder(self.url, "north", "secret")

    def open_retrying(self) -> RetryingFolder:
        return RetryingFolder(self.open(), name="the folder", stop=threading.Event(), give_up_after_s=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with OwnCloud(tmp_path / "homes", {AGGREGATOR: "secret", "north": "secret"}) as cloud:
        yield Site(tmp_path, cloud)


def test_a_revoked_share_is_noticed_within_a_minute(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Revoking(site.work, site.mount)
    for module in (polling, heartbeat, retrying):
        monkeypatch.setattr(module, "time", clock)
    Daemon(site.work, read_configuration(site.work), site.open(), stop=clock).run()
    assert (site.shared / SITE_CARD).exists()
    assert clock.noticed_at is not None
    assert REVOKED_AT_S <= clock.noticed_at <= REVOKED_AT_S + NOTICED_WITHIN_S


def test_a_directory_that_has_gone_has_the_folder_itself_looked_at(site: Site) -> None:
    folder = ListedFolder(site.open_retrying())
    folder.create("runs/r/rounds/0001/file", b"x")
    folder.look_anew()
    assert [entry.name for entry in folder.list("runs/r/rounds")] == ["0001"]
    with pytest.raises(NotFoundError):
        folder.list("runs/r/rounds/0002")
    site.mount.unlink()
    folder.look_anew()
    with pytest.raises(ActionRequiredError, match="still shared with user 'north'"):
        folder.list("runs/r/rounds/0002")
