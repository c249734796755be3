"""What provisioning needs of ownCloud's and Nextcloud's interface for accounts and shares (OCS), and no more.

    GET  cloud/users/NAME               what an administrator sees of an account
    POST cloud/users                    userid, password
    PUT  cloud/users/NAME               key=quota, value
    PUT  cloud/users/NAME/enable        and /disable
    GET  SHARES?path=PATH               who may enter a folder of one's own
    POST SHARES                         path, shareType, permissions; shareWith, or password and name
    PUT  SHARES/ID                      permissions
    DELETE SHARES/ID
    GET  SHARES?shared_with_me=true     what one received, and where it is mounted
    POST SHARES/pending/ID              accept it

all below ``/ocs/v2.php/``, SHARES being ``apps/files_sharing/api/v1/shares``. Passwords stand in bodies alone, never in
addresses, which servers log. Nothing is asked twice: whoever runs the command again goes on where it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

from shared.doors import Refusal
from shared.doors.schema import fill_json, fill_loosely
from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import escape
from shared.folder.address import checked_url
from shared.folder.answers import MAX_REMARK_BYTES, Answer, in_its_words
from shared.folder.connection import NOBODY, Connection
from shared.folder.login import Password
from shared.folder.webdav import WebDavFolder

_Kind = TypeVar("_Kind")

EVERYTHING = 15  # read 1, update 2, create 4, delete 8; sharing on, 16, is not among it
ACCOUNT, LINK = 0, 3  # kinds of share
KINDS = {ACCOUNT: "account", 1: "group", LINK: "public link", 6: "account of another server"}

_OCS = "ocs/v2.php"
_FILES = "remote.php/webdav/"  # of whoever asks, also by an e-mail address
_SHARES = "apps/files_sharing/api/v1/shares"
_NO_STATUS_PAGE = (401, 403, 404, 405, 410)
_WITH_REASON = (400, 403, 404)  # refusals whose reason the server writes into the body
_STALL_S = 60.0
_ON_IT = re.compile(r"/(?:(?:remote|index|public|status|ocs/v[12])\.php|apps/files)(?:[/?#]|$)")  # behind the server
_OTHER_INTERFACES = {"Infinite Scale", "OpenCloud"}
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class RefusedError(ActionRequiredError):
    """The server understood and said no.

    Args:
        status: the HTTP status, such as 404.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _FromServer(BaseModel):
    """What a server tells: known fields are checked, others ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


class Share(_FromServer):
    """One share of a folder.

    ``share_with``: the account's name; of a link it is something else and never shown. ``name``: a link's, on
    ownCloud; on Nextcloud it is called ``label``. ``file_target``: where the account finds it, from its root.
    ``state``: 0 accepted, 1 pending, 2 declined; told to the recipient alone.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z:_-]{1,64}$")]
    share_type: int
    permissions: int
    share_with: str | None = None
    token: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]{1,64}$")] | None = None
    name: str | None = None
    label: str | None = None
    file_target: str | None = None
    expiration: str | None = None
    state: int | None = None

    def __str__(self) -> str:
        kind = KINDS.get(self.share_type, f"share of kind {self.share_type}")
        of_whom = self.label or self.name if self.share_type == LINK else self.share_with
        return f"{kind} {escape(of_whom or self.id)}"


@dataclass(frozen=True)
class Account:
    """An account as an administrator sees it; ``quota``: in bytes, None without one or if it is not reported."""

    is_enabled: bool
    quota: int | None


class _Meta(_FromServer):
    status: str
    statuscode: int
    message: str | None = None


class _Reply(_FromServer):
    meta: _Meta
    data: Any = None


class _Document(_FromServer):
    ocs: _Reply


class _Quota(_FromServer):
    definition: str | None = None  # ownCloud, as in "5 GB"
    quota: str | None = None  # Nextcloud, bytes


class _Person(_FromServer):
    enabled: bool = True
    quota: Annotated[_Quota, BeforeValidator(lambda told: told or {})] = _Quota()  # an empty one is a list


class _Status(_FromServer):
    installed: Literal[True]
    maintenance: bool
    versionstring: str
    productname: str = "ownCloud"
    product: str = ""


def server_of(address: str) -> str:
    """Return the server's address, from it or from that of anything on it, also as a browser shows it, percent-encoded,
    without a final slash.

    Raises:
        ActionRequiredError: it is no address that may be used.
    """
    return checked_url(_ON_IT.split(address)[0])


def bytes_of(quota: str) -> int | None:
    """Return a quota, as in "5 GB", in bytes; None if it is no amount, as "none" and "default"."""
    amount = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([KMGT]?B)?", quota.strip(), re.IGNORECASE)
    return None if amount is None else round(float(amount[1]) * _UNITS[(amount[2] or "B").upper()])


def kept_quota(size: int) -> str:
    """Return what a server keeps of a quota in bytes, 1 or more: in the largest unit, with one decimal."""
    unit, of_unit = [(unit, of_unit) for unit, of_unit in _UNITS.items() if of_unit <= size][-1]
    return f"{round(size / of_unit, 1):g} {unit}"


def product_of(server: str, ca_file: Path | None) -> str | None:
    """Return what runs at an address, as in "ownCloud 10.16.0"; None if it is neither ownCloud nor Nextcloud.

    Both tell it to everybody, so nobody's password is shown.

    Raises:
        ConfigurationError: its accounts and shares are not made as theirs are.
        DropfedError: it cannot be reached, or is under maintenance.
    """
    connection = Connection(server, NOBODY, "", ca_file=ca_file, stall_s=_STALL_S)
    answer = connection.send("GET", "status.php")
    if answer.status in _NO_STATUS_PAGE:
        return None
    if answer.status != 200:
        raise connection.error(answer, "GET", "status.php")
    try:
        status = fill_json(_Status, answer.body, MAX_REMARK_BYTES)
    except Refusal:
        return None
    if other := _OTHER_INTERFACES & {status.product, status.productname}:
        raise ConfigurationError(
            [f"{server} is {other.pop()}: make accounts and shares there by hand, then use dropfed-aggregator init"]
        )
    if status.maintenance:
        raise ActionRequiredError(f"{server} is under maintenance: run the command again when it is over.")
    return escape(f"{status.productname} {status.versionstring}")


class OwnCloud:
    """One account's view of a server.

    Raises:
        ActionRequiredError: an address, a password or a CA file that cannot be used.
    """

    def __init__(self, server: str, user: str, password: str | Password, *, ca_file: Path | None) -> None:
        self.server = server
        self.user = user
        self._connection = Connection(server, user, password, ca_file=ca_file, stall_s=_STALL_S)
        self.files = WebDavFolder(files_url(server, user), user, password, ca_file=ca_file)
        self._is_let_in = False

    def account(self, name: str) -> Account | None:
        """Look an account up, as an administrator; None if there is none."""
        try:
            person = self._ask(_Person, "GET", _user(name), doing=f"show account {name}")
        except RefusedError as error:
            if error.status == 404:
                return None
            raise
        told = person.quota.definition or person.quota.quota
        return Account(person.enabled, bytes_of(told) if told else None)

    def make_account(self, name: str, password: str) -> None:
        """Make an account, as an administrator."""
        form = {"userid": name, "password": password}
        self._ask(object, "POST", "cloud/users", form, doing=f"make account {name}")

    def let_in(self, name: str, *, enabled: bool) -> None:
        """Enable or disable an account, as an administrator."""
        verb = "enable" if enabled else "disable"
        self._ask(object, "PUT", f"{_user(name)}/{verb}", doing=f"{verb} account {name}")

    def set_quota(self, name: str, quota: str) -> None:
        """Limit what an account may keep, as an administrator."""
        form = {"key": "quota", "value": quota}
        self._ask(object, "PUT", _user(name), form, doing=f"set the quota of {name}")

    def shares(self, path: str) -> tuple[Share, ...]:
        """Return every share of a folder of one's own."""
        query = {"path": f"/{path}", "reshares": "true"}
        return tuple(self._ask(list[Share], "GET", _SHARES, query=query, doing=f"list the shares of {path}"))

    def share(self, path: str, account: str) -> Share:
        """Share a folder with an account, with all rights but to share it on."""
        form = {"path": f"/{path}", "shareType": str(ACCOUNT), "shareWith": account, "permissions": str(EVERYTHING)}
        return self._ask(Share, "POST", _SHARES, form, doing=f"share {path} with {account}")

    def open_link(self, path: str, password: str, name: str) -> Share:
        """Open a folder by a public link, with all rights but to share it on."""
        form = {"path": f"/{path}", "shareType": str(LINK), "password": password, "permissions": str(EVERYTHING)}
        # the first name is ownCloud's, the second Nextcloud's
        return self._ask(Share, "POST", _SHARES, form | {"name": name, "label": name}, doing=f"open a link to {path}")

    def permit_everything(self, share_id: str) -> None:
        """Give a share all rights but to share it on, and no others."""
        form = {"permissions": str(EVERYTHING)}
        self._ask(object, "PUT", f"{_SHARES}/{share_id}", form, doing=f"change the rights of share {share_id}")

    def remove_share(self, share_id: str) -> None:
        """Take a share back; one that is not there counts as taken back."""
        try:
            self._ask(object, "DELETE", f"{_SHARES}/{share_id}", doing=f"remove share {share_id}")
        except RefusedError as error:
            if error.status != 404:
                raise

    def received(self, share_id: str) -> Share | None:
        """Return a share that this account received and accepted, so that it is mounted; None if there is no such."""
        self.files.check()  # whoever comes in finds what is shared mounted, under a free name
        query = {"shared_with_me": "true"}
        shares = self._ask(list[Share], "GET", _SHARES, query=query, doing="list what was shared")
        return next((share for share in shares if share.id == share_id and not share.state), None)

    def accept(self, share_id: str) -> None:
        """Accept a share that this account received."""
        self._ask(object, "POST", f"{_SHARES}/pending/{share_id}", doing=f"accept share {share_id}")

    # --- one request ---------------------------------------------------------------------------------------

    def _ask(
        self,
        kind: type[_Kind],
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        doing: str,
    ) -> _Kind:
        """Make one request.

        Args:
            kind: of what is told.
            doing: what it is for, as the rest of "was asked to".

        Raises:
            RefusedError: the server says no, with its reason.
            DropfedError: no answer, or one of another kind; a wrong password, or no right to ask.
        """
        self._require_let_in()
        answer = self._request(method, path, form, query)
        reply = _reply(answer)
        if answer.status == 200 and reply is not None and reply.meta.status == "ok":
            try:
                return fill_loosely(kind, reply.data)
            except Refusal:
                raise ActionRequiredError(
                    f"{self.server} was asked to {doing} and answered in a form that is not known here: "
                    "check whether its version is one that this was made for."
                ) from None
        if answer.status == 401:
            raise ActionRequiredError(
                f"{self.server} does not let {self.user} {doing}: name an administrator with --admin."
            )
        if reply is None or answer.status not in _WITH_REASON:
            raise self._connection.error(answer, method, f"{_OCS}/{path}")
        reason = in_its_words(reply.meta.message or f"{answer.status}, without a reason")
        raise RefusedError(f"{self.server} was asked to {doing} and refuses: {reason}", answer.status)

    def _require_let_in(self) -> None:
        """Check the login where the server says what is wrong with it; here that is the same as of one who may not ask.

        Raises:
            ActionRequiredError: it is refused.
        """
        if not self._is_let_in:
            answer = self._connection.send("PROPFIND", _FILES, headers={"Depth": "0"})
            if answer.status == 401:
                raise self._connection.error(answer, "PROPFIND", _FILES)
            self._is_let_in = answer.status == 207

    def _request(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        headers = {"OCS-APIRequest": "true", "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode() if form else None
        asked = f"?{urlencode({'format': 'json', **(query or {})})}"
        return self._connection.send(method, f"{_OCS}/{path}", query=asked, body=body, headers=headers)


def files_url(server: str, user: str, path: str = "") -> str:
    """Return the address of an account's files, or of what lies at ``path`` among them."""
    return f"{server}/remote.php/dav/files/{quote(user, safe='')}/{quote(path.strip('/'))}".rstrip("/")


def path_among_files(url: str, user: str) -> str | None:
    """Return where a folder is among an account's files, not percent-encoded; None if its address leads elsewhere."""
    path = unquote(urlsplit(checked_url(url)).path)
    for root in (f"/remote.php/dav/files/{user}/", "/remote.php/webdav/"):
        if root in path:
            return path.partition(root)[2] or None
    return None


def link_url(server: str) -> str:
    """Return where all public links are entered, each with its token as the user."""
    return f"{server}/public.php/webdav"


def _user(name: str) -> str:
    return f"cloud/users/{name}"


def _reply(answer: Answer) -> _Reply | None:
    try:
        return fill_json(_Document, answer.body, MAX_REMARK_BYTES).ocs
    except Refusal:
        return None
