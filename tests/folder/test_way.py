"""The way to a server, looked at step by step: what fails is named, with what to do."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shared.check import Finding, look_at_way, with_problems
from shared.errors import ActionRequiredError
from shared.folder.webdav import WebDavFolder
from tests.folder.certificates import Authority
from tests.folder.connect_proxy import connect_proxy
from tests.folder.faulty import FaultyServer
from tests.ports import free_port

NAME = "dav.example"
URL = f"https://{NAME}/drop"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        for spelling in (f"{name}_proxy", f"{name.upper()}_PROXY"):
            monkeypatch.delenv(spelling, raising=False)


@contextmanager
def greeting(certificate: bytes, key: bytes, home: Path) -> Iterator[int]:
    """A server that greets by TLS and says nothing more; yields its port."""
    path = home / "server.pem"
    path.write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    listener = socket.create_server(("127.0.0.1", 0))

    def greet(client: socket.socket) -> None:
        with client, suppress(OSError), context.wrap_socket(client, server_side=True) as sock:
            sock.recv(1)

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=greet, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def look(url: str, ca_file: Path | None = None) -> list[Finding]:
    return list(with_problems(lambda: look_at_way(url, ca_file, "site.yaml")))


def problem(url: str, ca_file: Path | None = None) -> str:
    *_, last = look(url, ca_file)
    assert last.grade == "problem", last
    return last.text


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Authority, Path]:
    made = Authority()
    (tmp_path / "ca.pem").write_bytes(made.certificate)
    return made, tmp_path / "ca.pem"


def test_a_certificate_of_an_authority_that_is_trusted(authority: tuple[Authority, Path], tmp_path: Path) -> None:
    made, ca_file = authority
    with greeting(*made.certify("127.0.0.1", ends_in_days=30), tmp_path) as port:
        found = look(f"https://127.0.0.1:{port}/drop", ca_file)
    assert [finding.grade for finding in found] == ["ok", "ok"]
    assert 'certificate by "A hospital\'s own authority" until' in found[-1].text


def test_a_certificate_that_ends_soon(authority: tuple[Authority, Path], tmp_path: Path) -> None:
    made, ca_file = authority
    with greeting(*made.certify("127.0.0.1", ends_in_days=2), tmp_path) as port:
        (warning,) = [each for each in look(f"https://127.0.0.1:{port}/drop", ca_file) if each.grade == "warning"]
    assert warning.text.startswith("TLS: the certificate ends on ")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("A hospital's own authority", "which is no public one: if it is the hospital's own, or of a program"),
        ("Zscaler Intermediate Root CA (zscaler.net)", "(TLS inspection by the network): have 127.0.0.1 exempted"),
        ("FortiGate CA", "(TLS inspection by the network)"),
        ("Clinic SSL Inspection CA", "(TLS inspection by the network)"),
    ],
)
def test_an_authority_that_nobody_trusts_is_named(name: str, sentence: str, tmp_path: Path) -> None:
    with greeting(*Authority(name).certify("127.0.0.1"), tmp_path) as port:
        text = problem(f"https://127.0.0.1:{port}/drop")
    assert repr(name) in text and sentence in text
    assert "as a PEM file and set `ca_file: FILE` in site.yaml" in text


def test_a_program_that_reads_along_is_told_though_it_is_trusted(tmp_path: Path) -> None:
    made = Authority("Netskope Proxy CA")
    (tmp_path / "ca.pem").write_bytes(made.certificate)
    with greeting(*made.certify("127.0.0.1", ends_in_days=30), tmp_path) as port:
        *_, last = look(f"https://127.0.0.1:{port}/drop", tmp_path / "ca.pem")
    assert last.grade == "note" and "it can see the password" in last.text


def test_a_ca_file_of_somebody_else(authority: tuple[Authority, Path], tmp_path: Path) -> None:
    _, ca_file = authority
    with greeting(*Authority("Another").certify("127.0.0.1"), tmp_path) as port:
        text = problem(f"https://127.0.0.1:{port}/drop", ca_file)
    assert f"'Another', which is not in {ca_file}: remove `ca_file` from site.yaml" in text


def test_a_ca_file_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    assert "does not hold certificates" in problem(f"https://127.0.0.1:{free_port()}/drop", tmp_path / "ca.pem")


def test_certificates_that_are_not_valid(authority: tuple[Authority, Path], tmp_path: Path) -> None:
    made, ca_file = authority
    with greeting(*made.certify("127.0.0.1", ends_in_days=-1), tmp_path) as port:
        assert "ended on " in problem(f"https://127.0.0.1:{port}/drop", ca_file)
    with greeting(*made.certify("elsewhere.example"), tmp_path) as port:
        text = problem(f"https://127.0.0.1:{port}/drop", ca_file)
    assert "is for elsewhere.example, not for 127.0.0.1: correct url in site.yaml" in text
    with greeting(*made.certify("127.0.0.1", begins_in_days=1), tmp_path) as port:
        assert "begins only on " in problem(f"https://127.0.0.1:{port}/drop", ca_file)


def test_a_port_without_tls(faulty: FaultyServer) -> None:
    assert "does not speak it" in problem(faulty.url.replace("http:", "https:"))


def test_a_name_that_nobody_knows_and_a_port_where_nobody_listens() -> None:
    text = problem("https://nowhere.invalid/drop")
    assert "name: nowhere.invalid is not known to this machine's DNS" in text
    assert "a PAC file" in text
    text = problem(f"https://127.0.0.1:{free_port()}/drop")
    assert "cannot be reached" in text and "have outgoing connections to 127.0.0.1:" in text


# --- proxies -----------------------------------------------------------------------------------------------------


def set_proxy(monkeypatch: pytest.MonkeyPatch, port: int, login: str = "") -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{login}127.0.0.1:{port}")


def test_through_a_proxy_that_alone_knows_the_name(
    authority: tuple[Authority, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ca_file = authority
    with (
        greeting(*made.certify(NAME, ends_in_days=30), tmp_path) as port,
        connect_proxy({f"{NAME}:443": port}, login="Basic bTplOnM=") as proxy,
    ):
        set_proxy(monkeypatch, proxy.port, "m:e%3As@")  # user m, password e:s
        found = look(URL, ca_file)
    assert [finding.grade for finding in found] == ["ok", "ok"]
    assert found[0].text == f"proxy: http://127.0.0.1:{proxy.port}, as the environment says (HTTPS_PROXY)"
    assert proxy.asked == [f"CONNECT {NAME}:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("answer", "login", "sentence"),
    [
        (
            'HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm="x"',
            "",
            "wants a login: set HTTPS_PROXY=http://USER:PASS",
        ),
        ('HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm="x"', "me:wrong@", "refuses the login in HTTPS_PROXY"),
        ("HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM", "", "wants a login by NTLM, which dropfed does not speak"),
        ("HTTP/1.1 407 x", "", "wants a login"),
        ("HTTP/1.1 403 Forbidden", "", f"does not let anybody through to {NAME}:443 (403): have it allowed there"),
        ("HTTP/1.1 502 Bad Gateway", "", "needs no proxy: name it in NO_PROXY"),
        ("220 mail.example ESMTP", "", "does not answer as a proxy does: correct HTTPS_PROXY"),
    ],
)
def test_a_proxy_that_refuses(answer: str, login: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy({}, answer=answer) as proxy:
        set_proxy(monkeypatch, proxy.port, login)
        text = problem(URL)
    assert text.startswith(f"proxy: http://127.0.0.1:{proxy.port} ") and sentence in text
    assert "wrong" not in text


@pytest.mark.parametrize(
    ("proxy", "sentence"),
    [
        (
            "http://nowhere.invalid:3128",
            "proxy: nowhere.invalid is not known to this machine's DNS: correct HTTPS_PROXY",
        ),
        ("socks5://127.0.0.1:1080", "is no HTTP proxy"),
        ("http://127.0.0.1:many", "HTTPS_PROXY is malformed"),
        ("http://user:s3[cret@127.0.0.1:3999", "HTTPS_PROXY is malformed"),
        ("http://user:99/s3cret@127.0.0.1:3999", "HTTPS_PROXY is malformed"),
        ("user:s3#cret@127.0.0.1:3999", "HTTPS_PROXY is malformed"),
        ("user:s3?cret@127.0.0.1:3999", "HTTPS_PROXY is malformed"),
    ],
)
def test_a_proxy_that_cannot_be_used(proxy: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert sentence in problem(URL)
    assert "s3" not in problem(URL)
    if "malformed" in sentence:  # the daemon says it, too
        with pytest.raises(ActionRequiredError, match=sentence):
            WebDavFolder(URL, "north", "-")


def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxy(monkeypatch, free_port())
    assert "cannot be reached" in problem(URL) and "correct HTTPS_PROXY" in problem(URL)


def test_no_proxy_and_an_automatic_configuration_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxy(monkeypatch, free_port())
    monkeypatch.setenv("NO_PROXY", ".invalid")
    assert "as NO_PROXY says" in look("https://nowhere.invalid/drop")[0].text
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv("auto_proxy", "http://wpad.example/wpad.dat")
    none, pac, unknown = look("https://nowhere.invalid/drop")
    assert none.text == "proxy: none; HTTPS_PROXY is not set"
    assert pac.grade == "note" and "http://wpad.example/wpad.dat" in pac.text
    assert unknown.grade == "problem"
