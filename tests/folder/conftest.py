from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from shared.folder.contract import Folder
from shared.folder.local import LocalFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer
from tests.folder.servers import AUTH, NAMES, PASSWORD, SITE, running


@pytest.fixture(scope="session")
def url_of() -> Iterator[Callable[[str], str]]:
    """Return the folder's address on a server, which is started when first asked for."""
    with ExitStack() as started:
        urls: dict[str, str] = {}

        def url_of(name: str) -> str:
            if name not in urls:
                urls[name] = started.enter_context(running(name)).rstrip("/")
            return urls[name]

        yield url_of


@pytest.fixture(params=["local", *NAMES])
def folder(request: pytest.FixtureRequest, url_of: Callable[[str], str], tmp_path: Path) -> Folder:
    """An empty folder of each kind."""
    if request.param == "local":
        (tmp_path / "drop folder").mkdir()
        return LocalFolder(tmp_path / "drop folder")
    url = f"{url_of(request.param)}/drop%20folder-{uuid.uuid4().hex}"
    made = requests.request("MKCOL", f"{url}/", auth=AUTH, timeout=30)
    assert made.status_code == 201
    return WebDavFolder(url, SITE, PASSWORD)


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture
def faulty_folder(faulty: FaultyServer) -> WebDavFolder:
    return WebDavFolder(faulty.url, "north", "secret-word", stall_s=5)
