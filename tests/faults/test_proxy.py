"""The proxy does what each fault says, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from deploy.local.webdav_server import EmbeddedServer
from tests.faults.certificates import certificates
from tests.faults.exchange import Fault
from tests.faults.faults import CutAnswer, Delay, Drip, Duplicate, HangUp, LoseAnswer, Say, Stall, Truncate
from tests.faults.proxy import CutRequest, FaultProxy, PresentCertificate, Refuse
from tests.faults.storm import KINDS, RandomSchedule

AUTH = ("north", "secret-word")
CONTENT = bytes(range(256)) * 40


class Bench:
    """A server with one file, ``north/f``, behind a proxy that follows a list."""

    def __init__(self, root: Path, tls: bool) -> None:
        self.root = root / "north"
        self.server = EmbeddedServer(root, {"north": "secret-word"}, "aggregate")
        self.server.start()
        (self.root / "f").write_bytes(CONTENT)
        self.faults: list[Fault | None] = []
        self.proxy = FaultProxy(self.server.port, self._next, certificates() if tls else None)
        self.session = requests.Session()
        self.session.auth = AUTH
        self.session.trust_env = False
        self.session.verify = str(certificates().ca_file)

    def _next(self, _method: str, _path: str) -> tuple[str, Fault] | None:
        fault = self.faults.pop(0) if self.faults else None
        return ("as listed", fault) if fault is not None else None

    def ask(self, method: str, path: str, *, direct: bool = False, **options: object) -> requests.Response:
        url = f"http://127.0.0.1:{self.server.port}" if direct else self.proxy.url
        return self.session.request(method, f"{url}/north/{path}", timeout=20, **options)  # type: ignore[arg-type]

    def raw(self) -> tuple[bytes, bool]:
        """Ask for the file over a bare socket; return what comes, and whether a reset ended it."""
        with socket.create_connection(("127.0.0.1", self.proxy.port)) as connection:
            connection.settimeout(20)
            request = "GET /north/f HTTP/1.1\r\nHost: x\r\nAuthorization: Basic bm9ydGg6c2VjcmV0LXdvcmQ=\r\n\r\n"
            connection.sendall(request.encode())
            received = b""
            try:
                while block := connection.recv(1 << 16):
                    received += block
            except ConnectionResetError:
                return received, True
            return received, False


@contextmanager
def bench_at(root: Path, *, tls: bool = False) -> Iterator[Bench]:
    bench = Bench(root, tls)
    try:
        yield bench
    finally:
        bench.session.close()
        bench.proxy.close()
        bench.server.stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("tls", [False, True])
def test_without_a_fault_it_is_not_noticed(tls: bool, tmp_path: Path) -> None:
    with bench_at(tmp_path, tls=tls) as bench:
        for method, path, options in (
            ("GET", "f", {}),
            ("PROPFIND", "f", {"headers": {"Depth": "0"}}),
            ("PUT", "g", {"data": CONTENT}),
            ("PUT", "empty", {"data": b""}),
            ("MKCOL", "d", {}),
            ("MKCOL", "d", {}),
            ("DELETE", "g", {}),
            ("GET", "f", {"headers": {"Range": "bytes=5-9"}}),
        ):
            through = bench.ask(method, path, **options)
            if method in ("GET", "PROPFIND"):
                straight = bench.ask(method, path, direct=True, **options)
                assert (through.status_code, through.content) == (straight.status_code, straight.content)
                for name in straight.headers.keys() - {"Date", "Connection", "Content-Length", "Transfer-Encoding"}:
                    assert through.headers[name] == straight.headers[name]
            else:
                assert through.status_code in (201, 204, 405)
        assert bench.ask("GET", "missing").status_code == 404
        assert bench.proxy.requests == 9
        assert bench.proxy.journal == []


def test_refuse(bench: Bench) -> None:
    bench.ask("GET", "f")
    bench.faults = [Refuse(0.5)]
    with pytest.raises(requests.ConnectionError):
        bench.ask("GET", "f")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", bench.proxy.port))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            assert bench.ask("GET", "f").content == CONTENT
            return
        except requests.ConnectionError:
            time.sleep(0.05)
    pytest.fail("it never listens again")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_cut_request(bench: Bench, share: float) -> None:
    bench.faults = [CutRequest(share)]
    with pytest.raises(requests.ConnectionError):
        bench.ask("PUT", "new", data=CONTENT)
    assert bench.ask("GET", "new").status_code == 404
    assert bench.ask("PUT", "new", data=CONTENT).status_code == 201


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_cut_answer(bench: Bench, share: float) -> None:
    bench.faults = [Truncate(1.0, "none")]  # the whole, and an end to the connection
    whole, was_reset = bench.raw()
    assert not was_reset
    bench.faults = [CutAnswer(share)]
    received, was_reset = bench.raw()
    assert was_reset
    assert len(received) <= share * (len(whole) + 20) + 1  # the one says Content-Length, the other Connection


def test_truncate(bench: Bench) -> None:
    bench.faults = [Truncate(0.5, "wrong"), Truncate(100, "wrong"), Truncate(0.5, "right"), Truncate(0.5, "none")]
    half = CONTENT[: len(CONTENT) // 2]
    assert bench.ask("GET", "f").content == half
    assert bench.ask("GET", "f").content == CONTENT[:100]
    with pytest.raises(requests.exceptions.ChunkedEncodingError):  # what requests calls any body that ends early
        bench.ask("GET", "f")
    answer = bench.ask("GET", "f")
    assert answer.content == half
    assert "Content-Length" not in answer.headers


def test_duplicate(bench: Bench) -> None:
    url = bench.proxy.url
    for answers_first, statuses in ((True, (201, 204)), (False, (404,))):
        bench.ask("PUT", "source", data=b"x")
        bench.faults = [Duplicate(answers_first)]
        headers = {"Destination": f"{url}/north/target-{answers_first}", "Overwrite": "F"}
        assert bench.ask("MOVE", "source", headers=headers).status_code in statuses
        assert bench.ask("GET", f"target-{answers_first}").content == b"x"


def test_lose_answer_and_hang_up(bench: Bench) -> None:
    bench.faults = [LoseAnswer(), HangUp()]
    for name in ("done", "not-done"):
        with pytest.raises(requests.ConnectionError):
            bench.ask("PUT", name, data=b"x")
    assert [bench.ask("GET", name).status_code for name in ("done", "not-done")] == [200, 404]


def test_slow_answers_are_whole(bench: Bench) -> None:
    for fault, seconds in ((Drip(10, 0.03), 0.2), (Delay(0.2), 0.2)):
        bench.faults = [fault]
        began = time.monotonic()
        assert bench.ask("GET", "f").content == CONTENT
        assert time.monotonic() - began >= seconds


def test_stall_lasts_until_the_client_gives_up(bench: Bench) -> None:
    bench.faults = [Stall()]
    with socket.create_connection(("127.0.0.1", bench.proxy.port)) as connection:
        connection.settimeout(0.5)
        connection.sendall(b"GET /north/f HTTP/1.1\r\nHost: x\r\nAuthorization: Basic bm9ydGg6c2VjcmV0LXdvcmQ=\r\n\r\n")
        received = b""
        with pytest.raises(TimeoutError):
            while True:
                received += connection.recv(1 << 16)
        assert 0 < len(received) < len(CONTENT)
    deadline = time.monotonic() + 20
    while any(thread.name == f"proxy-{bench.proxy.port}" for thread in threading.enumerate()):
        bench.proxy.close()
        assert time.monotonic() < deadline, "it still holds the connection"
        time.sleep(0.02)


def test_say(bench: Bench) -> None:
    bench.faults = [Say(429, b"slowly", (("Retry-After", "7"),)), Say(204)]
    answer = bench.ask("PUT", "g", data=CONTENT)
    assert (answer.status_code, answer.content, answer.headers["Retry-After"]) == (429, b"slowly", "7")
    assert bench.ask("PUT", "g", data=CONTENT).status_code == 204
    assert bench.ask("GET", "g").status_code == 404
    assert [happened.method for happened in bench.proxy.journal] == ["PUT", "PUT"]


@pytest.mark.parametrize(
    ("certificate", "words"), [("expired", "certificate has expired"), ("wrong host", "IP address mismatch")]
)
def test_bad_certificates(certificate: str, words: str, tmp_path: Path) -> None:
    with bench_at(tmp_path, tls=True) as bench:
        bench.ask("GET", "f")
        bench.faults = [PresentCertificate(certificate, 2)]  # type: ignore[arg-type]
        with pytest.raises(requests.ConnectionError):
            bench.ask("GET", "f")
        for _ in range(2):
            with pytest.raises(requests.exceptions.SSLError, match=words):
                bench.ask("GET", "f")
        assert bench.ask("GET", "f").content == CONTENT


def test_a_seed_decides_what_meets_a_request_however_the_clients_take_turns() -> None:
    def met(order: list[str], seed: int) -> dict[str, list[object]]:
        schedule = RandomSchedule(seed, "north", KINDS, often=0.5)
        found: dict[str, list[object]] = {}
        for path in order:
            found.setdefault(path, []).append(schedule("GET", path))
            schedule._goes_on = None  # what goes on meets whatever comes next
        return found

    one, other = ["a"] * 30 + ["b"] * 30, ["b", "a"] * 30
    assert met(one, 1) == met(other, 1)
    assert met(one, 1) != met(one, 2)
