"""The embedded server: no site reaches another's folder, and nothing half-written is ever seen."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from deploy.local.atomic_files import AtomicProvider
from deploy.local.webdav_server import EmbeddedServer, main
from shared.errors import ConfigurationError, TransientError
from shared.folder.retrying import RetryingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.logins import AGGREGATOR, AGGREGATOR_PASSWORD, AUTH, PASSWORD, PASSWORDS, SITE
from tests.folder.relay import Relay
from tests.folder.servers import embedded
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[2]
SECRET = b"south's own"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, Path]]:
    drop = tmp_path_factory.mktemp("drop")
    with embedded(drop) as server:
        yield server, drop


@pytest.fixture
def drop(running: tuple[EmbeddedServer, Path]) -> Path:
    """The server's root, with one file for each site and nothing else."""
    _, drop = running
    for name, content in (("south/secret", SECRET), ("north/mine", b"north's own")):
        shutil.rmtree((drop / name).parent)
        (drop / name).parent.mkdir()
        (drop / name).write_bytes(content)
    return drop


@pytest.fixture
def server(running: tuple[EmbeddedServer, Path], drop: Path) -> EmbeddedServer:
    return running[0]


NORTH = f"{SITE}:{PASSWORD}"
TOKEN = base64.b64encode(NORTH.encode()).decode()
METHODS = ["PROPFIND", "GET", "HEAD", "PUT", "DELETE", "MKCOL", "LOCK", "PROPPATCH", "OPTIONS"]


def raw(server: EmbeddedServer, method: str, target: str, *headers: str, auth: str | None = NORTH) -> str:
    """Send a request exactly as written, for clients tidy up paths; return the whole answer."""
    depth = f"Depth: {1 if method == 'PROPFIND' else 'infinity'}"
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Connection: close", depth, *headers]
    if auth is not None:
        lines.append(f"Authorization: Basic {base64.b64encode(auth.encode()).decode()}")
    if method == "PUT":
        lines.append("Content-Length: 1")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", "x" if method == "PUT" else ""]).encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode(errors="replace")


def status_of(answer: str) -> int:
    return int(answer.split(" ", 2)[1])


def south_of(drop: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (drop / "south").iterdir()}


@pytest.mark.parametrize(
    "target",
    [
        "/south/",
        "/south/secret",
        "/south/new",
        "/SOUTH/secret",
        "//south/secret",
        "/south//secret",
        "/north/../south/secret",
        "/north/%2e%2e/south/secret",
        "/north/..%2fsouth/secret",
        "/north/%2e%2e%2fsouth%2fsecret",
        "/north/..%5csouth/secret",
        "/north/./../south/secret",
        "/north%2f..%2fsouth/secret",
        "/%73outh/secret",
        "/",
        "/north/../",
        "/north/..",
    ],
)
def test_no_request_reaches_another_site(server: EmbeddedServer, drop: Path, target: str) -> None:
    for method in METHODS:
        for auth in (NORTH, f"south:{PASSWORD}", f"aggregator:{PASSWORD}", "south:", ":", "nonsense", None):
            answer = raw(server, method, target, auth=auth)
            # an encoded slash is no slash: the name as it stands may well be written in north's own folder
            assert status_of(answer) >= 400 or (auth == NORTH and "%2fsecret" in target), (method, auth, answer)
            assert SECRET.decode() not in answer
            assert "secret" in target or "secret" not in answer
    assert south_of(drop) == {"secret": SECRET}
    assert sorted(path.name for path in drop.iterdir()) == ["north", "south"]


def test_a_copy_is_a_file_of_its_own(server: EmbeddedServer, drop: Path) -> None:
    """Though at first both are names of one content."""

    def relocate(method: str, source: str, target: str) -> int:
        return status_of(raw(server, method, f"/north/{source}", f"Destination: /north/{target}"))

    before = (drop / "north" / "mine").read_bytes()
    assert [relocate("COPY", "mine", "copy"), relocate("COPY", "mine", "copy")] == [201, 204]
    assert relocate("MOVE", "copy", "mine") == 204
    assert [path.name for path in (drop / "north").iterdir()] == ["mine"]
    assert relocate("COPY", "mine", "copy") == 201
    assert status_of(raw(server, "PUT", "/north/copy")) == 204
    assert [(drop / "north" / name).read_bytes() for name in ("copy", "mine")] == [b"x", before]


@pytest.mark.parametrize("method", ["MOVE", "COPY"])
@pytest.mark.parametrize("overwrite", ["T", "F"])
def test_nothing_moves_between_sites(server: EmbeddedServer, drop: Path, method: str, overwrite: str) -> None:
    here = f"http://127.0.0.1:{server.port}"
    for source, destination in (
        ("/north/mine", f"{here}/south/stolen"),
        ("/north/mine", f"{here}/south/secret"),
        ("/north/mine", "/south/stolen"),
        ("/north/mine", f"{here}/north/../south/stolen"),
        ("/north/mine", f"{here}/north/%2e%2e/south/stolen"),
        ("/north/mine", f"{here}/north/..%2fsouth/stolen"),
        ("/north/mine", f"{here}/north/%252e%252e/south/stolen"),
        ("/north/mine", f"{here}/../stolen"),
        ("/south/secret", f"{here}/north/stolen"),
        ("/north/../south/secret", f"{here}/north/stolen"),
    ):
        answer = raw(server, method, source, f"Destination: {destination}", f"Overwrite: {overwrite}")
        assert status_of(answer) >= 400, (source, destination, answer)
    assert south_of(drop) == {"secret": SECRET}
    assert [path.name for path in (drop / "north").iterdir()] == ["mine"]
    assert not (drop / "stolen").exists()


def test_a_link_leads_nowhere(server: EmbeddedServer, drop: Path) -> None:
    (drop / "north" / "link").symlink_to(drop / "south")
    for target in ("/north/link/secret", "/north/link/", "/north/link"):
        for method in METHODS:
            assert status_of(raw(server, method, target)) >= 400
    assert "link" not in raw(server, "PROPFIND", "/north/")
    assert south_of(drop) == {"secret": SECRET}


def test_the_aggregator_enters_every_folder(server: EmbeddedServer) -> None:
    for site in ("north", "south"):
        folder = WebDavFolder(server.url_of(site), AGGREGATOR, AGGREGATOR_PASSWORD)
        folder.check()
        folder.create("runs/r/offer/manifest.json", site.encode())
        assert folder.read("runs/r/offer/manifest.json", max_bytes=10) == site.encode()


def test_half_an_upload_leaves_nothing(server: EmbeddedServer, drop: Path) -> None:
    north = drop / "north"
    for name in ("new", "mine"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            head = f"PUT /north/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {TOKEN}\r\n"
            connection.sendall(f"{head}Content-Length: 3000000\r\n\r\n".encode() + b"x" * 2_000_000)
            _wait_until(lambda: len(list(north.iterdir())) == 2)  # it is arriving,
            listing = raw(server, "PROPFIND", "/north/")
            assert listing.count("<ns0:href>") + listing.count("<D:href>") == 2, listing  # and not to be seen:
            part = next(path.name for path in north.iterdir() if path.name != "mine")
            for method in ("GET", "DELETE", "PUT"):
                assert status_of(raw(server, method, f"/north/{part}")) == 403
        _wait_until(lambda: len(list(north.iterdir())) == 1)
        assert (north / "mine").read_bytes() == b"north's own"


def test_remains_of_a_crash_are_removed_at_the_start(tmp_path: Path) -> None:
    torn = tmp_path / "drop" / "north" / "runs" / ".part-0123"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"half")
    with embedded(tmp_path / "drop"):
        assert not torn.exists()
        assert torn.parent.is_dir()


def test_single_winner(server: EmbeddedServer) -> None:
    """Of many writers of one new name, exactly one wins, by PUT and by MOVE alike."""
    writers = 4
    start = threading.Barrier(writers)

    def put(url: str, writer: int) -> int:
        start.wait()
        headers = {"If-None-Match": "*"}
        return requests.put(url, data=f"{writer}", headers=headers, auth=AUTH, timeout=30).status_code

    def move(url: str, writer: int) -> int:
        requests.put(f"{url}.{writer}", data=f"{writer}", auth=AUTH, timeout=30)
        start.wait()
        headers = {"Destination": url, "Overwrite": "F"}
        return requests.request("MOVE", f"{url}.{writer}", headers=headers, auth=AUTH, timeout=30).status_code

    with ThreadPoolExecutor(writers) as pool:
        for number in range(5):
            for work in (put, move):
                url = f"{server.url_of(SITE)}{work.__name__}{number}"
                codes = list(pool.map(work, [url] * writers, range(writers)))
                assert sum(code < 300 for code in codes) == 1, codes
                assert set(codes) <= {201, 204, 412, 423}, codes


def test_readers_never_see_half_a_status(server: EmbeddedServer) -> None:
    versions = {bytes([65 + number]) * (300_000 + number) for number in range(4)}
    folder = WebDavFolder(server.url_of(SITE), SITE, PASSWORD)
    folder.overwrite("status.json", min(versions))
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        reader = WebDavFolder(server.url_of(SITE), AGGREGATOR, AGGREGATOR_PASSWORD)
        while not done.is_set():
            content = reader.read("status.json", max_bytes=1 << 20)
            if content not in versions:
                torn.append(len(content))

    thread = threading.Thread(target=read)
    thread.start()
    for version in sorted(versions) * 10:
        folder.overwrite("status.json", version)
    done.set()
    thread.join()
    assert torn == []


def test_a_file_that_is_replaced_while_it_is_asked_for_comes_as_it_was(tmp_path: Path) -> None:
    """What is said of it, and what is sent of it, are of one file."""
    (tmp_path / "f").write_bytes(b"the older and longer content")
    provider = AtomicProvider(str(tmp_path), readonly=False, fs_opts={})
    asked = provider.get_resource_inst("/f", {"REQUEST_METHOD": "GET", "wsgidav.provider": provider})
    assert asked is not None
    length, etag = asked.get_content_length(), asked.get_etag()
    (tmp_path / "new").write_bytes(b"newer")
    (tmp_path / "new").replace(tmp_path / "f")
    assert asked.get_etag() == etag
    with asked.get_content() as content:
        assert len(content.read()) == length


class Interrupted:
    """A server that is stopped in the middle of a transfer and started again on its port."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.troubles: list[object] = []
        self.parts: list[Path] = []
        self.port = free_port()  # cheroot takes a port again at once only if it was asked for by number
        self.server = self.started()
        self.relay = Relay(self.port, 6 << 20, self.restart)
        inner = WebDavFolder(f"http://127.0.0.1:{self.relay.port}/{SITE}", SITE, PASSWORD, stall_s=20)
        self.folder = RetryingFolder(
            inner,
            name=SITE,
            stop=threading.Event(),
            on_trouble=self.troubles.append,
            first_wait_s=0.1,
            longest_wait_s=0.2,
        )

    def started(self) -> EmbeddedServer:
        server = EmbeddedServer(self.root, PASSWORDS, AGGREGATOR_PASSWORD, port=self.port)
        server.start()
        return server

    def restart(self) -> None:
        self.parts += self.root.rglob(".part-*")
        self.server.stop()
        self.server = self.started()

    def close(self) -> None:
        self.relay.close()
        self.server.stop()


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[Interrupted]:
    interrupted = Interrupted(tmp_path / "drop")
    yield interrupted
    interrupted.close()


def test_restart_during_an_upload(interrupted: Interrupted, tmp_path: Path) -> None:
    content = os.urandom(24 << 20)
    (tmp_path / "source").write_bytes(content)
    interrupted.folder.upload("d/model", tmp_path / "source")
    assert len(interrupted.parts) == 1  # it was arriving when the server stopped
    assert isinstance(interrupted.troubles[0], TransientError)
    assert interrupted.troubles[1:] == [None]
    folder = tmp_path / "drop" / "north" / "d"
    assert (folder / "model").read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["model"]


def test_restart_during_a_download(interrupted: Interrupted, tmp_path: Path) -> None:
    content = os.urandom(24 << 20)  # more than the buffers on the way hold
    (tmp_path / "drop" / "north" / "model").write_bytes(content)
    (tmp_path / "target").write_bytes(b"old")
    digest = interrupted.folder.download("model", tmp_path / "target", size=len(content))
    assert digest == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "target").read_bytes() == content
    assert isinstance(interrupted.troubles[0], TransientError)
    assert interrupted.troubles[1:] == [None]


def write_settings(path: Path, **changes: object) -> Path:
    """Write a CONFIG.json that others may not read; a change to None leaves the key out."""
    config: dict[str, object] = {
        "root": str(path.parent / "drop"),
        "host": "127.0.0.1",
        "port": 0,
        "aggregator_password": AGGREGATOR_PASSWORD,
        "sites": {SITE: PASSWORD},
    }
    path.write_text(json.dumps({key: found for key, found in (config | changes).items() if found is not None}))
    path.chmod(0o600)
    return path


def test_as_a_process(tmp_path: Path) -> None:
    config = write_settings(tmp_path / "config.json")
    command = [sys.executable, "-m", "deploy.local.webdav_server", str(config)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        folder = WebDavFolder(f"{url}{SITE}", SITE, PASSWORD)
        folder.create("a/b", b"x")
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:  # a client that hangs up
            head = f"PUT /{SITE}/torn HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {TOKEN}\r\n"
            connection.sendall(f"{head}Content-Length: 99\r\n\r\n".encode() + b"x")
        _wait_until(lambda: not list((tmp_path / "drop").rglob(".part-*")))
        folder.check()
    finally:
        process.send_signal(signal.SIGTERM)
        remaining, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert remaining == ""
    assert "Traceback" not in errors
    assert PASSWORD not in errors
    assert (tmp_path / "drop" / SITE / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"root": None}, "root: is missing"),
        ({"port": "80"}, "port: "),
        ({"port": True}, "port: "),
        ({"extra": 1}, "extra: is not a known key"),
        ({"sites": {}}, "name at least one"),
        ({"sites": {"north": 1}}, "north has no password, a text in quotes"),
        ({"sites": {"north": ""}}, "no password"),
        ({"sites": {"aggregator": "x"}}, "cannot be a site's name"),
        ({"sites": {"North": "x"}}, "cannot be a site's name"),
        ({"sites": {"../x": "x"}}, "cannot be a site's name"),
        ({"aggregator_password": ""}, "is empty"),
        ({"host": "no.such.host.invalid"}, "cannot start"),
    ],
)
def test_settings_that_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write_settings(tmp_path / "config.json", **changes))]) == 2
    assert words in capsys.readouterr().err


def test_settings_that_others_may_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_settings(tmp_path / "config.json")
    config.chmod(0o640)
    assert main([str(config)]) == 2
    assert f"chmod 600 {config}" in capsys.readouterr().err
    for content in ("", "[]", "{"):
        config = tmp_path / "config.json"
        config.write_text(content)
        config.chmod(0o600)
        assert main([str(config)]) == 2
    assert main([str(tmp_path / "missing.json")]) == 2
    assert main([]) == 2


def test_a_port_that_is_taken_is_told_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(write_settings(tmp_path / "config.json", port=port))]) == 2
    told = capsys.readouterr().err
    assert f"cannot start: nothing can listen at 127.0.0.1:{port} (" in told
    assert told.endswith("): end what does, or take another port\n")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        EmbeddedServer(Path("unused"), {"Bad Name": "", "aggregator": "x"}, "")
    assert len(caught.value.problems) == 4


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("source", "target", "headers", "status"),
    [
        ("north/a", "south/new", {}, 201),
        ("north/a", "south/there", {}, 204),
        ("north/a", "south/there", {"Overwrite": "F"}, 412),
        ("north/a", "south/folder", {}, 412),
        ("north/a", "south/no/parent", {}, 409),
        ("north/a", "west/a", {}, 403),
        ("north/a", "south/../../stolen", {}, 403),
        ("north/a", "south/%2e%2e/stolen", {}, 403),
        ("north/nothing", "south/new", {}, 404),
        ("north/folder", "south/new", {}, 403),
        ("north/a", "", {}, 400),
    ],
)
def test_only_the_aggregator_copies_from_folder_to_folder(
    tmp_path: Path, source: str, target: str, headers: dict[str, str], status: int
) -> None:
    with embedded(tmp_path / "root") as server:
        for site in ("north", "south"):
            (tmp_path / "root" / site / "folder").mkdir()
        (tmp_path / "root" / "north" / "a").write_bytes(b"content of a")
        (tmp_path / "root" / "south" / "there").write_bytes(b"old")

        def copy(user: str, password: str) -> int:
            with requests.Session() as session:
                answer = session.request(
                    "COPY",
                    f"{server.url}{source}",
                    auth=(user.encode(), password.encode()),
                    headers={"Destination": f"{server.url}{target}"} | headers,
                    timeout=30,
                )
            return answer.status_code

        assert copy(SITE, PASSWORD) in (400, 401, 403, 404, 409, 412, 502)
        assert (tmp_path / "root" / "south" / "there").read_bytes() == b"old"
        assert not (tmp_path / "root" / "south" / "new").exists()
        assert copy(AGGREGATOR, AGGREGATOR_PASSWORD) == status
        assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
        if status < 300:
            assert (tmp_path / "root" / target).read_bytes() == b"content of a"
