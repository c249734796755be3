"""What `dropfed-site move` does between a hostile or torn server and a directory that is not as it should be."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from shared.errors import ActionRequiredError
from shared.exchange.names import AGGREGATOR, FEDERATION, README, SITE_CARD, STATUS, MessageRef, survey_path
from shared.exchange.records.surveys import Survey
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.folder.local import LocalFolder
from site_client.configuration import open_exchange, read_configuration
from site_client.moving import HOME, MOVED, Mover, last_look, move
from tests.federation.running import WAIT_S
from tests.played import RUN, Played

CONSENT, ROUND, UPDATE = MessageRef("consent", RUN), MessageRef("round", RUN, 1), MessageRef("update", RUN, 1)
WEIGHTS = "model.safetensors"


class Moved:
    """A mover between a server's folder and a directory, which begins empty."""

    def __init__(self, root: Path, run: Played) -> None:
        self.server, self.here = run.drop, root / "here"
        self.here.mkdir(exist_ok=True)
        aggregator = Peer("retina", "north", AGGREGATOR, run.aggregator_key)
        self.move = Mover(root, ListedFolder(LocalFolder(self.server)), LocalFolder(self.here), aggregator).move

    def take_over(self, run: Played) -> None:
        """Have the directory hold what a site has, and the server only what is not the site's."""
        shutil.copytree(run.drop, self.here, dirs_exist_ok=True)
        for path in (CONSENT.path, UPDATE.path):
            shutil.rmtree(self.server / path, ignore_errors=True)


@pytest.fixture
def moved(tmp_path: Path, run: Played) -> Moved:
    (tmp_path / HOME).mkdir()
    return Moved(tmp_path / HOME, run)


def spoil(path: Path) -> Callable[[], None]:
    """Tear a file; return what puts it right."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return lambda: write_file(path, content)


@pytest.mark.parametrize("name", [FEDERATION, README])
def test_a_torn_record_is_not_brought_for_good(moved: Moved, name: str) -> None:
    mend = spoil(moved.server / name)
    moved.move()
    assert not (moved.here / name).exists()
    mend()
    assert moved.move() and (moved.here / name).read_bytes() == (moved.server / name).read_bytes()


def test_while_the_site_is_paused_the_heartbeat_alone_goes(moved: Moved, run: Played) -> None:
    run.offer_and_consent()
    moved.take_over(run)
    write_file(moved.here / STATUS, b"beats")
    for _ in range(2):
        moved.move(is_paused=True)
    assert (moved.server / STATUS).read_bytes() == b"beats"
    assert not (moved.server / CONSENT.path).exists()
    moved.move()
    assert (moved.server / CONSENT.manifest).exists()


def test_only_the_aggregators_surveys_for_this_site_are_brought(moved: Moved, tmp_path: Path) -> None:
    place = moved.server / survey_path(1)
    when = "2026-11-24T10:00:00Z"
    survey = Survey(federation="retina", site="north", number=1, task="dr_staging", classes=[], created=when)
    key = SigningKey.at(tmp_path / "aggregator" / "signing.key")
    for false in (
        b"x" * 100,
        SigningKey(b"\x07" * 32).sign(survey.model_dump(mode="json")),
        key.sign(survey.model_copy(update={"site": "south"}).model_dump(mode="json")),
        key.sign(survey.model_copy(update={"number": 2}).model_dump(mode="json")),
    ):
        write_file(place, false)
        moved.move()
        assert not (moved.here / survey_path(1)).exists()
    write_file(place, signed := key.sign(survey.model_dump(mode="json")))
    assert moved.move() and (moved.here / survey_path(1)).read_bytes() == signed


def test_a_round_whose_model_is_away_is_waited_for(moved: Moved, run: Played) -> None:
    run.offer_and_consent()
    run.sign_and_publish("round", 1, run.to_site(1))
    model = moved.server / ROUND.path / "global.safetensors"
    model.rename(aside := model.with_name("aside"))
    moved.move()
    assert not (moved.here / ROUND.manifest).exists()
    aside.rename(model)
    assert moved.move() and (moved.here / ROUND.path / model.name).exists()


def test_a_round_whose_model_its_rule_removed_is_brought_without(moved: Moved, run: Played) -> None:
    run.offer_and_consent(keep="last 1")
    run.round(1, trains=True)
    (moved.server / ROUND.path / "global.safetensors").unlink()
    assert moved.move()
    assert (moved.here / ROUND.manifest).exists() and (moved.here / MessageRef("verdict", RUN, 1).manifest).exists()


def test_no_message_is_sent_that_is_not_whole_here(moved: Moved, run: Played) -> None:
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    moved.take_over(run)
    model, there = moved.here / UPDATE.path / WEIGHTS, moved.server / UPDATE.manifest
    mend = spoil(model)
    with pytest.raises(ActionRequiredError, match=r"model\.safetensors is not the file its manifest names .* put it"):
        moved.move()
    assert (moved.server / CONSENT.manifest).exists() and not there.exists()
    model.unlink()
    with pytest.raises(ActionRequiredError, match=r"model\.safetensors is missing: it is not as it was left here"):
        moved.move()
    assert not there.exists()
    mend()
    assert moved.move() and there.exists() and (moved.server / UPDATE.path / WEIGHTS).exists()


@pytest.mark.parametrize(("keep", "remains"), [("all", True), ("last 1", False)])
def test_weights_that_a_disk_lost_are_taken_back_only_where_the_rule_says_so(
    tmp_path: Path, moved: Moved, run: Played, keep: str, remains: bool
) -> None:
    run.offer_and_consent(keep=keep)
    run.round(1, trains=True)
    moved.take_over(run)
    moved.move()
    assert (moved.server / UPDATE.path / WEIGHTS).exists()
    (moved.here / UPDATE.path / WEIGHTS).unlink()
    Moved(tmp_path / HOME, run).move()  # another mover, which reads what this one kept
    assert (moved.server / UPDATE.path / WEIGHTS).exists() == remains


def test_a_damaged_manifest_is_told_in_a_sentence(moved: Moved, run: Played) -> None:
    run.offer_and_consent()
    moved.take_over(run)
    spoil(moved.here / CONSENT.manifest)
    with pytest.raises(ActionRequiredError, match=r"consent/manifest\.json .*: it is not as it was left here"):
        moved.move()


def test_a_mover_lives_through_what_its_own_disk_does(
    tmp_path: Path, moved: Moved, run: Played, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run.offer_and_consent()
    moved.take_over(run)
    work, stop = tmp_path / "north", Event()
    moved.here.rename(work / "exchange")
    (work / "exchange").chmod(0o700)
    settings = {"exchange": "exchange", "url": f"file://{moved.server}", "poll_seconds": 0.05}
    configuration = read_configuration(work).model_copy(update=settings)
    in_the_way = work / HOME / f".{MOVED}.writing"
    in_the_way.mkdir(parents=True)
    (work / HOME).chmod(0o700)
    mover = Thread(target=move, args=(work, configuration, stop), kwargs={"once": False})
    mover.start()
    try:
        wait_until(lambda: "Trying again until it works" in caplog.text, "the trouble")
        assert (met := last_look(work)) is not None and MOVED in met.trouble
        in_the_way.rmdir()
        wait_until(lambda: CONSENT.manifest in _listed(work), "the end of the trouble")
        wait_until(lambda: (look := last_look(work)) is not None and not look.trouble, "a look that goes well")
    finally:
        stop.set()
        mover.join()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def _listed(work: Path) -> str:
    path = work / HOME / MOVED
    return path.read_text() if path.exists() else ""


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exchange").mkdir()
    for mode in (0o777, 0o770, 0o711):
        (tmp_path / "exchange").chmod(mode)
        with pytest.raises(ActionRequiredError, match="can be entered by others than its owner: run `chmod 700"):
            open_exchange(tmp_path, "exchange")
    (tmp_path / "exchange").chmod(0o700)
    open_exchange(tmp_path, "exchange")
    assert (open_exchange(tmp_path, "made").root.stat().st_mode & 0o777) == 0o700


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for exchange in ("file", "nowhere/exchange", "file/exchange"):
        with pytest.raises(ActionRequiredError, match=r"cannot be used \(.*\): check the path"):
            open_exchange(tmp_path, exchange)


def test_what_the_server_lost_is_sent_again(moved: Moved, run: Played, tmp_path: Path) -> None:
    """As one does that was put back from a backup, while this site's mover was off."""
    run.offer_and_consent()
    moved.take_over(run)
    assert moved.move() and (moved.server / CONSENT.manifest).exists()
    shutil.rmtree(moved.server / CONSENT.path)
    (moved.server / SITE_CARD).unlink()
    again = Moved(tmp_path / HOME, run)
    assert again.move() and not again.move()
    for path in (CONSENT.manifest, SITE_CARD):
        assert (moved.server / path).read_bytes() == (moved.here / path).read_bytes()


def test_what_is_larger_than_any_record_hides_nothing(
    moved: Moved, run: Played, caplog: pytest.LogCaptureFixture
) -> None:
    stray = MessageRef("offer", "aaa").manifest
    for path in (stray, survey_path(1), "aggregator_keys/0002.json"):
        write_file(moved.server / path, bytes((1 << 20) + 1))
    run.offer()
    assert moved.move() and (moved.here / MessageRef("offer", RUN).manifest).exists()
    assert stray in caplog.text and not (moved.here / stray).exists()
