"""Folders that dropfed 0.1 left are still read: what holds holds, and what was tampered with is found."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from shared.audit.verify import lines, verify
from shared.exchange.encryption import EncryptionKey
from shared.folder.local import LocalFolder
from tests.at_length import shown_by

ARCHIVES = sorted(path.name.removesuffix(".tar.xz") for path in (Path(__file__).parent / "protocol_1").glob("*.tar.xz"))
SITES = ("north", "south")


def unpacked(archive: str, home: Path) -> EncryptionKey | None:
    """Put the folders of a recorded run below ``home``; return the key that opens them, if they are encrypted."""
    with tarfile.open(Path(__file__).parent / "protocol_1" / f"{archive}.tar.xz") as tar:
        tar.extractall(home, filter="data")
    key = home / "encryption.key"
    return EncryptionKey.found_at(key)


def findings(home: Path, key: EncryptionKey | None) -> list[str]:
    return [line for site in SITES for line in lines(verify(LocalFolder(home / site), secret_key=key))]


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_recorded_run_holds(archive: str, tmp_path: Path) -> None:
    assert findings(tmp_path, unpacked(archive, tmp_path)) == []


@pytest.mark.parametrize("archive", shown_by(["withdrawn"], ["encrypted-all", "rotated-key", "scaffold", "withdrawn"]))
def test_every_changed_file_of_a_recorded_run_is_found(archive: str, tmp_path: Path) -> None:
    key = unpacked(archive, tmp_path)
    for path in sorted((tmp_path / "south").rglob("*.*")):
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        found = list(lines(verify(LocalFolder(tmp_path / "south"), secret_key=key)))
        assert any(path.name in line for line in found), path
        path.write_bytes(content)
