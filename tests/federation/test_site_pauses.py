"""How often a site looks into its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.setup import initialise
from shared import polling
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.signing import SigningKey
from shared.folder.contract import Entry
from shared.folder.local import LocalFolder
from site_client.arrivals import OFFERS_EVERY, Arrivals
from site_client.configuration import read_configuration
from site_client.daemon import Daemon
from site_client.rounds import Look
from site_client.setup import join, read_invite
from tests.federation.waited import Waited
from tests.played import RUN, Played

WAITED_S = 1000.0


class Clock(Waited):
    """It notes the pauses, and is set after enough waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def pass_over(self, pause_s: float) -> None:
        super().pass_over(pause_s)
        self.pauses.append(pause_s)
        if self.now > WAITED_S:
            self.set()


class Counting(LocalFolder):
    """A folder that counts the looks into it."""

    looks = 0

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self.looks += 1
        return super().read(path, max_bytes=max_bytes)

    def list(self, path: str) -> list[Entry]:
        self.looks += 1
        return super().list(path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


def require_ever_rarer_looks(clock: Clock, folder: Counting) -> None:
    assert len(clock.pauses) < 120
    now = 0.0
    for pause in clock.pauses:
        assert pause == pytest.approx(min(max(0.02, now / 10), 30.0))
        now += pause
    # one small request a look; some when it starts, to see that all it has sent is there, and when it ends; two to see
    # that there is no survey; one before each of its two heartbeats, to see that no other copy of it has signed
    assert folder.looks <= len(clock.pauses) + 15


def test_a_site_that_waits_to_be_enrolled_looks_ever_more_rarely(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "drop").mkdir()
    initialise(tmp_path / "aggregator", "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    invite = read_invite(tmp_path / "aggregator" / "invites" / "north.json")
    join(tmp_path / "north", invite, data={}, url=None, password=None)
    folder = Counting(tmp_path / "drop")
    Daemon(tmp_path / "north", read_configuration(tmp_path / "north"), folder, stop=clock).run()
    require_ever_rarer_looks(clock, folder)


def test_a_site_whose_run_has_ended_looks_ever_more_rarely(played: Played, clock: Clock) -> None:
    work = played.drop.parent / "north"
    folder = Counting(played.drop)
    Daemon(work, read_configuration(work), folder, stop=clock).run()
    require_ever_rarer_looks(clock, folder)
    assert (played.drop / MessageRef("final", "octa-1").manifest).exists()
    assert SigningKey.at(work / "signing.key").public
    assert (work / names.STATUS).exists()


class Noted(LocalFolder):
    """A run's folder, which notes what the site asks for."""

    def __init__(self, run: Played) -> None:
        super().__init__(run.drop)
        self.asked: list[str] = []
        run.site.inbox._folder = self

    def list(self, path: str) -> list[Entry]:
        self.asked.append(path)
        return super().list(path)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self.asked.append(path)
        return super().read(path, max_bytes=max_bytes)


def test_a_further_offer_is_looked_for_now_and_then_or_when_a_message_before_another_is_missing(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    folder, look = Noted(run), Look((MessageRef("final", RUN),), (MessageRef("offer", RUN),), offers=True)
    arrivals = Arrivals(folder, run.site, lambda _: None)
    for number in range(2 * OFFERS_EVERY):
        folder.asked.clear()
        assert arrivals.look(look) is None
        assert (names.RUNS in folder.asked) == (number % OFFERS_EVERY == 0)
    assert arrivals.look(look) is None
    offer = MessageRef("offer", "later")
    run.aggregator.outbox.sign(offer, run.to_offer(run="later"), in_reply_to=run.card_digest)
    round_1 = run.sign_and_publish("round", 1, run.to_site(1))
    assert arrivals.look(look) == offer  # the round is there, and it follows something else
    assert arrivals.look(look) == round_1


def test_while_a_rounds_folder_is_filled_most_looks_go_there_alone_and_no_other_message_is_overlooked(
    tmp_path: Path,
) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    folder, filled, final = Noted(run), MessageRef("round", RUN, 1), MessageRef("final", RUN)
    (run.drop / filled.path).mkdir(parents=True)
    arrivals = Arrivals(folder, run.site, lambda _: None)
    look = Look((final,), later_than=(MessageRef("offer", RUN),))
    whole = [f"runs/{RUN}/rounds", filled.manifest, final.manifest]
    for expected in (whole, *[[filled.manifest]] * 3, whole, [filled.manifest]):
        folder.asked.clear()
        assert arrivals.look(look) is None
        assert folder.asked == expected
    run.sign_and_publish("round", 1, run.to_site(1))
    assert arrivals.look(look) == filled
