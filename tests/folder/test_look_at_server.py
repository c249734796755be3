"""What a check says about what a server can do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from email.utils import formatdate

import pytest

from shared.check import Finding, free_scratch, look_at_server
from shared.errors import ActionRequiredError, TransientError
from shared.exchange.names import SCRATCH
from shared.folder.capabilities import Capabilities
from shared.folder.contract import Entry, Folder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, Handler, says


class Server(WebDavFolder):
    """A folder whose server has these capabilities.

    Args:
        taken: names of folders that are there.
    """

    taken: Sequence[str] = ()

    def __init__(self, **capabilities: object) -> None:
        super().__init__("http://127.0.0.1:1/north", "north", "")
        usual: dict[str, object] = dict.fromkeys(Capabilities.__dataclass_fields__, True)
        usual |= {
            "software": "x",
            "login": "Basic",
            "clock_ahead_s": 0.3,
            "room_bytes": 1 << 40,
            "moves_are_forbidden": False,
        }
        self._found = Capabilities(**(usual | {"left_behind": None} | capabilities))  # type: ignore[arg-type]

    def check(self) -> None:
        pass

    def list(self, path: str) -> list[Entry]:
        return [Entry(name, is_folder=True, size=None) for name in self.taken]

    def capabilities(self, scratch: str) -> Capabilities:
        return self._found


def looked(folder: Folder) -> Iterator[Finding]:
    return look_at_server(folder, lambda _: None)


def test_a_scratch_folder_has_the_first_of_nine_names_that_is_free() -> None:
    server = Server()
    for server.taken, free in (((), SCRATCH[0]), (SCRATCH[:4], SCRATCH[4]), (SCRATCH[1:], SCRATCH[0])):
        assert free_scratch(server) == free
    server.taken = SCRATCH
    with pytest.raises(
        ActionRequiredError, match="check-1 to check-9 are all in the folder, left by checks that were cut"
    ):
        free_scratch(server)


@pytest.mark.parametrize("path", ["public.php/dav/files/", "public.php/webdav/", "remote.php/dav/public-files/", "s/"])
def test_the_token_of_a_public_link_is_not_told(path: str) -> None:
    token = "sEcReTsEcReTsEcReT"
    folder = Server()
    WebDavFolder.__init__(folder, f"http://127.0.0.1:1/{path}{'' if 'webdav' in path else token}", token, "")
    told = [finding.text for finding in looked(folder)]
    assert told[0].startswith("http://127.0.0.1:1/") and " answers" in told[0]
    with pytest.raises(TransientError) as caught:
        WebDavFolder.check(folder)
    assert token not in f"{told} {caught.value} {folder!r}"
    assert Server().url in next(looked(Server())).text


@pytest.mark.parametrize(
    ("capabilities", "grade", "text"),
    [
        ({"moves": False}, "problem", "MOVE: no;"),
        ({"replaces": False}, "problem", "MOVE: not onto a file that is there"),
        ({"moves": False, "moves_are_forbidden": True, "keeps": False}, "warning", "MOVE: forbidden"),
        ({"replaces_at_once": False}, "note", "MOVE: yes; while it replaces a file"),
        ({"keeps": False}, "warning", "MOVE: also onto a file that must be kept"),
        ({"copies": False}, "note", "COPY: no;"),
        ({"room_bytes": 5_000_000}, "warning", "room: 5 MB left; free some space"),
        ({"clock_ahead_s": 7200.4}, "warning", "clock: the server's is 7200 s ahead of this machine's"),
        ({"clock_ahead_s": -86400.0}, "warning", "clock: the server's is 86400 s behind this machine's"),
        ({"clock_ahead_s": None}, "note", "clock: the server does not tell"),
        ({"left_behind": "check-1"}, "warning", "DELETE: no; the folder check-1 stays"),
    ],
)
def test_what_is_not_as_usual_is_the_one_thing_told(capabilities: dict[str, object], grade: str, text: str) -> None:
    usual = set(looked(Server()))
    assert {finding.grade for finding in usual} == {"ok"}
    (found,) = set(looked(Server(**capabilities))) - usual
    assert found.grade == grade
    assert found.text.startswith(text)


def test_what_a_server_says_of_itself_is_fit_for_a_terminal() -> None:
    (found,) = set(looked(Server(software="\x1b[2Jevil\u202e" + "x" * 500))) - set(looked(Server()))
    assert found == Finding("ok", f"server: [2Jevil{'x' * 73}, https, Basic login")


def test_a_wrong_clock_is_told_and_waiting_does_not_depend_on_it(
    faulty: FaultyServer, faulty_folder: WebDavFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server a day ahead says when to come back, by its own clock."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() + 86400, usegmt=True))
    assert any(finding.text.startswith("clock: the server's is 86") for finding in looked(faulty_folder))
    faulty.fail("GET", says(503, b"", ("Retry-After", formatdate(time.time() + 86400 + 120, usegmt=True))))
    with pytest.raises(TransientError) as caught:
        faulty_folder.read("f", max_bytes=1)
    assert caught.value.retry_after_s is not None
    assert 60 < caught.value.retry_after_s <= 121
