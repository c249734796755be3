"""The stand-in's accounts and shares, as ownCloud's OCS interface, version 2, was seen to answer about them.

Where ``is_nextcloud``, it answers as Nextcloud's documentation and source have it; no real one was asked.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.folder.owncloud import OwnCloud

ACCOUNT, LINK = 0, 3
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class OcsRefusal(Exception):  # noqa: N818  (an answer, not a fault of ours)
    """A refusal: the HTTP status, the code in the answer, and its message."""

    def __init__(self, status: int, code: int, message: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


UNAUTHORISED = OcsRefusal(401, 997, "Unauthorised")


@dataclass
class Shared:
    """A folder that is shared. ``target``: its name in the recipient's home, once it is mounted there."""

    id: str
    kind: int
    owner: str
    folder: Path
    permissions: int
    account: str | None = None
    token: str | None = None
    name: str = ""
    state: int = 0
    target: str = ""
    is_mounted: bool = False


class Ocs:
    """What lies behind ``/ocs/v2.php``."""

    def __init__(self, world: OwnCloud) -> None:
        self._world = world

    def answer(self, method: str, path: str, query: Mapping[str, str], form: Mapping[str, str], user: str) -> bytes:
        """Answer one request of ``user``, who has shown the right password."""
        match method, path.strip("/").split("/"):
            case _, ["cloud", "users", *names]:
                told = self._users(method, names, form, user)
            case _, ["apps", "files_sharing", "api", "v1", "shares", *ids]:
                self.mount_for(user)
                told = self._shares(method, ids, query, form, user)
            case _:
                raise OcsRefusal(404, 998, "Invalid query, please check the syntax.")
        return document("ok", 200, None, told)

    # --- accounts ------------------------------------------------------------------------------------------

    def _users(self, method: str, names: list[str], form: Mapping[str, str], user: str) -> Any:
        world = self._world
        if user not in world.admins:
            raise UNAUTHORISED
        if method == "POST" and not names:
            if self._known_as(form["userid"]):
                raise OcsRefusal(400, 400, "User already exists")
            if len(form["password"]) < world.least_password:
                raise OcsRefusal(400, 400, "The password is too short")
            (world.store.root / form["userid"]).mkdir(exist_ok=True)
            world.users[form["userid"]] = form["password"]
            return []
        if (known_as := self._known_as(names[0])) is None:
            raise OcsRefusal(404, 998, "The requested user could not be found")
        match method, [known_as, *names[1:]]:
            case "GET", [name]:
                quota = world.store.quotas.get(name)
                definition = {"definition": "default" if quota is None else f"{quota / UNITS['GB']:g} GB"}
                told = {"quota": -3 if quota is None else quota} if world.is_nextcloud else definition
                is_enabled = name not in world.disabled
                enabled = is_enabled if world.is_nextcloud else str(is_enabled).lower()
                return {"id": name, "enabled": enabled, "quota": {"used": 0, **told}}
            case "PUT", [name]:
                amount, unit = form["value"].split()
                world.store.quotas[name] = round(float(amount) * UNITS[unit])
            case "PUT", [name, "disable"]:
                world.disabled.add(name)
            case "PUT", [name, "enable"]:
                world.disabled.discard(name)
        return []

    def _known_as(self, name: str) -> str | None:
        """An account's name as it was made; accounts are known in any letters."""
        return next((user for user in self._world.users if user.lower() == name.lower()), None)

    # --- shares --------------------------------------------------------------------------------------------

    def _shares(self, method: str, ids: list[str], query: Mapping[str, str], form: Mapping[str, str], user: str) -> Any:
        shares = self._world.shares
        match method, ids:
            case "GET", [] if query.get("shared_with_me") == "true":
                wanted = None if query.get("state") == "all" and not self._world.is_nextcloud else 0
                return [
                    self._told(share) | {"state": share.state}
                    for share in shares.values()
                    if share.account == user and wanted in (None, share.state)
                ]
            case "GET", []:
                folder = self._folder(user, query["path"])
                return [self._told(share) for share in shares.values() if share.folder == folder]
            case "POST", []:
                return self._told(self._new(form, user))
            case "POST", ["pending", share_id] if share_id in shares and shares[share_id].account == user:
                shares[share_id].state = 0
                return []
            case "PUT", [share_id] if share_id in shares and shares[share_id].owner == user:
                shares[share_id].permissions = int(form["permissions"])
                return self._told(shares[share_id])
            case "DELETE", [share_id] if share_id in shares and shares[share_id].owner == user:
                self._remove(shares.pop(share_id))
                return []
        raise OcsRefusal(404, 404, "Wrong share ID, share doesn't exist")

    def _new(self, form: Mapping[str, str], user: str) -> Shared:
        world = self._world
        folder, kind, permissions = self._folder(user, form["path"]), int(form["shareType"]), int(form["permissions"])
        if permissions == 0:
            raise OcsRefusal(400, 400, "A share requires permissions")
        share = Shared(secrets.token_hex(4), kind, user, folder, permissions, name=form.get("name", ""))
        if kind == ACCOUNT:
            share.account, share.target = self._known_as(form["shareWith"]), folder.name
            if share.account is None:
                raise OcsRefusal(404, 404, "Please specify a valid user")
            if any((other.account, other.folder) == (share.account, folder) for other in world.shares.values()):
                raise OcsRefusal(403, 403, "Path already shared with this user")
            share.state = 0 if world.accepts_shares else 1
        else:
            share.token = secrets.token_urlsafe(12)[:15].replace("_", "x").replace("-", "y")
            world.links[share.token] = folder, form["password"]
        world.shares[share.id] = share
        return share

    def _folder(self, user: str, path: str) -> Path:
        folder = (self._world.store.root / user / path.strip("/")).resolve()
        if not folder.is_dir():
            raise OcsRefusal(404, 404, "Wrong path, file/folder doesn't exist")
        return folder

    def _told(self, share: Shared) -> dict[str, Any]:
        of_link = share.kind == LINK
        # where sharing with other servers is on, Nextcloud's links say that they may be shared on
        permissions = share.permissions | 16 if of_link and self._world.is_nextcloud else share.permissions
        told = {"id": share.id, "share_type": share.kind, "permissions": permissions, "uid_owner": share.owner}
        told |= {"token": share.token, "expiration": self._world.shares_end, "file_target": f"/{share.target}"}
        if of_link:
            return told | {"label" if self._world.is_nextcloud else "name": share.name, "share_with": "***redacted***"}
        return told | {"share_with": share.account}

    def _remove(self, share: Shared) -> None:
        if share.token is not None:
            del self._world.links[share.token]
        elif share.is_mounted:
            (self._world.store.root / (share.account or "") / share.target).unlink()

    def mount_for(self, user: str) -> None:
        """Let a user who comes in find what was shared meanwhile, each folder under a free name."""
        home = self._world.store.root / user
        for share in self._world.shares.values():
            if share.account != user or share.state or share.is_mounted:
                continue
            number = 1
            while (home / share.target).exists():
                number += 1
                share.target = f"{share.folder.name} ({number})"
            (home / share.target).symlink_to(share.folder)
            share.is_mounted = True

    def permissions(self, tree: Path, inside: str, token: str) -> int:
        """What is permitted at a place to who does not own it."""
        for share in self._world.shares.values():
            is_received = share.account == tree.name and inside.partition("/")[0] == share.target
            if is_received or (share.token is not None and share.token == token):
                return share.permissions
        return 31


def document(status: str, code: int, message: str | None, told: object) -> bytes:
    """An answer, as JSON."""
    return json.dumps(
        {"ocs": {"meta": {"status": status, "statuscode": code, "message": message}, "data": told}}
    ).encode()
