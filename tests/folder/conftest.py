from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.folder.contract import Folder
from shared.folder.local import LocalFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer
from tests.folder.installed import AbsentError
from tests.folder.logins import SITE, Login, Logins
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_requests import AGGREGATOR, NORTH
from tests.folder.servers import NAMES, running


@pytest.fixture(scope="session")
def logins_to() -> Iterator[Callable[[str], Logins]]:
    """Return who may enter a server, which is started when first asked for."""
    with ExitStack() as started:
        known: dict[str, Logins | AbsentError] = {}

        def logins_to(name: str) -> Logins:
            if name not in known:
                try:
                    known[name] = started.enter_context(running(name))
                except AbsentError as error:
                    known[name] = error
            found = known[name]
            if isinstance(found, AbsentError):
                pytest.skip(str(found))
            return found

        yield logins_to


@pytest.fixture(params=NAMES)
def login(request: pytest.FixtureRequest, logins_to: Callable[[str], Logins]) -> Login:
    """The way to an empty folder on each server."""
    return logins_to(request.param).sites[SITE].new_folder(f"drop%20folder-{uuid.uuid4().hex}")


@pytest.fixture(params=["local", *NAMES])
def way(request: pytest.FixtureRequest, logins_to: Callable[[str], Logins], tmp_path: Path) -> Login | Path:
    """The way to an empty folder of each kind, on a server or on this machine."""
    if request.param == "local":
        (tmp_path / "drop folder").mkdir()
        return tmp_path / "drop folder"
    return logins_to(request.param).sites[SITE].new_folder(f"drop%20folder-{uuid.uuid4().hex}")


@pytest.fixture
def folder(way: Login | Path) -> Folder:
    """An empty folder of each kind."""
    return LocalFolder(way) if isinstance(way, Path) else way.open()


@pytest.fixture
def faulty_folder(faulty: FaultyServer) -> WebDavFolder:
    return WebDavFolder(faulty.url, "north", "secret-word", stall_s=5)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[OwnCloud]:
    """The aggregator owns ``north`` and ``south``; the user north finds the first as ``retina``."""
    with OwnCloud(tmp_path / "homes", dict([AGGREGATOR, NORTH])) as cloud:
        cloud.share("aggregator", "north", "north", "retina")
        cloud.share("aggregator", "south", "north", "other")
        yield cloud


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its ``s`` is the time of folders that look and forbear, in seconds."""
    now = SimpleNamespace(s=0.0)
    for name in ("forbearing", "listed"):
        monkeypatch.setattr(f"shared.folder.{name}.time", SimpleNamespace(monotonic=lambda: now.s))
    return now
