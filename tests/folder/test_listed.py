"""Looks into a folder by its listings, and how few requests they take."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import NotFoundError
from shared.folder.forbearing import LOCKED_FOR_S
from shared.folder.listed import LISTED_EVERY_S, ListedFolder
from shared.folder.local import LocalFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer


class Tagged(LocalFolder):
    """A folder that says of itself what a test has it say; it counts what it is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.says = "a"
        self.asked: list[str] = []

    def tag(self) -> str:
        self.asked.append("tag")
        return self.says

    def list(self, path: str):  # type: ignore[no-untyped-def]
        self.asked.append(path)
        return super().list(path)


@pytest.fixture
def tagged(tmp_path: Path) -> Tagged:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "there").write_bytes(b"content")
    return Tagged(tmp_path)


def test_nothing_is_asked_for_by_a_name_that_no_listing_has_shown(
    faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    faulty.folders.add("runs")
    faulty.files["runs/there"] = b"content"
    folder = ListedFolder(faulty_folder)
    for name in ("runs/absent", "runs/deeper/absent"):
        with pytest.raises(NotFoundError, match=f"^{name} is not there"):
            folder.read(name, max_bytes=9)
        with pytest.raises(NotFoundError, match=f"^{name} is not there"):
            folder.download(name, tmp_path / "target", size=9)
    assert folder.read("runs/there", max_bytes=9) == b"content"
    assert faulty.requests == ["PROPFIND runs", "PROPFIND runs/deeper", "GET runs/there"]


def test_a_look_lists_each_directory_once_and_the_next_look_anew(tagged: Tagged) -> None:
    folder = ListedFolder(tagged)
    for _ in range(3):
        folder.look_anew()
        for _ in range(3):
            assert [entry.name for entry in folder.list("runs/r")] == ["there"]
            assert folder.find("runs/r/there") is not None
            assert folder.find("runs/r/absent") is None
    assert tagged.asked == ["runs/r"] * 3


def test_what_must_be_known_as_it_is_now_is_listed_again_within_a_look(tagged: Tagged) -> None:
    folder = ListedFolder(tagged)
    assert not folder.entries("runs/r/new") and not folder.entries_now("runs/r/new")
    tagged.create("runs/r/new/file", b"content")
    assert not folder.entries("runs/r/new")
    assert [entry.name for entry in folder.entries_now("runs/r/new")] == ["file"]


def test_what_was_missing_together_is_looked_for_together(tagged: Tagged) -> None:
    folder, awaited = ListedFolder(tagged), ("final", "abort", "rounds/0001/verdict")
    for _ in range(4):  # each learns of one directory more, from below, that it is missing
        tagged.asked.clear()
        folder.look_anew()
        assert not any(folder.find(f"runs/r/{name}/manifest.json") for name in awaited)
    assert tagged.asked == ["runs/r"]
    (tagged.root / "runs" / "r" / "abort").mkdir()
    (tagged.root / "runs" / "r" / "abort" / "manifest.json").write_bytes(b"")
    folder.look_anew()
    assert folder.find("runs/r/abort/manifest.json")
    assert tagged.asked[-2:] == ["runs/r", "runs/r/abort"]


def test_where_the_tag_tells_an_unchanged_folder_takes_one_request(tagged: Tagged) -> None:
    folder = ListedFolder(tagged, has_tag=True)
    for _ in range(5):
        folder.look_anew()
        assert folder.find("runs/r/there")
    assert tagged.asked == ["tag", "runs/r", *["tag"] * 4]
    tagged.says = "b"
    folder.look_anew()
    assert folder.find("runs/r/there")
    assert tagged.asked[-2:] == ["tag", "runs/r"]


@pytest.mark.parametrize("asks_for_all", [False, True])
def test_now_and_then_and_when_it_must_a_look_lists_whatever_the_tag_says(
    tagged: Tagged, clock: SimpleNamespace, asks_for_all: bool
) -> None:
    folder = ListedFolder(tagged, has_tag=True)
    folder.look_anew()
    assert folder.find("runs/r/there")
    clock.s += LISTED_EVERY_S - 1 + (not asks_for_all)
    folder.look_anew(whatever_the_tag_says=asks_for_all)
    assert folder.find("runs/r/there")
    assert tagged.asked == ["tag", "runs/r", "tag", "runs/r"]


def test_a_tag_that_told_nothing_of_a_change_is_not_believed_again(tagged: Tagged, clock: SimpleNamespace) -> None:
    folder = ListedFolder(tagged, has_tag=True)
    folder.look_anew()
    assert folder.find("runs/r/late") is None
    (tagged.root / "runs" / "r" / "late").write_bytes(b"")
    folder.look_anew()
    assert folder.find("runs/r/late") is None
    clock.s += LISTED_EVERY_S
    folder.look_anew()
    assert folder.find("runs/r/late")
    tagged.asked.clear()
    for _ in range(2):
        folder.look_anew()
        assert folder.find("runs/r/late")
    assert tagged.asked == ["runs/r"] * 2


def test_a_change_between_tag_and_listing_does_not_discredit_the_tag(tagged: Tagged, clock: SimpleNamespace) -> None:
    folder, numbers = ListedFolder(tagged, has_tag=True), itertools.count()
    folder.look_anew()
    assert folder.find("runs/r/late") is None
    clock.s += LISTED_EVERY_S
    folder.look_anew()
    (tagged.root / "runs" / "r" / "late").write_bytes(b"")
    tagged.says = f"changed {next(numbers)}"
    assert folder.find("runs/r/late")
    folder.look_anew()
    tagged.asked.clear()
    folder.look_anew()
    assert tagged.asked == ["tag"]


def test_a_file_that_cannot_be_given_its_name_is_told_after_ten_minutes(tagged: Tagged, clock: SimpleNamespace) -> None:
    folder, unfinished = ListedFolder(tagged), tagged.root / "runs" / "r" / "manifest.json.new"
    unfinished.write_bytes(b"content")

    def look() -> str | None:
        folder.look_anew()
        with pytest.raises(NotFoundError):
            folder.read("runs/r/manifest.json", max_bytes=9)
        with pytest.raises(NotFoundError):
            folder.read("runs/r/absent", max_bytes=9)
        return folder.held_up()

    assert look() is None
    clock.s += LOCKED_FOR_S - 1
    assert look() is None
    clock.s += 1
    assert look() == "runs/r/manifest.json"
    unfinished.rename(unfinished.with_name("manifest.json"))
    folder.look_anew()
    assert folder.read("runs/r/manifest.json", max_bytes=9) == b"content"
    assert folder.held_up() is None


def test_names_that_are_asked_for_no_more_are_forgotten(tagged: Tagged) -> None:
    folder = ListedFolder(tagged)

    def look(number: int) -> None:
        folder.look_anew()
        (tagged.root / "runs" / str(number)).mkdir()
        (tagged.root / "runs" / str(number) / "there.new").write_bytes(b"")
        assert folder.find("runs/r/there")
        for path in (f"runs/{number}/there", f"runs/absent-{number}/there"):
            with pytest.raises(NotFoundError):
                folder.read(path, max_bytes=9)

    look(1)
    look(2)
    kept = len(pickle.dumps(vars(folder) | {"_folder": None}))
    for number in range(3, 9):
        look(number)
    assert len(pickle.dumps(vars(folder) | {"_folder": None})) == kept
