"""The way to a server, step by step, before any password is sent: its name, the proxy, the connection, the certificate.

The daemons go the same way by themselves; here each step is taken alone, so that people learn which one fails and what
to do. Nothing is sent to the server but the greeting of TLS, and to the proxy what the environment says of its login.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, getproxies_environment

from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy
from urllib3.util.ssl_ import create_urllib3_context

from shared.doors import Refusal
from shared.doors.numbers import whole
from shared.errors import ActionRequiredError, DropfedError, TransientError
from shared.escaping import escape
from shared.folder.address import is_loopback
from shared.folder.certificate import Certificate, invalid

PATIENCE_S = 20.0
MAX_REMARK_BYTES = 1 << 16  # of what a proxy says before it lets anything through


@dataclass(frozen=True)
class Way:
    """The way to one folder.

    Args:
        host, port, is_https: of the server.
        proxy: through which the way leads, as the environment says; None: straight.
        settings: the file that names the address, as people should read it.
    """

    host: str
    port: int
    is_https: bool
    proxy: str | None
    settings: str

    @classmethod
    def to(cls, url: str, settings: str) -> Way:
        """Return the way that the daemons take to a checked address.

        Raises:
            ActionRequiredError: as ``proxies_to``.
        """
        parts = urlsplit(url)
        is_https = parts.scheme == "https"
        proxy = select_proxy(url, proxies_to(url))
        proxy = proxy if proxy is None or "://" in proxy else f"http://{proxy}"
        return cls(parts.hostname or "", parts.port or (443 if is_https else 80), is_https, proxy, settings)

    @property
    def server(self) -> str:
        """Host and port."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def shown_proxy(self) -> str:
        """The proxy without its login."""
        parts = urlsplit(self.proxy or "")
        return f"{parts.scheme}://{_bracketed(parts.hostname or '')}:{_port_of_proxy(self.proxy or '')}"

    def addresses(self) -> list[str]:
        """Return the server's addresses, as this machine's DNS knows them.

        Raises:
            ActionRequiredError: it does not know the name.
        """
        return _addresses(
            self.host,
            f"name: {self.host} is not known to this machine's DNS: correct url in {self.settings} if it is misspelt; "
            f"if only a proxy knows names of the outside here, {_SET_PROXY}",
        )

    def greet(self, ca_file: Path | None) -> tuple[Certificate, str]:
        """Connect, and see the server's certificate and the version of TLS; the certificate is valid.

        Args:
            ca_file: certificates to trust instead of the public ones.

        Raises:
            ActionRequiredError, TransientError: which step failed, and what to do.
        """
        context = create_urllib3_context()
        try:
            context.load_verify_locations(cafile=str(ca_file or DEFAULT_CA_BUNDLE_PATH))
        except (OSError, ssl.SSLError):
            raise ActionRequiredError(
                f"TLS: {ca_file} does not hold certificates: put the authority's there, in PEM (text that begins with "
                "BEGIN CERTIFICATE)"
            ) from None
        try:
            with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.host) as sock:
                return Certificate.of(sock.getpeercert(binary_form=True) or b""), sock.version() or "TLS"
        except ssl.SSLCertVerificationError as error:
            found = self._shown_certificate()
            raise invalid(error, found, self.host, self.port, ca_file=ca_file, settings=self.settings) from None
        except TimeoutError:
            raise TransientError(f"TLS: {self.server} did not greet within {PATIENCE_S:g} s: is that https?") from None
        except ssl.SSLError as error:
            raise ActionRequiredError(
                f"TLS: {self.server} does not speak it ({escape(error.reason or str(error))}): check the port in url "
                f"in {self.settings}, and whether something on the way answers instead of the server"
            ) from None
        except OSError as error:
            raise TransientError(f"TLS: {self.server} cut the connection ({error.strerror or error}).") from None
        except Refusal as refusal:
            raise ActionRequiredError(
                f"TLS: what {self.server} shows {refusal}: ask the server's people what answers there"
            ) from None

    def connect(self) -> None:
        """Check that the server, or its proxy, takes a connection, and close it again.

        Raises:
            ActionRequiredError, TransientError: it does not.
        """
        with self._connected():
            pass

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Open a connection to the server, straight or through the proxy, for as long as the block runs."""
        if self.proxy is None:
            straight = (
                f"have outgoing connections to {self.server} allowed, or, if browsers here use a proxy, {_SET_PROXY}"
            )
            with _dialled(self.host, self.port, f"connection: {self.server}", straight) as sock:
                yield sock
            return
        parts = urlsplit(self.proxy)
        if parts.scheme != "http":
            raise ActionRequiredError(f"proxy: {self.shown_proxy} is no HTTP proxy: name one in HTTPS_PROXY")
        host, port = parts.hostname or "", _port_of_proxy(self.proxy)
        _addresses(host, f"proxy: {host} is not known to this machine's DNS: correct HTTPS_PROXY")
        with _dialled(
            host, port, f"proxy: {self.shown_proxy}", "correct HTTPS_PROXY, or ask your network people"
        ) as it:
            self._ask(it, parts.username, parts.password)
            yield it

    def _ask(self, sock: socket.socket, user: str | None, password: str | None) -> None:
        """Have a proxy connect to the server.

        Raises:
            ActionRequiredError, TransientError: it does not.
        """
        lines = [f"CONNECT {self.server} HTTP/1.1", f"Host: {self.server}"]
        if user is not None:
            login = f"{unquote(user)}:{unquote(password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {b64encode(login).decode()}")
        answer, deadline = bytearray(), time.monotonic() + PATIENCE_S
        try:
            sock.sendall("\r\n".join([*lines, "", ""]).encode())
            while not answer.endswith(b"\r\n\r\n") and len(answer) < MAX_REMARK_BYTES and (block := sock.recv(1)):
                answer += block  # not a byte more, for what follows is the server's
                sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.settimeout(PATIENCE_S)
        except OSError as error:
            raise TransientError(f"proxy: {self.shown_proxy} says nothing ({error.strerror or error}).") from None
        if (problem := self._refusal(answer.decode("latin-1"), has_login=user is not None)) is not None:
            raise problem

    def _refusal(self, answer: str, *, has_login: bool) -> DropfedError | None:
        match = re.match(r"HTTP/[0-9]\.[0-9] ([0-9]{3})", answer)
        who = f"proxy: {self.shown_proxy}"
        if match is None:
            return ActionRequiredError(f"{who} does not answer as a proxy does: correct HTTPS_PROXY")
        status = whole(match[1])
        if status < 300:
            return None
        if status == 407:
            kinds = re.findall(r"(?im)^proxy-authenticate:\s*([A-Za-z]+)", answer)
            if kinds and "basic" not in map(str.lower, kinds):
                return ActionRequiredError(
                    f"{who} wants a login by {' or '.join(kinds)}, which dropfed does not speak: have {self.server} "
                    "allowed without a login for this machine"
                )
            wrong = "refuses the login in HTTPS_PROXY" if has_login else "wants a login"
            return ActionRequiredError(
                f"{who} {wrong}: set HTTPS_PROXY=http://USER:PASSWORD@PROXY:PORT where the daemon is started, or have "
                f"{self.server} allowed without a login"
            )
        if status >= 500:
            return TransientError(
                f"{who} cannot reach {self.server} ({status}); is url in {self.settings} right? A server inside the "
                "hospital needs no proxy: name it in NO_PROXY."
            )
        return ActionRequiredError(
            f"{who} does not let anybody through to {self.server} ({status}): have it allowed there"
        )

    def _shown_certificate(self) -> Certificate | None:
        """Return the server's certificate, whatever it is worth; nothing is sent over that connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.host) as sock:
                return Certificate.of(sock.getpeercert(binary_form=True) or b"")
        except (DropfedError, OSError, ValueError):
            return None


_SET_PROXY = (
    "set HTTPS_PROXY=http://PROXY:PORT where the daemon is started; where browsers have an automatic configuration "
    "(a PAC file), PROXY and PORT stand in that file"
)


def proxies_to(url: str) -> dict[str, str]:
    """Return the proxies for an address, by scheme, as the environment says: never to this machine itself.

    Raises:
        ActionRequiredError: the one for this address is malformed.
    """
    proxies = {} if is_loopback(url) else get_environ_proxies(url)
    if (proxy := select_proxy(url, proxies)) is not None and not _is_address(proxy):
        raise ActionRequiredError(
            "proxy: HTTPS_PROXY is malformed: write it as http://PROXY:PORT, or with a login as "
            "http://USER:PASSWORD@PROXY:PORT, in which special characters are percent-encoded"
        )
    return proxies


def _is_address(proxy: str) -> bool:
    """Return whether a proxy is a host, with or without scheme, login and port, and nothing behind them."""
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        is_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_host and parts.path in {"", "/"} and not (parts.query or parts.fragment)


def is_exempted(url: str) -> bool:
    """Return whether a proxy is set, but not for this address: NO_PROXY names it."""
    named = getproxies().keys() & {urlsplit(url).scheme, "all"}
    return bool(named) and not proxies_to(url)


def automatic_configuration() -> str | None:
    """Return the address of a PAC file that this machine's settings name, which dropfed does not read; or None."""
    if named := getproxies_environment().get("auto"):
        return escape(named)
    try:
        import winreg  # noqa: PLC0415  (Windows alone has it)
    except ImportError:
        return None
    path = r"Software\Microsoft\Windows\CurrentVersion\Internet Settings"
    try:
        with winreg.OpenKey(winreg.HKEY_CURRENT_USER, path) as settings:  # type: ignore[attr-defined,unused-ignore]
            return escape(str(winreg.QueryValueEx(settings, "AutoConfigURL")[0]))  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return None


def _addresses(host: str, unknown: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except (socket.gaierror, UnicodeError):
        raise ActionRequiredError(unknown) from None


@contextmanager
def _dialled(host: str, port: int, who: str, remedy: str) -> Iterator[socket.socket]:
    try:
        sock = socket.create_connection((host, port), timeout=PATIENCE_S)
    except TimeoutError:
        raise TransientError(f"{who} does not answer within {PATIENCE_S:g} s: {remedy}.") from None
    except OSError as error:
        raise TransientError(f"{who} cannot be reached ({error.strerror or error}): {remedy}.") from None
    with sock:
        yield sock


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _port_of_proxy(proxy: str) -> int:
    parts = urlsplit(proxy)
    return parts.port or (443 if parts.scheme == "https" else 80)
