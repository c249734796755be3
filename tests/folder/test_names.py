"""Names: what is refused, and that all others come back as they went in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.folder.contract import Entry, Folder, check_path
from shared.folder.local import LocalFolder
from tests.at_length import held_to
from tests.folder.logins import SITE, Logins

FORBIDDEN = "/\\?;\x7f" + "".join(chr(code) for code in range(32))
names = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters=FORBIDDEN), min_size=1, max_size=30)
    .filter(lambda name: name not in (".", ".."))
    .filter(lambda name: len(name.encode()) <= 200)
    .filter(lambda name: not name.startswith(".part-") and not name.endswith(".writing"))
)


@given(st.lists(names, min_size=1, max_size=5))
def test_good_paths_pass_unchanged(segments: list[str]) -> None:
    assert check_path("/".join(segments)) == "/".join(segments)


@given(st.lists(names, max_size=3), st.sampled_from(["", ".", ".."]), st.lists(names, max_size=3))
def test_no_segment_leads_elsewhere(before: list[str], bad: str, after: list[str]) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        check_path("/".join([*before, bad, *after]))


@given(names, st.sampled_from(FORBIDDEN.replace("/", "")), names)
def test_no_forbidden_character(before: str, bad: str, after: str) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        check_path(before + bad + after)


@held_to(15, 60, name=names)
def test_names_come_back_from_the_embedded_server(name: str, logins_to: Callable[[str], Logins]) -> None:
    login = logins_to("embedded").sites[SITE]
    login.request("DELETE", "names/")
    _round_trip(login.new_folder("names").open(), name)


@settings(max_examples=100, deadline=None)
@given(name=names)
def test_names_come_back_from_a_local_folder(name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _round_trip(LocalFolder(Path(directory)), name)


def _round_trip(folder: Folder, name: str) -> None:
    folder.create(f"{name}/{name}", b"content")
    assert folder.list("") == [Entry(name, True, None)]
    assert folder.list(name) == [Entry(name, False, 7)]
    assert folder.read(f"{name}/{name}", max_bytes=7) == b"content"
