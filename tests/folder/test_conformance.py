"""What every folder must do, on every server that is installed."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError, AlreadyExistsError, DropfedError, NotFoundError, RejectedError
from shared.folder.contract import Entry, Folder
from shared.folder.local import LocalFolder
from tests.folder.logins import Login

ODD_NAMES = [
    "a b",
    "100%",
    "#1",
    "grün",
    "a&b",
    "c+d",
    "it's",
    "a%2fb",
    "[1]",
    "a=b,c@d",
    "~x",
    "日本",
    "a:b",
]


def test_empty_folder(folder: Folder) -> None:
    folder.check()
    assert folder.list("") == []


def test_missing_root_is_a_standing_failure(way: Login | Path) -> None:
    missing = LocalFolder(way / "nowhere") if isinstance(way, Path) else way.at(f"{way.url}/nowhere").open()
    for attempt in (missing.check, lambda: missing.list(""), lambda: missing.create("a/b", b"x")):
        with pytest.raises(ActionRequiredError, match="nowhere"):
            attempt()


@pytest.mark.parametrize("size", [0, 1, (3 << 20) + 1])
def test_upload_and_download(folder: Folder, tmp_path: Path, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    (tmp_path / "source").write_bytes(content)
    folder.upload("runs/r1/rounds/0001/to_site/model.safetensors", tmp_path / "source")
    folder.upload("runs/r1/rounds/0001/to_site/model.safetensors", tmp_path / "source")  # twice is once
    digest = folder.download("runs/r1/rounds/0001/to_site/model.safetensors", tmp_path / "target", size=size)
    assert digest == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "target").read_bytes() == content
    assert folder.list("runs/r1/rounds/0001/to_site") == [Entry("model.safetensors", False, size)]
    assert folder.list("") == [Entry("runs", True, None)]
    assert folder.list("runs/r1") == [Entry("rounds", True, None)]


def test_a_torn_upload_is_sent_again(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"half")
    (tmp_path / "whole").write_bytes(b"whole file")
    folder.upload("d/f", tmp_path / "torn")
    folder.upload("d/f", tmp_path / "whole")
    assert folder.read("d/f", max_bytes=100) == b"whole file"


def test_remove(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    folder.upload("a/f", tmp_path / "source")
    folder.upload("a/g", tmp_path / "source")
    for _ in range(2):  # twice is once
        folder.remove("a/f")
        assert folder.list("a") == [Entry("g", False, 1)]


def test_room(folder: Folder) -> None:
    room = folder.room()
    assert room is None or room > 1 << 20


def test_create_never_replaces(folder: Folder) -> None:
    folder.create("a/b/manifest.json", b"first")
    folder.create("a/b/manifest.json", b"first")
    for other in (b"other", b"firs", b"first!", b""):
        with pytest.raises(AlreadyExistsError, match="manifest"):
            folder.create("a/b/manifest.json", other)
    assert folder.read("a/b/manifest.json", max_bytes=100) == b"first"
    assert folder.list("a/b") == [Entry("manifest.json", False, 5)]


def test_create_where_a_folder_lies_ends_and_is_told(folder: Folder) -> None:
    folder.create("a/manifest.json/x", b"")
    vars(folder).get("_made", set()).clear()  # as if somebody else had made it
    with pytest.raises(AlreadyExistsError):
        folder.create("a/manifest.json", b"{}")
    assert [entry.is_folder for entry in folder.list("a") if entry.name == "manifest.json"] == [True]


def test_create_empty_file(folder: Folder) -> None:
    folder.create("empty", b"")
    folder.create("empty", b"")
    assert folder.read("empty", max_bytes=0) == b""
    assert folder.list("") == [Entry("empty", False, 0)]


def test_overwrite_replaces_and_leaves_nothing_else(folder: Folder) -> None:
    for content in (b'{"phase": "training"}', b"{}", b"{}", b'{"phase": "waiting"}'):
        folder.overwrite("status.json", content)
        assert folder.read("status.json", max_bytes=100) == content
    assert [entry.name for entry in folder.list("")] == ["status.json"]


def test_what_is_missing_is_not_found(folder: Folder, tmp_path: Path) -> None:
    folder.create("file", b"x")
    for path in ("nothing", "nothing/below", "d/e/f"):
        with pytest.raises(NotFoundError):
            folder.read(path, max_bytes=10)
        with pytest.raises(NotFoundError):
            folder.download(path, tmp_path / "target", size=1)
        with pytest.raises(NotFoundError):
            folder.list(path)
    with pytest.raises(DropfedError):  # NotFoundError, except where the server forbids to ask
        folder.list("file")
    assert not (tmp_path / "target").exists()


def test_wrong_size_is_poison_and_keeps_the_old_target(folder: Folder, tmp_path: Path) -> None:
    folder.create("f", b"12345")
    (tmp_path / "target").write_bytes(b"old")
    with pytest.raises(RejectedError):
        folder.read("f", max_bytes=4)
    for size in (4, 6):
        with pytest.raises(RejectedError):
            folder.download("f", tmp_path / "target", size=size)
    assert (tmp_path / "target").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["target"]


def test_odd_names(folder: Folder) -> None:
    for name in ODD_NAMES:
        folder.create(f"odd/{name}/{name}", name.encode())
    assert [entry.name for entry in folder.list("odd")] == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        assert folder.list(f"odd/{name}") == [Entry(name, False, len(name.encode()))]
        assert folder.read(f"odd/{name}/{name}", max_bytes=100) == name.encode()


def test_names_outside_the_folder_are_refused(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    for path in ("../x", "/x", "a//b", "a/../b", "a/", ".", "a\\b", "a\nb", "a?b", "a;b"):
        for attempt in (
            lambda path=path: folder.read(path, max_bytes=1),
            lambda path=path: folder.download(path, tmp_path / "target", size=1),
            lambda path=path: folder.upload(path, tmp_path / "source"),
            lambda path=path: folder.create(path, b""),
            lambda path=path: folder.overwrite(path, b""),
            lambda path=path: folder.list(path),
        ):
            with pytest.raises(ValueError, match="not a path inside"):
                attempt()
    assert folder.list("") == []


def test_a_file_where_a_folder_must_be(folder: Folder) -> None:
    folder.create("name", b"a file")
    with pytest.raises(DropfedError):  # each server has its own idea of what is below a file
        folder.create("name/below", b"x")
    assert folder.read("name", max_bytes=10) == b"a file"


def test_removed_folders_are_made_again(folder: Folder, way: Login | Path) -> None:
    """What the client remembers about folders may become wrong."""
    for name in ("one", "two"):
        folder.create(f"a/b/{name}", b"1")
        assert [entry.name for entry in folder.list("a/b")] == [name]
        if isinstance(way, Path):
            shutil.rmtree(way / "a")
        else:
            way.request("DELETE", "a/")  # through a public link ownCloud answers 500 to that
            with pytest.raises(NotFoundError):
                way.open().list("a")
