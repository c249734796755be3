"""Real WebDAV servers on free loopback ports, each with one folder, ``/north``, for one user, ``north``."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cheroot import wsgi
from requests.auth import HTTPBasicAuth
from wsgidav.wsgidav_app import WsgiDAVApp

from deploy.local.webdav_server import EmbeddedServer
from tests.folder.owncloud import OwnCloud

SITE = "north"
PASSWORD = "gehéim: ü"  # one that fails unless it goes out as UTF-8 and is split at the first colon
AUTH = HTTPBasicAuth(SITE.encode(), PASSWORD.encode())
NAMES = ("embedded", "wsgidav", "apache", "nginx", "lighttpd", "rclone", "owncloud")
STARTUP_S = 20


@contextmanager
def running(name: str) -> Iterator[str]:
    """Start the server called ``name`` and yield the address of its folder."""
    with tempfile.TemporaryDirectory(prefix="dropfed-") as directory:
        home = Path(directory)
        if name == "embedded":
            with embedded(home) as server:
                yield server.url_of(SITE)
        elif name == "wsgidav":
            with stock_wsgidav(home) as url:
                yield url
        elif name == "owncloud":
            with OwnCloud(home, {"aggregator": "other", SITE: PASSWORD}) as cloud:
                cloud.share("aggregator", "drop", SITE, "retina")
                yield f"{cloud.url}/remote.php/dav/files/{SITE}/retina"
        else:
            with process(home, *RECIPES[name]) as url:
                yield url


@contextmanager
def embedded(root: Path, *, port: int = 0) -> Iterator[EmbeddedServer]:
    """Run the project's own server over ``root``."""
    server = EmbeddedServer(root, {SITE: PASSWORD, "south": "other"}, "aggregate", port=port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def stock_wsgidav(home: Path) -> Iterator[str]:
    """Run wsgidav as it comes, whose PUT is not atomic."""
    (home / SITE).mkdir()
    app = WsgiDAVApp(
        {
            "provider_mapping": {f"/{SITE}": str(home / SITE)},
            "simple_dc": {"user_mapping": {f"/{SITE}": {SITE: {"password": PASSWORD}}}},
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
        yield f"http://127.0.0.1:{server.bind_addr[1]}/{SITE}"
    finally:
        server.stop()
        thread.join()


@contextmanager
def process(home: Path, binary: str, needs: str, recipe: Callable[[Path, int], list[str]]) -> Iterator[str]:
    """Run an installed server until the block ends, without root's rights even if we have them."""
    program = shutil.which(binary, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if program is None or not Path(needs).exists():
        pytest.skip(f"{binary} with WebDAV is not installed")
    port = free_port()
    (home / "data" / SITE).mkdir(parents=True)
    (home / "tmp").mkdir()
    digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
    (home / "htpasswd").write_text(f"{SITE}:{{SHA}}{digest}\n")
    arguments = recipe(home, port)
    is_root = os.geteuid() == 0
    if is_root:
        home.chmod(0o755)
        subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
    with (home / "out").open("wb") as output:
        server = subprocess.Popen(
            [program, *arguments],
            stdout=output,
            stderr=output,
            cwd=home,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home / "tmp")},
            user="nobody" if is_root else None,
            group="nogroup" if is_root else None,
            extra_groups=[] if is_root else None,
        )
    try:
        wait_for(server, port, home / "out")
        yield f"http://127.0.0.1:{port}/{SITE}"
    finally:
        server.terminate()
        server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int, output: Path) -> None:
    """Return when the server listens; skip the test if it ends instead."""
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"{server.args!r} ended: {output.read_text(errors='replace')}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"{server.args!r} does not listen after {STARTUP_S} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def apache(home: Path, port: int) -> list[str]:
    modules = [
        "mpm_event",
        "authn_core",
        "authn_file",
        "authz_core",
        "authz_user",
        "auth_basic",
        "dav",
        "dav_fs",
        "mime",
        "dir",
    ]
    loads = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in modules)
    (home / "conf").write_text(f"""\
ServerRoot "{home}"
ServerName localhost
Listen 127.0.0.1:{port}
PidFile "{home}/tmp/pid"
DefaultRuntimeDir "{home}/tmp"
Mutex file:{home}/tmp default
ErrorLog "{home}/tmp/log"
{loads}
TypesConfig /etc/mime.types
DavLockDB "{home}/tmp/locks"
DocumentRoot "{home}/data"
<Location "/{SITE}">
  Dav On
  AuthName dav
  AuthType Basic
  AuthUserFile "{home}/htpasswd"
  Require user {SITE}
</Location>
""")
    return ["-f", str(home / "conf"), "-DFOREGROUND"]


def nginx(home: Path, port: int) -> list[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"  {kind}_temp_path {home}/tmp/{kind};" for kind in kinds)
    (home / "conf").write_text(f"""\
load_module /usr/lib/nginx/modules/ngx_http_dav_ext_module.so;
daemon off;
worker_processes 1;
pid {home}/tmp/pid;
error_log {home}/tmp/log;
events {{ worker_connections 64; }}
http {{
{temporary}
  access_log off;
  server {{
    listen 127.0.0.1:{port};
    root {home}/data;
    client_max_body_size 0;
    location / {{ return 403; }}
    location /{SITE}/ {{
      auth_basic dav;
      auth_basic_user_file {home}/htpasswd;
      dav_methods PUT DELETE MKCOL COPY MOVE;
      dav_ext_methods PROPFIND OPTIONS;
    }}
  }}
}}
""")
    return ["-p", str(home), "-e", str(home / "tmp" / "log"), "-c", str(home / "conf")]


def lighttpd(home: Path, port: int) -> list[str]:
    (home / "conf").write_text(f"""\
server.modules = ( "mod_auth", "mod_authn_file", "mod_access", "mod_webdav" )
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{home}/data"
server.errorlog = "{home}/tmp/log"
server.upload-dirs = ( "{home}/tmp" )
auth.backend = "htpasswd"
auth.backend.htpasswd.userfile = "{home}/htpasswd"
webdav.activate = "enable"
webdav.sqlite-db-name = "{home}/tmp/locks.db"
auth.require = ( "/" => ( "method" => "basic", "realm" => "dav", "require" => "user={SITE}" ) )
""")
    return ["-D", "-f", str(home / "conf")]


def rclone(home: Path, port: int) -> list[str]:
    address = ["--addr", f"127.0.0.1:{port}", "--baseurl", SITE]
    config = ["--config", str(home / "conf")]
    return ["serve", "webdav", str(home / "data" / SITE), *address, "--user", SITE, "--pass", PASSWORD, *config]


RECIPES: dict[str, tuple[str, str, Callable[[Path, int], list[str]]]] = {
    "apache": ("apache2", "/usr/lib/apache2/modules/mod_dav.so", apache),
    "nginx": ("nginx", "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so", nginx),
    "lighttpd": ("lighttpd", "/usr/lib/lighttpd/mod_webdav.so", lighttpd),
    "rclone": ("rclone", "/", rclone),
}
