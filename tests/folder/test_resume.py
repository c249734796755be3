"""After a cut, a transfer goes on from where it was: over real servers, also when the process was killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from shared.errors import PassingError, PoisonError
from shared.folder.chunks import CHUNK
from shared.folder.meter import Meter
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, cuts_answer, says
from tests.folder.relay import Relay
from tests.folder.servers import AUTH, NAMES, PASSWORD, SITE

SIZE = 3 * CHUNK + 12345
CUT_AT = CHUNK + 4321
OVERHEAD = 1 << 20  # heads of requests and answers, and what a socket may hold when it is cut

DOWNLOADER = """
import sys
from pathlib import Path
from shared.folder.webdav import WebDavFolder
url, user, target, size = sys.argv[1:]
WebDavFolder(url, user, sys.stdin.read()).download("big", Path(target), size=int(size))
"""


def reset() -> None:
    raise ConnectionResetError


@pytest.fixture(params=NAMES)
def folder_url(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> str:
    url = f"{url_of(request.param)}/{uuid.uuid4().hex}"
    assert requests.request("MKCOL", f"{url}/", auth=AUTH, timeout=30).status_code == 201
    return url


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def source(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(content)
    return path


@pytest.fixture
def cut(folder_url: str) -> Iterator[tuple[Relay, str]]:
    """A relay before the server that cuts its connections once, and the folder's address through it."""
    parts = urlsplit(folder_url)
    relay = Relay(parts.port or 0, CUT_AT, reset)
    yield relay, f"http://127.0.0.1:{relay.port}{parts.path}"
    relay.close()


def test_a_download_goes_on_where_it_was_cut(
    folder_url: str, cut: tuple[Relay, str], source: Path, content: bytes, tmp_path: Path
) -> None:
    WebDavFolder(folder_url, SITE, PASSWORD).upload("big", source)
    relay, url = cut
    target = tmp_path / "target"
    with pytest.raises(PassingError):
        WebDavFolder(url, SITE, PASSWORD).download("big", target, size=SIZE)
    assert not target.exists()
    digest = WebDavFolder(url, SITE, PASSWORD).download("big", target, size=SIZE)
    assert digest == hashlib.sha256(content).hexdigest()
    assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert SIZE <= relay.passed <= SIZE + OVERHEAD


def test_a_download_goes_on_after_the_process_was_killed(
    url_of: Callable[[str], str], source: Path, content: bytes, tmp_path: Path
) -> None:
    url = url_of("embedded")
    WebDavFolder(url, SITE, PASSWORD).upload("big", source)
    parts, target = urlsplit(url), tmp_path / "target"
    victims: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        victims[0].kill()

    relay = Relay(parts.port or 0, CUT_AT, kill)
    arguments = [f"http://127.0.0.1:{relay.port}{parts.path}", SITE, str(target), str(SIZE)]
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", DOWNLOADER, *arguments], stdin=subprocess.PIPE)
        victims.append(process)
        process.communicate(PASSWORD.encode())
    relay.close()
    assert [process.returncode for process in victims] == [-9, 0]
    assert target.read_bytes() == content
    assert relay.passed <= SIZE + CHUNK + OVERHEAD


class TestWhatTheServerSays:
    """How a server may answer a request for the rest of a file."""

    @pytest.fixture
    def half_here(self, faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path) -> Path:
        """Where half of the file has come already."""
        faulty.files["f"] = b"0123456789"
        faulty.fail("GET", cuts_answer(5))
        target = tmp_path / "target"
        with pytest.raises(PassingError):
            faulty_folder.download("f", target, size=10)
        faulty.requests.clear()
        return target

    @pytest.mark.parametrize(
        ("answer", "requests_made"),
        [
            (None, 1),  # 200 and the whole: it knows no Range
            (says(206, b"56789", ("Content-Range", "bytes 5-9/10")), 1),
            (says(206, b"56789", ("Content-Range", "bytes 5-9/10"), ("ETag", '"another"')), 2),
            (says(206, b"6789", ("Content-Range", "bytes 6-9/10")), 2),
            (says(416), 2),
        ],
    )
    def test_it_ends_whole(
        self,
        answer: Callable[..., None] | None,
        requests_made: int,
        half_here: Path,
        faulty: FaultyServer,
        faulty_folder: WebDavFolder,
    ) -> None:
        if answer:
            faulty.fail("GET", answer)
        assert faulty_folder.download("f", half_here, size=10) == hashlib.sha256(b"0123456789").hexdigest()
        assert half_here.read_bytes() == b"0123456789"
        assert faulty.requests == ["GET f"] * requests_made
        assert faulty.headers[-requests_made]["Range"] == "bytes=5-"

    def test_a_cut_with_the_length_of_the_rest_is_not_the_files_fault(
        self, faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
    ) -> None:
        faulty.files["f"] = b"0123456789"
        faulty.fail("GET", says(200, b"0123"))
        with pytest.raises(PassingError, match="came with 4 of 10 bytes"):
            faulty_folder.download("f", tmp_path / "target", size=10)
        faulty.files["f"] = b"0123"
        with pytest.raises(PoisonError, match="has 4 bytes instead of 10"):
            faulty_folder.download("f", tmp_path / "target", size=10)

    def test_all_had_come(self, faulty: FaultyServer, faulty_folder: WebDavFolder, half_here: Path) -> None:
        (part,) = half_here.parent.glob(".target.*.arriving")
        part.write_bytes(b"0123456789")
        faulty_folder.download("f", half_here, size=10)
        assert faulty.requests == []
        assert half_here.read_bytes() == b"0123456789"


def test_what_the_meter_tells(faulty: FaultyServer, tmp_path: Path) -> None:
    told: list[bytes] = []
    meter = Meter(tmp_path / "transfer.json", permit=lambda: told.append((tmp_path / "transfer.json").exists()))
    folder = WebDavFolder(faulty.url, "north", "secret-word", meter=meter)
    (tmp_path / "source").write_bytes(bytes(3 << 20))
    folder.upload("big", tmp_path / "source")
    assert told == [False, True, True]
    assert not (tmp_path / "transfer.json").exists()
