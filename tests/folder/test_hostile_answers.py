"""No answer of a server, whatever it is, raises anything but an error of ours, in one sentence."""

from __future__ import annotations

import io
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from shared.doors import Refusal
from shared.doors.multistatus import MOST_NAMES, Reader
from shared.errors import DropfedError, TransientError
from shared.folder.connection import MAX_LISTING_BYTES, Connection, FileBody
from shared.folder.contract import MAX_ENTRIES
from shared.folder.sockets import LEAST_BYTES, MAX_HEAD_BYTES, MOST_LINES, _Steady
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import multistatus
from tests.folder.raw_server import RawServer
from tests.memory import peak_memory

NUMBERS = ["9" * 5000, "-5", "+5", "5_0", "0x5", "1e5", "5.0", "٥", "5, 6", "", "nan", "9" * 19, "00000000005"]
ENCODINGS = [
    "x-none",
    "hex",
    "shift_jis",
    "utf-7",
    "idna",
    "utf-16",
    "punycode",
    "rot13",
    "ascii",
    "utf-32",
    "base64",
    "",
]
CHALLENGES = [
    "Digest foo",
    "Digest",
    'Digest realm="x"',
    'Digest realm="x", nonce="y", qop="auth-int"',
    'Digest realm="x", nonce="y", algorithm=MD5-sess, qop=auth, opaque=' + "z" * 5000,
    'Digest realm="x", nonce=, stale=TRUE',
    'Digest realm="x\\", nonce="y',
    "Digest \xff\xfe",
    "Digest,,,,=,",
    "digest realm=x nonce=y",
    "Bearer",
    "=",
]
STATUS_LINES = [
    b"",
    b"\r\n",
    b"HTTP/1.1",
    b"HTTP/1.1 \r\n",
    b"HTTP/1.1 2 OK\r\n",
    b"HTTP/1.1 2000 OK\r\n",
    b"HTTP/1.1 -20 OK\r\n",
    b"HTTP/1.1 \xd9\xa2\xd9\xa0\xd9\xa0 OK\r\n",
    b"HTTP/9.9 200 OK\r\n",
    b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n",
    b"ICY 200 OK\r\n",
    b"<html>not HTTP</html>\r\n",
    b"\x00" * 1000,
    b"\x16\x03\x01\x02\x00",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 2,
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/1.1 199 Odd\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\n\r\n",
    b"HTTP/1.1 999 Odd\r\n\r\n",
]
HEADERS = [
    b"no colon",
    b": no name",
    b" folded",
    b"\tfolded: x\r\n more",
    b"Content-Type: \xff\xfe",
    b"Content-Type: text/html",
    b"Content-Encoding: gzip",
    b"Content-Encoding: x-none",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Connection: \x00",
    b"Set-Cookie: \xff=\xfe; expires=never; max-age=" + b"9" * 5000,
    b"Set-Cookie: a=b; Domain=.; Path=\x01; Version=1; Port=x",
    b"ETag: " + b"x" * 60_000,
    b"ETag: \xff\x00",
    b"Date: Thu, 99 Foo 99999 99:99:99 +9999999",
    b"Location: http://[::1",
    b"X: " + b"y" * 70_000,
    b"\r\n".join(b"X-%d: y" % number for number in range(200)),
    b"\x00\x01\x02: \x03",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
]
CHUNKS = [
    b"-5\r\n",
    b"5",
    b"g\r\n",
    b"\r\n",
    b"5;x=" + b"y" * 70_000,
    b"f" * 5000 + b"\r\n",
    b"5\r\nhello",
    b"0x5\r\nhello\r\n",
]
CHUNKS += [
    b"1\r\nh\r\n-1\r\n",
    b"5\r\nhelloworld\r\n0\r\n\r\n",
    b"0\r\n" + b"X: y\r\n" * 1000,
    b"\xff\r\n",
    b" 5 \r\nhello\r\n0\r\n\r\n",
]
DATES = [
    "Thu, 99 Foo 99999 99:99:99 +9999999",
    "0",
    "Mon, 01 Jan 0000 00:00:00 GMT",
    "9" * 400,
    "Mon, 1 Jan 2026 25:61:61 +" + "9" * 30,
]
DOCUMENTS = [
    b"",
    b"<",
    b"\xef\xbb\xbf",
    b"\xff\xfe<\x00a\x00",
    b"<a" * 10_000,
    b"<a>" * 10_000,
    b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    b"<a>&b;</a>",
    b"<a xmlns:x='y'><x:b/></a>",
    b"<multistatus xmlns='DAV:'><response/></multistatus>",
    b"<multistatus xmlns='DAV:'><response><href>http://[::1</href></response></multistatus>",
    b"<multistatus xmlns='DAV:'><response><href>/drop/%ff%fe%00</href></response></multistatus>",
    b"<multistatus xmlns='DAV:'><response><href>/drop/</href><propstat><status>200</status></propstat></response>",
    b"<multistatus xmlns='DAV:'>\x00</multistatus>",
    b"<multistatus xmlns='DAV:'>\xed\xa0\x80</multistatus>",
    b"<multistatus xmlns='DAV:'><response><href>" + b"x" * 100_000 + b"</href></response></multistatus>",
    b"<multistatus xmlns='DAV:'><?" + b"x" * 300_000 + b"?></multistatus>",
]


def answer(status: str, *headers: bytes, body: bytes = b"", length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}".encode(), *headers, *([b"Content-Length: %d" % len(body)] if length else [])]
    return b"\r\n".join([*lines, b"", b""]) + body


def listing(size: str = "5", room: str = "", encoding: str | None = None) -> bytes:
    document = multistatus({"": None, "f": 5}).replace(
        b"<D:getcontentlength>5<", f"<D:getcontentlength>{size}<".encode()
    )
    document = document.replace(
        b"<D:collection/></D:resourcetype>",
        f"<D:collection/></D:resourcetype><D:quota-available-bytes>{room}</D:quota-available-bytes>".encode(),
    )
    if encoding is not None:
        document = document.replace(b'version="1.0"', f'version="1.0" encoding="{encoding}"'.encode())
    return document


def hostile() -> Iterator[bytes]:
    """Some 200 answers."""
    for number in NUMBERS:
        text = number.encode()
        yield answer("200 OK", b"Content-Length: " + text, body=b"hello", length=False)
        yield answer("207 Multi-Status", b"Content-Length: " + text, body=listing(), length=False)
        yield answer("206 Partial", b"Content-Range: bytes " + text + b"-9/10", body=b"hello")
        yield answer("206 Partial", b"Content-Range: " + text, body=b"hello")
        yield answer("503 Busy", b"Retry-After: " + text)
        yield answer("207 Multi-Status", body=listing(size=number))
        yield answer("207 Multi-Status", body=listing(room=number))
    yield from (answer("207 Multi-Status", body=listing(encoding=encoding)) for encoding in ENCODINGS)
    yield from (answer("401 No", b"WWW-Authenticate: " + text.encode("latin-1")) for text in CHALLENGES)
    yield from (line + answer("200 OK")[15:] for line in STATUS_LINES)
    for header in HEADERS:
        yield answer("200 OK", header, body=b"hello")
        yield answer("207 Multi-Status", header, body=listing())
        yield answer("302 Elsewhere", header)
    for chunk in CHUNKS:
        yield answer("200 OK", b"Transfer-Encoding: chunked", body=chunk, length=False)
        yield answer("207 Multi-Status", b"Transfer-Encoding: chunked", body=chunk, length=False)
        yield answer("500 Broken", b"Transfer-Encoding: chunked", body=chunk, length=False)
    yield from (answer("503 Busy", f"Retry-After: {date}".encode(), f"Date: {date}".encode()) for date in DATES)
    yield from (answer("207 Multi-Status", body=document) for document in DOCUMENTS)
    yield from (
        answer(f"{status} x", body=b"\xff\x00" * 100) for status in (200, 206, 207, 300, 400, 401, 404, 416, 423, 507)
    )


@pytest.fixture
def raw() -> Iterator[RawServer]:
    server = RawServer()
    yield server
    server.close()


def asked(folder: WebDavFolder, home: Path) -> Iterator[Callable[[], object]]:
    """What daemons ask of a folder."""
    (home / "source").write_bytes(b"hello")
    (home / ".target.e3b0c44298fc1c14.arriving").write_bytes(b"he")  # a part that came before
    yield lambda: folder.list("")
    yield lambda: folder.read("f", max_bytes=100)
    yield lambda: folder.download("f", home / "target", size=5)
    yield lambda: folder.create("f", b"hello")
    yield lambda: folder.upload("f", home / "source")
    yield folder.room


def test_no_answer_raises_anything_but_an_error_of_ours(raw: RawServer, tmp_path: Path) -> None:
    answers = list(hostile())
    assert len(answers) > 200
    wrong: list[tuple[bytes, object]] = []
    for content in answers:
        raw.answer = content
        folder = WebDavFolder(raw.url, "north", "secret-word", stall_s=30)
        for ask in asked(folder, tmp_path):
            try:
                ask()
            except DropfedError as error:
                if not str(error).isprintable():
                    wrong.append((content[:100], str(error)))
            except Exception as error:
                wrong.append((content[:100], error))
    assert not wrong


# --- time and memory --------------------------------------------------------------------------------------------


def drip(client: socket.socket, text: bytes = b"x") -> None:
    while True:  # until the other side hangs up
        client.sendall(text)
        time.sleep(0.01)


DRIPPING = {
    "status-line": b"",
    "head": b"HTTP/1.1 200 OK\r\nX: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
    "listing": b"HTTP/1.1 207 Multi-Status\r\n\r\n<multistatus xmlns='DAV:'>",
    "remark": b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n",
    "chunk-size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("part", DRIPPING)
def test_an_answer_that_drips_stands_still(part: str) -> None:
    server = RawServer(DRIPPING[part], lambda client, _: drip(client))
    folder = WebDavFolder(server.url, "north", "secret-word", stall_s=0.3)
    with pytest.raises(TransientError, match=r"stood still|503 Service Unavailable"):
        folder.list("") if part == "listing" else folder.read("f", max_bytes=1 << 20)
    server.close()


@pytest.mark.parametrize("flood", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n"], ids=["interim answers", "headers"])
def test_a_head_that_does_not_end_is_no_answer(flood: bytes) -> None:
    def pour(client: socket.socket, _: bytes) -> None:
        while True:
            client.sendall(flood * 1000)

    server = RawServer(b"HTTP/1.1 100 Continue\r\n", pour)
    folder = WebDavFolder(server.url, "north", "secret-word", stall_s=60)
    with peak_memory() as peak, pytest.raises(TransientError):
        folder.read("f", max_bytes=100)
    assert peak() < 10 * MAX_HEAD_BYTES
    server.close()


def test_what_follows_the_last_chunk_without_an_end_is_no_answer() -> None:
    def pour(client: socket.socket, _: bytes) -> None:
        while True:
            client.sendall(b"X: y\r\n" * 1000)

    server = RawServer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", pour)
    folder = WebDavFolder(server.url, "north", "secret-word", stall_s=60)
    with pytest.raises(TransientError):
        folder.read("f", max_bytes=100)
    server.close()


def test_a_body_in_many_chunks_is_read_to_its_end() -> None:
    chunks = (MOST_LINES + 1) * b"1\r\na\r\n"
    server = RawServer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX: y\r\n\r\n")
    folder = WebDavFolder(server.url, "north", "secret-word", stall_s=60)
    assert folder.read("f", max_bytes=MOST_LINES + 1) == b"a" * (MOST_LINES + 1)
    server.close()


def test_what_waits_for_an_answer_that_drips_can_be_cut_from_another_thread() -> None:
    is_asked = threading.Event()

    def send(client: socket.socket, _: bytes) -> None:
        is_asked.set()
        drip(client, b"x" * LEAST_BYTES)  # for ever, and never too few

    server = RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", send)
    folder = WebDavFolder(server.url, "north", "secret-word", stall_s=600)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(folder.read, "f", max_bytes=1 << 40)
        is_asked.wait()
        while not reading.done():  # the first may come before the socket is known
            folder.interrupt()
        assert isinstance(reading.exception(), TransientError)
    server.close()


def test_a_large_transfer_is_not_cut_for_being_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour at 10 bytes a second is taken; 4 bytes a second are too few."""
    for at_a_time, holds in ((10, True), (4, False)):
        clock = itertools.count()
        monkeypatch.setattr("shared.folder.sockets.time.monotonic", lambda clock=clock: float(next(clock)))
        reader, writer = socket.socketpair()
        with reader, writer:
            steady = _Steady(reader.makefile("rb", buffering=0), 60)
            steady.is_head = False
            try:
                for _ in range(3600):
                    writer.sendall(b"x" * at_a_time)
                    steady.read(at_a_time)
            except TimeoutError:
                assert not holds
            else:
                assert holds


LISTINGS = {
    "elements": b"<x/>",
    "entries": b"<D:response><D:href>/drop/f</D:href></D:response>",
    "text": b"<D:response><D:href>" + b"x" * 4000 + b"</D:href></D:response>",
    "comments": b"<!-- -->",
    "one tag": b" ",
    "one text": b"x",
    "line feeds": b"\n",
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_of_any_size_takes_little_memory(kind: str) -> None:
    """As large as one may be: 41 MB."""
    begin = b'<D:multistatus xmlns:D="DAV:">' + (b"<x " if kind == "one tag" else b"")
    piece, reader, fed = LISTINGS[kind] * ((1 << 18) // len(LISTINGS[kind])), Reader(MAX_ENTRIES), 0
    with peak_memory() as peak, pytest.raises(Refusal):
        reader.feed(begin)
        while fed < MAX_LISTING_BYTES:
            reader.feed(piece)
            fed += len(piece)
        reader.close()
    assert peak() < 50_000_000


NAMES = {
    "attributes of one tag": ("<x ", " a{}='' "),
    "attributes of many tags": ("", "<x a{}=''/>"),
    "elements": ("", "<x{}/>"),
    "namespaces": ("", "<x xmlns:n{}='urn:n'/>"),
    "addresses of namespaces": ("", "<x xmlns:n='urn:{}'/>"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_listing_of_ever_new_names_is_refused_soon(kind: str) -> None:
    """The parser keeps each: 40 MB of them took 790 MB of memory, which Python does not count."""
    begin, name = NAMES[kind]
    reader, numbers = Reader(MAX_ENTRIES), itertools.count()
    reader.feed(f'<D:multistatus xmlns:D="DAV:">{begin}'.encode())
    with pytest.raises(Refusal):
        for _ in range(2 * MOST_NAMES):
            reader.feed(name.format(next(numbers)).encode())


# --- what is not the network's ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("ours"), OSError("ours"), requests.Timeout("ours"), KeyError("ours")])
def test_an_error_inside_a_block_that_reads_an_answer_passes_as_it_is(error: Exception, raw: RawServer) -> None:
    raw.answer = answer("200 OK", body=b"hello")
    connection = Connection(raw.url, "north", "secret-word", ca_file=None, stall_s=30)
    with pytest.raises(type(error), match="ours"), connection.open("GET", "f", status=200):
        raise error


def test_an_error_in_what_is_sent_passes_as_it_is(raw: RawServer) -> None:
    def moved(_: int) -> None:
        raise ZeroDivisionError("ours")

    connection = Connection(raw.url, "north", "secret-word", ca_file=None, stall_s=30)
    with pytest.raises(ZeroDivisionError, match="ours"):
        connection.send("PUT", "f", body=FileBody(io.BytesIO(b"hello"), 5, moved))
