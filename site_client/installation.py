"""The site's daemon as a service of systemd: one unit for each site of a machine, written from a template."""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from string import Template

from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import quoted
from shared.folder.durable import write_file
from shared.software import own_program
from site_client.configuration import SiteConfiguration

UNITS = Path("etc/systemd/system")
MARK = b"# Written by `dropfed-site install-service`"
_STATE = (Path("/var/lib"), Path("/var/lib/private"))
"""Where systemd keeps the directories of users that exist only while their service runs."""
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  (nothing is put there)
"""Of which a service has its own, empty at each start."""


def unit_name(configuration: SiteConfiguration) -> str:
    """Return what systemd calls the service of this site."""
    return f"dropfed-{configuration.site}.service"


def unit_text(
    work: Path, configuration: SiteConfiguration, *, user: str | None = None, password_file: Path | None = None
) -> str:
    """Return the unit of a site; arguments and errors as of ``drafted_unit``, and all that stands against it.

    Raises:
        ConfigurationError: no password, a path that the service would not see, or no user whom the daemon may run as.
    """
    text, problems = drafted_unit(work, configuration, user=user, password_file=password_file)
    if problems:
        raise ConfigurationError(problems)
    return text


def drafted_unit(
    work: Path, configuration: SiteConfiguration, *, user: str | None = None, password_file: Path | None = None
) -> tuple[str, list[str]]:
    """Return the unit of a site as far as this machine knows, and what keeps it from being installed, a sentence each.

    Args:
        work: absolute.
        user: who runs the daemon; None: see ``_identity``.
        password_file: absolute; what systemd, with root's rights, hands the password from; None: the daemon reads the
            file that ``site.yaml`` names, with its own.

    Raises:
        ConfigurationError: a path that no unit can name.
    """
    problems: list[str] = []
    identity, work = _identity(work, user, problems), as_named(work)
    password = work / configuration.password_file
    if password_file is None and not password.exists():
        problems.append(f"{password}: is missing: put the folder's password there, readable by you alone")
    elif password_file is None and "DynamicUser" not in identity and _owner(password) != identity.partition("=")[2]:
        remedy = f"`chown {identity.partition('=')[2]}` it, or hand it over by --password-file"
        problems.append(f"{password}: belongs to {_owner(password)}, and the daemon reads it itself: {remedy}")
    if password_file is not None and not os.path.exists(password_file):  # noqa: PTH110  (nor if we may not look)
        problems.append(f"--password-file {password_file}: is not there; put the folder's password into it")
    elif password_file is not None and (loose := _not_roots(password_file)) is not None:
        problems.append(
            f"--password-file {password_file}: others than root can change {loose}, and systemd reads the file with "
            f"the rights of root: make it root's alone, or leave the option out, and the daemon reads {password} itself"
        )
    images = [work / folder for folder in (*configuration.data.values(), *configuration.out_of_distribution.values())]
    programs = [Path(program.directory) for program in configuration.policy.external_trainers]
    exchange = [work / configuration.exchange] if configuration.exchange is not None else []
    authority = [work / configuration.ca_file] if configuration.ca_file is not None else []
    ours = [Path(sys.executable), Path(sys.prefix), Path(sys.base_prefix), Path(__file__)]
    read_itself = [password] if password_file is None and not password.is_relative_to(work) else []
    needed = [work, *read_itself, *images, *exchange, *authority, *programs, *ours]
    hidden = [path for path in needed if any(path.is_relative_to(folder) for folder in _TEMPORARY)]
    remedy = "no service sees what lies in /tmp or /var/tmp; move it elsewhere"
    problems += [f"{path}: {remedy}" for path in dict.fromkeys(hidden)]
    needs_home = any(path.is_relative_to(home) for path in needed for home in _HOMES)
    has_gpu = configuration.device != "cpu"
    command = [*own_program("site_client.cli"), "run", "--work", str(work)]
    text = _template().substitute(
        unit=unit_name(configuration),
        site=configuration.site,
        federation=configuration.federation,
        mounts=" ".join(_quoted(path) for path in (work, *images, *exchange)),
        command=" ".join(_quoted(part).replace("$", "$$") for part in command),
        work=_escaped(work),
        writable=" ".join([_quoted(work), *(_quoted(f"-{path}") for path in exchange)]),
        credential="" if password_file is None else f"LoadCredential=password:{_escaped(password_file)}\n",
        identity=identity,
        home="read-only" if needs_home else "yes",
        data="\n".join(f"ReadOnlyPaths={_quoted(f'-{folder}')}" for folder in images),
        devices="DevicePolicy=closed\nDeviceAllow=char-nvidia* rw" if has_gpu else "PrivateDevices=yes",
    )
    return text, problems


def password_file_of(unit: Path) -> Path | None:
    """Return what an installed unit of ours has systemd hand the password from; None if the daemon reads it itself."""
    found = re.search(r"(?m)^LoadCredential=password:(.*)$", _installed(unit))
    return Path(found[1].replace("%%", "%")) if found else None


def outdated_settings(unit: Path, work: Path, configuration: SiteConfiguration) -> list[str]:
    """Return which settings of an installed unit of ours differ from those that would be written now, sorted.

    Raises:
        ConfigurationError: as for ``drafted_unit``.
    """
    if not (there := _installed(unit)):
        return []
    user = re.search(r"(?m)^User=(.*)$", there)
    text, _ = drafted_unit(work, configuration, user=user[1] if user else None, password_file=password_file_of(unit))
    lines = [{line for line in each.splitlines() if "=" in line and not line.startswith("#")} for each in (there, text)]
    return sorted({line.partition("=")[0] for line in lines[0] ^ lines[1]})


def _installed(unit: Path) -> str:
    """Return the text of a unit of ours; empty of another's, or where there is none."""
    content = unit.read_bytes() if unit.is_file() else b""
    return content.decode(errors="replace") if content.startswith(MARK) else ""


def as_named(work: Path) -> Path:
    """Return a work directory as people name it; systemd shows that of a user of its making in /var/lib too."""
    return _STATE[0] / work.name if work.parent == _STATE[1] else work


def install(unit: str, text: str, root: Path = Path("/")) -> Path:
    """Write the unit of a site, enable it and start it anew; return where it is.

    Args:
        root: of the system it is for; one that does not run, as an image of a disk, is not asked to start it.

    Raises:
        ActionRequiredError: we may not, or systemd refuses.
    """
    path = root / UNITS / unit
    _require_rights(root)
    if path.exists() and not _installed(path):
        raise ActionRequiredError(f"{path} is there and was not written by this command: move it away first")
    write_file(path, text.encode())
    if _runs(root):
        _systemctl(root, "daemon-reload")
    _systemctl(root, "enable", unit)
    if _runs(root):
        _systemctl(root, "restart", unit, remedy=f"`journalctl -u {unit}` says why")
    return path


def uninstall(unit: str, root: Path = Path("/")) -> Path:
    """Stop and disable the service of a site and remove its unit. The work directory stays as it is.

    Raises:
        ActionRequiredError: there is none of ours, or systemd refuses.
    """
    path = root / UNITS / unit
    _require_rights(root)
    if not _installed(path):
        raise ActionRequiredError(
            f"{path} is not there, or was not written by `dropfed-site install-service`: left as it is"
        )
    _systemctl(root, "disable", *(["--now"] if _runs(root) else []), unit)
    path.unlink()
    if _runs(root):
        _systemctl(root, "daemon-reload")
    return path


def _runs(root: Path) -> bool:
    return root == Path("/")


def require_linux() -> None:
    """Check that this machine's paths and users are such as a unit can name.

    Raises:
        ActionRequiredError: this is Windows or macOS.
    """
    if sys.platform != "linux":
        raise ActionRequiredError(
            "services are installed for systemd only; docs/service.md describes Windows and macOS"
        )


def _require_rights(root: Path) -> None:
    require_linux()
    if _runs(root) and os.geteuid() != 0:
        raise ActionRequiredError(
            "only root installs services: put `sudo` before this, or look at the unit with --print"
        )


def _systemctl(root: Path, *arguments: str, remedy: str = "its own words are above") -> None:
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        raise ActionRequiredError(
            "systemd is not on this machine; docs/service.md describes Windows, macOS and containers"
        )
    options = [] if _runs(root) else [f"--root={root}"]
    if subprocess.run([systemctl, *options, *arguments], check=False).returncode:  # noqa: S603  (nothing of others)
        raise ActionRequiredError(f"systemd refused `systemctl {' '.join(arguments)}`: {remedy}")


def _identity(work: Path, user: str | None, problems: list[str]) -> str:
    """Return who runs the daemon: the named user, or else the owner of the work directory.

    If that is root and the directory lies in /var/lib, it is a user that systemd makes for the time it runs.

    Args:
        problems: a sentence is added where it may be none of them.
    """
    if user is None and work.parent in _STATE and (work.parent == _STATE[1] or _owner(work) == "root"):
        return f"DynamicUser=yes\nStateDirectory={_quoted(work.name)}\nStateDirectoryMode=0700"
    owner = _owner(work)
    if user not in (None, owner) and not _is_user(user):
        problems.append(f"--user {user}: there is no such user on this machine; correct the name")
    elif owner == "root" and user in (None, "root"):
        problems.append(
            f"{work}: belongs to root, whose rights the daemon may not have: `chown -R USER`, or use /var/lib"
        )
    elif user == "root":
        remedy = f"leave it out, and {owner}, who owns {work}, runs it"
        problems.append(f"--user root: the daemon may not have the rights of root; {remedy}")
    elif user not in (None, owner):
        problems.append(f"{work}: belongs to {owner}, not to {user}: `chown -R {user} {quoted(work)}` first")
    return f"User={user or owner}"


def _not_roots(path: Path) -> Path | None:
    """Return what of a file and the folders above it somebody else than root can change or replace, or None."""
    for each in (path, *path.parents):
        found = each.lstat()
        is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or is_shared or stat.S_ISLNK(found.st_mode):
            return each
    return None


def _owner(work: Path) -> str:
    try:
        return work.owner()
    except KeyError:
        return str(work.stat().st_uid)


def _is_user(name: str) -> bool:
    from pwd import getpwnam  # noqa: PLC0415  (not on Windows, where there is no systemd either)

    try:
        getpwnam(name)
    except KeyError:
        return False
    return True


def _template() -> Template:
    return Template((importlib.resources.files("deploy") / "systemd" / "dropfed-site.service").read_text("utf-8"))


def _escaped(text: str | Path) -> str:
    """Return a value of a unit that ends with its line.

    Raises:
        ConfigurationError: it holds what units give a meaning to.
    """
    value = str(text)
    if not value.isprintable() or value != value.strip() or set(value) & set("\\\"'"):
        raise ConfigurationError([f"{value!r}: no service can be given this path; rename it"])
    return value.replace("%", "%%")


def _quoted(text: str | Path) -> str:
    """Return a value of a unit that is one word of several."""
    return f'"{_escaped(text)}"'
