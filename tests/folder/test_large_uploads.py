"""Large files go out with the least sending: in chunks, or as a copy that the server makes of what it has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest

from deploy.local.webdav_server import AGGREGATOR, EmbeddedServer
from shared.errors import PassingError
from shared.folder.chunks import CHUNK
from shared.folder.copies import Copies
from shared.folder.durable import hash_file
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer
from tests.folder.owncloud import OwnCloud
from tests.folder.relay import Relay

SIZE = 3 * CHUNK + 12345
CUT_AT = CHUNK + CHUNK // 2
OVERHEAD = 1 << 20  # heads of requests and answers

UPLOADER = """
import sys
from pathlib import Path
from shared.folder.durable import hash_file
from shared.folder.webdav import WebDavFolder
url, source = sys.argv[1], Path(sys.argv[2])
WebDavFolder(url, "north", "secret").upload("runs/r/big", source, sha256=hash_file(source)[1])
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[OwnCloud]:
    with OwnCloud(tmp_path / "cloud", {"north": "secret", AGGREGATOR: "secret"}) as server:
        server.share(AGGREGATOR, "north", "north", "retina")
        server.share(AGGREGATOR, "south", "north", "unused")
        yield server


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture(params=["/remote.php/dav/files/north/retina", "/remote.php/webdav/retina"])
def inside(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


def stored(cloud: OwnCloud, site: str = "north") -> bytes:
    return (cloud.store.root / AGGREGATOR / site / "runs" / "r" / "big").read_bytes()


def upload(url: str, source: Path) -> None:
    WebDavFolder(url, "north", "secret").upload("runs/r/big", source, sha256=hash_file(source)[1])


def chunks_sent(cloud: OwnCloud) -> list[tuple[str, int]]:
    return [(path[-5:], size) for method, path, size in cloud.requests if method == "PUT" and "/uploads/" in path]


def test_chunks_become_the_file(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source)
    assert stored(cloud) == source.read_bytes()
    assert chunks_sent(cloud) == [("00000", CHUNK), ("00001", CHUNK), ("00002", CHUNK), ("00003", 12345)]


def test_after_a_cut_only_the_chunk_in_flight_is_sent_again(cloud: OwnCloud, inside: str, source: Path) -> None:
    def reset() -> None:
        raise ConnectionResetError

    relay = Relay(cloud.port, CUT_AT, reset)
    url = f"http://127.0.0.1:{relay.port}{inside}"
    with pytest.raises(PassingError):
        upload(url, source)
    upload(url, source)
    relay.close()
    assert stored(cloud) == source.read_bytes()
    assert SIZE < relay.passed <= SIZE + CHUNK + OVERHEAD
    assert len(chunks_sent(cloud)) == 5  # four, and the one that was cut, of which the server kept a part


def test_after_a_kill_only_the_chunk_in_flight_is_sent_again(cloud: OwnCloud, inside: str, source: Path) -> None:
    victims: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        victims[0].kill()

    relay = Relay(cloud.port, CUT_AT, kill)
    for _ in range(2):
        command = [sys.executable, "-c", UPLOADER, f"http://127.0.0.1:{relay.port}{inside}", str(source)]
        victims.append(subprocess.Popen(command))
        victims[-1].wait()
    relay.close()
    assert [process.returncode for process in victims] == [-9, 0]
    assert stored(cloud) == source.read_bytes()
    assert relay.passed <= SIZE + CHUNK + OVERHEAD


def test_a_lost_answer_to_the_last_step(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source)  # as far as the client knows, this may not have ended
    cloud.requests.clear()
    upload(f"{cloud.url}{inside}", source)
    assert chunks_sent(cloud) == []
    assert list((cloud.store.root).glob("**/dropfed-*")) == []


def test_where_no_chunks_are_offered_the_file_is_put_whole(cloud: OwnCloud, source: Path) -> None:
    cloud.link(AGGREGATOR, "north", "token", "of the link")
    link = WebDavFolder(f"{cloud.url}/public.php/webdav", "token", "of the link")
    link.upload("runs/r/big", source, sha256=hash_file(source)[1])
    assert stored(cloud) == source.read_bytes()
    assert chunks_sent(cloud) == []


class TestCopies:
    """The same content for several folders."""

    @pytest.mark.parametrize("kind", ["owncloud", "embedded"])
    def test_content_is_sent_once(self, kind: str, cloud: OwnCloud, source: Path, tmp_path: Path) -> None:
        embedded = EmbeddedServer(tmp_path / "embedded", {"north": "secret", "south": "secret"}, "secret")
        embedded.start()
        base, port = (
            (f"{cloud.url}/remote.php/webdav", cloud.port)
            if kind == "owncloud"
            else (embedded.url.rstrip("/"), embedded.port)
        )
        relay = Relay(port, SIZE * 10, lambda: None)
        copies = Copies()
        base = f"http://127.0.0.1:{relay.port}{urlsplit(base).path}"
        folders = {
            site: WebDavFolder(f"{base}/{site}", AGGREGATOR, "secret", copies=copies) for site in ("north", "south")
        }
        sha256 = hash_file(source)[1]

        def send(site: str) -> None:
            folders[site].upload("runs/r/big", source, sha256=sha256)

        with ThreadPoolExecutor() as pool:
            list(pool.map(send, folders))
        for site, folder in folders.items():
            assert folder.download("runs/r/big", tmp_path / site, size=SIZE) == sha256
        relay.close()
        embedded.stop()
        # Once up; down once to see what the server has copied, and twice as the sites fetch it.
        assert relay.passed < 4 * SIZE + OVERHEAD

    def test_a_server_that_cannot_copy(self, faulty: FaultyServer, source: Path, tmp_path: Path) -> None:
        faulty.folders |= {"north", "south", "west"}
        copies = Copies()
        for site in ("north", "south", "west"):
            folder = WebDavFolder(f"{faulty.url}/{site}", AGGREGATOR, "secret", copies=copies)
            folder.upload("big", source, sha256=hash_file(source)[1])
            assert faulty.files[f"{site}/big"] == source.read_bytes()
        assert faulty.count("COPY") == 2  # for south, by the whole address and by the path alone; not again for west

    def test_an_original_that_was_removed(self, cloud: OwnCloud, source: Path) -> None:
        copies, sha256 = Copies(), hash_file(source)[1]
        north, south = (
            WebDavFolder(f"{cloud.url}/remote.php/webdav/{site}", AGGREGATOR, "secret", copies=copies)
            for site in ("north", "south")
        )
        north.upload("runs/r/big", source, sha256=sha256)
        north.remove("runs/r/big")
        south.upload("runs/r/big", source, sha256=sha256)
        assert stored(cloud, "south") == source.read_bytes()

    @pytest.mark.parametrize(
        "changed", [b"changed", bytes(SIZE), bytes(2 * SIZE)], ids=["shorter", "as-long", "longer"]
    )
    def test_a_site_that_overwrites_its_model_while_it_is_copied_reaches_no_other_hospital(
        self, cloud: OwnCloud, source: Path, changed: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        cloud.share(AGGREGATOR, "west", "north", "unused too")
        copies, sha256 = Copies(), hash_file(source)[1]
        urls = [f"{cloud.url}/remote.php/webdav/{site}" for site in ("north", "south", "west")]
        north, south, west = (
            RetryingFolder(  # a file is locked for a moment after a download of it was broken off
                WebDavFolder(url, AGGREGATOR, "secret", copies=copies), name=url, stop=Event(), first_wait_s=0.1
            )
            for url in urls
        )
        north.upload("runs/r/big", source, sha256=sha256)
        (source.parent / "changed").write_bytes(changed)
        WebDavFolder(urls[0], AGGREGATOR, "secret").upload("runs/r/big", source.parent / "changed")
        south.upload("runs/r/big", source, sha256=sha256)
        assert stored(cloud, "south") == source.read_bytes()
        assert "webdav/north/runs/r/big was changed by somebody who may write there" in caplog.text
        cloud.requests.clear()
        west.upload("runs/r/big", source, sha256=sha256)  # from the folder where it is right, not from the first again
        assert stored(cloud, "west") == source.read_bytes()
        assert chunks_sent(cloud) == []
