"""A tiny WebDAV server in memory that misbehaves on demand, over real sockets."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace
from types import TracebackType
from urllib.parse import unquote, urlsplit

from tests.faults.exchange import Answer, Exchange, Fault, Server
from tests.faults.faults import HangUp, LoseAnswer, Say, Truncate


class FaultyServer:
    """Serves ``/drop``; ``files`` and ``folders`` are keyed by the path below it, which has no final slash."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.folders = {""}
        self.requests: list[str] = []  # "METHOD path"
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.refuses_moves = False  # like a create-only share of ownCloud
        self.ignores_overwrite = False
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._always: dict[str, Fault] = {}
        self._server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"world": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/drop"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, method: str, *faults: Fault) -> None:
        """Answer the next requests of this kind with ``faults``, one each, and then behave."""
        self._faults[method] += faults

    def always_fail(self, method: str, fault: Fault) -> None:
        self._always[method] = fault

    def fault_for(self, method: str) -> Fault | None:
        if self._faults[method]:
            return self._faults[method].pop(0)
        return self._always.get(method)

    def count(self, method: str) -> int:
        return sum(request.startswith(f"{method} ") for request in self.requests)


class Handler(Exchange):
    world: FaultyServer

    def setup(self) -> None:
        super().setup()
        self.world.connections += 1

    def fault(self) -> Fault | None:
        self.name = _inside(self.path)
        self.world.requests.append(f"{self.command} {self.name}")
        self.world.headers.append(dict(self.headers))
        return self.world.fault_for(self.command)

    def perform(self) -> Answer:
        return Answer(*self.behave())

    def reply(self, answer: Answer) -> None:
        """Answer as servers do, saying who they are and what time it is there."""
        own = (("Server", self.version_string()), ("Date", self.date_time_string()))
        super().reply(replace(answer, headers=(*own, *answer.headers)))

    def behave(self) -> tuple[int, bytes]:
        world, name = self.world, self.name
        parent = name.rpartition("/")[0]
        match self.command:
            case "GET":
                return (200, world.files[name]) if name in world.files else (404, b"")
            case "PUT":
                if parent not in world.folders:
                    return 409, b""
                if world.refuses_moves and name in world.files:
                    return 403, b""
                world.files[name] = self.body
                return 201, b""
            case "DELETE":
                if world.refuses_moves:
                    return 403, b""
                return (204, b"") if world.files.pop(name, None) is not None else (404, b"")
            case "MKCOL":
                if name in world.folders or name in world.files:
                    return 405, b""
                if parent not in world.folders:
                    return 409, b""
                world.folders.add(name)
                return 201, b""
            case "COPY":
                return 502, b""  # it has one folder alone
            case "MOVE":
                return self.move(_inside(self.headers["Destination"])), b""
        return self.listing()

    def move(self, target: str) -> int:
        world = self.world
        if world.refuses_moves:
            return 403
        if self.name not in world.files:
            return 404
        if target in world.files and self.headers.get("Overwrite") == "F" and not world.ignores_overwrite:
            return 412
        world.files[target] = world.files.pop(self.name)
        return 201

    def listing(self) -> tuple[int, bytes]:
        world, name = self.world, self.name
        if name in world.files:
            return 207, multistatus({name: len(world.files[name])})
        if name not in world.folders:
            return 404, b""
        found: dict[str, int | None] = {name: None}
        if self.headers.get("Depth") == "1":
            found |= {path: None for path in world.folders if path and path.rpartition("/")[0] == name}
            found |= {path: len(content) for path, content in world.files.items() if path.rpartition("/")[0] == name}
        return 207, multistatus(found)


def _inside(address: str) -> str:
    return unquote(urlsplit(address).path).removeprefix("/drop").strip("/")


def multistatus(found: dict[str, int | None]) -> bytes:
    """Return the document for paths and their sizes in bytes, None for folders."""
    responses = "".join(
        f"<D:response><D:href>/drop/{path}</D:href><D:propstat><D:prop>"
        + ("<D:resourcetype><D:collection/></D:resourcetype>" if size is None else "<D:resourcetype/>")
        + ("" if size is None else f"<D:getcontentlength>{size}</D:getcontentlength>")
        + "</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        for path, size in found.items()
    )
    return f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{responses}</D:multistatus>'.encode()


def dav_error(exception: str, message: str) -> bytes:
    """Return the document in which sabre/dav, and so ownCloud and Nextcloud, say why they refuse."""
    said = f"<s:exception>{exception}</s:exception><s:message>{message}</s:message>"
    return f'<?xml version="1.0"?><d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns">{said}</d:error>'.encode()


def says(status: int, body: bytes = b"", *headers: tuple[str, str]) -> Fault:
    """Read the request, do nothing, and answer."""
    return Say(status, body, headers)


def cuts_answer(keep: int, *, says_length: bool = True) -> Fault:
    """Do what was asked, but send only the first ``keep`` bytes of the answer's body."""
    return Truncate(keep, "right" if says_length else "none")


hangs_up = HangUp()
does_it_and_hangs_up = LoseAnswer()
