"""Two work directories that were joined by the same invite: the second says nothing in the folder of the first."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.setup import initialise
from shared.audit.verify import verify
from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.folder.local import LocalFolder
from site_client.cli import main
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.setup import join, read_invite
from tests.federation.hospital import Hospital
from tests.federation.running import TASK, WAIT_S, write_data


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    write_data(TASK, tmp_path / "images", 0, 12, seed=1)
    return Hospital(tmp_path, tmp_path / "images")


@pytest.fixture
def second(hospital: Hospital) -> Path:
    work, invite = hospital.home / "second", read_invite(hospital.home / "aggregator" / "invites" / "north.json")
    join(work, invite, data={}, url=None, password=None)
    return work


def everything(drop: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in drop.rglob("*") if path.is_file()}


def test_it_tells_its_own_people_alone(hospital: Hospital, second: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_client.heartbeat.EVERY_S", 0.0)
    before, stop = everything(hospital.drop), threading.Event()
    daemon = Daemon(second, read_configuration(second), LocalFolder(hospital.drop), stop=stop)
    thread, status = threading.Thread(target=daemon.run, daemon=True), second / names.STATUS
    thread.start()
    try:
        hospital.wait_until(lambda: status.exists() and b"compares the two" in status.read_bytes())
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert b'"stopped"' in status.read_bytes()
    assert everything(hospital.drop) == before
    hospital.live()
    assert verify(LocalFolder(hospital.drop)).findings == []


def test_nor_where_it_lost_its_card(hospital: Hospital, second: Path) -> None:
    """Then it takes the card of the folder for its own, until it sees the key."""
    before = everything(hospital.drop)
    (second / "mirror" / names.SITE_CARD).unlink()
    daemon = Daemon(second, read_configuration(second), LocalFolder(hospital.drop), stop=threading.Event())
    daemon._heartbeat.begin(daemon._channel)
    for _ in range(2):
        with pytest.raises(ActionRequiredError):
            daemon.step()
        daemon._heartbeat.beat("stopped", daemon._channel, now=True)
    assert everything(hospital.drop) == before


def test_keys_from_a_backup_make_the_card_that_never_reached_the_folder(tmp_path: Path) -> None:
    drop, work, home = tmp_path / "drop", tmp_path / "north", tmp_path / "aggregator"
    drop.mkdir()
    initialise(home, "retina", {"north": f"file://{drop}"}, "nobody")
    invite = read_invite(home / "invites" / "north.json")
    join(work, invite, data={}, url=drop.as_uri(), user="", password="")
    key = json.loads((work / "mirror" / names.SITE_CARD).read_bytes())["key"]
    shutil.rmtree(work / "mirror")
    told = r"site.json is neither in .* nor in the folder: type `dropfed-site join` with the invite once more"
    daemon = Daemon(work, read_configuration(work), LocalFolder(drop), stop=threading.Event())
    with pytest.raises(ActionRequiredError, match=told):
        daemon.step()
    found = CliRunner().invoke(main, ["check", "--quick", "--work", str(work)])
    assert re.search(told, found.output) and found.exit_code == 1
    join(work, invite, data={}, url=drop.as_uri(), user="", password="")
    daemon.step()
    assert json.loads((drop / names.SITE_CARD).read_bytes())["key"] == key
    (work / "mirror" / names.SITE_CARD).unlink()  # one that the folder has is taken from there
    join(work, invite, data={}, url=drop.as_uri(), user="", password="")
    assert not (work / "mirror" / names.SITE_CARD).exists()
