"""Real WebDAV servers on free loopback ports, each with the folders of two sites and the aggregator's user.

``NAMES`` lists the kinds. What stands after a dash is a variant: https with an authority of our own, Digest in place
of Basic, a public link with its token as the user.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cheroot import wsgi
from wsgidav.wsgidav_app import WsgiDAVApp

from deploy.local.webdav_server import EmbeddedServer
from tests.folder.installed import RECIPES, running_installed
from tests.folder.logins import AGGREGATOR, AGGREGATOR_PASSWORD, PASSWORDS, Login, Logins, logins, passwords_of
from tests.folder.owncloud import OwnCloud

NAMES = ("embedded", "wsgidav", *RECIPES, "owncloud", "owncloud-link")


@contextmanager
def running(name: str) -> Iterator[Logins]:
    """Start the server called ``name`` and yield who may enter it.

    Raises:
        AbsentError: it is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="dropfed-") as directory:
        home = Path(directory)
        if name in RECIPES:
            server = running_installed(RECIPES[name], home)
        else:
            server = {"embedded": _embedded, "wsgidav": _wsgidav, "owncloud": _owncloud, "owncloud-link": _links}[name](
                home
            )
        with server as found:
            yield found


@contextmanager
def embedded(root: Path, *, port: int = 0) -> Iterator[EmbeddedServer]:
    """Run the project's own server over ``root``."""
    server = EmbeddedServer(root, PASSWORDS, AGGREGATOR_PASSWORD, port=port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _embedded(home: Path) -> Iterator[Logins]:
    with embedded(home) as server:
        yield logins(server.url_of)


@contextmanager
def _wsgidav(home: Path) -> Iterator[Logins]:
    """Run wsgidav as it comes, whose PUT is not atomic."""
    for site in PASSWORDS:
        (home / site).mkdir()
    users = {
        f"/{site}": {user: {"password": password} for user, password in passwords_of(site).items()}
        for site in PASSWORDS
    }
    app = WsgiDAVApp(
        {
            "provider_mapping": {f"/{site}": str(home / site) for site in PASSWORDS},
            "simple_dc": {"user_mapping": users},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
            "logging": {"enable": False},
            "verbose": 0,
        }
    )
    server = wsgi.Server(("127.0.0.1", 0), app)
    server.shutdown_timeout = 1
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield logins(lambda site: f"http://127.0.0.1:{server.bind_addr[1]}/{site}")
    finally:
        server.stop()
        thread.join()


@contextmanager
def _owncloud(home: Path) -> Iterator[Logins]:
    """Folders of the aggregator, each shared with its site, which finds it under another name."""
    with _cloud(home) as cloud:
        for site in PASSWORDS:
            cloud.share(AGGREGATOR, site, site, "retina")
        files = f"{cloud.url}/remote.php/dav/files"
        sites = logins(lambda site: f"{files}/{site}/retina").sites
        yield Logins(sites, logins(lambda site: f"{files}/{AGGREGATOR}/{site}").aggregator)


@contextmanager
def _links(home: Path) -> Iterator[Logins]:
    """Folders of the aggregator, each with a public link for its site."""
    with _cloud(home) as cloud:
        for site, password in PASSWORDS.items():
            cloud.link(AGGREGATOR, site, f"token-of-{site}", password)
        address = f"{cloud.url}/public.php/webdav"
        sites = {site: Login(address, f"token-of-{site}", password) for site, password in PASSWORDS.items()}
        yield Logins(sites, logins(lambda site: f"{cloud.url}/remote.php/webdav/{site}").aggregator)


def _cloud(home: Path) -> OwnCloud:
    return OwnCloud(home, {AGGREGATOR: AGGREGATOR_PASSWORD, **PASSWORDS})
