"""One HTTP request at a time to one WebDAV folder: what webdavclient3 lacks to be trusted with data.

Paths are relative to the folder; one that begins with '/' is the server's own.

* No redirect is followed: requests would repeat a PUT with an empty body, or turn it into a GET, and report success.
* An upload has a stated length and is built anew for each request: a chunked or used-up body is stored empty.
* What arrives is bounded, and a body that ends early is an error.
* Every answer is read to its end, so that the connection is used again.
* The time limit is on standstill, never on the whole transfer.
* A server's cookies are shown again, for a session spares it most of its work, but for minutes only: to ownCloud they
  count for more than the password beside them, also after that was changed.
* Whatever the libraries below raise becomes one sentence without secrets, of one of the kinds in ``shared.errors``.
  What is raised inside a block that reads an answer is not theirs, and passes as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import quote, unquote, urlsplit

import requests
from webdav3.client import Client

from shared.doors import Refusal, multistatus
from shared.doors.http_answer import length_of, start_of
from shared.errors import ActionRequiredError, DropfedError, NotFoundError, RejectedError, TransientError
from shared.folder.address import checked_url, shown, shown_user
from shared.folder.answers import Answer, drain, explain, explain_silence
from shared.folder.contract import MAX_ENTRIES, SMALL_BYTES
from shared.folder.durable import BLOCK
from shared.folder.login import Password, PasswordLogin
from shared.folder.multistatus import QUESTION, Listing, listing_of
from shared.folder.sockets import CONNECT_S, Adapter, Sockets
from shared.folder.way import proxies_to

MAX_LISTING_BYTES = MAX_ENTRIES * 4096
NOBODY = ""
"""The user of a connection that shows no login."""
SESSION_S = 300.0  # then the cookies are dropped, and the password alone is shown once more
METHODS = ("GET", "POST", "PUT", "DELETE", "MKCOL", "MOVE", "COPY", "PROPFIND")


class FileBody:
    """An upload of exactly ``size`` bytes, from byte ``start`` of ``file`` each time it is iterated.

    Args:
        moved: told the size of each block that is about to go out; it may take its time.

    Attributes:
        error: what ended it, if it was neither its end nor the network.
    """

    def __init__(
        self, file: BinaryIO, size: int, moved: Callable[[int], None] = lambda _: None, *, start: int = 0
    ) -> None:
        self._file = file
        self._size = size
        self._moved = moved
        self._start = start
        self.error: Exception | None = None

    def __len__(self) -> int:  # requests sends it as Content-Length
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._blocks()
        except Exception as error:
            self.error = error
            raise

    def _blocks(self) -> Iterator[bytes]:
        self._file.seek(self._start)
        remaining = self._size
        while block := self._file.read(min(BLOCK, remaining)):
            remaining -= len(block)
            self._moved(len(block))
            yield block
        if remaining:
            raise ActionRequiredError(f"{self._file.name} shrank by {remaining} bytes while it was sent: make it anew.")


class Incoming:
    """The body of a successful answer, not yet read.

    Attributes:
        length: bytes announced by the server, or None.
        start: where in the file the body begins, in bytes.
        etag: the server's tag of the file, or None.
    """

    def __init__(self, response: requests.Response, path: str, explained: Callable[[Exception], DropfedError]) -> None:
        self.length = length_of(response.headers.get("Content-Length", ""))
        start = start_of(response.headers.get("Content-Range", ""))
        self.start = start if start is not None and response.status_code == 206 else 0
        self.etag = response.headers.get("ETag")
        self._response = response
        self._path = path
        self._explained = explained

    def blocks(self, limit: int) -> Iterator[bytes]:
        """Yield the whole body.

        Raises:
            RejectedError: it is longer than ``limit`` bytes.
            TransientError: it ended before its announced length.
        """
        if self.length is not None and self.length > limit:
            raise RejectedError(self._path, f"has {self.length} bytes where {limit} are allowed")
        received = 0
        blocks = self._response.raw.stream(BLOCK, decode_content=False)
        while block := self._next(blocks):
            received += len(block)
            if received > limit:
                raise RejectedError(self._path, f"has more than the {limit} bytes allowed")
            yield block
        if self.length is not None and received < self.length:
            raise TransientError(f"{self._path} was cut off after {received} of {self.length} bytes.")

    def _next(self, blocks: Iterator[bytes]) -> bytes:
        """Return the next block, empty at the end."""
        try:
            return next(filter(None, blocks), b"")
        except Exception as error:
            raise self._explained(error) from error


class Connection:
    """Keeps one connection to the folder at ``url`` and speaks for one user. Not shared between threads.

    Attributes:
        another: makes one more to the same folder, for another thread.
    """

    def __init__(self, url: str, user: str, password: str | Password, *, ca_file: Path | None, stall_s: float) -> None:
        """See ``WebDavFolder``.

        Raises:
            ActionRequiredError: an address, a password or a CA file that cannot be used.
        """
        if isinstance(password, str):
            password = Password.fixed(password)
        self.another = partial(Connection, url, user, password, ca_file=ca_file, stall_s=stall_s)
        self.url = checked_url(url)
        self.path = unquote(urlsplit(self.url).path)
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(self.url))
        self.user = user
        self.shown_user = shown_user(self.url, user)
        self._remedy = password.remedy
        self._stall_s = stall_s
        if ca_file is not None and not ca_file.is_file():
            raise ActionRequiredError(f"The CA file {ca_file} is not there: correct its path in the configuration.")
        client = Client({"webdav_hostname": self._origin, "disable_check": True})
        client.requests = {method: method for method in METHODS}
        client.http_header = {}
        client.timeout = (min(stall_s, CONNECT_S), stall_s)  # to connect; for each wait on the socket
        client.verify = True if ca_file is None else str(ca_file)
        session, self._sockets = client.session, Sockets(stall_s)
        for scheme in ("http://", "https://"):
            session.mount(scheme, Adapter(self._sockets))
        self._login = PasswordLogin(self._origin, self.url, user, password, self.shown_user)
        session.auth = None if user == NOBODY else self._login
        session.trust_env = False  # never ~/.netrc; the proxy is the one thing taken from the environment
        session.proxies = proxies_to(self.url)
        session.max_redirects = 0
        # in English, for by some of a server's words its answers are told apart
        session.headers.update({"Accept-Encoding": "identity", "Accept-Language": "en", "User-Agent": "dropfed"})
        session.hooks["response"].append(_stop_at_refusal)
        self._client = client
        self._session_ends_at = time.monotonic() + SESSION_S

    def interrupt(self) -> None:
        """Have what another thread waits for here end at once; it fails as when the server hangs up."""
        self._sockets.cut()

    def forget_session(self) -> None:
        """Drop the server's cookies: the next request shows the password alone, and only that decides."""
        self._client.session.cookies.clear()
        self._session_ends_at = time.monotonic() + SESSION_S

    @property
    def account(self) -> tuple[str, str]:
        """The server and the user: what one such pair may read, it may copy."""
        return self._origin, self.user

    @property
    def login(self) -> str:
        """How the password is shown: Basic or Digest, as far as the server has said what it wants."""
        return self._login.kind

    def on_server(self, path: str) -> str:
        """Return ``path`` from after the host name, not percent-encoded, beginning with '/'."""
        return path if path.startswith("/") else f"{self.path}/{path}"

    def where(self, path: str) -> str:
        """Return the address of ``path`` as people should read it: no secrets, no percent signs."""
        return shown(f"{self._origin}{self.on_server(path)}".rstrip("/"))

    def address(self, path: str) -> str:
        """Return the whole address of ``path``, percent-encoded."""
        return f"{self._origin}{self.quoted(path)}"

    def quoted(self, path: str) -> str:
        """Return the address of ``path`` from after the host name, percent-encoded."""
        return quote(self.on_server(path), safe="/")

    def send(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes | FileBody | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make a request whose answer's body is short, or does not matter; return the answer, whatever its status.

        Args:
            query: what follows the path, percent-encoded, beginning with '?'.

        Raises:
            TransientError, ActionRequiredError: there was no answer.
        """
        if self._login.kind == "Digest" and isinstance(body, FileBody) and len(body) > SMALL_BYTES:
            # what the server wants to be answered may have changed: better that it says so to something small
            small = self.send("PROPFIND", "", headers={"Depth": "0"})
            if small.status == 401:
                return small
        try:
            response = self._answer(method, path, body, headers or {}, query)
            with _released(response):
                return Answer.of(response, drain(response))
        except _RefusalError as refusal:
            return refusal.answer

    def relocate(self, method: Literal["MOVE", "COPY"], source: str, target: str, *, overwrite: bool) -> Answer:
        """Have the server move or copy a file; return the answer, whatever its status."""
        headers = {"Destination": self.address(target), "Overwrite": "T" if overwrite else "F"}
        answer = self.send(method, source, headers=headers)
        if answer.status in (400, 502):
            # Behind a proxy the server may know itself by another name; a bare path means the same file.
            answer = self.send(method, source, headers=headers | {"Destination": self.quoted(target)})
        return answer

    def listing(self, path: str, *, depth: Literal[0, 1]) -> Listing:
        """Ask what is at ``path`` and, with depth 1, what lies directly in it; a folder's path may end in '/'.

        Raises:
            DropfedError: no answer, or one that is no whole listing; NotFoundError if nothing is there.
        """
        headers = {"Depth": str(depth), "Content-Type": "application/xml; charset=utf-8"}
        reader, where = multistatus.Reader(MAX_ENTRIES), self.where(path)
        with self.open("PROPFIND", path, status=207, body=QUESTION, headers=headers) as body:
            try:
                for block in body.blocks(MAX_LISTING_BYTES):
                    reader.feed(block)
                responses = reader.close()
            except multistatus.TooLong as refusal:
                raise RejectedError(path or ".", str(refusal)) from None
            except multistatus.NotWhole as refusal:
                raise TransientError(f"{where} {refusal}.") from None
            except Refusal as refusal:
                raise ActionRequiredError(f"{where} {refusal}.") from None
        return listing_of(responses, self.on_server(path).rstrip("/"), where)

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        status: int | tuple[int, ...],
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Incoming]:
        """Make a request whose answer's body is to be read inside the block.

        Args:
            status: what alone means success.

        Raises:
            DropfedError: no answer, another answer (see ``error``), or a web page in place of a file.
        """
        try:
            response = self._answer(method, path, body, headers or {})
        except _RefusalError as refusal:
            raise self.error(refusal.answer, method, path) from None
        with _released(response):
            answer = Answer.of(response)
            is_page = answer.is_page and not path.lower().endswith((".html", ".htm"))
            if answer.status not in (status if isinstance(status, tuple) else (status,)) or is_page:
                raise self.error(answer, method, path)
            if response.headers.get("Content-Encoding", "identity") not in ("", "identity"):
                raise ActionRequiredError(
                    f"{self.where(path)} arrived compressed although it was asked for as it is: "
                    "switch off compression in the server or the proxy before it."
                )
            yield Incoming(response, path, self._explained)

    def _answer(
        self, method: str, path: str, body: bytes | FileBody | None, headers: Mapping[str, str], query: str = ""
    ) -> requests.Response:
        """Make a request; return the answer, whose body is still to be read.

        Raises:
            TransientError, ActionRequiredError: there was none.
            _RefusalError: it is not of success.
        """
        if time.monotonic() >= self._session_ends_at:
            self.forget_session()
        lines = [f"{name}: {text}" for name, text in headers.items()]
        if isinstance(body, FileBody) and len(body) == 0:
            body = b""  # requests would send an empty iterable chunked, and some servers then store nothing
        try:
            response: requests.Response = self._client.execute_request(method, self.quoted(path) + query, body, lines)
            self._login.taken(response.request)
            return response
        except _RefusalError as refusal:
            if refusal.answer.status == 401:
                # COPY may ask another folder, which has a password of its own
                self._login.refused(is_wrong=refusal.answer.refuses_password and method != "COPY")
            raise
        except DropfedError:
            raise
        except Exception as error:
            if isinstance(body, FileBody) and body.error is not None:
                raise body.error from None
            raise self._explained(error) from error
        finally:
            self._login.answered()

    def _explained(self, error: Exception) -> DropfedError:
        return explain_silence(error, shown(self.url), self._stall_s)

    def error(self, answer: Answer, method: str, path: str) -> DropfedError:
        """Translate an answer that is not the wished-for one."""
        if method == "GET" and 300 <= answer.status < 400 and f"/{quote(path)}/" in (answer.location or ""):
            return NotFoundError(f"{self.where(path)} is a folder, not a file.")
        return explain(answer, method, self.where(path), self.shown_user, self._remedy)


@contextmanager
def _released(response: requests.Response) -> Iterator[None]:
    """Close an answer when the block ends, whatever the libraries say to that."""
    try:
        yield
    finally:
        with suppress(Exception):
            response.close()


class _RefusalError(Exception):
    """Any status outside 200..299, on its way from the response hook to ``send`` or ``open``."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def _stop_at_refusal(response: requests.Response, **_: object) -> None:
    """Raise before requests follows a redirect and before webdavclient3 drops the headers and the body."""
    if not 200 <= response.status_code < 300:
        with _released(response):
            raise _RefusalError(Answer.of(response, drain(response)))
