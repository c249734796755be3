"""After a cut, a transfer goes on from where it was: over real servers, also when the process was killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shared.errors import RejectedError, TransientError
from shared.folder.chunks import CHUNK
from shared.folder.meter import Meter
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, cuts_answer, says
from tests.folder.logins import PASSWORD, SITE, Login, Logins
from tests.folder.relay import Relay

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


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def source(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(content)
    return path


@pytest.fixture
def cut(login: Login) -> Iterator[tuple[Relay, Login]]:
    """A relay before the server that cuts its connections once, and the way through it."""
    parts = urlsplit(login.url)
    relay = Relay(parts.port or 0, CUT_AT, reset)
    yield relay, login.at(parts._replace(netloc=f"127.0.0.1:{relay.port}").geturl())
    relay.close()


def test_a_download_goes_on_where_it_was_cut(
    login: Login, cut: tuple[Relay, Login], source: Path, content: bytes, tmp_path: Path
) -> None:
    login.open().upload("big", source)
    time.sleep(1.1)  # Apache tells a strong ETag, by which a download can go on, of what is a second old
    relay, through_relay = cut
    target = tmp_path / "target"
    with pytest.raises(TransientError):
        through_relay.open().download("big", target, size=SIZE)
    assert not target.exists()
    digest = through_relay.open().download("big", target, size=SIZE)
    assert digest == hashlib.sha256(content).hexdigest()
    assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert SIZE <= relay.passed <= SIZE + OVERHEAD


def test_a_download_goes_on_after_the_process_was_killed(
    logins_to: Callable[[str], Logins], source: Path, content: bytes, tmp_path: Path
) -> None:
    login = logins_to("embedded").sites[SITE]
    login.open().upload("big", source)
    parts, target = urlsplit(login.url), tmp_path / "target"
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
        with pytest.raises(TransientError):
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
        with pytest.raises(TransientError, match="came with 4 of 10 bytes"):
            faulty_folder.download("f", tmp_path / "target", size=10)
        faulty.files["f"] = b"0123"
        with pytest.raises(RejectedError, match="has 4 bytes instead of 10"):
            faulty_folder.download("f", tmp_path / "target", size=10)

    def test_all_had_come(self, faulty: FaultyServer, faulty_folder: WebDavFolder, half_here: Path) -> None:
        (part,) = half_here.parent.glob(".target.*.arriving")
        part.write_bytes(b"0123456789")
        faulty_folder.download("f", half_here, size=10)
        assert faulty.requests == []
        assert half_here.read_bytes() == b"0123456789"


def test_what_the_meter_tells(faulty: FaultyServer, tmp_path: Path) -> None:
    told: list[bool] = []
    meter = Meter(tmp_path / "transfer.json", permit=lambda _: told.append((tmp_path / "transfer.json").exists()))
    folder = WebDavFolder(faulty.url, "north", "secret-word", meter=meter)
    (tmp_path / "source").write_bytes(bytes(3 << 20))
    folder.upload("big", tmp_path / "source")
    assert told[0] is False and all(told[1:])  # before anything moved; from then on
    assert not (tmp_path / "transfer.json").exists()
