"""How the WebDAV folder speaks: which error for which answer, how many requests, and nothing of the password."""

from __future__ import annotations

import logging
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from shared.errors import (
    ActionRequiredError,
    DropfedError,
    NotFoundError,
    ProcessingError,
    RejectedError,
    TransientError,
)
from shared.folder.contract import MAX_ENTRIES, SMALL_BYTES
from shared.folder.sockets import LEAST_BYTES
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import Fault, FaultyServer, Handler, dav_error, hangs_up, multistatus, says
from tests.ports import free_port


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (400, ActionRequiredError, "400 Bad Request"),
        (401, ActionRequiredError, "refuses user 'north' or the password"),
        (403, ActionRequiredError, "forbids GET"),
        (404, NotFoundError, "is not there"),
        (405, ActionRequiredError, "405 Method Not Allowed"),
        (408, TransientError, "408"),
        (410, NotFoundError, "is not there"),
        (413, ActionRequiredError, "upload limit"),
        (423, TransientError, "423 Locked"),
        (425, ProcessingError, "425"),
        (429, TransientError, "429"),
        (500, TransientError, "500"),
        (502, TransientError, "502"),
        (503, TransientError, "503"),
        (504, TransientError, "504"),
        (507, ActionRequiredError, "no room"),
        (599, TransientError, "599"),
        (206, ActionRequiredError, "206"),
    ],
)
def test_each_status_has_its_kind(
    code: int, kind: type[DropfedError], words: str, faulty: FaultyServer, faulty_folder: WebDavFolder
) -> None:
    faulty.fail("GET", says(code, b"remark"))
    with pytest.raises(kind, match=words) as caught:
        faulty_folder.read("a/file", max_bytes=100)
    assert f"{faulty.url}/a/file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_and_a_lost_right_stand_when_writing(
    faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"x")
    for code in (401, 403, 405, 413, 507):
        faulty.fail("PUT", says(code))
        with pytest.raises(ActionRequiredError):
            faulty_folder.upload("f", tmp_path / "source")
    faulty.fail("PUT", says(400))  # what servers say to a body that was cut on its way
    with pytest.raises(TransientError):
        faulty_folder.upload("f", tmp_path / "source")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (415, "refuses PUT with 415 Unsupported Media Type (Virus X is detected): check that"),
        (403, "forbids PUT to user 'north' (Virus X is detected): have"),
        (400, "cannot do PUT now: 400 Bad Request (Virus X is detected)."),
    ],
)
def test_the_servers_reason_is_told_on_one_line_and_bounded(
    status: int, said: str, faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"x")
    faulty.fail("PUT", says(status, dav_error("X", "Virus X is detected")))
    faulty.fail("PUT", says(status, dav_error("X", f"&#10;Virus&#10;\x9b{'long' * 1000}")))
    with pytest.raises(DropfedError, match=re.escape(said)):
        faulty_folder.upload("f", tmp_path / "source")
    with pytest.raises(DropfedError, match=r"\(Virus\\n\\x9blonglong") as caught:
        faulty_folder.upload("f", tmp_path / "source")
    assert len(str(caught.value)) < 700
    faulty.fail("PUT", says(status, dav_error("X", "Virus X is detected").replace(b'"DAV:"', b'"DAV"')))
    with pytest.raises(DropfedError, match=re.escape(said)):  # Infinite Scale's namespace
        faulty_folder.upload("f", tmp_path / "source")
    for body in (b"<html>no</html>", b"<d:error", dav_error("X", "").replace(b"?>", b"?><!DOCTYPE x>"), b""):
        faulty.fail("PUT", says(status, body))
        with pytest.raises(DropfedError) as caught:
            faulty_folder.upload("f", tmp_path / "source")
        assert "(" not in str(caught.value)


def test_a_server_that_does_not_know_its_name_says_so(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    page = b"<html>You are accessing the server from an untrusted domain.</html>"
    for method, ask in (("PROPFIND", faulty_folder.check), ("PUT", lambda: faulty_folder.overwrite("f", b"x"))):
        faulty.fail(method, says(400, page, ("Content-Type", "text/html")))
        with pytest.raises(ActionRequiredError, match="have whoever runs the server add it to its trusted_domains"):
            ask()


@pytest.mark.parametrize(
    ("refusal", "retry_after_s"),
    [
        (says(503, dav_error("Sabre\\DAV\\Exception\\ServiceUnavailable", "System in maintenance mode.")), None),
        (says(503, b"<html>This instance is currently in maintenance mode.</html>", ("Retry-After", "120")), 120),
    ],
)
def test_a_server_in_maintenance_mode_says_so(
    faulty: FaultyServer, faulty_folder: WebDavFolder, refusal: Fault, retry_after_s: float | None
) -> None:
    for method, ask in (("PROPFIND", faulty_folder.check), ("PUT", lambda: faulty_folder.overwrite("f", b"x"))):
        faulty.fail(method, refusal)
        with pytest.raises(TransientError, match=f"cannot do {method} now: its server is in maintenance") as caught:
            ask()
        assert caught.value.retry_after_s == retry_after_s


class Processing:
    """A server that works on each file that it gets, and moves none meanwhile, as Infinite Scale does.

    What a refused MOVE was to replace is gone all the same.
    """

    def __init__(self, server: FaultyServer, refusals: int, refusal: tuple[int, bytes]) -> None:
        self._refusals, self._left, self._refusal = refusals, 0, refusal
        server.always_fail("PUT", self.put)
        server.always_fail("MOVE", self.move)
        server.always_fail("PROPFIND", self.look)

    def put(self, handler: Handler) -> None:
        self._left = self._refusals
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.answer(*handler.behave())

    def move(self, handler: Handler) -> None:
        self._left -= 1
        if self._left >= 0:
            handler.world.files.pop(unquote(urlsplit(handler.headers["Destination"]).path).removeprefix("/drop/"), None)
        handler.answer(*(self._refusal if self._left >= 0 else handler.behave()))

    def look(self, handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        status, body = handler.behave()
        self._left -= 1
        handler.answer(status, body if self._left < 0 else body.replace(b"HTTP/1.1 200 OK", b"HTTP/1.1 425 TOO EARLY"))


INFINITE_SCALES = dav_error("Sabre\\DAV\\Exception\\ServiceUnavailable", "internal error: file is processing").replace(
    b'"DAV:"', b'"DAV"'
)


@pytest.mark.parametrize("refusal", [(425, b""), (503, INFINITE_SCALES)])
def test_what_the_server_still_works_on_is_moved_afterwards_and_not_sent_again(
    faulty: FaultyServer, faulty_folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch, refusal: tuple[int, bytes]
) -> None:
    monkeypatch.setattr("shared.folder.webdav.PROCESSED_S", (0.01,) * 5)
    Processing(faulty, 5, refusal)
    faulty_folder.create("a/f", b"one")
    assert (faulty.files["a/f"], faulty.count("PUT")) == (b"one", 1)
    Processing(faulty, 6, refusal)
    with pytest.raises(ProcessingError, match=f"cannot do MOVE now: {refusal[0]}"):
        WebDavFolder(faulty.url, "north", "secret-word").overwrite("a/f", b"two")
    assert faulty.count("PUT") == 2


@pytest.mark.parametrize("refusal", [(425, b""), (503, INFINITE_SCALES)])
def test_what_is_replaced_stays_until_the_server_has_worked_on_its_successor(
    faulty: FaultyServer, faulty_folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch, refusal: tuple[int, bytes]
) -> None:
    """Once the server has shown that it works on files."""
    monkeypatch.setattr("shared.folder.webdav.PROCESSED_S", (0.01,) * 5)
    Processing(faulty, 1, refusal)
    faulty_folder.overwrite("status.json", b"one")
    moves = faulty.count("MOVE")
    Processing(faulty, 5, refusal)
    faulty_folder.overwrite("status.json", b"two")
    assert (faulty.files["status.json"], faulty.count("MOVE")) == (b"two", moves + 1)
    Processing(faulty, 1000, refusal)
    with pytest.raises(ProcessingError, match="cannot do MOVE now: the server still works on what was sent"):
        faulty_folder.overwrite("status.json", b"three")
    monkeypatch.setattr("shared.folder.webdav.PROCESSED_S", (3600.0,))
    with cut_soon(faulty_folder), pytest.raises(TransientError):
        faulty_folder.overwrite("status.json", b"three")
    assert (faulty.files["status.json"], faulty.count("MOVE")) == (b"two", moves + 1)
    Processing(faulty, 5, refusal)
    for method in ("PROPFIND", "MOVE"):
        faulty.fail(method, says(404))  # removed, as for a virus
    with pytest.raises(TransientError, match="it is sent again"):
        faulty_folder.overwrite("status.json", b"three")


def test_a_large_file_is_sent_once_while_the_server_works_on_it(
    faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(bytes(SMALL_BYTES + 1))
    Processing(faulty, 1000, (425, b""))
    faulty_folder.upload("a/big", tmp_path / "source")
    assert faulty.count("PUT") == 1


def test_a_page_that_speaks_of_processing_is_no_file_in_processing(
    faulty: FaultyServer, faulty_folder: WebDavFolder
) -> None:
    """As proxies write where their server is away: that is told at once."""
    page = b"<html>An error occurred while processing your request.</html>"
    faulty.always_fail("MOVE", says(503, page, ("Content-Type", "text/html")))
    with pytest.raises(TransientError, match="cannot do MOVE now: 503") as caught:
        faulty_folder.overwrite("f", b"x")
    assert not isinstance(caught.value, ProcessingError)
    assert faulty.count("MOVE") == 1


def test_that_wait_can_be_interrupted(
    faulty: FaultyServer, faulty_folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.folder.webdav.PROCESSED_S", (3600.0,))
    Processing(faulty, 2, (425, b""))
    with cut_soon(faulty_folder), pytest.raises(TransientError):
        faulty_folder.overwrite("f", b"x")


@contextmanager
def cut_soon(folder: WebDavFolder) -> Iterator[None]:
    """Interrupt the folder again and again, as whoever wants to stop does."""
    is_over = threading.Event()

    def cut() -> None:
        while not is_over.wait(0.05):
            folder.interrupt()

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        yield
    finally:
        is_over.set()
        cutting.join()


@pytest.mark.parametrize("retry_after", ["17", "date", "soon", "-4", ""])
def test_retry_after(retry_after: str, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    sent = format_datetime(datetime.now(UTC) + timedelta(seconds=3000), usegmt=True)
    faulty.fail("PROPFIND", says(503, b"", ("Retry-After", sent if retry_after == "date" else retry_after)))
    with pytest.raises(TransientError) as caught:
        faulty_folder.list("")
    if retry_after == "17":
        assert caught.value.retry_after_s == 17
    elif retry_after == "date":
        assert caught.value.retry_after_s is not None
        assert 2000 < caught.value.retry_after_s <= 3000
    else:
        assert caught.value.retry_after_s is None


def test_no_server_is_a_passing_failure() -> None:
    with pytest.raises(TransientError, match="refused"):
        WebDavFolder(f"http://127.0.0.1:{free_port()}/drop", "north", "secret-word").check()


def test_standstill_is_a_passing_failure_and_slowness_is_none(faulty: FaultyServer, tmp_path: Path) -> None:
    folder = WebDavFolder(faulty.url, "north", "secret-word", stall_s=0.4)
    released = threading.Event()
    faulty.files["slow"] = bytes(18 * LEAST_BYTES)

    def stands_still(handler: Handler) -> None:
        released.wait(30)
        handler.hang_up()

    def creeps(handler: Handler) -> None:
        content = faulty.files["slow"]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        for start in range(0, len(content), LEAST_BYTES):
            handler.wfile.write(content[start : start + LEAST_BYTES])
            released.wait(0.05)

    faulty.fail("GET", creeps, stands_still)
    folder.download("slow", tmp_path / "target", size=len(faulty.files["slow"]))  # 0.9 s in all
    with pytest.raises(TransientError, match=r"stood still: fewer than 256 bytes moved in 0\.4 s"):
        folder.read("slow", max_bytes=100)
    released.set()


def test_number_of_requests(faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path) -> None:
    def spent(*expected: str) -> None:
        assert faulty.requests == list(expected)
        faulty.requests.clear()

    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * (SMALL_BYTES + 1))
    faulty_folder.upload("top", tmp_path / "small")
    spent("PUT top")
    faulty_folder.upload("a/b/f", tmp_path / "small")
    spent("MKCOL a", "MKCOL a/b", "PUT a/b/f")
    faulty_folder.upload("a/b/g", tmp_path / "large")
    spent("PUT a/b/g", "PROPFIND a/b/g")
    faulty_folder.upload("a/c/h", tmp_path / "large")
    spent("MKCOL a/c", "PUT a/c/h", "PROPFIND a/c/h")
    faulty_folder.create("a/c/manifest", b"m")
    spent("PUT a/c/manifest.new", "MOVE a/c/manifest.new")  # nothing else can be in a folder just made
    faulty_folder.create("another", b"m")
    spent("PROPFIND ", "PUT another.new", "MOVE another.new")
    faulty_folder.create("another", b"m")
    spent("PROPFIND ", "GET another")
    faulty_folder.overwrite("status", b"s")
    spent("PUT status.new", "MOVE status.new")
    faulty_folder.list("a")
    spent("PROPFIND a")
    faulty_folder.read("status", max_bytes=10)
    spent("GET status")
    faulty_folder.download("a/c/h", tmp_path / "target", size=SMALL_BYTES + 1)
    spent("GET a/c/h")
    faulty_folder.remove("a/c/h")
    spent("DELETE a/c/h")
    faulty_folder.room()
    spent("PROPFIND ")
    faulty_folder.check()
    spent("PROPFIND ")
    again = WebDavFolder(faulty.url, "north", "secret-word")
    again.upload("a/b/i", tmp_path / "small")
    spent("MKCOL a/b", "PROPFIND a/b", "PUT a/b/i")
    another = WebDavFolder(faulty.url, "north", "secret-word")
    another.read("a/b/i", max_bytes=10)
    spent("GET a/b/i")
    another.upload("a/d/i", tmp_path / "small")  # what was read from is known to be there
    spent("MKCOL a/d", "PUT a/d/i")
    another.upload("a/e/f/i", tmp_path / "small")
    spent("MKCOL a/e", "MKCOL a/e/f", "PUT a/e/f/i")


def test_one_connection_serves_all_requests(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    for number in range(10):
        faulty_folder.create(f"a/{number}", b"x" * 1000)
        faulty_folder.list("a")
        with pytest.raises(NotFoundError):
            faulty_folder.read("missing", max_bytes=1)
        faulty.fail("GET", says(503, b"busy" * 1000))
        with pytest.raises(TransientError):
            faulty_folder.read("missing", max_bytes=1)
    assert faulty.connections == 1


def test_too_long_a_listing_is_poison(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    files: dict[str, int | None] = {"": None, **{f"f{number}": 1 for number in range(MAX_ENTRIES)}}
    faulty.fail("PROPFIND", says(207, multistatus(files)))
    assert len(faulty_folder.list("")) == MAX_ENTRIES
    faulty.fail("PROPFIND", says(207, multistatus(files | {"one more": 1})))
    with pytest.raises(RejectedError, match="10000"):
        faulty_folder.list("")


def test_slashes_in_a_row_are_one(faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
    doubled = WebDavFolder(faulty.url.replace("/drop", "///drop//"), "north", "secret-word")
    assert doubled.url == faulty_folder.url
    doubled.check()


def test_the_folder_of_nobody_is_noticed(faulty: FaultyServer) -> None:
    """ownCloud answers 207 with nothing but a resource type for a user that does not exist."""
    body = multistatus({"": None}).replace(b"/drop/", b"/remote.php/dav/files/nrth/")
    faulty.always_fail("PROPFIND", says(207, body))
    url = faulty.url.replace("/drop", "/remote.php/dav/files/nrth")
    with pytest.raises(ActionRequiredError, match="user name"):
        WebDavFolder(url, "north", "secret-word").check()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://dav.example/drop", "in the clear"),
        ("http://127.0.0.1.example/drop", "in the clear"),
        ("https://north:secret-word@dav.example/drop", "contains a user or password"),
        ("https://north@dav.example/drop", "contains a user or password"),
        ("https://north:secret-word", "malformed"),
        ("north:secret-word@dav.example/drop", "malformed"),
        ("https://dav.example/drop?token=secret-word", "malformed"),
        ("ftp://dav.example/drop", "malformed"),
        ("dav.example/drop", "malformed"),
        ("https://dav.example/drop?x=1", "malformed"),
        ("https://dav.example:port/drop", "malformed"),
        ("https://[::1/drop", "malformed"),
        ("https://dav.example/../drop", "malformed"),
        ("https:///drop", "malformed"),
        ("https://https://dav.example/drop", "malformed"),
        ("https://dav.example/https://dav.example/drop", "malformed"),
        ("https://dav.example:/drop", "malformed"),
        ("https://dav example/drop", "malformed"),
        ("", "malformed"),
    ],
)
def test_addresses_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(ActionRequiredError, match=words) as caught:
        WebDavFolder(url, "north", "secret-word")
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://localhost:8080/x", "http://[::1]:8080/x/", "https://dav.example/Ordner für uns"]
)
def test_addresses_that_are_accepted(url: str) -> None:
    assert WebDavFolder(url, "north", "secret-word").url.startswith(url[:16])


def test_the_password_is_nowhere(
    faulty: FaultyServer, faulty_folder: WebDavFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = [repr(faulty_folder), str(faulty_folder)]
    for fault in (says(401), says(403), says(500), hangs_up):
        faulty.fail("PROPFIND", fault)
        with pytest.raises(DropfedError) as caught:
            faulty_folder.check()
        cause: BaseException | None = caught.value
        while cause is not None:
            said.append(repr(cause))
            cause = cause.__cause__ or cause.__context__
    said += [record.getMessage() for record in caplog.records]
    assert not any("secret-word" in text or "Basic" in text for text in said)
    assert all(headers["Authorization"].startswith("Basic ") for headers in faulty.headers)


def test_netrc_and_cookies_of_others_are_not_used(
    faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    faulty_folder.check()
    assert faulty.headers[0]["Authorization"] == "Basic bm9ydGg6c2VjcmV0LXdvcmQ="  # north:secret-word
    assert faulty.headers[0]["Accept-Encoding"] == "identity"


def test_the_proxy_comes_from_the_environment(faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match="refused"):
        WebDavFolder("https://dav.example/drop", "north", "secret-word").check()
    WebDavFolder(faulty.url, "north", "secret-word").check()  # this machine needs no proxy


def test_a_local_disk_that_cannot_be_used_is_a_standing_failure(
    faulty: FaultyServer, faulty_folder: WebDavFolder, tmp_path: Path
) -> None:
    faulty.files["f"] = b"x"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ActionRequiredError, match="missing"):
        faulty_folder.upload("f", tmp_path / "missing")
    with pytest.raises(ActionRequiredError, match="file"):
        faulty_folder.download("f", tmp_path / "file" / "target", size=1)


@pytest.fixture
def https_port(tmp_path: Path) -> Iterator[int]:
    """A server whose certificate is signed by nobody, answering 401 to everything."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")

    class Refusing(BaseHTTPRequestHandler):
        def do_PROPFIND(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_certificates_are_checked(https_port: int, tmp_path: Path) -> None:
    url = f"https://localhost:{https_port}/drop"
    with pytest.raises(ActionRequiredError, match=r"certificate .* is not valid .*self-signed"):
        WebDavFolder(url, "north", "secret-word").check()
    with pytest.raises(ActionRequiredError, match="refuses user"):  # trusted, so the request came through
        WebDavFolder(url, "north", "secret-word", ca_file=tmp_path / "certificate.pem").check()
    by_number = url.replace("localhost", "127.0.0.1")  # a name the certificate does not hold
    with pytest.raises(ActionRequiredError, match=r"certificate .* is not valid"):
        WebDavFolder(by_number, "north", "secret-word", ca_file=tmp_path / "certificate.pem").check()
    with pytest.raises(ActionRequiredError, match="CA file"):
        WebDavFolder(url, "north", "secret-word", ca_file=tmp_path / "missing.pem")
