"""Who can write in a folder and has no key can expel nobody from it: only what is signed is held against its signer."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Withdrawal
from shared.exchange.records.verdicts import Verdict
from shared.exchange.signing import SigningKey, canonical
from shared.folder.local import LocalFolder
from site_client.configuration import read_configuration
from site_client.daemon import Daemon, Turn
from tests.model_check.replay.stubs import Clock, without_training
from tests.played import RUN, Played, work_later


@pytest.mark.parametrize(
    "content", [b"{}", b"", b"\x00" * 9, b"{" * 5000], ids=["empty-object", "nothing", "zeros", "deep"]
)
def test_an_unsigned_manifest_of_two_looks_expels_nobody(run: Played, content: bytes) -> None:
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    ref = MessageRef("update", RUN, 1)
    run.folder_sync.attend(ref)
    LocalFolder(run.drop).create(ref.manifest, content)
    for _ in range(3):
        work_later(run.folder_sync)
        assert not run.aggregator.ledger.is_settled(ref)
    assert "nor held against anybody" in run.trouble.read_text()
    (run.drop / ref.manifest).unlink()
    run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    assert run.folder_sync.work()
    assert run.aggregator.ledger.message(ref) is not None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_but_what_the_site_signed_for_a_place_settles_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever lies there: bytes, a record under another key, and the site's own records from other places."""
    run = Played(tmp_path_factory.mktemp("forged"))
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    own = {
        "consent": (run.drop / MessageRef("consent", RUN).manifest).read_bytes(),
        "status": (run.drop / names.STATUS).read_bytes(),
        "site": (run.drop / names.SITE_CARD).read_bytes(),
    }
    body = json.loads(own["consent"])["body"]
    ref = data.draw(st.sampled_from([MessageRef("update", RUN, 1), MessageRef("withdrawal", RUN)]))
    body |= {"kind": ref.kind, "round": ref.round_no, "seq": data.draw(st.integers(0, 4))}
    content = data.draw(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from(sorted(own.values())),
            st.just(SigningKey(b"\x07" * 32).sign(body)),
            st.just(own["consent"].replace(b'"seq":1', b'"seq":2')),
        )
    )
    LocalFolder(run.drop).create(ref.manifest, content)
    run.folder_sync.attend(MessageRef("update", RUN, 1))
    for _ in range(3):
        work_later(run.folder_sync)
    assert not run.aggregator.ledger.is_settled(ref)


def test_a_forged_message_hides_no_other(run: Played) -> None:
    """Garbage where the answer is awaited, and in another run's folder: the withdrawal is read all the same."""
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    folder = LocalFolder(run.drop)
    for ref in (MessageRef("update", RUN, 1), MessageRef("round", RUN, 2), MessageRef("offer", "a-run")):
        folder.create(ref.manifest, b"{}")
    withdrawal = {names.WITHDRAWAL: canonical(Withdrawal(run=RUN, reason="enough").model_dump())}
    run.sign_and_publish("withdrawal", 0, withdrawal)
    run.folder_sync.attend(MessageRef("update", RUN, 1))
    for _ in range(2):
        work_later(run.folder_sync)
    assert run.aggregator.ledger.message(MessageRef("withdrawal", RUN)) is not None


def _daemon_of_site(run: Played) -> Daemon:
    work = run.site.ledger.root.parent
    return Daemon(work, read_configuration(work), LocalFolder(run.drop), stop=threading.Event())


def test_a_verdict_that_the_aggregator_has_not_signed_keeps_no_site_from_answering_its_round(
    run: Played, caplog: pytest.LogCaptureFixture
) -> None:
    """A site fetches no model for a round that is over, and so must not take anybody's word for that."""
    run.offer_and_consent()
    forged = MessageRef("verdict", RUN, 1).manifest
    LocalFolder(run.drop).create(forged, b"{}")
    run.sign_and_publish("round", 1, run.to_site(1))
    with without_training(Clock()):
        _daemon_of_site(run).step()
    assert f"{forged}: is not a signed record" in caplog.text
    assert (run.drop / MessageRef("update", RUN, 1).manifest).exists()


def test_a_verdict_that_is_gone_for_a_while_keeps_no_site_from_what_follows(run: Played) -> None:
    """Its round was read without the model, for it is over; until the verdict is there again nothing is answered."""
    run.offer_and_consent()
    run.sign_and_publish("round", 1, run.to_site(1))
    nothing = dict.fromkeys(("score", "tolerance", "theta", "weight"))
    late = Verdict(run=RUN, round=1, site="north", status="late", reason="late", **nothing)
    ref = run.sign_and_publish("verdict", 1, {names.VERDICT: canonical(late.model_dump())}, answers_nothing=True)
    site, verdict = _daemon_of_site(run), run.drop / ref.manifest
    with without_training(Clock()):
        turn = Turn.IDLE
        while site._channel.ledger.message(MessageRef("round", RUN, 1)) is None:
            turn = site._take_turn(turn, must_succeed=True)
            assert turn is not Turn.IDLE
        content = verdict.read_bytes()
        verdict.unlink()
        with pytest.raises(RejectedError, match="was not fetched, for there was a verdict on the round, now gone"):
            site.step()
        verdict.write_bytes(content)
        site.step()
    assert site._channel.ledger.message(ref) is not None
    assert not (run.drop / MessageRef("update", RUN, 1).manifest).exists()


def test_what_a_site_has_signed_to_its_own_harm_is_refused_for_good_and_so_is_what_follows(run: Played) -> None:
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    large = {names.SITE_MODEL: bytes(64 << 20), names.METRICS: b""}
    run.sign_and_publish("update", 1, dict(large))
    run.folder_sync.attend(MessageRef("update", RUN, 1))
    assert run.folder_sync.work()
    assert "at most" in (run.aggregator.ledger.refusal(MessageRef("update", RUN, 1)) or "")
    run.send("round", 2, run.to_site(2), "consent")
    run.sign_and_publish("update", 2, run.from_site(2, trains=True))
    run.folder_sync.attend(MessageRef("update", RUN, 2))
    assert run.folder_sync.work()
    assert "breaks the chain: number 2 before it was refused" in (
        run.aggregator.ledger.refusal(MessageRef("update", RUN, 2)) or ""
    )
