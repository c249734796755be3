"""What an auditor names on the command line, as folders: copies, addresses, or all that an aggregator keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.folder.contract import Entry, Folder
from shared.folder.local import LocalFolder


@dataclass(frozen=True)
class Archive:
    """Sites' folders, by the name to show them under.

    Args:
        home: the aggregator's work directory, where the folders are its mirrors.
        secret_key: opens what is encrypted in the folders, or in some of them.
    """

    folders: dict[str, Folder]
    home: Path | None = None
    secret_key: EncryptionKey | None = None


class Mirror(LocalFolder):
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
        user: the account for addresses; its password comes from DROPFED_PASSWORD, or is asked for.
        secret_key: the file with the private encryption key of a site or of the aggregator; a work directory has it.

    Raises:
        ConfigurationError: a place is none of these, or two are mixed that do not go together.
        StandingError: the key can be read by others, or is none.
    """
    folders: dict[str, Folder] = {}
    home = None
    password = os.environ.get("DROPFED_PASSWORD")
    for place in places:
        if place.startswith(("http://", "https://")):
            from shared.folder.webdav import WebDavFolder  # noqa: PLC0415  (local copies need no network)

            if user is None:
                raise ConfigurationError([f"{place}: name the account with --user"])
            if password is None:
                if ask_password is None:
                    raise ConfigurationError([f"{place}: put the password of {user} into DROPFED_PASSWORD"])
                password = ask_password(user)
            folders[place] = WebDavFolder(place, user, password, ca_file=ca_file)
            continue
        root = Path(place)
        if not root.is_dir():
            raise ConfigurationError([f"{place}: is not a folder; name a copy of a drop folder, or its WebDAV address"])
        if mirrors := sorted(root.glob("sites/*/mirror")):
            home = root
            folders |= {str(mirror): Mirror(mirror) for mirror in mirrors}
        elif {path.name for path in root.iterdir()} & (names.ROOT_FILES | {names.RUNS}):
            folders[place] = LocalFolder(root)
        elif copies := sorted(path for path in root.iterdir() if path.is_dir()):
            folders |= {str(path): LocalFolder(path) for path in copies}
        else:
            problem = "holds nothing of a drop folder; name the folder with federation.json"
            raise ConfigurationError([f"{place}: {problem}"])
    if home is not None and len(places) > 1:
        raise ConfigurationError([f"{home}: is the aggregator's work directory, which has every folder; name it alone"])
    if secret_key is None and home is not None:
        return Archive(folders, home, EncryptionKey.found_at(home / ENCRYPTION_KEY_FILE))
    return Archive(folders, home, EncryptionKey.at(secret_key) if secret_key else None)
