"""What an auditor names on the command line, as folders: copies, addresses, or all that an aggregator keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.desktop import is_left_by_desktop
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.drop_folder import drop_folder_around, lies_in
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey, RunKey
from shared.folder.contract import Entry, Folder
from shared.folder.durable import require_folder_of
from shared.folder.local import LocalFolder

_AGGREGATORS, _HOSPITALS = "aggregator.yaml", "site.yaml"
"""What lies in a work directory, and never in a drop folder."""
_CARDS = {names.FEDERATION, names.SITE_CARD}
_LEVELS = 5  # of folders that a message lies below its drop folder


@dataclass(frozen=True)
class Archive:
    """Sites' folders, by the name to show them under.

    Args:
        places: what of it was named on this machine.
        passed_over: files that a desktop left beside the folders.
        secret_key: opens what is encrypted in the folders, or in some of them.
        run_keys: in its place, by folder, what opens one run.
    """

    folders: dict[str, Folder]
    places: tuple[Path, ...] = ()
    secret_key: EncryptionKey | None = None
    passed_over: tuple[Path, ...] = ()
    run_keys: Mapping[str, RunKey] = field(default_factory=dict)


class MirroredFolder(LocalFolder):
    """The aggregator's copy of a site's folder; its heartbeat lies beside it, if the aggregator has ever read one.

    What is encrypted in the folder is not, in the copy.
    """

    def locate(self, path: str) -> Path:
        return self.root.parent / path if path == names.STATUS else super().locate(path)

    def list(self, path: str) -> list[Entry]:
        entries = super().list(path)
        beside = self.root.parent / names.STATUS
        if not path and beside.is_file():
            entries.append(Entry(names.STATUS, is_folder=False, size=beside.stat().st_size))
        return sorted(entries, key=lambda entry: entry.name)


def check_target(path: Path, audited: Sequence[Path] = ()) -> None:
    """Check that writing a file makes no folder, and changes nothing that is audited.

    Args:
        audited: what was named; without it, also a directory of nothing but drop folders.

    Raises:
        ConfigurationError: it would.
    """
    require_folder_of(path)
    folder = Path(os.path.realpath(path)).parent
    around = drop_folder_around(folder)
    beside = [each for each in folder.iterdir() if not is_left_by_desktop(each)]
    if not audited and beside and all(each.is_dir() and _is_drop_folder(each) for each in beside):
        around = folder
    for place in (*audited, *filter(None, (around,))):
        if lies_in(path, place):
            raise ConfigurationError(
                [f"{path}: lies in {place}, where an audit changes nothing; name a file elsewhere"]
            )


def open_archive(
    places: Sequence[str],
    *,
    user: str | None = None,
    ca_file: Path | None = None,
    ask_password: Callable[[str], str] | None = None,
    secret_key: Path | None = None,
) -> Archive:
    """Open each place: a drop folder or a copy of one, its WebDAV address, a directory of such, or the aggregator's
    work directory.

    Args:
        user: the account for addresses; its password comes from DROPFED_PASSWORD, or is asked for, at each server once.
        secret_key: the file with the private encryption key of a site or of the aggregator; a work directory has it.

    Raises:
        ConfigurationError: a place is none of these, or two are mixed that do not go together; or DROPFED_PASSWORD is
            there for two servers, one of which it would be shown in vain.
        ActionRequiredError: the key can be read by others, or is none; an address cannot be reached.
    """
    folders: dict[str, Folder] = {}
    local = [Path(place) for place in places if not is_address(place)]
    home = next((place for place in local if _has(place, _AGGREGATORS) and not _is_drop_folder(place)), None)
    if home is not None and len(places) > 1:
        raise ConfigurationError([f"{home}: is the aggregator's work directory, which has every folder; name it alone"])
    logins = _logins([place for place in places if is_address(place)], user, ask_password)
    for place in places:
        if not is_address(place):
            if home is not None:
                folders |= _mirrors(home)
            elif len(places) > 1 and _is_shut(Path(place)):
                folders |= _named(Path(place))  # a finding beside the others, which are checked
            else:
                folders |= _folders_at(Path(place))
            continue
        folders[place] = _folder_at_address(place, *logins[_server(place)], ca_file)
    if secret_key is not None:
        key: EncryptionKey | None = EncryptionKey.at(secret_key)
    else:
        key = EncryptionKey.found_at(home / ENCRYPTION_KEY_FILE) if home else None
    of_folders = [place for place in local if place.is_dir() and str(place) not in folders]
    passed_over = (path for place in of_folders for path in sorted(place.iterdir()) if is_left_by_desktop(path))
    return Archive(folders, tuple(local), key, tuple(passed_over))


def _logins(
    addresses: Sequence[str], user: str | None, ask_password: Callable[[str], str] | None
) -> dict[str, tuple[str, str]]:
    """Return the account and its password for each server, none of which sees another's."""
    logins: dict[str, tuple[str, str]] = {}
    known = os.environ.get("DROPFED_PASSWORD")
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise ConfigurationError(
                [f"{address}: only https:// addresses can be read; name one, or a copy on this disk"]
            )
        if user is None:
            raise ConfigurationError([f"{address}: name the account with --user"])
        if (server := _server(address)) in logins:
            continue
        if known is not None and logins:
            raise ConfigurationError(
                [
                    f"{address}: DROPFED_PASSWORD is the password of one server, and {next(iter(logins))} is another; "
                    "unset it, and type each when you are asked"
                ]
            )
        if known is not None:
            logins[server] = (user, known)
        elif ask_password is None:
            raise ConfigurationError([f"{address}: put the password of {user} into DROPFED_PASSWORD"])
        else:
            logins[server] = (user, ask_password(f"{user} at {server}"))
    return logins


def _server(address: str) -> str:
    """Return what of an address names the server."""
    return "/".join(address.split("/", 3)[:3])


def is_address(place: str) -> bool:
    """Return whether a place is named by its address on a server."""
    return "://" in place


def _folder_at_address(address: str, user: str, password: str, ca_file: Path | None) -> Folder:
    from shared.folder.webdav import WebDavFolder  # noqa: PLC0415  (local copies need no network)

    folder = WebDavFolder(address, user, password, ca_file=ca_file)
    try:
        found = {entry.name for entry in folder.list("")}
    except RejectedError:  # too long a listing: a finding
        return folder
    if not found & _CARDS:
        remedy = "name the address in the hospital's site.yaml, or in aggregator.yaml"
        raise ConfigurationError([f"{address}: is no drop folder, for {names.FEDERATION} is not in it; {remedy}"])
    return folder


def _mirrors(home: Path) -> dict[str, Folder]:
    """Return the copies in an aggregator's work directory."""
    mirrors = sorted(home.glob(f"sites/*/{names.MIRROR}"))
    if not mirrors:
        raise ConfigurationError([f"{home}: is an aggregator's work directory that no hospital has joined yet"])
    return {str(mirror): MirroredFolder(mirror) for mirror in mirrors}


def _folders_at(root: Path) -> dict[str, Folder]:
    """Return the drop folder that a directory is, or those that it holds; an unreadable one is a finding."""
    if not root.is_dir():
        raise ConfigurationError([f"{root}: is not a folder; name a copy of a drop folder, or its WebDAV address"])
    if _is_shut(root):
        raise ConfigurationError([f"{root}: may not be read here; have a copy made that you may read, and name that"])
    if _is_drop_folder(root):
        return _named(root)
    inside = sorted(path for path in root.iterdir() if not is_left_by_desktop(path))
    copies = [path for path in inside if _is_drop_folder(path)]
    if not copies:
        raise ConfigurationError([f"{root}: is no drop folder, and holds none: {_looks_like(root, inside)}"])
    copies = [path for path in inside if path in copies or _is_shut(path)]
    if others := [path for path in inside if path not in copies]:
        remedy = "put it elsewhere, or name the drop folders one by one"
        raise ConfigurationError([f"{others[0]}: lies among drop folders and is none; {remedy}"])
    return _named(*copies)


def _named(*roots: Path) -> dict[str, Folder]:
    return {str(root): LocalFolder(root) for root in roots}


def _is_shut(root: Path) -> bool:
    """Return whether a folder is one that this user may not list, or not look into."""
    try:
        with os.scandir(root):
            os.lstat(root / names.FEDERATION)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _is_drop_folder(root: Path) -> bool:
    """Return whether a folder says whose it is; a daemon's own copy does too, and has its heartbeat elsewhere."""
    if root.absolute().name == names.MIRROR and not _has(root, names.STATUS):
        return False
    return any(_has(root, name) for name in _CARDS)


def _has(root: Path, name: str) -> bool:
    return os.path.lexists(root / name)


def _looks_like(root: Path, inside: Sequence[Path]) -> str:
    """Return what a directory may be instead, and what to name."""
    above = list(root.resolve().parents)[:_LEVELS]
    if whole := next(filter(_is_drop_folder, above), None):
        return f"it lies within one; name {whole}"
    if below := sorted({path.parent for path in root.glob("*/*") if _is_drop_folder(path)}):
        return f"such folders lie deeper; name {' '.join(map(str, below))}"
    if home := next((path for path in (*above, *inside) if _has(path, _AGGREGATORS)), None):
        return f"an aggregator's work directory has a copy of each; name {home}"
    if any(_has(path, _HOSPITALS) for path in (root, *above[:1], *inside)):
        return "it looks like a hospital's work directory; name its drop folder, or a copy of that"
    if not any(root.iterdir()):
        return f"it is empty; name the folder with {names.FEDERATION}, or a copy of it"
    return f"name the folder with {names.FEDERATION}, or a directory that holds such folders and no others"
