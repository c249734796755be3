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

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.faults.exchange import Server
from tests.folder.owncloud_handler import Handler
from tests.folder.owncloud_locks import LockTable
from tests.folder.owncloud_ocs import Ocs, Shared
from tests.folder.owncloud_store import Store


class OwnCloud:
    """Serves the homes below ``root``; may be stopped and started again on the same port.

    Args:
        users: password by name. Each has a home, ``root/NAME``.

    Attributes:
        requests: (method, decoded path, bytes of the body that arrived) of every request that has ended.
        addresses: method, path and query of every request, as a server's log has them.
        sessions: who has shown the right password, by the cookie that was given for it.
        shares: those made through OCS, by id.
        emails: by which an account is entered too, each with its name.
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
        self.emails: dict[str, str] = {}
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
        self._server: Server | None = None
        for user in users:
            (self.store.root / user).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> OwnCloud:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        self._server = Server(("127.0.0.1", self.port), type("Bound", (Handler,), {"world": self}))
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
