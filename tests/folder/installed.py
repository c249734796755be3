"""WebDAV servers from Debian's packages, each as processes of its own below a folder of its own.

A recipe writes the configuration, and says which programs to start and who may then enter which folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.folder.certificates import AUTHORITY, CHAIN, KEY, write_certificates
from tests.folder.logins import PASSWORDS, Login, Logins, logins, passwords_of
from tests.ports import free_port

STARTUP_S = 60
APACHE_MODULES = "/usr/lib/apache2/modules"
REALM = "dav"


class AbsentError(Exception):
    """A server that is not installed on this machine."""


@dataclass(frozen=True)
class Program:
    """A process that listens on ``port``."""

    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How to run a server.

    Attributes:
        package: the Debian packages it is from.
        needs: files without which it cannot run.
        prepare: given a folder for everything, writes the configuration there.
    """

    package: str
    needs: tuple[str, ...]
    prepare: Callable[[Path], tuple[list[Program], Logins]]


@contextmanager
def running_installed(recipe: Recipe, home: Path) -> Iterator[Logins]:
    """Run an installed server until the block ends, without root's rights even if we have them.

    Raises:
        AbsentError: it is not installed.
    """
    missing = [file for file in recipe.needs if not Path(file).exists()]
    if missing:
        raise AbsentError(f"{missing[0]} is missing: install {recipe.package}, or run `make servers`")
    for site in PASSWORDS:
        (home / "data" / site).mkdir(parents=True)
    (home / "tmp").mkdir()
    programs, found = recipe.prepare(home)
    if os.geteuid() == 0:
        home.chmod(0o755)
        subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
    with ExitStack() as started:
        for program in programs:
            started.enter_context(_running(program, home))
        yield found


@contextmanager
def _running(program: Program, home: Path) -> Iterator[None]:
    is_root = os.geteuid() == 0
    output = home / f"{Path(program.command[0]).name}-{program.port}.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            program.command,
            stdout=file,
            stderr=file,
            cwd=home,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home / "tmp"), **program.environment},
            user="nobody" if is_root else None,
            group="nogroup" if is_root else None,
            extra_groups=[] if is_root else None,
            start_new_session=True,
        )
    try:
        _wait_for(process, program.port, output)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # with the workers it may have
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    """Return when the process listens."""
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"{process.args!r} ended: {output.read_text(errors='replace')}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"{process.args!r} does not listen after {STARTUP_S} s")


def _write_passwords(home: Path) -> None:
    """Write ``htpasswd-SITE`` for Basic and ``htdigest-SITE`` for Digest: who may enter each site's folder."""
    for site in PASSWORDS:
        basic = digest = ""
        for user, password in passwords_of(site).items():
            sha1 = base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
            basic += f"{user}:{{SHA}}{sha1}\n"
            digest += f"{user}:{REALM}:{hashlib.md5(f'{user}:{REALM}:{password}'.encode()).hexdigest()}\n"
        (home / f"htpasswd-{site}").write_text(basic)
        (home / f"htdigest-{site}").write_text(digest)


def _apache(home: Path, *, is_tls: bool = False, is_digest: bool = False) -> tuple[list[Program], Logins]:
    modules = ["mpm_event", "authn_core", "authn_file", "authz_core", "authz_user", "dav", "dav_fs", "mime", "dir"]
    modules += ["auth_digest" if is_digest else "auth_basic", *(["ssl"] if is_tls else [])]
    loads = "\n".join(f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so" for name in modules)
    tls = _tls(home, "SSLEngine on\nSSLCertificateFile {0}\nSSLCertificateKeyFile {1}") if is_tls else ""
    _write_passwords(home)
    kind, file = ("Digest", "htdigest") if is_digest else ("Basic", "htpasswd")
    folders = "\n".join(
        f"""\
<Location "/{site}">
  Dav On
  AuthName {REALM}
  AuthType {kind}
  Auth{kind}Provider file
  AuthUserFile "{home}/{file}-{site}"
  Require valid-user
</Location>"""
        for site in PASSWORDS
    )
    port = free_port()
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
{tls}
{folders}
""")
    command = ["/usr/sbin/apache2", "-f", str(home / "conf"), "-DFOREGROUND"]
    return [Program(command, port)], _logins(home, port, is_tls=is_tls, is_digest=is_digest)


def _nginx(home: Path, *, is_tls: bool = False) -> tuple[list[Program], Logins]:
    _write_passwords(home)
    tls = _tls(home, "ssl_certificate {0};\n    ssl_certificate_key {1};") if is_tls else ""
    folders = "\n".join(
        f"""\
    location /{site}/ {{
      auth_basic {REALM};
      auth_basic_user_file {home}/htpasswd-{site};
      dav_methods PUT DELETE MKCOL COPY MOVE;
      dav_ext_methods PROPFIND OPTIONS;
    }}"""
        for site in PASSWORDS
    )
    port = free_port()
    program = _nginx_program(
        home,
        port,
        f"""\
    listen 127.0.0.1:{port}{" ssl" if is_tls else ""};
    {tls}
    root {home}/data;
    location / {{ return 403; }}
{folders}""",
        modules="load_module /usr/lib/nginx/modules/ngx_http_dav_ext_module.so;",
    )
    return [program], _logins(home, port, is_tls=is_tls)


def _nginx_program(home: Path, port: int, server: str, *, modules: str = "") -> Program:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"  {kind}_temp_path {home}/tmp/{kind};" for kind in kinds)
    (home / "conf").write_text(f"""\
{modules}
daemon off;
worker_processes 1;
pid {home}/tmp/pid;
error_log {home}/tmp/log;
events {{ worker_connections 64; }}
http {{
{temporary}
  access_log off;
  client_max_body_size 0;
  server {{
{server}
  }}
}}
""")
    command = ["/usr/sbin/nginx", "-p", str(home), "-e", str(home / "tmp" / "log"), "-c", str(home / "conf")]
    return Program(command, port)


def _lighttpd(home: Path) -> tuple[list[Program], Logins]:
    _write_passwords(home)
    port = free_port()
    rules = ", ".join(
        f'"/{site}" => ( "method" => "basic", "realm" => "{REALM}", "require" => "user={site}|user=aggregator" )'
        for site in PASSWORDS
    )
    (home / "htpasswd").write_text("".join((home / f"htpasswd-{site}").read_text() for site in PASSWORDS))
    (home / "conf").write_text(f"""\
server.modules = ( "mod_auth", "mod_authn_file", "mod_access", "mod_webdav" )
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{home}/data"
server.errorlog = "{home}/tmp/log"
server.upload-dirs = ( "{home}/tmp" )
auth.backend = "htpasswd"
auth.backend.htpasswd.userfile = "{home}/htpasswd"
mimetype.assign = ( "" => "application/octet-stream" )
webdav.activate = "enable"
webdav.sqlite-db-name = "{home}/tmp/locks.db"
auth.require = ( {rules} )
""")
    return [Program(["/usr/sbin/lighttpd", "-D", "-f", str(home / "conf")], port)], _logins(home, port)


def _rclone(home: Path) -> tuple[list[Program], Logins]:
    """One rclone for each site: all who may enter one enter the whole tree that it serves."""
    _write_passwords(home)
    ports = {site: free_port() for site in PASSWORDS}
    programs = [
        Program(
            [
                *("/usr/bin/rclone", "serve", "webdav", str(home / "data" / site), "--config", str(home / "conf")),
                *("--addr", f"127.0.0.1:{port}", "--baseurl", site, "--htpasswd", str(home / f"htpasswd-{site}")),
            ],
            port,
        )
        for site, port in ports.items()
    ]
    return programs, logins(lambda site: f"http://127.0.0.1:{ports[site]}/{site}")


def _sabre(home: Path, *, is_link: bool = False) -> tuple[list[Program], Logins]:
    """sabre/dav under php-cgi behind nginx; with ``is_link`` sites enter as ownCloud's public links have it."""
    port, php_port = free_port(), free_port()
    usual = _logins(home, port)
    links = {
        site: Login(f"http://127.0.0.1:{port}/public.php/webdav", f"token-of-{site}", login.password)
        for site, login in usual.sites.items()
    }
    found = Logins(links if is_link else usual.sites, usual.aggregator)
    access = [
        {
            "base": login.url.removeprefix(f"http://127.0.0.1:{port}"),
            "user": login.user,
            "password": login.password,
            "folder": str(home / "data" / site),
        }
        for by_site in (found.sites, found.aggregator)
        for site, login in by_site.items()
    ]
    (home / "access.json").write_text(json.dumps(access))
    shutil.copyfile(Path(__file__).with_name("sabre.php"), home / "sabre.php")
    settings = {
        "display_errors": "0",
        "error_reporting": "22527",  # all but deprecations, of which this sabre/dav is full under this PHP
        "log_errors": "1",
        "error_log": f"{home}/tmp/php.log",
        "post_max_size": "0",
        "output_buffering": "0",
        "enable_post_data_reading": "0",
    }
    options = [option for name, value in settings.items() for option in ("-d", f"{name}={value}")]
    workers = {"PHP_FCGI_CHILDREN": "4", "PHP_FCGI_MAX_REQUESTS": "0"}
    php = Program(["/usr/bin/php-cgi", *options, "-b", f"127.0.0.1:{php_port}"], php_port, workers)
    front = _nginx_program(
        home,
        port,
        f"""\
    listen 127.0.0.1:{port};
    location / {{
      include /etc/nginx/fastcgi_params;
      fastcgi_param SCRIPT_FILENAME {home}/sabre.php;
      fastcgi_param SCRIPT_NAME "";
      fastcgi_read_timeout 600;
      fastcgi_pass 127.0.0.1:{php_port};
    }}""",
    )
    return [php, front], found


def _tls(home: Path, template: str) -> str:
    """Make certificates, and fill their places into two lines of configuration."""
    write_certificates(home / "tls", "127.0.0.1", "localhost")
    return template.format(home / "tls" / CHAIN, home / "tls" / KEY)


def _logins(home: Path, port: int, *, is_tls: bool = False, is_digest: bool = False) -> Logins:
    return logins(
        lambda site: f"{'https' if is_tls else 'http'}://127.0.0.1:{port}/{site}",
        ca_file=home / "tls" / AUTHORITY if is_tls else None,
        is_digest=is_digest,
    )


_APACHE = ("apache2", ("/usr/sbin/apache2", f"{APACHE_MODULES}/mod_dav.so"))
_NGINX = (
    "nginx libnginx-mod-http-dav-ext",
    ("/usr/sbin/nginx", "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so"),
)
_SABRE = (
    "php-sabre-dav php-cgi php-xml nginx",
    ("/usr/share/php/Sabre/autoload.php", "/usr/bin/php-cgi", "/usr/sbin/nginx"),
)
RECIPES = {
    "apache": Recipe(*_APACHE, _apache),
    "apache-tls": Recipe(*_APACHE, partial(_apache, is_tls=True)),
    "apache-digest": Recipe(*_APACHE, partial(_apache, is_digest=True)),
    "nginx": Recipe(*_NGINX, _nginx),
    "nginx-tls": Recipe(*_NGINX, partial(_nginx, is_tls=True)),
    "lighttpd": Recipe(
        "lighttpd lighttpd-mod-webdav", ("/usr/sbin/lighttpd", "/usr/lib/lighttpd/mod_webdav.so"), _lighttpd
    ),
    "rclone": Recipe("rclone", ("/usr/bin/rclone",), _rclone),
    "sabre": Recipe(*_SABRE, _sabre),
    "sabre-link": Recipe(*_SABRE, partial(_sabre, is_link=True)),
}
