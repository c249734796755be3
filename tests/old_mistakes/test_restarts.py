"""What a site does that comes back: after a crash, or after rounds without it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.verdicts import Verdict
from shared.exchange.signing import canonical
from shared.folder.local import LocalFolder
from site_client import rounds
from site_client.configuration import read_configuration
from site_client.daemon import Daemon, Turn
from tests.played import RUN, Played


@pytest.fixture
def play(tmp_path: Path) -> Played:
    """A folder whose site has agreed to a run. What is then asked of it is nonsense, so it never trains."""
    play = Played(tmp_path)
    play.offer_and_consent()
    return play


def started(play: Played) -> Daemon:
    """The site's daemon, knowing what lies in its work directory and nothing else."""
    work = play.drop.parent / "north"
    return Daemon(work, read_configuration(work), LocalFolder(play.drop), stop=threading.Event())


def next_work(daemon: Daemon) -> rounds.Action:
    """What a daemon does once it has found nothing new in the folder."""
    return rounds.decide(
        replace(daemon._facts(Turn.IDLE), card_published=True, enrolled=True, unpublished=False, looked=True)
    )


def messages_in(play: Played) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (play.drop / names.RUNS).rglob("*") if path.is_file()}


def round_of(play: Played, round_no: int) -> dict[str, bytes | Path]:
    return {names.ROUND_CONFIGURATION: b"round: %d\n" % round_no, names.GLOBAL_MODEL: play.model(0.5)}


def publish(play: Played, ref: MessageRef, files: dict[str, bytes | Path], answered: MessageRef | None) -> None:
    """The aggregator goes on, and the site is not there to see it."""
    message = play.aggregator.ledger.message(answered) if answered else None
    play.aggregator.outbox.sign(ref, files, in_reply_to=message.digest if message else None)
    play.aggregator.outbox.publish()


def publish_late(play: Played, round_no: int) -> None:
    late = Verdict(
        run=RUN,
        round=round_no,
        site="north",
        status="late",
        score=None,
        tolerance="0.3",
        theta=None,
        weight=None,
        reason="no answer came before the round closed",
    )
    publish(play, MessageRef("verdict", RUN, round_no), {names.VERDICT: canonical(late.model_dump())}, None)


def test_a_restarted_site_that_repeats_an_old_epoch(play: Played) -> None:
    """A site started again repeated the epoch it had done; here it goes on with its round, and answers that once."""
    play.round(1, trains=True)
    play.send("round", 2, round_of(play, 2), "consent")
    half = play.drop.parent / "north" / "mirror" / MessageRef("update", RUN, 2).path / names.SITE_MODEL
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a model")  # where the kill caught it
    assert next_work(started(play)) == rounds.AnswerRound(RUN, 2)

    play.send("update", 2, {names.METRICS: b"round,epoch\n", names.SITE_MODEL: play.model(0.75)}, "round")
    before = messages_in(play)
    daemon = started(play)  # killed again, after the answer
    daemon.run(once=True)
    assert next_work(daemon) == rounds.Wait()
    assert messages_in(play) == before


def test_a_resume_that_the_sites_ignore(play: Played) -> None:
    """Sites counted epochs themselves, whatever a resumed run was at; here a site follows the folder's last message."""
    consent = MessageRef("consent", RUN)
    for round_no in (1, 2, 3):
        publish(play, MessageRef("round", RUN, round_no), round_of(play, round_no), consent)
        if round_no < 3:
            publish_late(play, round_no)
    daemon = started(play)
    with pytest.raises(RejectedError, match=r"rounds/0003/to_site/config\.yaml"):  # it is about to train
        daemon.run(once=True)
    assert next_work(daemon) == rounds.AnswerRound(RUN, 3)
    assert not any(play.drop.glob(f"{names.RUNS}/*/rounds/*/from_site"))

    publish_late(play, 3)  # and when the PI stops the run, it has ended here too
    publish(play, MessageRef("final", RUN), {names.CARD: b"{}", names.FINAL_MODEL: play.model(0.25)}, consent)
    daemon = started(play)
    daemon.run(once=True)
    assert daemon._facts(Turn.IDLE).runs == ()
    assert next_work(daemon) == rounds.Wait()
