"""What a server's answer, or its absence, means: one sentence of one of the kinds in ``shared.errors``.

Each sentence says what happened, to which address, and what to do. None contains a password.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from shared.doors.dav_error import reason_of
from shared.doors.http_answer import delay_of, kinds_of, seconds_of
from shared.errors import ActionRequiredError, DropfedError, LockedError, NotFoundError, ProcessingError, TransientError
from shared.escaping import escape
from shared.folder.sockets import LEAST_BYTES

MAX_REMARK_BYTES = 1 << 16  # read of an answer whose body is not a file
MAX_REASON = 300  # characters shown of what a server says
_PASSING = (408, 409, 412, 423, 425, 429)
_TOKENS_ALONE = b"password login forbidden"  # said by ownCloud with 401 where passwords are not enough
_MAINTAINED = b"in maintenance mode"  # said by ownCloud and Nextcloud with 503, to those who enter by a link on a page
_UNTRUSTED = b"untrusted domain"  # said by ownCloud and Nextcloud with 400, on a page
_NETWORK = (OSError, requests.RequestException, HTTPError)
_DISABLED = {401: b"user disabled", 503: b"loginexception"}
"""What is said of an account that nobody may enter: by ownCloud, by Nextcloud."""


class RangeError(TransientError):
    """416: there is nothing from where we wanted to go on."""


class TooLargeError(ActionRequiredError):
    """413: the server takes no request as large as this one."""


@dataclass(frozen=True)
class Answer:
    """What the server said besides a file.

    Attributes:
        retry_after_s: seconds the server asks to wait, or None.
        location: where a redirect leads, or None.
        is_page: the body is a web page.
        headers: all of them, by name in any case.
        body: as far as it has been read: empty if it was not, or was longer than ``MAX_REMARK_BYTES``.
    """

    status: int
    retry_after_s: float | None = None
    location: str | None = None
    is_page: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    @property
    def is_processing(self) -> bool:
        """The server still works on what was just written."""
        if self.status != 503:
            return self.status == 425
        reason = reason_of(self.body)  # pages of proxies speak of processing a request
        return reason is not None and "processing" in reason.message.lower()

    @property
    def is_maintained(self) -> bool:
        """The server lets nobody in, for its people have it so."""
        return self.status == 503 and _MAINTAINED in self.body.lower()

    @property
    def says_disabled(self) -> bool:
        """Nobody may enter the account, whatever the password."""
        return self.status in _DISABLED and _DISABLED[self.status] in self.body.lower()

    @property
    def wants_token(self) -> bool:
        """The account is not entered by a password, whatever it is."""
        return self.status == 401 and _TOKENS_ALONE in self.body.lower()

    @property
    def wants_other_login(self) -> bool:
        """No password is taken at all."""
        kinds = {kind.lower() for kind in kinds_of(self.headers.get("WWW-Authenticate", ""))}
        return self.status == 401 and bool(kinds) and not kinds & {"basic", "digest"}

    @property
    def refuses_password(self) -> bool:
        """The server takes passwords, and not this one."""
        return self.status == 401 and not (self.says_disabled or self.wants_token or self.wants_other_login)

    @classmethod
    def of(cls, response: requests.Response, body: bytes | None = None) -> Answer:
        """Read the status line and the headers of ``response``; ``body`` was read before."""
        return cls(
            response.status_code,
            _seconds(response.headers.get("Retry-After", ""), response.headers.get("Date", "")),
            response.headers.get("Location"),
            response.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml")),
            response.headers,
            body or b"",
        )


def drain(response: requests.Response) -> bytes | None:
    """Read a short body to its end, for only then is the connection used again; return it.

    A long one costs the connection, and is not returned.
    """
    received = b""
    with suppress(Exception):  # the status has arrived and counts; a cut remark after it changes nothing
        for block in response.raw.stream(MAX_REMARK_BYTES, decode_content=False):
            received += block
            if len(received) > MAX_REMARK_BYTES:
                return None
    return received


def explain(answer: Answer, method: str, where: str, user: str, remedy: str) -> DropfedError:
    """Translate an answer that is not the wished-for one.

    Args:
        where: the address asked, as people should read it.
        user: who asked.
        remedy: what to do about a wrong user or password, as the end of a sentence.
    """
    status, reason = answer.status, reason_of(answer.body)
    said = f"{status} {_phrase(status)}"
    because = f" ({in_its_words(reason.message)})" if reason and reason.message else ""
    if answer.says_disabled:
        return ActionRequiredError(
            f"{where} says that account {user!r} is disabled: have whoever runs the server enable it."
        )
    if status == 401:
        return _login_refused(answer, where, user, remedy)
    if status == 403:
        return ActionRequiredError(
            f"{where} forbids {method} to user {user!r}{because}: have the folder's owner permit it."
        )
    if status in (404, 410):
        return NotFoundError(f"{where} is not there.")
    if status == 416:
        return RangeError(f"{where} is shorter than what is here of it already.")
    if status == 413:
        return TooLargeError(f"{where} is larger than the server accepts: have its upload limit raised.")
    if status == 507:
        return ActionRequiredError(f"There is no room left for {where}: free some space or have the quota raised.")
    if status == 400 and _UNTRUSTED in answer.body.lower():
        return ActionRequiredError(
            f"{where} does not answer under this name: have whoever runs the server add it to its trusted_domains."
        )
    if answer.is_maintained:
        said = "its server is in maintenance mode"
    # 400 on PUT is what Apache and ownCloud say when the body stalled or was cut on its way
    if status in _PASSING or status >= 500 or (status == 400 and method == "PUT"):
        said += because if status == 400 else ""  # of others its words may differ each time, and be told each time
        said += " (it is locked there)" if status == 500 and reason and "Locked" in reason.exception else ""
        return _passing(answer, method)(f"{where} cannot do {method} now: {said}.", retry_after_s=answer.retry_after_s)
    if 300 <= status < 400:
        return ActionRequiredError(
            f"{where} sends elsewhere, to {_shown(answer.location)}: configure the address that answers by itself."
        )
    if status < 300:
        return ActionRequiredError(
            f"{where} answers {method} with {'a web page' if answer.is_page else said}, not as a WebDAV folder does: "
            "check the address, and whether a login page or a proxy stands before it."
        )
    return ActionRequiredError(
        f"{where} refuses {method} with {said}{because}: check that the address is a WebDAV folder "
        "and that nothing on the way forbids this method."
    )


def _login_refused(answer: Answer, where: str, user: str, remedy: str) -> ActionRequiredError:
    """Translate 401; see ``explain``."""
    if answer.wants_token:
        return ActionRequiredError(
            f"{where} lets user {user!r} in by an app password alone: make one in that account's security settings, "
            "and use it as the password."
        )
    if answer.wants_other_login:
        wanted = kinds_of(answer.headers.get("WWW-Authenticate", ""))
        return ActionRequiredError(
            f"{where} wants a login by {in_its_words(' or '.join(wanted))}, which dropfed does not speak: have whoever "
            "runs the server allow passwords or app tokens (Basic) there."
        )
    return ActionRequiredError(f"{where} refuses user {user!r} or the password: {remedy}.")


def _passing(answer: Answer, method: str) -> type[TransientError]:
    """Return the kind of a trouble that passes. ownCloud says 500 to a MOVE of what is locked, and why."""
    if answer.is_processing:
        return ProcessingError
    if answer.status == 423:
        return LockedError
    if (answer.status, method) != (500, "MOVE"):
        return TransientError
    reason = reason_of(answer.body)
    return LockedError if reason is None or not reason.exception or "Locked" in reason.exception else TransientError


def in_its_words(text: str) -> str:
    """Return what a server says as it may be shown: on one line, and not too long."""
    return escape(text.strip())[:MAX_REASON]


def explain_silence(error: Exception, url: str, stall_s: float) -> TransientError | ActionRequiredError:
    """Translate a failure without a whole answer.

    Args:
        error: what requests, urllib3 or http.client raised, whatever it is.
        stall_s: seconds of standstill that were allowed.
    """
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ActionRequiredError(
                f"The certificate of {url} is not valid ({cause.verify_message}): "
                "name the file with the right certificate authority, or have the certificate renewed."
            )
        if type(cause) is OSError and "407" in str(cause):
            return ActionRequiredError(f"The proxy on the way to {url} wants a login: correct HTTPS_PROXY.")
        if isinstance(cause, TimeoutError | requests.Timeout):
            return TransientError(f"{url} stood still: fewer than {LEAST_BYTES} bytes moved in {stall_s:g} s.")
    # only the operating system's own words are fit to be shown; libraries wrap objects and addresses around them
    reasons = [
        cause.strerror or str(cause)
        for cause in causes
        if isinstance(cause, OSError) and (cause.strerror or type(cause) is OSError)
    ]
    if not reasons and not any(isinstance(cause, _NETWORK) for cause in causes):
        return TransientError(f"{url} sent an answer that is no HTTP: check what stands before the server.")
    return TransientError(f"The connection to {url} failed: {reasons[-1] if reasons else 'it was cut'}.")


def _seconds(retry_after: str, date: str) -> float | None:
    """Return Retry-After, a number of seconds or an HTTP date, in seconds from now; None if it is neither.

    Args:
        date: of the answer, by the same clock as an HTTP date in ``retry_after``; ours may be wrong.
    """
    if (delay := delay_of(retry_after)) is not None:
        return delay
    then, now = seconds_of(retry_after.strip()), seconds_of(date)
    return None if then is None else max(0.0, then - (time.time() if now is None else now))


def _shown(location: str | None) -> str:
    """Return a redirect's target without user, password and query, which may hold a token."""
    try:
        parts = urlsplit(location or "")
        return f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname else parts.path or "nowhere"
    except ValueError:
        return "a malformed address"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "(a status of its own)"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that lies behind it; requests and urllib3 hide causes in arguments and ``reason``."""
    seen: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and not any(cause is earlier for earlier in seen):
            seen.append(cause)
            yield cause
            pending += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
