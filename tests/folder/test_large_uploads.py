"""Large files go out with the least sending: in one PUT or in chunks, or as a copy that the server makes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.local.webdav_server import AGGREGATOR, EmbeddedServer
from shared.errors import ActionRequiredError, DropfedError, TransientError
from shared.folder import login
from shared.folder.chunks import AT_A_TIME, CHUNK, upload_name
from shared.folder.copies import Copies
from shared.folder.durable import hash_file
from shared.folder.large_uploads import LONG_S, Division
from shared.folder.meter import Meter, read_transfer
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, Handler, says
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_store import UPLOADS
from tests.folder.relay import Relay

SIZE = 3 * CHUNK + 12345
CUT_AT = CHUNK + CHUNK // 2
WAIT_S = 60.0
OVERHEAD = 1 << 20  # heads of requests and answers

UPLOADER = """
import sys
from pathlib import Path
from shared.folder.durable import hash_file
from shared.folder.webdav import WebDavFolder
url, source = sys.argv[1], Path(sys.argv[2])
WebDavFolder(url, "north", "secret").upload("runs/r/big", source, sha256=hash_file(source)[1])
"""


class Watched(Copies):
    """Tells whenever a folder asks for content."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Semaphore(0)

    def put(self, *arguments: Any, **named: Any) -> None:
        self.asked.release()
        super().put(*arguments, **named)


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


@pytest.fixture
def many_chunks(source: Path) -> Path:
    """More than are on their way at a time."""
    source.write_bytes(os.urandom(2 * AT_A_TIME * CHUNK + 12345))
    return source


def stored(cloud: OwnCloud, site: str = "north") -> bytes:
    return (cloud.store.root / AGGREGATOR / site / "runs" / "r" / "big").read_bytes()


def upload(url: str, source: Path, meter: Meter | None = None) -> None:
    folder = WebDavFolder(url, "north", "secret", meter=meter)
    folder.upload("runs/r/big", source, sha256=hash_file(source)[1])


def begin_in_chunks(cloud: OwnCloud, source: Path) -> None:
    """Leave what an earlier process leaves that was killed when it had begun."""
    name = upload_name("runs/r/big", hash_file(source)[1])
    (cloud.store.root / UPLOADS / "north" / name).mkdir(parents=True)


def slow() -> Meter:
    """Of a line that was seen to need too long for any of these files."""
    meter = Meter()
    meter.speeds["up"] = 1.0
    return meter


def chunks_sent(cloud: OwnCloud) -> list[tuple[str, int]]:
    return sorted((path[-5:], size) for method, path, size in cloud.requests if method == "PUT" and "/uploads/" in path)


def reset() -> None:
    raise ConnectionResetError


class TestDivision:
    """Which files go in chunks."""

    def test_one_put_while_nothing_speaks_against_it(self) -> None:
        division = Division(set())
        assert not division.is_due("a", 100 * CHUNK, None)
        assert not division.is_due("a", 100 * CHUNK, 100 * CHUNK / LONG_S)

    def test_what_would_take_long_at_the_speed_of_the_last(self) -> None:
        division = Division(set())
        assert division.is_due("a", 100 * CHUNK, 99 * CHUNK / LONG_S)
        assert not division.is_due("a", CHUNK, 1.0)  # it is one chunk

    def test_what_was_cut_until_it_has_arrived(self) -> None:
        division = Division({"b"})
        division.note_cut("a")
        assert division.is_due("a", 2 * CHUNK, None) and division.is_due("b", 2 * CHUNK, None)
        division.note_arrived("a")
        assert not division.is_due("a", 2 * CHUNK, None)

    def test_what_is_no_smaller_than_what_was_refused(self) -> None:
        division = Division(set())
        division.note_refused(4 * CHUNK)
        division.note_refused(3 * CHUNK)
        division.note_refused(5 * CHUNK)
        assert division.is_due("a", 3 * CHUNK, None)
        assert not division.is_due("a", 3 * CHUNK - 1, None)


def test_a_file_goes_in_one_put(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source)
    assert stored(cloud) == source.read_bytes()
    assert [size for method, _, size in cloud.requests if method == "PUT"] == [SIZE]


def test_where_the_line_is_slow_chunks_become_the_file(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source, slow())
    assert stored(cloud) == source.read_bytes()
    assert chunks_sent(cloud) == [("00000", CHUNK), ("00001", CHUNK), ("00002", CHUNK), ("00003", 12345)]


def test_a_put_that_was_cut_goes_on_in_chunks(cloud: OwnCloud, inside: str, source: Path) -> None:
    relay = Relay(cloud.port, CUT_AT, reset)
    folder = WebDavFolder(f"http://127.0.0.1:{relay.port}{inside}", "north", "secret")
    sha256 = hash_file(source)[1]
    with pytest.raises(TransientError):
        folder.upload("runs/r/big", source, sha256=sha256)
    assert chunks_sent(cloud) == []
    folder.upload("runs/r/big", source, sha256=sha256)
    assert len(chunks_sent(cloud)) == 4
    cloud.requests.clear()
    folder.upload("runs/r/other", source, sha256=sha256)  # another file, one PUT again
    relay.close()
    assert chunks_sent(cloud) == []
    assert stored(cloud) == source.read_bytes()


def test_where_the_server_refuses_large_files_they_go_in_chunks(cloud: OwnCloud, inside: str, source: Path) -> None:
    cloud.most_body_bytes = 2 * CHUNK
    folder = WebDavFolder(f"{cloud.url}{inside}", "north", "secret")
    sha256 = hash_file(source)[1]
    folder.upload("runs/r/big", source, sha256=sha256)
    assert stored(cloud) == source.read_bytes()
    cloud.requests.clear()
    folder.upload("runs/r/other", source, sha256=sha256)
    assert max(size for method, _, size in cloud.requests if method == "PUT") == CHUNK  # not tried whole again


def test_after_a_cut_only_the_chunks_in_flight_are_sent_again(cloud: OwnCloud, inside: str, many_chunks: Path) -> None:
    size = many_chunks.stat().st_size
    begin_in_chunks(cloud, many_chunks)
    relay = Relay(cloud.port, size * 3 // 4, reset)
    url = f"http://127.0.0.1:{relay.port}{inside}"
    with pytest.raises(TransientError):
        upload(url, many_chunks)
    upload(url, many_chunks)
    relay.close()
    assert stored(cloud) == many_chunks.read_bytes()
    assert size < relay.passed <= size + AT_A_TIME * CHUNK + OVERHEAD
    names = [name for name, _ in chunks_sent(cloud)]
    assert len(names) - len(set(names)) <= AT_A_TIME


def test_after_a_kill_only_the_chunks_in_flight_are_sent_again(cloud: OwnCloud, inside: str, many_chunks: Path) -> None:
    size = many_chunks.stat().st_size
    begin_in_chunks(cloud, many_chunks)
    victims: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        victims[0].kill()

    relay = Relay(cloud.port, size * 3 // 4, kill)
    for _ in range(2):
        command = [sys.executable, "-c", UPLOADER, f"http://127.0.0.1:{relay.port}{inside}", str(many_chunks)]
        victims.append(subprocess.Popen(command))
        victims[-1].wait()
    relay.close()
    assert [process.returncode for process in victims] == [-9, 0]
    assert stored(cloud) == many_chunks.read_bytes()
    assert relay.passed <= size + AT_A_TIME * CHUNK + OVERHEAD


def test_a_lost_answer_to_the_last_step(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source, slow())  # as far as the client knows, this may not have ended
    cloud.requests.clear()
    upload(f"{cloud.url}{inside}", source, slow())
    assert chunks_sent(cloud) == []
    assert list((cloud.store.root).glob("**/dropfed-*")) == []


def test_a_part_under_the_final_name_is_replaced(cloud: OwnCloud, inside: str, source: Path) -> None:
    (source.parent / "part").write_bytes(bytes(CHUNK))
    WebDavFolder(f"{cloud.url}{inside}", "north", "secret").upload("runs/r/big", source.parent / "part")
    upload(f"{cloud.url}{inside}", source, slow())
    assert stored(cloud) == source.read_bytes()


def test_a_file_that_is_not_there_yet_is_not_asked_for(cloud: OwnCloud, inside: str, source: Path) -> None:
    upload(f"{cloud.url}{inside}", source, slow())
    asked = [path for method, path, _ in cloud.requests if method in ("PROPFIND", "GET", "HEAD", "MOVE")]
    before_the_end = asked[: next(number for number, path in enumerate(asked) if path.endswith("/.file"))]
    assert not [path for path in before_the_end if path.endswith("/big")]


def test_an_interrupt_ends_all_chunks(cloud: OwnCloud, inside: str, many_chunks: Path) -> None:
    stands_still, is_over = threading.Event(), threading.Event()

    def stand_still() -> None:  # the relay passes nothing on meanwhile, on any connection
        stands_still.set()
        is_over.wait(60)

    relay = Relay(cloud.port, many_chunks.stat().st_size * 3 // 4, stand_still)
    folder = WebDavFolder(f"http://127.0.0.1:{relay.port}{inside}", "north", "secret", meter=slow())
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(folder.upload, "runs/r/big", many_chunks, sha256=hash_file(many_chunks)[1])
        assert stands_still.wait(60)
        folder.interrupt()
        with pytest.raises(TransientError):
            sending.result(30)  # less than a standstill may last
    is_over.set()
    relay.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunks")]


def test_the_meter_counts_all_chunks_together(cloud: OwnCloud, inside: str, source: Path, tmp_path: Path) -> None:
    told: list[int] = []

    def look(_direction: object) -> None:
        if (transfer := read_transfer(tmp_path / "transfer.json")) is not None:
            told.append(transfer.moved)

    meter = Meter(tmp_path / "transfer.json", limits={"up": SIZE / 3}, permit=look)
    meter.speeds["up"] = 1.0
    began = time.monotonic()
    upload(f"{cloud.url}{inside}", source, meter)
    assert time.monotonic() - began >= 3
    assert told == sorted(told) and 0 < told[-1] <= SIZE
    assert meter.speeds["up"] <= SIZE / 3
    assert not (tmp_path / "transfer.json").exists()


def test_where_no_chunks_are_offered_the_file_is_put_whole(cloud: OwnCloud, source: Path) -> None:
    cloud.link(AGGREGATOR, "north", "token", "of the link")
    link = WebDavFolder(f"{cloud.url}/public.php/webdav", "token", "of the link", meter=slow())
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
            site: RetryingFolder(  # the original may be locked for a moment
                WebDavFolder(f"{base}/{site}", AGGREGATOR, "secret", copies=copies),
                name=site,
                stop=Event(),
                first_wait_s=0.1,
            )
            for site in ("north", "south")
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

    def test_who_may_do_all_but_copy_sends_it(
        self, faulty: FaultyServer, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where each folder of a server has a password of its own: COPY shows that of one folder to another."""
        monkeypatch.setattr(login, "LEFT_ALONE_S", (30.0,))
        faulty.folders |= {"north", "south"}
        copies, sha256 = Copies(), hash_file(source)[1]
        faulty.always_fail("COPY", says(401))
        for site in ("north", "south"):
            folder = WebDavFolder(f"{faulty.url}/{site}", AGGREGATOR, "secret", copies=copies)
            folder.upload("big", source, sha256=sha256)
            assert faulty.files[f"{site}/big"] == source.read_bytes()

    def test_a_login_that_is_refused_tells_nothing_about_copying(self, faulty: FaultyServer, source: Path) -> None:
        faulty.folders |= {"north", "south"}
        copies, sha256 = Copies(), hash_file(source)[1]
        north, south = (
            WebDavFolder(f"{faulty.url}/{site}", AGGREGATOR, "secret", copies=copies) for site in ("north", "south")
        )
        north.upload("big", source, sha256=sha256)
        for method in ("COPY", "PUT"):
            faulty.fail(method, says(401))
        with pytest.raises(ActionRequiredError, match="refuses user"):
            south.upload("big", source, sha256=sha256)
        south.upload("big", source, sha256=sha256)
        assert faulty.count("COPY") == 3  # twice more: by the whole address, and by the path alone

    @pytest.mark.parametrize("status", [423, 425, 429, 503])
    def test_a_copy_that_is_refused_for_a_moment_is_tried_again(
        self, faulty: FaultyServer, source: Path, status: int
    ) -> None:
        faulty.folders |= {"north", "south"}
        copies, sha256 = Copies(), hash_file(source)[1]
        north, south = (
            WebDavFolder(f"{faulty.url}/{site}", AGGREGATOR, "secret", copies=copies) for site in ("north", "south")
        )
        north.upload("big", source, sha256=sha256)
        faulty.fail("COPY", says(status))
        with pytest.raises(DropfedError):
            south.upload("big", source, sha256=sha256)
        south.upload("big", source, sha256=sha256)
        assert faulty.count("COPY") == 3  # twice more: by the whole address, and by the path alone
        assert faulty.files["south/big"] == source.read_bytes()

    def test_who_waits_for_anothers_upload_and_is_interrupted_begins_none(
        self, faulty: FaultyServer, source: Path
    ) -> None:
        """At the end of an aggregator with many sites each would else begin an upload, to be cut in its turn."""
        faulty.folders |= {"north", "south"}
        copies, sha256, comes, goes_on = Watched(), hash_file(source)[1], Event(), Event()
        north, south = (
            WebDavFolder(f"{faulty.url}/{site}", AGGREGATOR, "secret", copies=copies) for site in ("north", "south")
        )

        def hold(handler: Handler) -> None:
            comes.set()
            goes_on.wait(WAIT_S)
            handler.close_connection = True

        faulty.fail("PUT", hold)
        with ThreadPoolExecutor() as pool:
            sent = pool.submit(north.upload, "big", source, sha256=sha256)
            assert comes.wait(WAIT_S) and copies.asked.acquire(timeout=WAIT_S)
            waits = pool.submit(south.upload, "big", source, sha256=sha256)
            assert copies.asked.acquire(timeout=WAIT_S)
            for folder in (south, north):  # or the one begins as soon as the other is cut
                folder.interrupt()
            goes_on.set()
            for each in (sent, waits):
                with pytest.raises(TransientError):
                    each.result(WAIT_S)
        assert faulty.count("PUT") == 1

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
