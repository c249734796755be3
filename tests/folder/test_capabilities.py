"""What servers can do is measured, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError, TransientError
from shared.exchange.names import SCRATCH
from shared.folder.capabilities import Capabilities
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, Handler, hangs_up, says
from tests.folder.installed import RECIPES, AbsentError, running_installed
from tests.folder.logins import SITE, Login, Logins
from tests.folder.matrix import COLUMNS, cells
from tests.folder.servers import NAMES

PLAIN = Capabilities(
    software="",
    is_https=False,
    login="Basic",
    clock_ahead_s=None,
    room_bytes=None,
    moves=True,
    moves_are_forbidden=False,
    keeps=True,
    replaces=True,
    replaces_at_once=True,
    copies=True,
    ranges=True,
    conditional_puts=True,
    etags=True,
    etags_propagate=False,
    checksums=False,
    chunked_uploads=False,
)
OWNCLOUD = replace(PLAIN, etags_propagate=True, checksums=True, chunked_uploads=True)
EXPECTED = {
    "embedded": PLAIN,
    "wsgidav": PLAIN,
    "apache": PLAIN,
    "apache-tls": replace(PLAIN, is_https=True),
    "apache-digest": replace(PLAIN, login="Digest"),
    "nginx": replace(PLAIN, conditional_puts=False),
    "nginx-tls": replace(PLAIN, conditional_puts=False, is_https=True),
    "lighttpd": PLAIN,
    "rclone": replace(PLAIN, conditional_puts=False),
    "sabre": replace(PLAIN, etags=False),
    "sabre-link": replace(PLAIN, etags=False),
    "owncloud": OWNCLOUD,
    "owncloud-link": replace(OWNCLOUD, chunked_uploads=False),
}
SOMETIMES_A_GAP = (
    "wsgidav",
    "apache",
    "apache-tls",
    "apache-digest",
    "rclone",
    "sabre",
    "sabre-link",
    "owncloud",
    "owncloud-link",
)
"""Where a reader may find nothing while MOVE replaces a file."""
TELLS_ROOM = ("embedded", "wsgidav", "sabre", "sabre-link")
DOCUMENT = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()


def test_every_server_is_expected() -> None:
    assert set(EXPECTED) == set(NAMES)


def test_the_document_says_what_is_expected() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.splitlines() if line.startswith("|")]
    assert list(COLUMNS) in rows
    described = {row[0]: row for row in rows if len(row) == len(COLUMNS) and row[0] in NAMES}
    for name, expected in EXPECTED.items():
        gap = {"replaces_at_once": False} if name in SOMETIMES_A_GAP else {}
        told = {"room_bytes": 1} if name in TELLS_ROOM else {}
        assert described[name] == cells(name, replace(expected, **gap, **told))


def test_each_server(login: Login, request: pytest.FixtureRequest) -> None:
    folder = login.open()
    found = folder.capabilities(SCRATCH[0])
    assert found.clock_ahead_s is not None
    assert abs(found.clock_ahead_s) < 60  # it is the same clock, but the machine may be busy
    name = request.node.callspec.params["login"]
    assert (found.room_bytes is not None) == (name in TELLS_ROOM)
    if name in SOMETIMES_A_GAP:
        found = replace(found, replaces_at_once=True)
    assert replace(found, software="", clock_ahead_s=None, room_bytes=None) == EXPECTED[name]
    assert folder.list("") == []


@pytest.mark.parametrize("name", ["owncloud", "owncloud-link"])
def test_the_aggregators_own_address(name: str, logins_to: Callable[[str], Logins]) -> None:
    """``/remote.php/dav/files/USER/`` and the older ``/remote.php/webdav/``."""
    assert logins_to(name).aggregator[SITE].open().capabilities(SCRATCH[0]).chunked_uploads


def test_a_server_that_is_not_installed_is_named(tmp_path: Path) -> None:
    recipe = replace(RECIPES["apache"], needs=("/usr/sbin/not-there",))
    with (
        pytest.raises(AbsentError, match="/usr/sbin/not-there is missing: install apache2"),
        running_installed(recipe, tmp_path),
    ):
        pass


class TestWhatTheServerSays:
    """Answers that no well-behaved server gives."""

    def test_a_server_that_can_do_little(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        """It has no COPY, no Range, no conditions, no ETags, no quota; nor can it remove a folder."""
        faulty.ignores_overwrite = True
        found = faulty_folder.capabilities("check-1")
        assert found.software.startswith("BaseHTTP")
        little = replace(PLAIN, keeps=False, copies=False, ranges=False, conditional_puts=False, etags=False)
        assert replace(found, software="", clock_ahead_s=None) == replace(little, left_behind="check-1")

    def test_a_create_only_share(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.refuses_moves = True
        with pytest.raises(ActionRequiredError, match="forbids PUT"):  # of a name that is there already
            faulty_folder.capabilities("check-1")

    def test_a_file_is_held_for_a_moment(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("PUT", says(423), says(423))
        faulty.fail("MOVE", says(423))
        found = faulty_folder.capabilities("check-1")
        assert (found.moves, found.keeps, found.replaces) == (True, True, True)

    def test_a_file_is_processed_for_a_moment(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        """As on Infinite Scale, which refuses to read and to move it meanwhile."""
        for method in ("MOVE", "GET", "DELETE"):
            faulty.fail(method, says(425), says(425))
        found = faulty_folder.capabilities("check-1")
        assert (found.moves, found.keeps, found.replaces) == (True, True, True)

    def test_a_file_that_stays_locked(
        self, faulty: FaultyServer, faulty_folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shared.folder.capabilities.HELD_S", (0.01, 0.01))
        faulty.always_fail("PUT", says(423))
        with pytest.raises(TransientError, match="423 Locked"):
            faulty_folder.capabilities("check-1")

    def test_moves_alone_are_forbidden(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.always_fail("MOVE", says(403))
        found = faulty_folder.capabilities("check-1")
        assert (found.moves, found.moves_are_forbidden, found.keeps, found.replaces) == (False, True, False, False)

    def test_a_gap_while_a_file_is_replaced(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        def deletes_first(handler: Handler) -> None:
            faulty.files.pop("check-1/two", None)
            reads = faulty.count("GET")
            deadline = time.monotonic() + 1  # before that, nobody reads meanwhile
            while faulty.count("GET") < reads + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            handler.answer(handler.move("check-1/two"))

        faulty.always_fail("MOVE", deletes_first)
        found = faulty_folder.capabilities("check-1")
        assert (found.moves, found.replaces, found.replaces_at_once) == (True, True, False)

    @pytest.mark.parametrize("ahead_s", [-86400, 7200])
    def test_another_clock(
        self,
        ahead_s: int,
        faulty: FaultyServer,
        faulty_folder: WebDavFolder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(Handler, "date_time_string", lambda _: formatdate(time.time() + ahead_s, usegmt=True))
        found = faulty_folder.capabilities("check-1").clock_ahead_s
        assert found is not None
        assert abs(found - ahead_s) < 60

    def test_a_folder_is_gone_although_the_server_says_that_its_removal_failed(
        self, faulty: FaultyServer, faulty_folder: WebDavFolder
    ) -> None:
        def removes_and_fails(handler: Handler) -> None:
            faulty.folders -= {name for name in faulty.folders if name.startswith("check-1")}
            handler.answer(500)

        faulty.always_fail("DELETE", removes_and_fails)
        assert faulty_folder.capabilities("check-1").left_behind is None
        faulty.always_fail("DELETE", says(500))
        assert faulty_folder.capabilities("check-1").left_behind == "check-1"

    def test_a_share_that_cannot_be_written_to(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.always_fail("MKCOL", says(403))
        with pytest.raises(ActionRequiredError, match="forbids MKCOL"):
            faulty_folder.capabilities("check-1")
        assert faulty.files == {}

    def test_a_trouble_that_passes_is_no_finding(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("GET", says(503))
        with pytest.raises(TransientError):
            faulty_folder.capabilities("check-1")
        assert faulty.requests[-1] == "DELETE check-1"

    @pytest.mark.parametrize("method", ["PROPFIND", "MKCOL", "PUT", "GET", "MOVE"])
    def test_a_cut_connection(self, method: str, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail(method, hangs_up)
        with pytest.raises(TransientError):
            faulty_folder.capabilities("check-1")

    def test_content_that_changes_on_its_way(self, faulty: FaultyServer, faulty_folder: WebDavFolder) -> None:
        faulty.fail("GET", says(200, b"scanned by your firewall"))
        with pytest.raises(ActionRequiredError, match="came back with other content"):
            faulty_folder.capabilities("check-1")
