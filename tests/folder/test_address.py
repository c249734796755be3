"""Addresses of folders: on a server, or of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.check import look_at_server
from shared.errors import ActionRequiredError
from shared.folder.address import checked_address, checked_url, folder_here
from shared.folder.local import LocalFolder


def test_a_folder_of_this_machine_has_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "drop folder, 100 %"
    assert folder_here(folder.as_uri()) == folder
    assert checked_address(folder.as_uri()) == folder.as_uri()
    assert checked_address("https://example.org/dav//north/") == checked_url("https://example.org/dav/north")
    assert folder_here("https://example.org/dav") is None


@pytest.mark.parametrize("url", ["file:relative", "file://server/share", "ftp://example.org/x", "/srv/folder"])
def test_no_other_address_is_taken(url: str) -> None:
    with pytest.raises(ActionRequiredError, match="malformed"):
        checked_address(url)


def test_a_folder_here_has_one_address_and_who_leaves_its_beginning_out_is_told_it(tmp_path: Path) -> None:
    with pytest.raises(ActionRequiredError, match=r"malformed: .*, or as file:///PATH without '\.\.'$"):
        checked_address(f"{tmp_path.as_uri()}/../north")
    with pytest.raises(
        ActionRequiredError, match=r"malformed: .*, or as file:///PATH if it is a folder of this machine$"
    ):
        checked_address(str(tmp_path))


def test_no_server_is_reached_by_the_address_of_a_folder_here(tmp_path: Path) -> None:
    with pytest.raises(ActionRequiredError, match="malformed"):
        checked_url(tmp_path.as_uri())


def test_a_check_says_that_the_folder_is_here(tmp_path: Path) -> None:
    assert next(finding.grade for finding in look_at_server(LocalFolder(tmp_path), lambda _: None)) == "ok"
    with pytest.raises(ActionRequiredError, match="is not a folder"):
        list(look_at_server(LocalFolder(tmp_path / "gone"), lambda _: None))
