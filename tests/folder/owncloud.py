"""A stand-in for ownCloud's interfaces for files and, in ``owncloud_ocs.py``, accounts and shares.

It speaks over real sockets, and keeps the files on disk.

    /status.php                        what it is, and whether it is under maintenance
    /remote.php/webdav/                the user's files
    /remote.php/dav/files/USER/        the same
    /remote.php/dav/uploads/USER/      large uploads in chunks, put together by a MOVE
    /public.php/webdav/                a public link: the user is the link's token
    /ocs/v2.php/                       accounts and shares

It does what exchanges with a real ownCloud were seen to do, also where that is odd: the chunk of a client that was
killed counts as stored, another user's folder looks empty, an overwrite within one second keeps the ETag.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from defusedxml.ElementTree import ParseError, fromstring

from tests.folder.owncloud_body import BLOCK, Body
from tests.folder.owncloud_locks import LockTable
from tests.folder.owncloud_multistatus import DAV, OC, element, multistatus, propstat, response
from tests.folder.owncloud_ocs import UNAUTHORISED, Ocs, OcsRefusal, Shared, document
from tests.folder.owncloud_ranges import BOUNDARY, END, heads_of, ranges_of
from tests.folder.owncloud_refusal import Refusal
from tests.folder.owncloud_store import (
    UPLOADS,
    Store,
    checked_name,
    demand_checksum,
    in_natural_order,
    size_below,
)

COOKIE = "ocstandin"
GAP_S = 0.005  # between the removal of a file that a MOVE replaces and its new name; on a real one it differs
USUAL_PROPERTIES = [
    f"{DAV}{name}"
    for name in (
        "getlastmodified",
        "getcontentlength",
        "resourcetype",
        "getetag",
        "getcontenttype",
        "quota-available-bytes",
        "quota-used-bytes",
    )
]
UPDATE, CREATE, DELETE = 2, 4, 8  # rights, as shares have them
ASSEMBLED = ".file"  # in an upload's folder: what its chunks will be together


class OwnCloud:
    """Serves the homes below ``root``; may be stopped and started again on the same port.

    Args:
        users: password by name. Each has a home, ``root/NAME``.

    Attributes:
        requests: (method, decoded path, bytes of the body that arrived) of every request that has ended.
        addresses: method, path and query of every request, as a server's log has them.
        sessions: who has shown the right password, by the cookie that was given for it.
        shares: those made through OCS, by id.
        admins: who may make accounts.
        disabled: accounts that nobody may enter.
        accepts_shares: what is shared with somebody need not be accepted first.
        tokens_alone: accounts that passwords do not open.
        least_password: characters that a new account's password must have.
        shares_end: until when shares may be used, as the administrator will have it.
        is_maintained: everything but status.php answers 503.
        most_body_bytes: a request with a longer body is answered 413, before it has come, as web servers do it.
        store: the files; ``store.quotas`` limits owners.
        locks: on the files; a test may have some left behind.
    """

    def __init__(self, root: Path, users: Mapping[str, str], *, port: int = 0, locks: LockTable | None = None) -> None:
        self.users = dict(users)
        self.links: dict[str, tuple[Path, str]] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.addresses: list[str] = []
        self.sessions: dict[str, str] = {}
        self.shares: dict[str, Shared] = {}
        self.admins: set[str] = set()
        self.disabled: set[str] = set()
        self.accepts_shares = True
        self.tokens_alone: set[str] = set()
        self.least_password = 0
        self.shares_end: str | None = None
        self.is_maintained = False
        self.most_body_bytes: int | None = None
        self.ocs = Ocs(self)
        self.store = Store(root, locks or LockTable())
        self.locks = self.store.locks
        self.port = port
        self.sockets: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        for user in users:
            (self.store.root / user).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> OwnCloud:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), type("Bound", (_Handler,), {"world": self}))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Cut all connections and end."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connected in list(self.sockets):
                with suppress(OSError):  # closed already
                    connected.shutdown(socket.SHUT_RDWR)
            self._server = None

    @property
    def is_nextcloud(self) -> bool:
        """Whether it says so, tells of accounts and links as Nextcloud does, and locks as Nextcloud does."""
        return self.locks.is_nextcloud

    @is_nextcloud.setter
    def is_nextcloud(self, is_nextcloud: bool) -> None:
        self.locks.is_nextcloud = is_nextcloud

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def share(self, owner: str, folder: str, user: str, name: str) -> None:
        """Let ``user`` find ``folder`` of ``owner`` as ``name``, with all rights."""
        shared = self.store.root / owner / folder
        shared.mkdir(parents=True, exist_ok=True)
        (self.store.root / user / name).symlink_to(shared)

    def link(self, owner: str, folder: str, token: str, password: str) -> None:
        """Open ``folder`` of ``owner`` to whoever knows ``token`` and ``password``."""
        linked = self.store.root / owner / folder
        linked.mkdir(parents=True, exist_ok=True)
        self.links[token] = (linked, password)


@dataclass(frozen=True)
class _Place:
    """What an address means.

    Attributes:
        endpoint: within which a MOVE or COPY must stay.
        prefix: the address of the tree's root, decoded.
        tree: the root on disk.
        inside: the path below the root, without slashes at its ends.
    """

    endpoint: str
    prefix: str
    tree: Path
    inside: str

    @property
    def disk(self) -> Path:
        return (self.tree / self.inside).resolve()

    @property
    def is_linked(self) -> bool:
        return self.endpoint.startswith("/public.php")

    @property
    def is_upload(self) -> bool:
        return self.tree.parent.name == UPLOADS

    @property
    def is_assembled(self) -> bool:
        return self.is_upload and self.inside.endswith(f"/{ASSEMBLED}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what went wrong, unless it is only that a client hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "ownCloud-stand-in"
    sys_version = ""
    disable_nagle_algorithm = True
    world: OwnCloud

    def setup(self) -> None:
        super().setup()
        self.world.sockets.add(self.connection)

    def finish(self) -> None:
        self.world.sockets.discard(self.connection)
        with suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        self.store = self.world.store
        self._new_cookie: str | None = None
        try:
            self.body = Body(self.rfile, self.headers, self.connection)
        except ValueError:  # the headers were cut
            self.close_connection = True
            return
        path = unquote(urlsplit(self.path).path)
        try:
            self._respond(path)
        except Refusal as refusal:
            self._refuse(refusal)
        except ConnectionError:
            self.close_connection = True
        finally:
            self.world.requests.append((self.command, path, self.body.received))
            self.world.addresses.append(f"{self.command} {self.path}")

    do_GET = do_HEAD = do_PUT = do_DELETE = do_MKCOL = do_MOVE = do_COPY = do_PROPFIND = do_OPTIONS = handle_any  # noqa: N815
    do_POST = handle_any  # noqa: N815

    def _respond(self, path: str) -> None:
        if path == "/status.php":
            self._answer(200, json.dumps(self._status()).encode(), {"Content-Type": "application/json"})
            return
        if self.world.is_maintained:
            self._say_maintained(path)
            return
        if self.world.most_body_bytes is not None and (self.body.length or 0) > self.world.most_body_bytes:
            self._answer_too_large()
            return
        if path.startswith("/ocs/v2.php/"):
            self._ocs(path.removeprefix("/ocs/v2.php"))
            return
        place = self._place(path)
        if place is None:
            self._in_anothers_folder(path)
            return
        self._check_conditions(place)
        getattr(self, f"_{self.command.lower()}")(place)

    def _answer_too_large(self) -> None:
        """Answer, and hang up on what comes all the same once the client has had time to read that."""
        self._begin(413, {"Content-Length": "0", "Connection": "close"})
        self.wfile.flush()
        self.close_connection = True
        for _ in self.body.blocks():
            pass

    def _status(self) -> dict[str, object]:
        return {
            "installed": True,
            "maintenance": self.world.is_maintained,
            "needsDbUpgrade": False,
            "version": "11.0.0.0",
            "versionstring": "11.0.0",
            "edition": "Community",
            "productname": "Nextcloud" if self.world.is_nextcloud else "ownCloud",
            "product": "ownCloud",
        }

    def _say_maintained(self, path: str) -> None:
        if path.startswith("/ocs/"):
            self._answer(503, document("failure", 503, "Service unavailable", []), _JSON)
        elif path.startswith("/public.php/"):
            self._answer(503, b"<!DOCTYPE html><p>System in maintenance mode.</p>", _HTML | {"Retry-After": "120"})
        else:
            raise Refusal(503, "Sabre\\DAV\\Exception\\ServiceUnavailable", "System in maintenance mode.")

    def _ocs(self, path: str) -> None:
        form = dict(parse_qsl(b"".join(self.body.blocks()).decode()))
        query = dict(parse_qsl(urlsplit(self.path).query))
        try:
            user = self._account()
            if self.headers.get("OCS-APIRequest") != "true":
                raise UNAUTHORISED
            self._answer(200, self.world.ocs.answer(self.command, path, query, form, user), _JSON)
        except (Refusal, OcsRefusal) as raised:
            refusal = raised if isinstance(raised, OcsRefusal) else UNAUTHORISED
            content = document("failure", refusal.code, refusal.message, [])
            login = {"WWW-Authenticate": 'Basic realm="Authorisation Required"'} if refusal.status == 401 else {}
            self._answer(refusal.status, content, _JSON | login)

    # --- who and where -------------------------------------------------------------------------------------

    def _login(self) -> tuple[str, str]:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        with suppress(ValueError):
            user, separator, password = base64.b64decode(token).decode().partition(":")
            if kind.lower() == "basic" and separator:
                return user, password
        return "", ""

    def _place(self, path: str) -> _Place | None:
        """Return what an address means to who asks, None in the tree of somebody else."""
        match path.split("/"):
            case ["", "public.php", "webdav", *segments]:
                return self._inside("/public.php/webdav", "/public.php/webdav", self._linked(), segments)
            case ["", "remote.php", "webdav", *segments]:
                return self._inside("/remote.php/webdav", "/remote.php/webdav", self._home(self._account()), segments)
            case ["", "remote.php", "dav", "files" | "uploads" as kind, name, *segments]:
                user = self._account()
                if name != user:
                    return None
                tree = self._home(user) if kind == "files" else self.store.root / UPLOADS / user
                tree.mkdir(parents=True, exist_ok=True)
                return self._inside("/remote.php/dav", f"/remote.php/dav/{kind}/{user}", tree, segments)
        raise Refusal(404, "Sabre\\DAV\\Exception\\NotFound")

    def _inside(self, endpoint: str, prefix: str, tree: Path, segments: list[str]) -> _Place:
        return _Place(endpoint, prefix, tree, "/".join(checked_name(segment) for segment in segments if segment))

    def _home(self, user: str) -> Path:
        return self.store.root / user

    def _linked(self) -> Path:
        """Return the folder of the link whose token the login names."""
        token, password = self._login()
        tree, right = self.world.links.get(token, (Path(), None))
        is_known = right is not None and self._session() == token  # as with accounts; that of a link was not tried
        self._demand_login(is_known or password == right)
        self._begin_session(token)
        return tree

    def _account(self) -> str:
        """Return the account that asks. A session counts for more than what the login says beside it."""
        user, password = self._login()
        if self._session() in self.world.users:
            user = self._session()
        elif user in self.world.tokens_alone:
            raise Refusal(
                401, "OCA\\DAV\\Connector\\Sabre\\Exception\\PasswordLoginForbidden", "password login forbidden"
            )
        else:
            self._demand_login(self.world.users.get(user) == password)
        if user in self.world.disabled:
            raise Refusal(401, "Sabre\\DAV\\Exception\\NotAuthenticated", "User disabled")
        self._begin_session(user)
        self.world.ocs.mount_for(user)
        return user

    def _session(self) -> str:
        """Return whom the request's cookie was given to, empty if there is none."""
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        return self.world.sessions.get(cookie.value, "") if cookie is not None else ""

    def _begin_session(self, user: str) -> None:
        if self._session() != user and self._new_cookie is None:
            self._new_cookie = secrets.token_hex(16)
            self.world.sessions[self._new_cookie] = user

    def _demand_login(self, is_right: bool) -> None:
        if not is_right:
            raise Refusal(401, "Sabre\\DAV\\Exception\\NotAuthenticated", "Username or password was incorrect")

    def _demand_right(self, place: _Place, right: int) -> None:
        token = self._login()[0] if place.is_linked else ""
        if not self.world.ocs.permissions(place.tree, place.inside, token) & right:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Permission denied")

    def _in_anothers_folder(self, path: str) -> None:
        """Answer as if it were an empty folder, or refuse; where there is no such user, nothing is there."""
        if path.split("/")[4] not in self.world.users:
            raise Refusal(409 if self.command in ("PUT", "MKCOL") else 404, "Sabre\\DAV\\Exception\\NotFound")
        if self.command == "PROPFIND" and path.rstrip("/").count("/") == 4:
            stat = propstat(["<d:resourcetype><d:collection/></d:resourcetype>"], 200)
            self._answer(207, multistatus([response(path, stat)]), _XML)
        else:
            raise Refusal(404 if self.command in ("GET", "HEAD") else 403, "Sabre\\DAV\\Exception\\Forbidden")

    def _check_conditions(self, place: _Place) -> None:
        etag = self._etag(place) if place.disk.exists() else None
        wanted, unwanted = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if wanted is not None and (etag is None or wanted not in ("*", etag)):
            raise Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed")
        if (
            unwanted is not None
            and self.command not in ("GET", "HEAD")
            and etag is not None
            and unwanted in ("*", etag)
        ):
            raise Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed")

    # --- files ---------------------------------------------------------------------------------------------

    def _options(self, place: _Place) -> None:
        self._answer(200, b"", {"DAV": "1, 3, extended-mkcol"})

    def _get(self, place: _Place) -> None:
        disk = place.disk
        if disk.is_dir():
            raise Refusal(501, "Sabre\\DAV\\Exception\\NotImplemented", "GET is only implemented for File objects")
        if not disk.exists():
            with self.store.locks.missing(self.store.name(disk)):
                self._demand_existing(disk)
        with self.store.locks.reading(self.store.name(disk)), self._opened(disk) as file:
            size = disk.stat().st_size
            headers = self._file_headers(place)
            if self.headers.get("If-None-Match") == headers["ETag"]:
                self._answer(304, b"", headers)
                return
            ranges = []
            if self.headers.get("If-Range", headers["ETag"]) == headers["ETag"]:
                ranges = ranges_of(self.headers.get("Range", ""), size)
            if len(ranges) > 1:
                self._send_parts(file, headers, ranges, size)
                return
            for start, end in ranges:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            start, end = ranges[0] if ranges else (0, size)
            self._begin(206 if ranges else 200, headers | {"Content-Length": str(end - start)})
            if self.command == "GET":
                self._send(file, start, end)

    def _head(self, place: _Place) -> None:
        self._get(place)

    def _send_parts(self, file: BinaryIO, headers: Mapping[str, str], ranges: list[tuple[int, int]], size: int) -> None:
        heads = heads_of(ranges, size, headers["Content-Type"])
        length = sum(end - start for start, end in ranges) + sum(map(len, heads)) + len(END)
        kind = {"Content-Type": f"multipart/byteranges; boundary={BOUNDARY}", "Content-Length": str(length)}
        self._begin(206, {**headers, **kind})
        if self.command == "GET":
            for head, (start, end) in zip(heads, ranges, strict=True):
                self.wfile.write(head)
                self._send(file, start, end)
            self.wfile.write(END)

    def _send(self, file: BinaryIO, start: int, end: int) -> None:
        file.seek(start)
        while file.tell() < end:
            self.wfile.write(file.read(min(BLOCK, end - file.tell())))

    def _opened(self, disk: Path) -> BinaryIO:
        self._demand_existing(disk)
        return disk.open("rb")

    def _put(self, place: _Place) -> None:
        disk = place.disk
        if self.headers.get("Content-Range") is not None:
            raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest", "Content-Range on PUT requests are forbidden.")
        if disk.is_dir() or not disk.parent.is_dir() or (place.is_upload and "/" not in place.inside):
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict")
        self._demand_right(place, UPDATE if disk.exists() else CREATE)
        self.store.demand_room(disk, self.body.length or 0)
        part = self.store.new_part()
        with self.store.written(disk):
            self._check_conditions(place)  # once more: somebody may have written it since
            try:
                with part.open("xb", buffering=0) as file:
                    for block in self.body.blocks():
                        file.write(block)
                if not self.body.is_whole and not (place.is_upload and self.body.is_sender_gone()):
                    raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest", "the body is shorter than announced")
                demand_checksum(self.headers.get("OC-Checksum"), part)
                is_new = self.store.publish(part, disk)
            finally:
                part.unlink(missing_ok=True)
        self._answer(201 if is_new else 204, b"", self._stored_headers(place))

    def _mkcol(self, place: _Place) -> None:
        disk = place.disk
        if place.is_upload and "/" in place.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden")
        self.store.demand_room(disk, 0)
        if not disk.parent.is_dir():
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict", "Parent node does not exist")
        self._demand_right(place, CREATE)
        with self.store.written(disk):
            self.store.make_folder(disk)
        self._answer(201)

    def _delete(self, place: _Place) -> None:
        share = place.tree / place.inside
        doomed = share if share.is_symlink() else place.disk
        if place.is_assembled:
            doomed = place.disk.parent
        if not place.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden")
        self._demand_existing(doomed)
        self._demand_right(place, DELETE)
        is_folder = doomed.is_dir()
        with self.store.written(doomed):
            self.store.remove(doomed)
        if is_folder and place.is_linked and not self.world.is_nextcloud:
            raise Refusal(500, "TypeError", "a fault of files_versions; the folder is gone all the same")
        self._answer(204)

    # --- moving and copying --------------------------------------------------------------------------------

    def _move(self, place: _Place) -> None:
        try:
            self._move_or_copy(place)
        except Refusal as refusal:
            if refusal.status == 423:
                raise Refusal(500, "OCP\\Lock\\LockedException", refusal.message) from None
            raise

    def _copy(self, place: _Place) -> None:
        self._move_or_copy(place)

    def _move_or_copy(self, place: _Place) -> None:
        target = self._place(unquote(urlsplit(self.headers.get("Destination", "")).path))
        if target is None or target.endpoint != place.endpoint or target.is_upload or not target.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Destination is out of this tree")
        source, destination = place.disk, target.disk
        existed, may_replace = destination.exists(), self.headers.get("Overwrite", "T") != "F"
        if place.is_assembled and existed and not may_replace:
            raise _exists()
        self._demand_existing(source.parent if place.is_assembled else source)
        self._demand_right(target, CREATE)
        if source == destination or destination.is_relative_to(source):
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Source and destination uri are identical.")
        if not destination.parent.is_dir():
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict", "The destination node is not found")
        if self.command == "MOVE" and existed and may_replace and not place.is_assembled:
            self._make_way(destination)
        with self.store.written(source, destination):
            if destination.exists() and not may_replace:
                raise _exists()
            if place.is_assembled:
                self._assemble(source.parent, destination)
            elif self.command == "MOVE":
                self.store.move(source, destination)
            else:
                self.store.demand_room(destination, size_below(source))
                self.store.copy(source, destination, keep_checksums=not place.is_linked)
        headers = self._stored_headers(target) if destination.is_file() else {}
        self._answer(204 if existed else 201, b"", headers)

    def _make_way(self, destination: Path) -> None:
        """Remove what a MOVE replaces, as sabre/dav does first: who reads in between finds nothing."""
        with self.store.written(destination), suppress(FileNotFoundError):
            self.store.remove(destination)
        time.sleep(GAP_S)

    def _assemble(self, upload: Path, destination: Path) -> None:
        """Put chunks together. What is refused leaves them as they are."""
        chunks = [upload / name for name in in_natural_order([chunk.name for chunk in upload.iterdir()])]
        total = size_below(upload)
        announced = self.headers.get("OC-Total-Length")
        if announced is not None and announced != str(total):
            message = f"Chunks on server do not sum up to {announced} but to {total}"
            raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest", message)
        self.store.demand_room(destination, total)
        part = self.store.new_part()
        try:
            with part.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk.read_bytes())
            demand_checksum(self.headers.get("OC-Checksum"), part)
            self.store.publish(part, destination)
        finally:
            part.unlink(missing_ok=True)
        self.store.remove(upload)

    # --- properties ----------------------------------------------------------------------------------------

    def _propfind(self, place: _Place) -> None:
        depth = self.headers.get("Depth", "1")
        if depth not in ("0", "1"):
            raise Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed", "Depth infinity is not allowed")
        question = b"".join(self.body.blocks())
        try:
            wanted = [prop.tag for prop in fromstring(question).findall(f"{DAV}prop/*")] if question else []
        except ParseError:
            raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest") from None
        places = [place]
        if not place.disk.exists():
            self.store.locks.look_at_missing(self.store.name(place.disk))
        self._demand_existing(place.disk.parent if place.is_assembled else place.disk)
        if depth == "1" and place.disk.is_dir():
            found = [entry.name for entry in place.disk.iterdir()]
            if place.is_upload and place.inside:
                found.append(ASSEMBLED)
            places += [
                _Place(place.endpoint, place.prefix, place.tree, f"{place.inside}/{name}".lstrip("/")) for name in found
            ]
        self._answer(207, multistatus([*self._described_all(places, wanted or USUAL_PROPERTIES)]), _XML)

    def _described_all(self, places: list[_Place], wanted: list[str]) -> Iterator[str]:
        for place in places:
            with suppress(FileNotFoundError):  # moved or removed since it was listed
                yield self._described(place, wanted)

    def _described(self, place: _Place, wanted: list[str]) -> str:
        known = self._properties(place)
        found = [element(tag, known[tag]) for tag in wanted if tag in known]
        missing = [element(tag, "") for tag in wanted if tag not in known]
        stats = propstat(found, 200) + (propstat(missing, 404) if missing else "")
        slash = "/" if place.disk.is_dir() else ""
        return response(f"{place.prefix}/{place.inside}".rstrip("/") + slash, stats)

    def _properties(self, place: _Place) -> dict[str, str]:
        if place.is_assembled:
            size = str(size_below(place.disk.parent))
            return {f"{DAV}getcontentlength": size, f"{DAV}resourcetype": ""}
        disk, node = place.disk, self.store.node(place.disk)
        received = "" if self.store.owner(disk) == place.tree.name else "S"
        properties = {
            f"{DAV}getlastmodified": formatdate(disk.stat().st_mtime, usegmt=True),
            f"{DAV}getetag": escape(self._etag(place)),
            f"{OC}fileid": str(node.id),
            f"{OC}size": str(size_below(disk)),
        }
        if disk.is_dir():
            available = self.store.available(disk)
            return properties | {
                f"{DAV}resourcetype": "<d:collection/>",
                f"{DAV}quota-available-bytes": str(-3 if available is None else available),
                f"{DAV}quota-used-bytes": str(self.store.used(disk)),
                f"{OC}permissions": f"{received}RDNVCK",
            }
        sums = " ".join(f"{kind}:{value}" for kind, value in (node.checksums or {}).items())
        return properties | {
            f"{DAV}resourcetype": "",
            f"{DAV}getcontentlength": str(disk.stat().st_size),
            f"{DAV}getcontenttype": _content_type(disk),
            f"{OC}permissions": f"{received}RDNVW",
            **({f"{OC}checksums": f"<oc:checksum>{sums}</oc:checksum>"} if sums else {}),
        }

    def _etag(self, place: _Place) -> str:
        return f'"{self.store.node(place.disk).etag}"'

    # --- answers -------------------------------------------------------------------------------------------

    def _demand_existing(self, path: Path) -> None:
        if not path.exists():
            raise Refusal(404, "Sabre\\DAV\\Exception\\NotFound", f"File with name {path.name} could not be located")

    def _stored_headers(self, place: _Place) -> dict[str, str]:
        etag = self._etag(place)
        return {"OC-FileId": f"{self.store.node(place.disk).id:08d}ocstandin", "ETag": etag, "OC-ETag": etag}

    def _file_headers(self, place: _Place) -> dict[str, str]:
        headers = self._stored_headers(place) | {
            "Content-Type": _content_type(place.disk),
            "Last-Modified": formatdate(place.disk.stat().st_mtime, usegmt=True),
        }
        checksums = self.store.node(place.disk).checksums
        if not checksums:
            return headers
        known = f"SHA1:{checksums['SHA1']}"
        return headers | {"OC-Checksum": f"{known}, {known}" if self.command == "HEAD" else known}

    def _refuse(self, refusal: Refusal) -> None:
        headers = dict(_XML)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="ownCloud", charset="UTF-8"'
        told = (
            '<?xml version="1.0" encoding="utf-8"?><d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns">'
            f"<s:exception>{escape(refusal.exception)}</s:exception><s:message>{escape(refusal.message)}</s:message>"
            "</d:error>"
        )
        self._answer(refusal.status, told.encode(), headers)

    def _answer(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        for _ in self.body.blocks():  # else the client is told only after it was cut off
            pass
        length = {} if status in (204, 304) else {"Content-Length": str(len(content))}
        with suppress(ConnectionError):
            self._begin(status, {**(headers or {}), **length})
            if self.command != "HEAD":
                self.wfile.write(content)
        self.close_connection = self.close_connection or not self.body.is_whole

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self._new_cookie is not None:
            self.send_header("Set-Cookie", f"{COOKIE}={self._new_cookie}; path=/; HttpOnly")
        self.end_headers()


_XML = {"Content-Type": "application/xml; charset=utf-8"}
_HTML = {"Content-Type": "text/html; charset=UTF-8"}
_JSON = {"Content-Type": "application/json; charset=utf-8"}


def _exists() -> Refusal:
    return Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed", "The destination node already exists")


def _content_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"
