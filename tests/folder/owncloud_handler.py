"""What the stand-in for ownCloud does with the requests for files, and to which place each of them belongs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

from defusedxml.ElementTree import ParseError, fromstring

from tests.folder.owncloud_answers import HTML, JSON, XML, Answering
from tests.folder.owncloud_body import BLOCK, Body
from tests.folder.owncloud_multistatus import DAV, multistatus, propstat, response
from tests.folder.owncloud_ocs import UNAUTHORISED, OcsRefusal, document
from tests.folder.owncloud_place import ASSEMBLED, MessageRef
from tests.folder.owncloud_properties import USUAL_PROPERTIES, content_type, described, etag_of
from tests.folder.owncloud_ranges import BOUNDARY, END, heads_of, ranges_of
from tests.folder.owncloud_refusal import Refusal
from tests.folder.owncloud_store import UPLOADS, checked_name, in_natural_order, require_checksum, size_below

GAP_S = 0.005  # between the removal of a file that a MOVE replaces and its new name; on a real one it differs
UPDATE, CREATE, DELETE = 2, 4, 8  # rights, as shares have them


class Handler(Answering):
    """One connection: what its requests do."""

    def handle_any(self) -> None:
        self.store = self.world.store
        self._new_cookie = None
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
        ref = self._place(path)
        if ref is None:
            self._in_anothers_folder(path)
            return
        self._check_conditions(ref)
        getattr(self, f"_{self.command.lower()}")(ref)

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
            self._answer(503, document("failure", 503, "Service unavailable", []), JSON)
        elif path.startswith("/public.php/"):
            self._answer(503, b"<!DOCTYPE html><p>System in maintenance mode.</p>", HTML | {"Retry-After": "120"})
        else:
            raise Refusal(503, "Sabre\\DAV\\Exception\\ServiceUnavailable", "System in maintenance mode.")

    def _ocs(self, path: str) -> None:
        form = dict(parse_qsl(b"".join(self.body.blocks()).decode()))
        query = dict(parse_qsl(urlsplit(self.path).query))
        try:
            user = self._account()
            if self.headers.get("OCS-APIRequest") != "true":
                raise UNAUTHORISED
            self._answer(200, self.world.ocs.answer(self.command, path, query, form, user), JSON)
        except (Refusal, OcsRefusal) as raised:
            refusal = raised if isinstance(raised, OcsRefusal) else UNAUTHORISED
            content = document("failure", refusal.code, refusal.message, [])
            login = {"WWW-Authenticate": 'Basic realm="Authorisation Required"'} if refusal.status == 401 else {}
            self._answer(refusal.status, content, JSON | login)

    # --- who and where -------------------------------------------------------------------------------------

    def _place(self, path: str) -> MessageRef | None:
        """Return what an address means to who asks, None in the tree of somebody else."""
        match path.split("/"):
            case ["", "public.php", "webdav", *segments]:
                return self._inside("/public.php/webdav", "/public.php/webdav", self._linked(), segments)
            case ["", "remote.php", "webdav", *segments]:
                return self._inside(
                    "/remote.php/webdav", "/remote.php/webdav", self.store.root / self._account(), segments
                )
            case ["", "remote.php", "dav", "files" | "uploads" as kind, name, *segments]:
                user = self._account()
                if name != user:
                    return None
                tree = self.store.root / (user if kind == "files" else f"{UPLOADS}/{user}")
                tree.mkdir(parents=True, exist_ok=True)
                return self._inside("/remote.php/dav", f"/remote.php/dav/{kind}/{user}", tree, segments)
        raise Refusal(404, "Sabre\\DAV\\Exception\\NotFound")

    def _inside(self, endpoint: str, prefix: str, tree: Path, segments: list[str]) -> MessageRef:
        return MessageRef(endpoint, prefix, tree, "/".join(checked_name(segment) for segment in segments if segment))

    def _home(self, user: str) -> Path:
        return self.store.root / user

    def _require_right(self, ref: MessageRef, right: int) -> None:
        token = self._login()[0] if ref.is_linked else ""
        if not self.world.ocs.permissions(ref.tree, ref.inside, token) & right:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Permission denied")

    def _in_anothers_folder(self, path: str) -> None:
        """Answer as if it were an empty folder, or refuse; where there is no such user, nothing is there."""
        if path.split("/")[4] not in self.world.users:
            raise Refusal(409 if self.command in ("PUT", "MKCOL") else 404, "Sabre\\DAV\\Exception\\NotFound")
        if self.command == "PROPFIND" and path.rstrip("/").count("/") == 4:
            stat = propstat(["<d:resourcetype><d:collection/></d:resourcetype>"], 200)
            self._answer(207, multistatus([response(path, stat)]), XML)
        else:
            raise Refusal(404 if self.command in ("GET", "HEAD") else 403, "Sabre\\DAV\\Exception\\Forbidden")

    def _check_conditions(self, ref: MessageRef) -> None:
        etag = etag_of(self.store, ref) if ref.disk.exists() else None
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

    def _options(self, ref: MessageRef) -> None:
        self._answer(200, b"", {"DAV": "1, 3, extended-mkcol"})

    def _get(self, ref: MessageRef) -> None:
        disk = ref.disk
        if disk.is_dir():
            raise Refusal(501, "Sabre\\DAV\\Exception\\NotImplemented", "GET is only implemented for File objects")
        if not disk.exists():
            with self.store.locks.missing(self.store.name(disk)):
                self._require_existing(disk)
        with self.store.locks.reading(self.store.name(disk)), self._opened(disk) as file:
            size = disk.stat().st_size
            headers = self._file_headers(ref)
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

    def _head(self, ref: MessageRef) -> None:
        self._get(ref)

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
        self._require_existing(disk)
        return disk.open("rb")

    def _put(self, ref: MessageRef) -> None:
        disk = ref.disk
        if self.headers.get("Content-Range") is not None:
            raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest", "Content-Range on PUT requests are forbidden.")
        if disk.is_dir() or not disk.parent.is_dir() or (ref.is_upload and "/" not in ref.inside):
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict")
        self._require_right(ref, UPDATE if disk.exists() else CREATE)
        self.store.require_room(disk, self.body.length or 0)
        part = self.store.new_part()
        with self.store.written(disk):
            self._check_conditions(ref)  # once more: somebody may have written it since
            try:
                with part.open("xb", buffering=0) as file:
                    for block in self.body.blocks():
                        file.write(block)
                if not self.body.is_whole and not (ref.is_upload and self.body.is_sender_gone()):
                    raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest", "the body is shorter than announced")
                require_checksum(self.headers.get("OC-Checksum"), part)
                is_new = self.store.publish(part, disk)
            finally:
                part.unlink(missing_ok=True)
        self._answer(201 if is_new else 204, b"", self._stored_headers(ref))

    def _mkcol(self, ref: MessageRef) -> None:
        disk = ref.disk
        if ref.is_upload and "/" in ref.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden")
        self.store.require_room(disk, 0)
        if not disk.parent.is_dir():
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict", "Parent node does not exist")
        self._require_right(ref, CREATE)
        with self.store.written(disk):
            self.store.make_folder(disk)
        self._answer(201)

    def _delete(self, ref: MessageRef) -> None:
        share = ref.tree / ref.inside
        doomed = share if share.is_symlink() else ref.disk
        if ref.is_assembled:
            doomed = ref.disk.parent
        if not ref.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden")
        self._require_existing(doomed)
        self._require_right(ref, DELETE)
        is_folder = doomed.is_dir()
        with self.store.written(doomed):
            self.store.remove(doomed)
        if is_folder and ref.is_linked and not self.world.is_nextcloud:
            raise Refusal(500, "TypeError", "a fault of files_versions; the folder is gone all the same")
        self._answer(204)

    # --- moving and copying --------------------------------------------------------------------------------

    def _move(self, ref: MessageRef) -> None:
        try:
            self._move_or_copy(ref)
        except Refusal as refusal:
            if refusal.status == 423:
                raise Refusal(500, "OCP\\Lock\\LockedException", refusal.message) from None
            raise

    def _copy(self, ref: MessageRef) -> None:
        self._move_or_copy(ref)

    def _move_or_copy(self, ref: MessageRef) -> None:
        target = self._place(unquote(urlsplit(self.headers.get("Destination", "")).path))
        if target is None or target.endpoint != ref.endpoint or target.is_upload or not target.inside:
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Destination is out of this tree")
        source, destination = ref.disk, target.disk
        existed, may_replace = destination.exists(), self.headers.get("Overwrite", "T") != "F"
        if ref.is_assembled and existed and not may_replace:
            raise _exists()
        self._require_existing(source.parent if ref.is_assembled else source)
        self._require_right(target, CREATE)
        if source == destination or destination.is_relative_to(source):
            raise Refusal(403, "Sabre\\DAV\\Exception\\Forbidden", "Source and destination uri are identical.")
        if not destination.parent.is_dir():
            raise Refusal(409, "Sabre\\DAV\\Exception\\Conflict", "The destination node is not found")
        if self.command == "MOVE" and existed and may_replace and not ref.is_assembled:
            self._make_way(destination)
        with self.store.written(source, destination):
            if destination.exists() and not may_replace:
                raise _exists()
            if ref.is_assembled:
                self._assemble(source.parent, destination)
            elif self.command == "MOVE":
                self.store.move(source, destination)
            else:
                self.store.require_room(destination, size_below(source))
                self.store.copy(source, destination, keep_checksums=not ref.is_linked)
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
        self.store.require_room(destination, total)
        part = self.store.new_part()
        try:
            with part.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk.read_bytes())
            require_checksum(self.headers.get("OC-Checksum"), part)
            self.store.publish(part, destination)
        finally:
            part.unlink(missing_ok=True)
        self.store.remove(upload)

    # --- properties ----------------------------------------------------------------------------------------

    def _propfind(self, ref: MessageRef) -> None:
        depth = self.headers.get("Depth", "1")
        if depth not in ("0", "1"):
            raise Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed", "Depth infinity is not allowed")
        question = b"".join(self.body.blocks())
        try:
            wanted = [prop.tag for prop in fromstring(question).findall(f"{DAV}prop/*")] if question else []
        except ParseError:
            raise Refusal(400, "Sabre\\DAV\\Exception\\BadRequest") from None
        refs = [ref]
        if not ref.disk.exists():
            self.store.locks.look_at_missing(self.store.name(ref.disk))
        self._require_existing(ref.disk.parent if ref.is_assembled else ref.disk)
        if depth == "1" and ref.disk.is_dir():
            found = [entry.name for entry in ref.disk.iterdir()]
            if ref.is_upload and ref.inside:
                found.append(ASSEMBLED)
            refs += [
                MessageRef(ref.endpoint, ref.prefix, ref.tree, f"{ref.inside}/{name}".lstrip("/")) for name in found
            ]
        self._answer(207, multistatus([*self._described_all(refs, wanted or USUAL_PROPERTIES)]), XML)

    def _described_all(self, refs: list[MessageRef], wanted: list[str]) -> Iterator[str]:
        for ref in refs:
            with suppress(FileNotFoundError):  # moved or removed since it was listed
                yield described(self.store, ref, wanted)

    # --- answers -------------------------------------------------------------------------------------------

    def _require_existing(self, path: Path) -> None:
        if not path.exists():
            raise Refusal(404, "Sabre\\DAV\\Exception\\NotFound", f"File with name {path.name} could not be located")

    def _stored_headers(self, ref: MessageRef) -> dict[str, str]:
        etag = etag_of(self.store, ref)
        return {"OC-FileId": f"{self.store.node(ref.disk).id:08d}ocstandin", "ETag": etag, "OC-ETag": etag}

    def _file_headers(self, ref: MessageRef) -> dict[str, str]:
        headers = self._stored_headers(ref) | {
            "Content-Type": content_type(ref.disk),
            "Last-Modified": formatdate(ref.disk.stat().st_mtime, usegmt=True),
        }
        checksums = self.store.node(ref.disk).checksums
        if not checksums:
            return headers
        known = f"SHA1:{checksums['SHA1']}"
        return headers | {"OC-Checksum": f"{known}, {known}" if self.command == "HEAD" else known}


def _exists() -> Refusal:
    return Refusal(412, "Sabre\\DAV\\Exception\\PreconditionFailed", "The destination node already exists")
