"""The stand-in's locks are taken, left behind, renewed and removed as ownCloud's were seen to be."""

from __future__ import annotations

import pytest

from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_locks import LIFE_S
from tests.folder.owncloud_requests import ETAG, FILES, ask

NAME = "aggregator/north/awaited"
PATH = f"{FILES}/{NAME}"
SOURCE = f"{FILES}/aggregator/north/source"


def statuses(cloud: OwnCloud) -> dict[str, int]:
    """What each way to make the name answers; what it made is taken away again."""
    ask(cloud, "PUT", SOURCE, b"content")
    found = {}
    for method in ("PUT", "MKCOL", "MOVE", "COPY"):
        made = ask(cloud, method, SOURCE if method in ("MOVE", "COPY") else PATH, Destination=cloud.url + PATH)
        found[method] = made.status_code
        if made.ok:
            assert ask(cloud, "DELETE", PATH).ok
        if method == "MOVE" and made.ok:
            ask(cloud, "PUT", SOURCE, b"content")
    return found


FREE = dict.fromkeys(("PUT", "MKCOL", "MOVE", "COPY"), 201)
LOCKED = {"PUT": 423, "MKCOL": 423, "MOVE": 500, "COPY": 423}


def test_a_get_of_what_is_not_there_gives_its_lock_back_and_the_log_warns(cloud: OwnCloud) -> None:
    for _ in range(3):
        assert ask(cloud, "GET", PATH).status_code == 404
    ask(cloud, "PROPFIND", PATH, ETAG, Depth="0")
    assert (cloud.locks.standing(), cloud.locks.warnings) == ([], 3)
    assert statuses(cloud) == FREE
    assert ask(cloud, "GET", SOURCE).status_code == 200
    assert cloud.locks.warnings == 3


def test_a_lock_that_was_left_behind_keeps_everybody_from_making_the_name(cloud: OwnCloud) -> None:
    cloud.locks.leak_next()
    assert ask(cloud, "GET", PATH).status_code == 404
    assert cloud.locks.standing() == [NAME]
    assert statuses(cloud) == LOCKED
    assert ask(cloud, "GET", PATH).status_code == 404  # who reads may share it
    refusal = ask(cloud, "MOVE", SOURCE, Destination=cloud.url + PATH)
    assert "LockedException" in refusal.text
    assert ask(cloud, "PUT", f"{PATH}.other", b"x").status_code == 201


def test_it_stands_when_its_life_has_passed_until_the_clean_up(cloud: OwnCloud) -> None:
    cloud.locks.leak_next()
    ask(cloud, "GET", PATH)
    cloud.locks.clean_up()
    assert cloud.locks.standing() == [NAME]
    cloud.locks.advance(LIFE_S + 60)
    assert cloud.locks.standing() == [NAME]
    assert ask(cloud, "PUT", SOURCE, b"content").status_code == 201
    assert ask(cloud, "MOVE", SOURCE, Destination=cloud.url + PATH).status_code == 500
    cloud.locks.clean_up()
    assert cloud.locks.standing() == [NAME]  # that MOVE has renewed it
    cloud.locks.advance(LIFE_S + 60)
    cloud.locks.clean_up()
    assert cloud.locks.standing() == []
    assert statuses(cloud) == FREE


@pytest.mark.parametrize(
    ("method", "path", "depth", "renews"),
    [
        ("GET", PATH, "", True),
        ("PUT", PATH, "", True),
        ("MOVE", SOURCE, "", True),
        ("PROPFIND", PATH, "0", True),
        ("PROPFIND", f"{FILES}/aggregator/north/", "1", False),
        ("PROPFIND", f"{FILES}/aggregator/north/", "0", False),
        ("GET", SOURCE, "", False),
    ],
)
def test_what_renews_it(cloud: OwnCloud, method: str, path: str, depth: str, renews: bool) -> None:
    ask(cloud, "PUT", SOURCE, b"content")
    cloud.locks.leak_next()
    ask(cloud, "GET", PATH)
    cloud.locks.advance(LIFE_S - 600)
    ask(cloud, method, path, Depth=depth, Destination=cloud.url + PATH)
    cloud.locks.advance(1200)
    cloud.locks.clean_up()
    assert cloud.locks.standing() == ([NAME] if renews else [])


def test_the_clean_up_runs_by_itself_every_hour(cloud: OwnCloud) -> None:
    cloud.locks.cleans_up_hourly = True
    cloud.locks.advance(600)
    cloud.locks.leak_next()
    ask(cloud, "GET", PATH)
    cloud.locks.advance(LIFE_S + 60)  # its life has passed since the last clean-up
    assert cloud.locks.standing() == [NAME]
    cloud.locks.advance(LIFE_S)
    assert cloud.locks.standing() == []


def test_who_polls_by_get_keeps_it_for_ever(cloud: OwnCloud) -> None:
    cloud.locks.cleans_up_hourly = True
    cloud.locks.leak_next()
    for _ in range(50):
        ask(cloud, "GET", PATH)
        cloud.locks.advance(LIFE_S / 2)
    assert cloud.locks.standing() == [NAME]


def test_nextcloud_takes_no_lock_for_what_is_not_there_but_heeds_one(cloud: OwnCloud) -> None:
    cloud.is_nextcloud = True
    cloud.locks.leak_next()
    ask(cloud, "GET", PATH)
    assert (cloud.locks.standing(), cloud.locks.warnings) == ([], 0)
    cloud.locks.leak(NAME)
    assert statuses(cloud) == LOCKED
    cloud.locks.advance(LIFE_S + 60)
    ask(cloud, "GET", PATH)
    cloud.locks.clean_up()
    assert cloud.locks.standing() == []
