"""A check that is killed leaves nothing that an auditor takes for a violation, and nothing can hide in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shared.audit.verify import verify
from shared.exchange.names import SCRATCH
from shared.folder.capabilities import BELOW, TEXTS
from shared.folder.local import LocalFolder
from shared.folder.round_trip import LARGE, large_text
from tests.folder.logins import PASSWORD, SITE
from tests.folder.relay import Relay
from tests.folder.servers import embedded
from tests.played import Played

CHECK = """
import sys
from shared.exchange.names import SCRATCH
from shared.folder.webdav import WebDavFolder
print(WebDavFolder(sys.argv[1], sys.argv[2], sys.stdin.read()).capabilities(SCRATCH[0]))
"""


@pytest.fixture
def root(played: Played, tmp_path: Path) -> Path:
    """A server's root with the folder of a finished run."""
    shutil.copytree(played.drop, tmp_path / SITE)
    return tmp_path


def run_check(url: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, url, SITE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(PASSWORD.encode())
    process.stdin.close()
    return process


@pytest.mark.parametrize("after", [2000, 6000, 12000])
def test_a_killed_check_is_no_violation(root: Path, after: int) -> None:
    victims: list[subprocess.Popen[bytes]] = []
    with embedded(root) as server:
        relay = Relay(server.port, after, lambda: victims[0].kill())  # noqa: PLW0108  (there is no victim yet)
        url = urlsplit(server.url_of(SITE))._replace(netloc=f"127.0.0.1:{relay.port}").geturl()
        victims.append(run_check(url))
        assert victims[0].wait(120) == -9
        relay.close()
    audit = verify(LocalFolder(root / SITE))
    assert audit.findings == []
    (left,) = audit.scratch
    assert after == 2000 or any((root / SITE / left).iterdir())


def test_a_check_that_ends_leaves_nothing(root: Path) -> None:
    before = sorted((root / SITE).rglob("*"))
    with embedded(root) as server:
        assert run_check(server.url_of(SITE)).wait(120) == 0
    assert sorted((root / SITE).rglob("*")) == before


def test_the_beginning_of_the_large_file_is_no_violation(root: Path) -> None:
    scratch = root / SITE / SCRATCH[0]
    scratch.mkdir()
    for content, findings in ((large_text()[: 3 << 20], 0), (large_text(), 0), (large_text()[1:], 1)):
        (scratch / LARGE).write_bytes(content)
        assert len(verify(LocalFolder(root / SITE)).findings) == findings


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("one", b"names of patients"),
        ("name-of-a-patient", TEXTS[0]),
        ("one", TEXTS[0] + b"and names of patients"),
        (LARGE, b"names of patients"),
        (f"{BELOW}/one", b"names of patients"),
        ("elsewhere/one", TEXTS[0]),
        (f"{BELOW}/{BELOW}/{BELOW}/one", b"names of patients"),
    ],
)
def test_nothing_can_hide_in_a_scratch_folder(root: Path, path: str, content: bytes) -> None:
    scratch = root / SITE / SCRATCH[0]
    (scratch / path).parent.mkdir(parents=True)
    (scratch / path).write_bytes(content)
    (found,) = verify(LocalFolder(root / SITE)).findings
    assert found.what == "is not what a `check` writes into its scratch folder"
    assert f"{scratch.name}/{path}".startswith(found.file)


@pytest.mark.parametrize("name", ["check-0", "check-10", "check-0123456789abcdef", "check-1a", "scratch", "check-"])
def test_other_folders_do_not_belong_there(root: Path, name: str) -> None:
    """A name that nobody chose for the folder can tell something itself."""
    (root / SITE / name).mkdir()
    assert [finding.file for finding in verify(LocalFolder(root / SITE)).findings] == [name]
