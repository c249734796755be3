"""The stand-in for ownCloud does what ownCloud was seen to do."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes

import pytest
import requests

from shared.errors import ActionRequiredError
from shared.folder.webdav import WebDavFolder
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_requests import AGGREGATOR, FILES, NORTH, UPLOAD, ask, begin_cut, etag_of, ocs, send_cut
from tests.folder.owncloud_store import ARRIVING


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_maintenance(cloud: OwnCloud) -> None:
    cloud.link("aggregator", "north", "token", "link-password")
    assert ask(cloud, "GET", "/status.php").json()["maintenance"] is False
    cloud.is_maintained = True
    assert ask(cloud, "GET", "/status.php").json()["maintenance"] is True
    refusal = ask(cloud, "PROPFIND", f"{FILES}/aggregator/")
    assert refusal.status_code == 503
    assert "<s:message>System in maintenance mode.</s:message>" in refusal.text
    assert "Retry-After" not in refusal.headers
    page = ask(cloud, "PROPFIND", "/public.php/webdav/", user=("token", "link-password"))
    assert (page.status_code, page.headers["Retry-After"]) == (503, "120")
    assert page.headers["Content-Type"].startswith("text/html")
    assert ocs(cloud, "GET", "cloud/users/north")[:2] == (503, 503)


def test_a_change_below_changes_all_folders_above_and_no_others(cloud: OwnCloud) -> None:
    ask(cloud, "MKCOL", f"{FILES}/aggregator/north/runs")
    watched = [
        (f"{FILES}/aggregator/", AGGREGATOR),
        (f"{FILES}/aggregator/north/", AGGREGATOR),
        (f"{FILES}/aggregator/north/runs/", AGGREGATOR),
        (f"{FILES}/north/", NORTH),
        ("/remote.php/webdav/retina/", NORTH),
        (f"{FILES}/aggregator/south/", AGGREGATOR),
        (f"{FILES}/north/other/", NORTH),
    ]
    before = [etag_of(cloud, *one) for one in watched]
    ask(cloud, "PUT", f"{FILES}/aggregator/north/runs/file", b"x")
    ask(cloud, "GET", f"{FILES}/north/retina/runs/file", user=NORTH)
    after = [etag_of(cloud, *one) for one in watched]
    assert [old != new for old, new in zip(before, after, strict=True)] == [True] * 5 + [False] * 2


def test_another_users_folder_looks_empty(cloud: OwnCloud) -> None:
    listing = ask(cloud, "PROPFIND", f"{FILES}/north/", Depth="1")
    assert listing.status_code == 207
    assert "resourcetype" in listing.text
    assert "getetag" not in listing.text
    assert ask(cloud, "GET", f"{FILES}/north/x").status_code == 404
    assert ask(cloud, "PUT", f"{FILES}/north/x", b"x").status_code == 403
    with pytest.raises(ActionRequiredError, match="nobody's folder"):
        WebDavFolder(cloud.url + f"{FILES}/north", *AGGREGATOR).check()


def test_the_folder_of_a_user_that_does_not_exist_is_not_there(cloud: OwnCloud) -> None:
    for method, path, code in (
        ("PROPFIND", "", 404),
        ("GET", "x", 404),
        ("DELETE", "x", 404),
        ("PUT", "x", 409),
        ("MKCOL", "x", 409),
    ):
        assert ask(cloud, method, f"{FILES}/nobody/{path}").status_code == code
    folder = WebDavFolder(cloud.url + f"{FILES}/nobody", *AGGREGATOR)
    for attempt in (folder.check, lambda: folder.create("a/b", b"x"), lambda: folder.overwrite("status.json", b"x")):
        with pytest.raises(ActionRequiredError, match="is not there: check the address"):
            attempt()


def test_ranges(cloud: OwnCloud) -> None:
    etag = ask(cloud, "PUT", f"{FILES}/aggregator/f", b"0123456789").headers["ETag"]
    wanted = {
        "bytes=2-4": (b"234", "2-4"),
        "bytes=7-": (b"789", "7-9"),
        "bytes=-3": (b"789", "7-9"),
        "bytes=0-99": (b"0123456789", "0-9"),
        "bytes=8-99": (b"89", "8-9"),
        "bytes=1-2,10-": (b"12", "1-2"),
    }
    for asked, (content, place) in wanted.items():
        part = ask(cloud, "GET", f"{FILES}/aggregator/f", Range=asked, If_Range=etag)
        assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, content, f"bytes {place}/10")
    assert ask(cloud, "GET", f"{FILES}/aggregator/f", Range="bytes=10-").status_code == 416
    for headers in ({}, {"Range": "lines=1-2"}, {"Range": "bytes=2-4", "If-Range": '"old"'}):
        whole = ask(cloud, "GET", f"{FILES}/aggregator/f", **headers)
        assert (whole.status_code, whole.content) == (200, b"0123456789")
        assert "Accept-Ranges" not in whole.headers


def test_several_ranges_come_as_several_parts(cloud: OwnCloud) -> None:
    ask(cloud, "PUT", f"{FILES}/aggregator/f", b"0123456789")
    found = ask(cloud, "GET", f"{FILES}/aggregator/f", Range="bytes=0-1,3-4")
    assert found.status_code == 206
    kind = found.headers["Content-Type"]
    assert kind.startswith("multipart/byteranges; boundary=")
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + found.content)
    parts = [(part["Content-Range"], part.get_payload(decode=True)) for part in message.walk()][1:]
    assert parts == [("bytes 0-1/10", b"01"), ("bytes 3-4/10", b"34")]


def test_checksums(cloud: OwnCloud) -> None:
    path, right = f"{FILES}/aggregator/f", hashlib.sha1(b"content").hexdigest()
    assert ask(cloud, "PUT", path, b"content", OC_Checksum=f"SHA1:{right}").status_code == 201
    for wrong in (f"SHA1:{'0' * 40}", f"sha1:{right}", f"SHA256:{hashlib.sha256(b'content').hexdigest()}"):
        refusal = ask(cloud, "PUT", path, b"content", OC_Checksum=wrong)
        assert refusal.status_code == 400
        assert "does not match" in refusal.text
    assert ask(cloud, "GET", path).headers["OC-Checksum"] == f"SHA1:{right}"
    assert ask(cloud, "HEAD", path).headers["OC-Checksum"] == f"SHA1:{right}, SHA1:{right}"


def test_cut_bodies(cloud: OwnCloud) -> None:
    path = f"{FILES}/aggregator/f"
    ask(cloud, "PUT", path, b"old content")
    assert b" 400 " in send_cut(cloud, path, "Content-Length: 10", b"half")
    assert ask(cloud, "GET", path).content == b"old content"
    for cut in (b"8\r\nhalf", b"4\r\nhalf\r\n", b"4\r\nha"):
        while b" 423 " in (answer := send_cut(cloud, path, "Transfer-Encoding: chunked", cut)):
            pass  # the server is not done yet with the request before, though its answer has come
        assert b" 400 " in answer
    assert ask(cloud, "GET", path).content == b"old content"


def test_upload_in_chunks(cloud: OwnCloud) -> None:
    assert [ask(cloud, "MKCOL", UPLOAD).status_code for _ in range(2)] == [201, 405]
    assert ask(cloud, "PUT", f"{UPLOAD}/10", b"last").status_code == 201
    assert [ask(cloud, "PUT", f"{UPLOAD}/2", content).status_code for content in (b"x", b"first ")] == [201, 204]
    sizes = re.findall(r"<d:getcontentlength>(\d+)<", ask(cloud, "PROPFIND", f"{UPLOAD}/", Depth="1").text)
    assert sorted(sizes) == ["10", "4", "6"]  # both chunks, and .file

    def move(target: str, total: int, **headers: str) -> requests.Response:
        names = {"Destination": cloud.url + target, "OC-Total-Length": str(total), "Overwrite": "F"}
        return ask(cloud, "MOVE", f"{UPLOAD}/.file", **names, **headers)

    refused = move(f"{FILES}/aggregator/north/f", 11)
    assert (refused.status_code, "do not sum up to 11 but to 10" in refused.text) == (400, True)
    assert move(f"{FILES}/aggregator/north/f", 10, OC_Checksum=f"SHA1:{'0' * 40}").status_code == 400
    assert move(f"{FILES}/aggregator/missing/f", 10).status_code == 409
    assert move("/remote.php/webdav/f", 10).status_code == 403
    cloud.store.quotas["aggregator"] = 9
    assert move(f"{FILES}/aggregator/north/f", 10).status_code == 507
    del cloud.store.quotas["aggregator"]
    right = hashlib.sha1(b"first last").hexdigest()
    done = move(f"{FILES}/aggregator/north/f", 10, OC_Checksum=f"SHA1:{right}")
    assert (done.status_code, "ETag" in done.headers) == (201, True)
    assert move(f"{FILES}/aggregator/north/f", 10).status_code == 412
    assert move(f"{FILES}/aggregator/north/other", 10).status_code == 404
    assert ask(cloud, "GET", "/remote.php/webdav/retina/f", user=NORTH).content == b"first last"


def test_a_cut_chunk_is_refused_while_its_sender_listens(cloud: OwnCloud) -> None:
    ask(cloud, "MKCOL", UPLOAD)
    assert b" 400 " in send_cut(cloud, f"{UPLOAD}/0", "Content-Length: 10", b"half")
    assert ask(cloud, "PROPFIND", f"{UPLOAD}/0", Depth="0").status_code == 404


@pytest.mark.parametrize("resets", [False, True])
def test_a_chunk_whose_sender_was_killed_stays_cut_and_only_its_length_tells(cloud: OwnCloud, resets: bool) -> None:
    ask(cloud, "MKCOL", UPLOAD)
    with begin_cut(cloud, f"{UPLOAD}/0", "Content-Length: 10", b"half") as connection:
        if resets:
            wait_for(lambda: any(arriving.stat().st_size for arriving in (cloud.store.root / ARRIVING).iterdir()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: "getcontentlength>4<" in ask(cloud, "PROPFIND", f"{UPLOAD}/0", Depth="0").text)
    sent = ask(cloud, "MOVE", f"{UPLOAD}/.file", Destination=f"{cloud.url}{FILES}/aggregator/f", OC_Total_Length="10")
    assert sent.status_code == 400


def test_a_chunked_upload_can_be_dropped(cloud: OwnCloud) -> None:
    ask(cloud, "MKCOL", UPLOAD)
    ask(cloud, "PUT", f"{UPLOAD}/0", b"x")
    assert ask(cloud, "DELETE", f"{UPLOAD}/.file").status_code == 204
    assert ask(cloud, "PROPFIND", f"{UPLOAD}/").status_code == 404


def test_quota_is_the_owners(cloud: OwnCloud) -> None:
    ask(cloud, "PUT", f"{FILES}/aggregator/south/f", b"123456")
    cloud.store.quotas["aggregator"] = 10
    listing = ask(cloud, "PROPFIND", f"{FILES}/north/retina/", user=NORTH, Depth="0").text
    assert "quota-available-bytes>4<" in listing
    assert "quota-used-bytes>6<" in listing
    assert "quota-available-bytes>-3<" in ask(cloud, "PROPFIND", f"{FILES}/north/", user=NORTH, Depth="0").text
    assert ask(cloud, "PUT", f"{FILES}/north/retina/f", b"12345", user=NORTH).status_code == 507
    destination = f"{cloud.url}{FILES}/aggregator/north/f"
    assert ask(cloud, "COPY", f"{FILES}/aggregator/south/f", Destination=destination).status_code == 507
    assert ask(cloud, "PUT", f"{FILES}/north/retina/f", b"1234", user=NORTH).status_code == 201
    # nothing is left: not even what needs no room can be made
    assert ask(cloud, "PUT", f"{FILES}/north/retina/g", b"", user=NORTH).status_code == 507
    assert ask(cloud, "MKCOL", f"{FILES}/north/retina/h", user=NORTH).status_code == 507
    with pytest.raises(ActionRequiredError, match="no room left"):
        WebDavFolder(f"{cloud.url}{FILES}/north/retina", *NORTH).create("runs/a/b", b"")
    assert ask(cloud, "DELETE", f"{FILES}/north/retina/f", user=NORTH).status_code == 204


def test_copy_and_move_across_folders(cloud: OwnCloud) -> None:
    source, target = f"{FILES}/aggregator/north/f", f"{FILES}/aggregator/south/f"
    checksum = f"SHA1:{hashlib.sha1(b'content').hexdigest()}"
    ask(cloud, "PUT", source, b"content")
    assert ask(cloud, "COPY", source, Destination=cloud.url + target, Overwrite="F").status_code == 201
    assert ask(cloud, "COPY", source, Destination=cloud.url + target, Overwrite="F").status_code == 412
    assert ask(cloud, "COPY", source, Destination=cloud.url + target).status_code == 204
    copied = ask(cloud, "GET", target)
    assert (copied.content, copied.headers["OC-Checksum"]) == (b"content", checksum)
    for destination, code in ((source, 403), (f"{FILES}/aggregator/missing/f", 409), ("/remote.php/webdav/f", 403)):
        assert ask(cloud, "MOVE", source, Destination=cloud.url + destination).status_code == code
    assert ask(cloud, "MOVE", source, Destination=cloud.url + target).status_code == 204
    assert ask(cloud, "MOVE", source, Destination=cloud.url + target).status_code == 404


def test_who_reads_while_a_move_replaces_a_file_may_find_none(cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = f"{FILES}/aggregator/f", f"{FILES}/aggregator/g"
    found = []
    monkeypatch.setattr("tests.folder.owncloud_handler.time.sleep", lambda _: found.append(ask(cloud, "GET", target)))
    for path in (source, target):
        ask(cloud, "PUT", path, b"content")
    assert ask(cloud, "MOVE", source, Destination=cloud.url + target).status_code == 204
    assert [answer.status_code for answer in found] == [404]
    assert ask(cloud, "GET", target).content == b"content"


def test_who_comes_second_is_locked_out(cloud: OwnCloud) -> None:
    path = f"{FILES}/aggregator/f"
    go_on = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"half"
        assert go_on.wait(60)
        yield b"half"

    with ThreadPoolExecutor(1) as other:
        first = other.submit(requests.put, cloud.url + path, data=slow(), auth=AGGREGATOR, timeout=60)
        try:
            while not any((cloud.store.root / ARRIVING).iterdir()):
                assert not first.done()
                time.sleep(0.01)
            assert ask(cloud, "PUT", path, b"second").status_code == 423
        finally:
            go_on.set()
        assert first.result().status_code == 201
    assert ask(cloud, "GET", path).content == b"halfhalf"


@pytest.mark.parametrize("method", ["PUT", "MKCOL", "MOVE"])
def test_of_many_at_once_one_wins(cloud: OwnCloud, method: str) -> None:
    target = f"{FILES}/aggregator/target"
    for number in range(8):
        ask(cloud, "PUT", f"{FILES}/aggregator/{number}", b"x")

    def attempt(number: int) -> int:
        if method == "MOVE":
            where = {"Destination": cloud.url + target, "Overwrite": "F"}
            return ask(cloud, method, f"{FILES}/aggregator/{number}", **where).status_code
        return ask(cloud, method, target, b"x" if method == "PUT" else b"", If_None_Match="*").status_code

    with ThreadPoolExecutor(8) as racers:
        assert list(racers.map(attempt, range(8))).count(201) == 1


def test_a_public_link_is_a_folder_with_the_token_as_user(cloud: OwnCloud) -> None:
    cloud.link("aggregator", "north", "token", "link-password")
    folder = WebDavFolder(f"{cloud.url}/public.php/webdav", "token", "link-password")
    folder.create("a/b", b"content")
    assert folder.read("a/b", max_bytes=10) == b"content"
    assert ask(cloud, "GET", f"{FILES}/aggregator/north/a/b").content == b"content"
    chunked = ask(cloud, "MKCOL", "/remote.php/dav/uploads/token/1", user=("token", "link-password"))
    assert chunked.status_code == 401
    with pytest.raises(ActionRequiredError, match="refuses user '…'"):  # whoever has the token may get in
        WebDavFolder(f"{cloud.url}/public.php/webdav", "token", "wrong").check()


@pytest.mark.parametrize(("is_nextcloud", "code"), [(False, 500), (True, 204)])
def test_a_folder_that_is_removed_through_a_public_link_is_gone_whatever_is_said(
    cloud: OwnCloud, is_nextcloud: bool, code: int
) -> None:
    cloud.is_nextcloud = is_nextcloud
    cloud.link("aggregator", "north", "token", "link-password")
    link, user = "/public.php/webdav", ("token", "link-password")
    ask(cloud, "MKCOL", f"{link}/a", user=user)
    ask(cloud, "PUT", f"{link}/f", b"x", user=user)
    assert ask(cloud, "DELETE", f"{link}/f", user=user).status_code == 204
    assert ask(cloud, "DELETE", f"{link}/a", user=user).status_code == code
    assert ask(cloud, "PROPFIND", f"{link}/a", user=user).status_code == 404
    ask(cloud, "MKCOL", f"{FILES}/aggregator/a")
    assert ask(cloud, "DELETE", f"{FILES}/aggregator/a").status_code == 204


def test_a_session_counts_for_more_than_the_login(cloud: OwnCloud) -> None:
    cloud.link("aggregator", "south", "token", "link-password")
    for path, login, own in (
        (f"{FILES}/north/", NORTH, cloud.users),
        ("/public.php/webdav/", ("token", "link-password"), None),
    ):
        session = requests.Session()
        assert session.request("PROPFIND", cloud.url + path, auth=login, timeout=60).status_code == 207
        if own is None:
            cloud.link("aggregator", "south", "token", "another-password")
        else:
            own["north"] = "another-password"
        assert ask(cloud, "PROPFIND", path, user=login).status_code == 401
        assert session.request("PROPFIND", cloud.url + path, auth=login, timeout=60).status_code == 207
        session.cookies.clear()
        assert session.request("PROPFIND", cloud.url + path, auth=login, timeout=60).status_code == 401


def test_a_session_ends_with_its_account(cloud: OwnCloud) -> None:
    session = requests.Session()
    where = f"{cloud.url}{FILES}/north/"
    assert session.request("PROPFIND", where, auth=NORTH, timeout=60).status_code == 207
    cloud.disabled.add("north")
    assert session.request("PROPFIND", where, auth=NORTH, timeout=60).status_code == 401


@pytest.mark.parametrize(
    ("name", "code"), [("a.part", 400), ("x" * 250, 400), ("a%5cb", 400), (".htaccess", 403), ("x" * 249, 201)]
)
def test_names(cloud: OwnCloud, name: str, code: int) -> None:
    assert ask(cloud, "PUT", f"{FILES}/aggregator/{name}", b"x").status_code == code


def test_accounts_are_for_administrators(cloud: OwnCloud) -> None:
    new = {"userid": "west", "password": "a password"}
    assert ocs(cloud, "POST", "cloud/users", new)[:2] == (401, 997)
    cloud.admins.add("aggregator")
    assert ocs(cloud, "POST", "cloud/users", new) == (200, 200, [])
    assert ocs(cloud, "POST", "cloud/users", new)[0] == 400
    assert ocs(cloud, "PUT", "cloud/users/west", {"key": "quota", "value": "5 GB"})[0] == 200
    assert cloud.store.quotas["west"] == 5 << 30
    west = ("west", "a password")
    assert ask(cloud, "PROPFIND", f"{FILES}/west/", user=west).status_code == 207
    assert ocs(cloud, "PUT", "cloud/users/west/disable")[0] == 200
    assert ask(cloud, "PROPFIND", f"{FILES}/west/", user=west).status_code == 401
    assert ocs(cloud, "GET", "cloud/users/nobody")[0] == 404
    assert ocs(cloud, "GET", "cloud/users/west", user=("aggregator", "wrong"))[:2] == (401, 997)


def test_folders_are_shared_and_taken_back(cloud: OwnCloud) -> None:
    shares = "apps/files_sharing/api/v1/shares"
    ask(cloud, "MKCOL", f"{FILES}/north/x", user=NORTH)
    ask(cloud, "MKCOL", f"{FILES}/aggregator/x")
    form = {"path": "/x", "shareType": "0", "shareWith": "north", "permissions": "5"}
    assert ocs(cloud, "POST", shares, form | {"permissions": "0"})[0] == 400
    assert ocs(cloud, "POST", shares, form | {"path": "/y"})[0] == 404
    assert ocs(cloud, "POST", shares, form | {"shareWith": "nobody"})[0] == 404
    status, _, share = ocs(cloud, "POST", shares, form)
    assert isinstance(share, dict)
    assert (status, share["permissions"]) == (200, 5)
    assert ocs(cloud, "POST", shares, form)[0] == 403
    there = f"{FILES}/north/x%20(2)/f"  # the name was taken
    assert ask(cloud, "PUT", there, b"x", NORTH).status_code == 201
    assert ask(cloud, "PUT", there, b"y", NORTH).status_code == 403
    assert ocs(cloud, "PUT", f"{shares}/{share['id']}", {"permissions": "15"})[0] == 200
    assert ask(cloud, "PUT", there, b"y", NORTH).status_code == 204
    assert ocs(cloud, "DELETE", f"{shares}/{share['id']}", user=NORTH)[0] == 404
    assert [ocs(cloud, "DELETE", f"{shares}/{share['id']}")[0] for _ in range(2)] == [200, 404]
    for method, path, code in (("GET", there, 404), ("PUT", there, 409), ("PROPFIND", there.removesuffix("/f"), 404)):
        assert ask(cloud, method, path, user=NORTH).status_code == code
    assert ask(cloud, "GET", f"{FILES}/aggregator/x/f").content == b"y"
