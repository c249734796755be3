"""A name that stays locked is left alone until nothing can hold it any more. Only time is faked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import ActionRequiredError, AlreadyExistsError, LeftAloneError, LockedError, TransientError
from shared.folder.forbearing import LEFT_ALONE_S, LOCKED_FOR_S, ForbearingFolder
from shared.folder.webdav import WebDavFolder
from tests.folder.faulty import FaultyServer, dav_error, hangs_up, says

NAME = "manifest.json"


@pytest.fixture
def folder(faulty_folder: WebDavFolder) -> ForbearingFolder:
    return ForbearingFolder(faulty_folder)


def write(folder: ForbearingFolder, how: str, tmp_path: Path) -> None:
    match how:
        case "create":
            folder.create(NAME, b"content")
        case "overwrite":
            folder.overwrite(NAME, b"content")
        case "upload":
            (tmp_path / "source").write_bytes(b"content")
            folder.upload(NAME, tmp_path / "source")


@pytest.mark.parametrize("how", ["create MOVE 500", "create MOVE 423", "overwrite MOVE 500", "upload PUT 423"])
def test_a_name_that_stays_locked_is_not_asked_for_until_its_lock_must_be_gone(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace, tmp_path: Path, how: str
) -> None:
    how, method, status = how.split()
    faulty.always_fail(method, says(int(status)))
    for clock.s in (0, LOCKED_FOR_S / 2, LOCKED_FOR_S - 1):
        with pytest.raises(LockedError):
            write(folder, how, tmp_path)
    for clock.s in (LOCKED_FOR_S, LOCKED_FOR_S + 1, LOCKED_FOR_S + LEFT_ALONE_S - 1):
        with pytest.raises(
            LeftAloneError, match=f"^{NAME} stays locked on its server though nobody uses it; it is left"
        ):
            write(folder, how, tmp_path)
    assert faulty.count(method) == 4
    faulty.always_fail(method, None)  # type: ignore[arg-type]
    clock.s += 2
    write(folder, how, tmp_path)
    assert faulty.files[NAME] == b"content"


def test_a_lock_that_ends_in_time_is_weather(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    for began_s in (0.0, 2 * LOCKED_FOR_S):
        faulty.fail("MOVE", says(500))
        for clock.s in (began_s, began_s + LOCKED_FOR_S):
            try:
                folder.overwrite(NAME, b"content")
            except LockedError:
                continue
    assert faulty.count("MOVE") == 4


def test_a_server_with_another_trouble_is_not_left_alone(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    faulty.always_fail("MOVE", says(500))
    faulty.always_fail("PROPFIND", says(500))
    for clock.s in (0, LOCKED_FOR_S, 2 * LOCKED_FOR_S):
        with pytest.raises(TransientError):
            folder.create(NAME, b"content")
    faulty.always_fail("PROPFIND", None)  # type: ignore[arg-type]
    faulty.fail("PUT", hangs_up)
    clock.s += 1
    with pytest.raises(TransientError, match="cut"):
        folder.create(NAME, b"content")
    with pytest.raises(LockedError):  # its ten minutes begin anew
        folder.create(NAME, b"content")


def test_a_cut_line_or_a_wrong_password_says_nothing_of_a_lock(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    """Else a lock on a bad line would stand for ever: each request prolongs it."""
    faulty.always_fail("MOVE", says(500))
    for began_s in range(0, 4 * int(LOCKED_FOR_S), int(LOCKED_FOR_S)):
        for clock.s in (began_s, began_s + LOCKED_FOR_S / 5):
            with pytest.raises(LockedError):
                folder.create(NAME, b"content")
        for failure, error in ((hangs_up, TransientError), (says(507), ActionRequiredError)):
            faulty.fail("PUT", failure)
            with pytest.raises(error):
                folder.create(NAME, b"content")
    clock.s += 1000 * LOCKED_FOR_S
    with pytest.raises(LockedError):  # for how long it was locked meanwhile is not known
        folder.create(NAME, b"content")
    clock.s += LOCKED_FOR_S / 5
    with pytest.raises(LeftAloneError):
        folder.create(NAME, b"content")


def test_a_move_that_fails_for_another_reason_is_no_lock(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    """What names no reason may be a lock, and is taken for one, for nothing else would end that."""
    faulty.always_fail("MOVE", says(500, dav_error("Doctrine\\DBAL\\Exception\\DriverException", "database is locked")))
    for clock.s in (0, LOCKED_FOR_S, 2 * LOCKED_FOR_S):
        with pytest.raises(TransientError, match="cannot do MOVE now: 500") as caught:
            folder.create(NAME, b"content")
        assert not isinstance(caught.value, LockedError)
    faulty.always_fail("MOVE", says(500, dav_error("OCP\\Lock\\LockedException", "is locked")))
    with pytest.raises(LockedError, match=r"500 Internal Server Error \(it is locked there\)"):
        folder.create(NAME, b"content")


def test_all_other_names_are_written_meanwhile(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    faulty.fail("MOVE", says(500), says(500))
    for clock.s, error in ((0, LockedError), (LOCKED_FOR_S, LeftAloneError), (LOCKED_FOR_S, LeftAloneError)):
        with pytest.raises(error):
            folder.create(NAME, b"content")
    folder.create("another", b"content")
    assert faulty.files["another"] == b"content"


def test_what_is_there_already_is_told_although_its_name_is_locked(
    faulty: FaultyServer, folder: ForbearingFolder, clock: SimpleNamespace
) -> None:
    faulty.always_fail("MOVE", says(500))
    faulty.files[NAME] = b"content"
    for clock.s in (0, LOCKED_FOR_S):
        folder.create(NAME, b"content")
        with pytest.raises(AlreadyExistsError):
            folder.create(NAME, b"another")
