"""A site notices soon that its folder is shared with it no longer."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from aggregator.setup import initialise
from shared import polling
from shared.exchange.names import AGGREGATOR, SITE_CARD, STATUS
from shared.folder import retrying
from shared.folder.retrying import ROOT_SEEN_EVERY_S
from shared.folder.webdav import WebDavFolder
from site_client import heartbeat
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.setup import join, read_invite
from tests.folder.owncloud import OwnCloud

REVOKED_AT_S = ROOT_SEEN_EVERY_S + 20  # not long after the daemon has looked at the folder itself
NOTICED_WITHIN_S = 60.0


class Revoking(threading.Event):
    """A stop event, and a clock that moves only when the daemon waits. At some time the share is taken back.

    Attributes:
        noticed_at: when the site's own status first said so.
    """

    def __init__(self, work: Path, share: Path) -> None:
        super().__init__()
        self.now = 0.0
        self.noticed_at: float | None = None
        self._work, self._share = work, share
        self._waiter = threading.current_thread()

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is not self._waiter:  # who only looks whether to cut a connection
            return super().wait(timeout)
        trouble = json.loads((self._work / STATUS).read_bytes())["body"]["trouble"]
        if trouble and "still shared with user" in trouble:
            self.noticed_at = self.now
            self.set()
        self.now += timeout or 0.0
        if self.now >= REVOKED_AT_S:
            self._share.unlink(missing_ok=True)
        if self.now > REVOKED_AT_S + 2 * ROOT_SEEN_EVERY_S:
            self.set()
        return self.is_set()


def test_a_revoked_share_is_noticed_within_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OwnCloud(tmp_path / "homes", {AGGREGATOR: "secret", "north": "secret"}) as cloud:
        cloud.share(AGGREGATOR, "north", "north", "retina")
        work, url = tmp_path / "north", f"{cloud.url}/remote.php/dav/files/north/retina"
        initialise(tmp_path / "aggregator", "retina", {"north": url}, AGGREGATOR)
        join(work, read_invite(tmp_path / "aggregator" / "invites" / "north.json"), data={}, url=None, password=None)
        share = cloud.store.root / "north" / "retina"
        clock = Revoking(work, share)
        for module in (polling, heartbeat, retrying):
            monkeypatch.setattr(module, "time", clock)
        Daemon(work, read_configuration(work), WebDavFolder(url, "north", "secret"), stop=clock).run()
        assert (cloud.store.root / AGGREGATOR / "north" / SITE_CARD).exists()
    assert clock.noticed_at is not None
    assert REVOKED_AT_S <= clock.noticed_at <= REVOKED_AT_S + NOTICED_WITHIN_S
