"""The five ways in which a WebDAV client loses data and reports success, and their relatives.

Each test plays the server's part over a real socket.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError, AlreadyExistsError, RejectedError, TransientError
from shared.folder.webdav import WebDavFolder
from tests.faults.faults import PAGE, Truncate
from tests.folder.faulty import FaultyServer, cuts_answer, does_it_and_hangs_up, hangs_up, multistatus, says

CONTENT = (bytes(range(241)) * (2 << 13))[: (2 << 20) + 5]
HTML = ("Content-Type", "text/html; charset=utf-8")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_1_redirects_are_not_followed(
    code: int, faulty: FaultyServer, faulty_folder: WebDavFolder, source: Path, tmp_path: Path
) -> None:
    elsewhere = ("Location", "https://user:hidden@login.example/form?token=hidden")
    for method in ("GET", "PUT", "MKCOL", "MOVE", "PROPFIND"):
        faulty.always_fail(method, says(code, PAGE, elsewhere, HTML))
    for attempt in (
        faulty_folder.check,
        lambda: faulty_folder.list(""),
        lambda: faulty_folder.read("f", max_bytes=100),
        lambda: faulty_folder.download("f", tmp_path / "target", size=len(PAGE)),
        lambda: faulty_folder.upload("f", source),
        lambda: faulty_folder.create("f", b"x"),
        lambda: faulty_folder.overwrite("f", b"x"),
    ):
        with pytest.raises(ActionRequiredError, match=r"sends elsewhere, to https://login\.example/form: ") as caught:
            attempt()
        assert "hidden" not in str(caught.value)
    assert faulty.files == {}
    assert not (tmp_path / "target").exists()


def test_2_uploads_have_a_length_and_are_not_chunked(
    faulty: FaultyServer, faulty_folder: WebDavFolder, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    faulty_folder.upload("big", source)
    faulty_folder.upload("empty", tmp_path / "empty")
    faulty_folder.create("small", b"")
    uploads = [headers for headers, name in zip(faulty.headers, faulty.requests, strict=True) if name.startswith("PUT")]
    assert [headers["Content-Length"] for headers in uploads] == [str(len(CONTENT)), "0", "0"]
    assert all("Transfer-Encoding" not in headers for headers in uploads)
    assert faulty.files == {"big": CONTENT, "empty": b"", "small": b""}


@pytest.mark.parametrize("says_length", [True, False])
def test_3_a_failed_download_keeps_the_old_file(
    says_length: bool, faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    faulty.files["f"] = CONTENT
    target = tmp_path / "target"
    target.write_bytes(b"old and good")
    for fault in (
        cuts_answer(len(CONTENT) // 2, says_length=says_length),
        cuts_answer(0, says_length=says_length),
        hangs_up,
        says(503),
    ):
        faulty.fail("GET", fault)
        with pytest.raises(TransientError):
            faulty_folder.download("f", target, size=len(CONTENT))
        assert target.read_bytes() == b"old and good"
        assert [path.name for path in tmp_path.iterdir() if path.suffix != ".arriving"] == ["target"]
    assert faulty_folder.download("f", target, size=len(CONTENT)) == hashlib.sha256(CONTENT).hexdigest()
    assert target.read_bytes() == CONTENT


def test_4_what_is_not_a_listing_is_not_an_empty_folder(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    whole = multistatus({"": None, "a": 1})
    for code, body, error in (
        (200, PAGE, ActionRequiredError),
        (200, b"", ActionRequiredError),
        (200, whole, ActionRequiredError),
        (207, PAGE, ActionRequiredError),
        (207, b"<html><body/></html>", ActionRequiredError),
        (207, b"", TransientError),
        (207, whole[:-20], TransientError),
        (207, whole[: len(whole) // 2], TransientError),
        (207, multistatus({"other": None, "other/a": 1}), ActionRequiredError),
        (207, b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', ActionRequiredError),
    ):
        headers = [HTML] if body is PAGE else [("Content-Type", "application/xml")]
        faulty.fail("PROPFIND", says(code, body, *headers), says(code, body, *headers))
        with pytest.raises(error):
            faulty_folder.list("")
        with pytest.raises(error):
            faulty_folder.check()
    faulty.fail("PROPFIND", cuts_answer(40))
    with pytest.raises(TransientError):
        faulty_folder.list("")


def test_5_a_repeated_upload_sends_the_whole_body_again(
    faulty: FaultyServer, faulty_folder: WebDavFolder, source: Path
) -> None:
    faulty_folder.upload("known/first", source)
    faulty.folders.remove("known")  # so that the next PUT is refused, and repeated within the call
    faulty_folder.upload("known/second", source)
    assert faulty.files["known/second"] == CONTENT
    faulty.fail("PUT", does_it_and_hangs_up, hangs_up)
    for _ in range(2):
        with pytest.raises(TransientError):
            faulty_folder.upload("known/second", source)
    faulty_folder.upload("known/second", source)
    assert faulty.files["known/second"] == CONTENT


def test_a_login_page_is_not_a_file(faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path) -> None:
    faulty.always_fail("GET", says(200, PAGE, HTML))
    with pytest.raises(ActionRequiredError, match="web page"):
        faulty_folder.read("manifest.json", max_bytes=1000)
    with pytest.raises(ActionRequiredError, match="web page"):
        faulty_folder.download("model.safetensors", tmp_path / "target", size=len(PAGE))
    assert list(tmp_path.iterdir()) == []


def test_a_login_page_is_not_a_stored_file(faulty: FaultyServer, faulty_folder: WebDavFolder, source: Path) -> None:
    faulty.always_fail("PUT", says(200, PAGE, HTML))
    with pytest.raises(ActionRequiredError, match="web page"):
        faulty_folder.upload("f", source)
    with pytest.raises(ActionRequiredError, match="web page"):
        faulty_folder.create("f", b"x")


def test_a_cut_answer_does_not_hide_that_a_file_is_there(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    """A Content-Length that is as short as what comes: nothing but the content tells."""
    faulty_folder.create("manifest", b"what was meant")
    faulty.fail("GET", Truncate(4, "wrong"))
    faulty_folder.create("manifest", b"what was meant")  # done already
    assert faulty.files == {"manifest": b"what was meant"}
    faulty.files["manifest"] = b"what"  # this is no cut answer
    with pytest.raises(AlreadyExistsError):
        faulty_folder.create("manifest", b"what was meant")


def test_a_folder_that_is_not_made_is_a_passing_failure(
    faulty: FaultyServer, faulty_folder: WebDavFolder, source: Path
) -> None:
    faulty.fail("MKCOL", says(404))
    with pytest.raises(TransientError, match="could not be made"):
        faulty_folder.upload("a/b", source)
    faulty_folder.upload("a/b", source)
    assert faulty.files["a/b"] == CONTENT


def test_a_longer_file_is_not_read_to_its_end(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    faulty.files["f"] = CONTENT
    faulty.fail("GET", cuts_answer(len(CONTENT), says_length=False))  # nothing announced, so it must be counted
    with pytest.raises(RejectedError):
        faulty_folder.read("f", max_bytes=1000)


class TestLostAnswers:
    """Did it happen or not? The destination decides."""

    def test_of_the_put(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("PUT", does_it_and_hangs_up)
        with pytest.raises(TransientError):
            faulty_folder.create("manifest.json", b"mine")
        assert "manifest.json" not in faulty.files
        faulty_folder.create("manifest.json", b"mine")
        assert faulty.files == {"manifest.json": b"mine"}

    def test_of_the_move(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("MOVE", does_it_and_hangs_up)
        faulty_folder.create("manifest.json", b"mine")
        assert faulty.files == {"manifest.json": b"mine"}
        assert faulty.count("MOVE") == 1

    def test_of_the_move_that_did_not_happen(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("MOVE", hangs_up)
        with pytest.raises(TransientError):
            faulty_folder.create("manifest.json", b"mine")
        faulty_folder.create("manifest.json", b"mine")
        assert faulty.files == {"manifest.json": b"mine"}

    def test_of_the_move_and_of_the_look(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.folders.add("a")
        faulty.fail("MOVE", does_it_and_hangs_up)
        faulty.fail("PROPFIND", says(404), says(503))
        with pytest.raises(TransientError):
            faulty_folder.create("a/manifest.json", b"mine")
        faulty_folder.create("a/manifest.json", b"mine")
        assert faulty.files == {"a/manifest.json": b"mine"}

    def test_while_somebody_else_took_the_name(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.folders.add("a")
        faulty.fail("PROPFIND", says(404))  # the look comes a moment too early
        faulty.files["a/manifest.json"] = b"theirs"
        with pytest.raises(AlreadyExistsError):
            faulty_folder.create("a/manifest.json", b"mine")
        assert faulty.files == {"a/manifest.json": b"theirs"}

    def test_of_overwriting(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.files["status.json"] = b"old"
        faulty.fail("MOVE", does_it_and_hangs_up)
        with pytest.raises(TransientError):
            faulty_folder.overwrite("status.json", b"new")
        faulty_folder.overwrite("status.json", b"newer")
        assert faulty.files == {"status.json": b"newer"}


def test_no_clobbering_where_overwrite_f_is_ignored(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    faulty.ignores_overwrite = True
    faulty.files["manifest.json"] = b"first"
    with pytest.raises(AlreadyExistsError):
        faulty_folder.create("manifest.json", b"second")
    assert faulty.files == {"manifest.json": b"first"}


def test_a_create_only_share(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    """ownCloud refuses to rename or to replace there, and stores a PUT whole or not at all."""
    faulty.refuses_moves = True
    faulty_folder.create("a/one", b"1")
    faulty_folder.create("a/one", b"1")
    faulty_folder.create("a/two", b"2")
    with pytest.raises(AlreadyExistsError):
        faulty_folder.create("a/two", b"3")
    assert faulty.files["a/one"] == b"1"
    assert faulty.files["a/two"] == b"2"
    assert "a/two.new" not in faulty.files  # the temporary name was tried once, and is not tried again
    assert faulty.count("MOVE") == 1


def test_a_server_behind_a_proxy_that_does_not_know_its_name(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    faulty.fail("MOVE", says(502))
    faulty_folder.create("a file", b"1")
    destinations = [headers["Destination"] for headers in faulty.headers if "Destination" in headers]
    assert destinations == [f"{faulty.url}/a%20file", "/drop/a%20file"]
    assert faulty.files == {"a file": b"1"}
