"""Basic and Digest: the client finds out which, once per connection, and no large body goes out in vain."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from requests.utils import parse_dict_header

from shared.errors import ActionRequiredError, TransientError
from shared.folder import login
from shared.folder.connection import SESSION_S, Connection
from shared.folder.durable import write_file
from shared.folder.login import Password
from shared.folder.webdav import WebDavFolder
from shared.settings import kept_password
from tests.at_length import shown_by
from tests.folder.faulty import FaultyServer, Handler, hangs_up, says
from tests.folder.logins import SITE, Logins
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_requests import FILES, NORTH
from tests.folder.relay import Relay

METHODS = ("PROPFIND", "GET", "PUT", "MKCOL", "MOVE", "DELETE")
SIZE = 5 << 20
USER, PASSWORD = "zoë", "gehéim: ü"
LEFT_ALONE_S = (30.0, 30.0, 600.0, 3600.0)  # after the first refusal in a row, the next two, and each further one
LATER_S = 90.0  # where another folder was refused longer ago, or never


@dataclass
class Clock:
    now_s: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """With the pauses that users meet; see ``conftest.py``."""
    clock = Clock()
    monkeypatch.setattr(login, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(login, "LEFT_ALONE_S", LEFT_ALONE_S)
    monkeypatch.setattr(login, "LATER_S", LATER_S)
    return clock


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class Gate:
    """Lets a request pass to ``server`` if it answers the present challenge."""

    def __init__(self, server: FaultyServer) -> None:
        self.nonce = "first"
        self.refused: list[str] = []
        for method in METHODS:
            server.always_fail(method, self.judge)

    def judge(self, handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if self._is_right(handler):
            handler.answer(*handler.behave())
        else:
            self.refused.append(f"{handler.command} {handler.headers.get('Authorization', '').split(' ')[0]}")
            challenge = f'Digest realm="dav", nonce="{self.nonce}", algorithm=MD5, qop="auth", stale=true'
            handler.answer(401, b"who are you?", ("WWW-Authenticate", challenge))

    def _is_right(self, handler: Handler) -> bool:
        kind, _, given = handler.headers.get("Authorization", "").partition(" ")
        if kind != "Digest":
            return False
        said = parse_dict_header(given.encode("latin-1").decode())
        a1, a2 = md5(f"{USER}:dav:{PASSWORD}"), md5(f"{handler.command}:{handler.path}")
        expected = md5(f"{a1}:{self.nonce}:{said['nc']}:{said['cnonce']}:auth:{a2}")
        return (said["username"], said["uri"], said["response"]) == (USER, handler.path, expected)


@pytest.fixture
def gate(faulty: FaultyServer) -> Gate:
    return Gate(faulty)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(bytes(SIZE))
    return path


def test_digest_is_found_out_once(faulty: FaultyServer, gate: Gate) -> None:
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    folder.check()
    folder.create("a/b", b"content")
    assert folder.read("a/b", max_bytes=10) == b"content"
    assert gate.refused == ["PROPFIND Basic"]
    assert faulty.connections == 1


def test_a_large_body_goes_out_once(faulty: FaultyServer, gate: Gate, source: Path) -> None:
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    folder.upload("one", source)
    gate.nonce = "second"  # as servers have it after some minutes
    folder.upload("two", source)
    assert faulty.files == {"one": bytes(SIZE), "two": bytes(SIZE)}
    assert gate.refused == ["PROPFIND Basic", "PROPFIND Digest"]
    assert faulty.count("PUT") == 2


def test_a_wrong_password_is_told_and_no_body_goes_out(faulty: FaultyServer, gate: Gate, source: Path) -> None:
    folder = WebDavFolder(faulty.url, USER, "secret-word")
    for attempt in (folder.check, lambda: folder.upload("f", source), lambda: folder.read("f", max_bytes=1)):
        with pytest.raises(ActionRequiredError, match=f"refuses user '{USER}' or the password") as caught:
            attempt()
        assert "secret-word" not in str(caught.value)
    assert faulty.count("PUT") == 0


@pytest.mark.parametrize("is_digest", [False, True])
def test_a_password_that_is_corrected_is_taken_up(
    faulty: FaultyServer, source: Path, tmp_path: Path, is_digest: bool
) -> None:
    """By one and the same folder: a daemon need not be started again."""
    if is_digest:
        Gate(faulty)
    else:
        for method in METHODS:
            faulty.always_fail(method, require_basic)
    path = tmp_path / "password"
    write_file(path, b"secret-word", private=True)
    folder = WebDavFolder(faulty.url, USER, kept_password(path, "site.yaml"))
    remedy = f"correct user or url in site.yaml, or write the right password into {path}"
    for _ in range(2):
        with pytest.raises(ActionRequiredError, match=f"refuses user '{USER}' or the password: {remedy}"):
            folder.check()
    path.unlink()
    with pytest.raises(ActionRequiredError, match="password is missing"):
        folder.check()
    write_file(path, PASSWORD.encode(), private=True)
    folder.check()
    path.unlink()  # it is read no more than needed
    folder.upload("one", source)
    assert faulty.files == {"one": bytes(SIZE)}


def test_a_password_that_is_refused_again_and_again_is_left_alone_for_an_hour(
    faulty: FaultyServer, clock: Clock
) -> None:
    """Over all connections of a process, for a server may lock the account; until the password is another."""
    text = "old"
    password = Password(lambda: text, "correct it")
    folders = [WebDavFolder(faulty.url, USER, password) for _ in range(2)]
    faulty.always_fail("PROPFIND", says(401))

    def refusals() -> int:
        """How many requests go out of some tries by both."""
        before = faulty.count("PROPFIND")
        for folder in folders * 4:
            with pytest.raises(ActionRequiredError, match=f"refuse[sd] user '{USER}'"):
                folder.check()
        return faulty.count("PROPFIND") - before

    for left_alone_s in (*LEFT_ALONE_S, LEFT_ALONE_S[-1]):
        assert refusals() == 1
        clock.now_s += left_alone_s - 1
        assert refusals() == 0
        clock.now_s += 1
    with pytest.raises(ActionRequiredError, match="refuses user"):
        folders[0].check()
    with pytest.raises(ActionRequiredError, match=r"is shown again at 20.*, or once it is another; correct it"):
        folders[0].check()
    text = "another wrong one"
    assert refusals() == 1
    faulty.always_fail("PROPFIND", None)  # type: ignore[arg-type]
    text = "right"
    for folder in folders:
        folder.check()


def test_refusals_of_one_moment_count_for_one(faulty: FaultyServer, clock: Clock) -> None:
    """Several connections are refused at once where a server is wrong for a second, and are not kept away for long."""
    folders = [WebDavFolder(faulty.url, USER, PASSWORD) for _ in range(4)]
    all_have_asked = Barrier(len(folders))

    def refuse_together(handler: Handler) -> None:
        all_have_asked.wait(10)
        says(401)(handler)

    faulty.always_fail("PROPFIND", refuse_together)
    with ThreadPoolExecutor(len(folders)) as threads:
        troubles = [future.exception() for future in [threads.submit(folder.check) for folder in folders]]
    assert [type(trouble) for trouble in troubles] == [ActionRequiredError] * 4
    faulty.always_fail("PROPFIND", None)  # type: ignore[arg-type]
    clock.now_s = LEFT_ALONE_S[0]
    for folder in folders:
        folder.check()


def test_of_several_connections_one_asks_again_and_the_others_wait_for_the_answer(
    faulty: FaultyServer, clock: Clock
) -> None:
    """Or each would show a wrong password, and the account be locked at once."""
    folders = [WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD) for name in "abcd"]
    faulty.folders |= set("abcd")
    is_asked, is_late = Event(), Event()

    def answer_late(handler: Handler) -> None:
        is_asked.set()
        is_late.wait(10)
        faulty.always_fail("PROPFIND", None)  # type: ignore[arg-type]
        says(401)(handler)

    def tried_by_others() -> int:
        before = faulty.count("PROPFIND")
        for folder in folders[2:]:
            with pytest.raises(ActionRequiredError, match=f"has refused user '{USER}' with this password"):
                folder.check()
        return faulty.count("PROPFIND") - before

    faulty.fail("PROPFIND", says(401))
    with pytest.raises(ActionRequiredError, match="refuses user"):
        folders[0].check()
    clock.now_s = LEFT_ALONE_S[0]
    faulty.always_fail("PROPFIND", answer_late)
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(folders[1].check)
        is_asked.wait(10)
        assert tried_by_others() == 0
        is_late.set()
        assert isinstance(asking.exception(), ActionRequiredError)
    assert tried_by_others() == 0
    with pytest.raises(ActionRequiredError, match=f"with this password, last for {faulty.url}/b, and to show"):
        folders[2].check()
    clock.now_s += LEFT_ALONE_S[1]
    folders[2].check()
    folders[3].check()
    clock.now_s += LEFT_ALONE_S[1]
    folders[0].check()


def test_a_try_without_an_answer_is_left_to_another_connection(faulty: FaultyServer, clock: Clock) -> None:
    folders = [WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD) for name in "abc"]
    faulty.folders |= set("abc")
    faulty.fail("PROPFIND", says(401), hangs_up)
    with pytest.raises(ActionRequiredError, match="refuses user"):
        folders[0].check()
    clock.now_s = LEFT_ALONE_S[0]
    with pytest.raises(TransientError):
        folders[1].check()
    folders[2].check()


def test_what_was_asked_before_a_refusal_and_is_refused_after_it_is_no_second_one(
    faulty: FaultyServer, clock: Clock
) -> None:
    """As a large body is, that takes minutes to go out."""
    is_asked, is_late = Event(), Event()
    slow, quick = (WebDavFolder(faulty.url, USER, PASSWORD) for _ in range(2))

    def refuse_late(handler: Handler) -> None:
        is_asked.set()
        is_late.wait(10)
        says(401)(handler)

    faulty.fail("PROPFIND", refuse_late, says(401))
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(slow.check)
        is_asked.wait(10)
        with pytest.raises(ActionRequiredError, match="refuses user"):
            quick.check()
        clock.now_s = LEFT_ALONE_S[0]
        is_late.set()
        assert isinstance(asking.exception(), ActionRequiredError)
    quick.check()


@pytest.mark.parametrize(
    ("poll_s", "cookie"), [(60.0, ()), (3600.0, ()), (60.0, (("Set-Cookie", "balancer=1; Path=/"),))]
)
@pytest.mark.parametrize("away_s", shown_by([None, (7200.0, 7500.0)], [None, (0.0, 700.0), (7200.0, 7500.0)]))
@pytest.mark.parametrize("shut", shown_by([3], [1, 3]))
def test_folders_that_let_nobody_in_do_not_keep_the_others_away(
    faulty: FaultyServer,
    clock: Clock,
    *,
    poll_s: float,
    cookie: tuple[tuple[str, str], ...],
    away_s: tuple[float, float] | None,
    shut: int,
) -> None:
    """As Apache says 401 where a folder does not name the account.

    Args:
        poll_s: how often the daemon looks into those that are open.
        cookie: counts for more than the password.
        away_s: from when to when nobody is let in at all.
        shut: how many are.
    """
    names = [*(f"shut-{number}" for number in range(shut)), "open-0", "open-1"]
    began_s, ended_s = away_s or (0.0, 0.0)
    tried, end_s = dict.fromkeys(names, 0), 15_000.0
    faulty.folders |= set(tried)
    folders = {name: WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD) for name in names}
    next_s = {name: 7.0 * number for number, name in enumerate(names)}
    entered_at = []

    def judge(handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        name = handler.name.split("/")[0]
        tried[name] += 1
        lets_in = name.startswith("open") and not began_s <= clock.now_s < ended_s
        handler.answer(*(handler.behave() if lets_in else (401, b"")), *cookie)

    faulty.always_fail("PROPFIND", judge)
    while min(next_s.values()) < end_s:
        name = min(next_s, key=lambda name: next_s[name])
        clock.now_s = next_s[name]
        try:
            folders[name].list("")
            next_s[name] += poll_s
            if name == "open-0":
                entered_at.append(clock.now_s)
        except ActionRequiredError:
            next_s[name] += 60  # as RetryingFolder does
    assert max(tried[name] for name in names if name.startswith("shut")) <= 5 + end_s / LEFT_ALONE_S[-1]
    back_at = [at for at in entered_at if at >= ended_s]
    knows_who_is_open = began_s > 0
    assert back_at[0] - ended_s <= (poll_s + LEFT_ALONE_S[2] if knows_who_is_open else LEFT_ALONE_S[3] + LATER_S)
    assert max(after - before for before, after in pairwise([*back_at, end_s])) <= poll_s + 60


def test_a_folder_that_was_entered_comes_before_those_that_were_never_asked(faulty: FaultyServer, clock: Clock) -> None:
    """Or each of several that are shut would have its turn first at a start, and the pause grow each time."""
    first_asked_s = {"open": 0.0, "shut-0": 5.0, "shut-1": 40.0, "shut-2": 45.0, "shut-3": 50.0}
    faulty.folders |= set(first_asked_s)
    folders = {name: WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD) for name in first_asked_s}
    entered_at: list[float] = []

    def judge(handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.answer(*(handler.behave() if handler.name == "open" else (401, b"")))

    faulty.always_fail("PROPFIND", judge)
    for minute in range(30):
        for name, first_s in first_asked_s.items():
            clock.now_s = first_s + 60.0 * minute
            with suppress(ActionRequiredError):
                folders[name].list("")
                entered_at.append(clock.now_s)
    assert max(after - before for before, after in pairwise([*entered_at, 1800.0])) <= 180


@pytest.mark.parametrize("order", shown_by(["cab"], ["abc", "cab", "bca"]))
def test_a_folder_that_opens_again_is_entered_while_others_are_shut(
    faulty: FaultyServer, clock: Clock, order: str
) -> None:
    """First one alone is open, and then one alone of the others."""
    faulty.folders |= set(order)
    open_now, entered_at = "a", {name: [-1.0] for name in order}

    def judge(handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.answer(*(handler.behave() if handler.name == open_now else (401, b"")))

    faulty.always_fail("PROPFIND", judge)
    folders = [(name, WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD)) for name in order]
    for minute in range(1000):
        clock.now_s = 60.0 * minute
        open_now = "a" if minute < 300 else "b"
        for name, folder in folders:
            clock.now_s += 1
            try:
                folder.list("")
                entered_at[name].append(clock.now_s)
            except ActionRequiredError:
                assert name != open_now or minute < 20 or 300 <= minute < 400
    assert entered_at["a"][-1] < 60 * 300
    assert len(entered_at["b"]) > 590
    assert len(entered_at["c"]) == 1


@pytest.mark.parametrize("shut", shown_by([3], [0, 1, 3, 10]))
def test_a_password_that_was_changed_on_the_server_is_shown_twice_an_hour_at_most(
    faulty: FaultyServer, clock: Clock, shut: int
) -> None:
    """However many folders were shut before."""
    names = [*(f"shut-{number}" for number in range(shut)), "open-0", "open-1"]
    faulty.folders |= set(names)
    folders = [(name, WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD)) for name in names]
    shown = 0

    def judge(handler: Handler) -> None:
        nonlocal shown
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        shown += clock.now_s >= 36_000
        lets_in = handler.name.startswith("open") and clock.now_s < 36_000
        handler.answer(*(handler.behave() if lets_in else (401, b"")))

    faulty.always_fail("PROPFIND", judge)
    for minute in range(1200):
        for number, (_, folder) in enumerate(folders):
            clock.now_s = 60.0 * minute + number
            with suppress(ActionRequiredError):
                folder.list("")
    assert 8 <= shown <= 24


def test_an_answer_that_comes_late_does_not_shut_a_folder(faulty: FaultyServer, clock: Clock) -> None:
    """As that to a large body, which was sent before others were refused and let in."""
    faulty.folders |= {"a", "b"}
    slow, quick, other = (WebDavFolder(f"{faulty.url}/{name}", USER, PASSWORD) for name in "aab")
    is_asked, is_late = Event(), Event()

    def answer_late(handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        is_asked.set()
        is_late.wait(10)
        handler.answer(*handler.behave())

    def refused() -> None:
        faulty.fail("PROPFIND", says(401))
        with pytest.raises(ActionRequiredError, match="refuses user"):
            quick.check()

    faulty.fail("PROPFIND", answer_late)
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(slow.check)
        is_asked.wait(10)
        clock.now_s = 50.0
        refused()
        for folder in (other, quick):
            clock.now_s += 50.0
            folder.check()
        is_late.set()
        assert asking.exception() is None
    refused()
    with pytest.raises(ActionRequiredError, match="has refused user"):  # for that is no one folder's matter
        other.check()


def test_each_of_two_passwords_counts_for_itself(faulty: FaultyServer, clock: Clock) -> None:
    """As two app passwords of one account, of which one was taken back."""
    faulty.always_fail("PROPFIND", require_basic)
    wrong, right = (WebDavFolder(faulty.url, USER, text) for text in ("taken back", PASSWORD))
    for left_alone_s in LEFT_ALONE_S:
        with pytest.raises(ActionRequiredError, match="refuses user"):
            wrong.check()
        right.check()
        clock.now_s += left_alone_s - 1
        with pytest.raises(ActionRequiredError, match="has refused user"):
            wrong.check()
        clock.now_s += 1


def test_a_challenge_is_kept_while_a_refusal_stands(faulty: FaultyServer, gate: Gate) -> None:
    """And the password alone is shown then, which ends it; with a session's cookie it would stand, unseen."""
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    folder.check()

    def give_cookie(handler: Handler) -> None:
        handler.body = handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.answer(*handler.behave(), ("Set-Cookie", "balancer=1; Path=/"))

    faulty.fail("PROPFIND", give_cookie, says(401))
    folder.list("")
    with pytest.raises(ActionRequiredError, match="refuses user"):
        folder.list("")
    before = len(faulty.requests)
    for _ in range(3):
        folder.list("")
    assert len(faulty.requests) == before + 3
    assert [headers.get("Cookie") for headers in faulty.headers[-3:]] == [None, "balancer=1", "balancer=1"]


def require_basic(handler: Handler) -> None:
    handler.body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    is_right = handler.headers.get("Authorization") == f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
    handler.answer(*(handler.behave() if is_right else (401, b"who are you?")))


def test_a_password_that_no_longer_holds_stops_a_large_body(faulty: FaultyServer, gate: Gate, source: Path) -> None:
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    folder.upload("one", source)
    for method in METHODS:
        faulty.always_fail(method, says(401, b"", ("WWW-Authenticate", 'Digest realm="dav", nonce="n", qop="auth"')))
    with pytest.raises(ActionRequiredError, match="refuses user"):
        folder.upload("two", source)
    assert faulty.count("PUT") == 1


def test_basic_is_kept_where_both_are_offered(faulty: FaultyServer) -> None:
    offers = (("WWW-Authenticate", 'Digest realm="a", nonce="n"'), ("WWW-Authenticate", 'Basic realm="Digest x"'))
    faulty.always_fail("PROPFIND", says(401, b"", *offers))
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    for _ in range(2):
        with pytest.raises(ActionRequiredError, match="refuses user"):
            folder.check()
    assert [headers["Authorization"].split(" ")[0] for headers in faulty.headers] == ["Basic", "Basic"]


@pytest.mark.parametrize("said", [b"password login forbidden", b"User disabled"])
def test_what_no_password_opens_is_told_for_as_long_as_it_stays(faulty: FaultyServer, said: bytes) -> None:
    """No account is locked for it, and what is wrong with it must not be hidden."""
    faulty.always_fail("PROPFIND", says(401, said))
    folder = WebDavFolder(faulty.url, USER, PASSWORD)
    for _ in range(5):
        with pytest.raises(ActionRequiredError, match=r"by an app password alone|is disabled"):
            folder.check()
    assert faulty.count("PROPFIND") == 5


@pytest.mark.parametrize(
    ("challenge", "kinds"),
    [
        ('Bearer realm="a, b=c", x="y"', "Bearer"),
        ("Negotiate, NTLM", "Negotiate or NTLM"),
        ('Bearer authorization_uri="https://a", error_description="expired, login again"', "Bearer"),
    ],
)
def test_a_login_that_we_do_not_speak_is_told(faulty: FaultyServer, challenge: str, kinds: str) -> None:
    faulty.always_fail("PROPFIND", says(401, b"", ("WWW-Authenticate", challenge)))
    with pytest.raises(ActionRequiredError, match=f"wants a login by {kinds}, which dropfed does not speak"):
        WebDavFolder(faulty.url, USER, PASSWORD).check()
    assert faulty.headers[0]["Accept-Language"] == "en"  # or a server's words are not known


@pytest.mark.parametrize(
    "challenge", ['Digest realm="a", nonce="n", algorithm=UNKNOWN', 'Bearer realm="a", Basic realm="b"', ""]
)
def test_what_is_not_known_is_a_refusal(faulty: FaultyServer, challenge: str) -> None:
    faulty.always_fail("PROPFIND", says(401, b"", ("WWW-Authenticate", challenge)))
    with pytest.raises(ActionRequiredError, match="refuses user"):
        WebDavFolder(faulty.url, USER, PASSWORD).check()


def test_an_endless_refusal_is_not_read(faulty: FaultyServer) -> None:
    offer = ("WWW-Authenticate", 'Digest realm="a", nonce="n"')
    faulty.always_fail("PROPFIND", says(401, bytes(8 << 20), offer))
    with pytest.raises(ActionRequiredError, match="refuses user"):
        WebDavFolder(faulty.url, USER, PASSWORD).check()
    assert faulty.count("PROPFIND") == 1


class TestSessions:
    """ownCloud's cookie counts for more than the password beside it."""

    @pytest.fixture
    def folder(self, cloud: OwnCloud) -> WebDavFolder:
        folder = WebDavFolder(f"{cloud.url}{FILES}/north/retina", *NORTH)
        folder.create("f", b"x")
        cloud.users["north"] = "another-password"
        return folder

    def test_a_session_is_used(self, folder: WebDavFolder) -> None:
        assert folder.read("f", max_bytes=1) == b"x"

    def test_a_check_shows_the_password_alone(self, folder: WebDavFolder) -> None:
        for attempt in (folder.check, lambda: folder.read("f", max_bytes=1), lambda: folder.overwrite("f", b"y")):
            with pytest.raises(ActionRequiredError, match="refuses user 'north' or the password"):
                attempt()

    def test_every_few_minutes_the_password_is_shown_alone(
        self, folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        began = time.monotonic()
        monkeypatch.setattr("shared.folder.connection.time", SimpleNamespace(monotonic=lambda: began + SESSION_S))
        with pytest.raises(ActionRequiredError, match="refuses user 'north' or the password"):
            folder.read("f", max_bytes=1)

    def test_a_session_does_not_make_a_refused_password_a_good_one(self, clock: Clock, folder: WebDavFolder) -> None:
        """Once another connection was refused, none goes on by its session."""
        another = WebDavFolder(folder.url, *NORTH)
        assert folder.read("f", max_bytes=1) == b"x"
        with pytest.raises(ActionRequiredError, match="refuses user 'north' or the password"):
            another.check()
        for left_alone_s in LEFT_ALONE_S:
            clock.now_s += left_alone_s - 1
            with pytest.raises(ActionRequiredError, match="has refused user 'north'"):
                folder.read("f", max_bytes=1)
            clock.now_s += 1
            with pytest.raises(ActionRequiredError, match="refuses user 'north' or the password"):
                folder.read("f", max_bytes=1)

    def test_a_session_belongs_to_its_connection(self, cloud: OwnCloud) -> None:
        connection = Connection(f"{cloud.url}{FILES}/north/retina", *NORTH, ca_file=None, stall_s=60)
        assert connection.send("PROPFIND", "").status == 207
        cloud.users["north"] = "another-password"
        assert connection.send("PROPFIND", "").status == 207
        assert connection.another().send("PROPFIND", "").status == 401
        assert len(cloud.sessions) == 1


@pytest.mark.parametrize("name", ["apache", "apache-digest"])
def test_a_real_server_gets_a_large_body_once(name: str, logins_to: Callable[[str], Logins], source: Path) -> None:
    login = logins_to(name).sites[SITE].new_folder("once")
    parts = urlsplit(login.url)
    relay = Relay(parts.port or 0, SIZE, lambda: None)
    login.at(parts._replace(netloc=f"127.0.0.1:{relay.port}").geturl()).open().upload("big", source)
    relay.close()
    assert SIZE <= relay.passed <= SIZE + (1 << 20)
