"""A message that has no room in the folder is not begun, and people hear in time that it is getting full."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError, NotFoundError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer
from shared.folder.durable import write_file
from shared.folder.webdav import WebDavFolder
from tests.folder.owncloud import OwnCloud

MB = 1 << 20


def test_half_a_round_is_never_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with OwnCloud(tmp_path / "cloud", {AGGREGATOR: "secret"}) as cloud:
        folder = WebDavFolder(f"{cloud.url}/remote.php/dav/files/{AGGREGATOR}", AGGREGATOR, "secret")
        peer = Peer("retina", "north", "north", SigningKey(b"\x02" * 32).public)
        channel = Channel(
            tmp_path / "home", folder, me=AGGREGATOR, key=SigningKey(b"\x01" * 32), peer=peer, encryption_key=None
        )
        offered = RunConfiguration(run="r", task="t", method="mean", sites=["north"], rounds=2)
        write_file(channel.ledger.path(MessageRef("offer", "r"), names.RUN_CONFIGURATION), dump_yaml(offered))
        first, second = (MessageRef("round", "r", round_no) for round_no in (1, 2))
        (tmp_path / "model").write_bytes(os.urandom(2 * MB))
        files: dict[str, bytes | Path] = {
            names.ROUND_CONFIGURATION: b"round: 1\n",
            names.GLOBAL_MODEL: tmp_path / "model",
        }
        channel.outbox.sign(first, files, in_reply_to=None)
        cloud.store.quotas[AGGREGATOR] = 2 * MB
        with pytest.raises(ActionRequiredError, match=r"north: the folder has room for 2.1 MB, .*to_site needs 2.1 MB"):
            channel.outbox.publish()
        assert folder.list("") == []

        cloud.store.quotas[AGGREGATOR] = 7 * MB
        with caplog.at_level(logging.WARNING):
            channel.outbox.publish()
            assert [record.getMessage() for record in caplog.records] == [
                "north: the folder has room for 7.34 MB, enough for 3 of the size of the present message"
            ]
            channel.outbox.sign(second, files, in_reply_to=None)
            channel.outbox.publish()
            assert len(caplog.records) == 1
        assert folder.read(second.manifest, max_bytes=MB)
        with pytest.raises(NotFoundError):
            folder.read(MessageRef("round", "r", 3).manifest, max_bytes=MB)

        cloud.store.quotas[AGGREGATOR] = 200 * MB
        channel.outbox._require_room(second, 2 * MB)
        cloud.store.quotas[AGGREGATOR] = 5 * MB
        with pytest.raises(ActionRequiredError, match="north: the folder has room for"):
            for _ in range(40):  # of that size, after which the server is asked again
                channel.outbox._require_room(second, 2 * MB)
