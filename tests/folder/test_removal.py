"""A directory that somebody else's program has filled goes, whatever that has made of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shared.folder.removal import remove_tree
from site_client.store import clear_scratch

DEEP = 3000  # directories in each other: more than Python calls itself, and longer than a path may be


def dig(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="no paths relative to a directory")
def test_however_deep_it_is(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    (root / "output").mkdir(parents=True)
    (root / "0").mkdir()  # called as what is moved up might be
    (root / "0" / "1").write_bytes(b"")
    dig(root / "output")
    try:
        remove_tree(root)
        assert list(tmp_path.iterdir()) == []
    finally:  # nor can pytest remove what is left
        subprocess.run(["rm", "-rf", str(root)], check=True)


def test_no_link_is_followed_and_rights_are_no_obstacle(tmp_path: Path) -> None:
    outside, root = tmp_path / "data", tmp_path / "scratch"
    (outside / "images").mkdir(parents=True)
    (outside / "labels.csv").write_text("id,label\n")
    for path, mode in ((outside, 0o750), (outside / "labels.csv", 0o640)):
        path.chmod(mode)
    inner = root / "output" / "inner"
    inner.mkdir(parents=True)
    (inner / "link").symlink_to(outside / "labels.csv")
    (root / "output" / "link").symlink_to(outside)
    os.link(outside / "labels.csv", inner / "second name")
    inner.chmod(0)
    (root / "output").chmod(0o500)
    remove_tree(root)
    assert not root.exists()
    assert [path.name for path in sorted(outside.iterdir())] == ["images", "labels.csv"]
    assert [path.stat().st_mode & 0o777 for path in (outside, outside / "labels.csv")] == [0o750, 0o640]


def test_a_link_in_its_place_is_left_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "disk" / "of others").write_bytes(b"")
    (tmp_path / "scratch").symlink_to(tmp_path / "disk")
    remove_tree(tmp_path / "scratch")
    assert (tmp_path / "disk" / "of others").exists() and (tmp_path / "disk").stat().st_mode & 0o777 == 0o755
    (tmp_path / "disk" / "torchrun").mkdir()
    clear_scratch(tmp_path)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["of others"]


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows a file that somebody looks into."""
    root, unlink = tmp_path / "scratch", Path.unlink
    (root / "deep" / "deeper").mkdir(parents=True)
    for number in range(5):
        (root / "deep" / f"{number}").write_bytes(str(number).encode())

    def refusing(path: Path, *given: bool, **named: bool) -> None:
        if path.read_bytes() == b"3":
            raise PermissionError
        unlink(path, *given, **named)

    monkeypatch.setattr(Path, "unlink", refusing)
    remove_tree(root)
    assert [path.read_bytes() for path in root.rglob("*")] == [b"3"]


def test_what_is_not_there_is_removed(tmp_path: Path) -> None:
    remove_tree(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()
