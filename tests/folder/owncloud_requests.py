"""Single requests to the stand-in for ownCloud, behind the client's back."""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from tests.folder.owncloud import OwnCloud

AGGREGATOR = ("aggregator", "aggregator-password")
NORTH = ("north", "north-password")
ETAG = b'<propfind xmlns="DAV:"><prop><getetag/></prop></propfind>'
FILES = "/remote.php/dav/files"
UPLOAD = "/remote.php/dav/uploads/aggregator/1"


def ask(
    cloud: OwnCloud,
    method: str,
    path: str,
    body: bytes = b"",
    user: tuple[str, str] = AGGREGATOR,
    **headers: str,
) -> requests.Response:
    """Make one request; underscores in header names stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.request(method, cloud.url + path, data=body, auth=user, headers=named, timeout=60)


def etag_of(cloud: OwnCloud, path: str, user: tuple[str, str] = AGGREGATOR) -> str:
    listing = ask(cloud, "PROPFIND", path, ETAG, user, Depth="0")
    assert listing.status_code == 207
    return re.findall(r"<d:getetag>(.*?)</d:getetag>", listing.text)[0]


@contextmanager
def begin_cut(cloud: OwnCloud, path: str, head: str, body: bytes) -> Iterator[socket.socket]:
    """PUT with a body that ends early; at the end of the block the client is gone, as when it is killed."""
    login = b64encode(":".join(AGGREGATOR).encode()).decode()
    with socket.create_connection(("127.0.0.1", cloud.port)) as connection:
        connection.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\n{head}\r\n\r\n".encode())
        connection.sendall(body)
        yield connection


def send_cut(cloud: OwnCloud, path: str, head: str, body: bytes) -> bytes:
    """PUT with a body that ends early, and go on listening; return the answer."""
    with begin_cut(cloud, path, head, body) as connection:
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def ocs(
    cloud: OwnCloud, method: str, path: str, form: dict[str, str] | None = None, user: tuple[str, str] = AGGREGATOR
) -> tuple[int, int, object]:
    """Ask about accounts or shares; return the HTTP status, the code in the answer, and what it tells."""
    answer = requests.request(
        method,
        f"{cloud.url}/ocs/v2.php/{path}",
        params={"format": "json"},
        data=form,
        auth=user,
        headers={"OCS-APIRequest": "true"},
        timeout=60,
    )
    told = answer.json()["ocs"]
    return answer.status_code, told["meta"]["statuscode"], told["data"]
