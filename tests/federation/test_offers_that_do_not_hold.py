"""An offer that the aggregator signed and that no site can follow: what it stops at a site, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import ConfigurationError, DropfedError, RejectedError
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Abort
from shared.exchange.records.messages import Manifest
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import now_text
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of
from shared.folder.durable import write_file
from site_client.commands import withdraw
from site_client.decisions import decide
from site_client.offer import describe
from tests.federation.hospital import Hospital
from tests.federation.running import RUN, TASK, run_configuration, write_data

BAD = "bad-run"


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    write_data(TASK, tmp_path / "images", 0, 20, seed=1)
    return Hospital(tmp_path, tmp_path / "images")


def put(site: Hospital, ref: MessageRef, files: dict[str, bytes], answers: str) -> None:
    """Send what our own aggregator would not sign."""
    ledger, key = site.channel.ledger, SigningKey.at(site.home / "aggregator" / "signing.key")
    for name, content in files.items():
        ledger.path(ref, name).parent.mkdir(parents=True, exist_ok=True)
        write_file(ledger.path(ref, name), content)
    manifest = Manifest(
        kind=ref.kind,
        federation="retina",
        site="north",
        sender=AGGREGATOR,
        run=ref.run,
        round=ref.round_no,
        seq=ledger.own_head.seq + 1,
        previous=ledger.own_head.digest,
        in_reply_to=answers,
        created=now_text(),
        files={name: entry_of(ledger.path(ref, name)) for name in sorted(files)},
    )
    signed = key.sign(manifest.model_dump())
    ledger.add(Message(ref, manifest, digest_of(signed)), signed)
    site.channel.outbox.publish()


def offer(site: Hospital, *, beside: bytes = b"", answers: str | None = None) -> None:
    """Offer a run that does not hold, as ``beside`` or ``answers`` make it."""
    run = dump_yaml(run_configuration(run=BAD, sites=["north"], quorum=1))
    tensors = (site.drop / MessageRef("offer", RUN).path / names.TENSORS).read_bytes()
    files = {names.RUN_CONFIGURATION: run + beside, names.TENSORS: tensors}
    put(site, MessageRef("offer", BAD), files, answers or site.site.card_digest or "")


def finished(site: Hospital) -> RunConfiguration:
    """A run whose final model waits in the folder."""
    run = site.offer()
    site.live()
    assert site.receive(MessageRef("consent", RUN))
    site.send_final(run)
    return run


def test_once_it_is_aborted_the_next_one_is_answered(hospital: Hospital) -> None:
    finished(hospital)
    offer(hospital, beside=b"further: 1\n")
    with pytest.raises(RejectedError) as told:
        hospital.live()
    file = f"runs/{BAD}/offer/run.yaml"
    assert str(told.value) == f"{file}: further: is not a known key: not followed; tell the aggregator's people"
    for decided in (
        lambda: describe(hospital.work, BAD),
        lambda: decide(hospital.work, BAD, "no"),
        lambda: decide(hospital.work, BAD, "yes"),
        lambda: withdraw.command.main([BAD, "--work", str(hospital.work), "--yes"], standalone_mode=False),
    ):
        with pytest.raises(ConfigurationError, match=f"{BAD}: {file}: further: is not a known key: nothing of it can"):
            decided()
    abort = Abort(run=BAD, reason="as the test says")
    last = hospital.channel.ledger.last_from_peer()
    assert last is not None
    put(hospital, MessageRef("abort", BAD), {names.ABORT: canonical(abort.model_dump())}, last.digest)
    hospital.live()
    with pytest.raises(ConfigurationError, match="further: is not a known key: it was aborted: as the test says"):
        describe(hospital.work, BAD)
    run = hospital.offer(run_configuration(run="next", sites=["north"], quorum=1))
    hospital.live()
    assert hospital.hears(run.run)


def test_it_does_not_keep_what_came_before_from_being_used(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    finished(hospital)
    offer(hospital, answers="0" * 64)
    with hospital.living():
        hospital.wait_until((hospital.work / "final" / RUN / names.FINAL_MODEL).exists)
    told = f"runs/{BAD}/offer/manifest.json: does not answer the message it should answer: not followed; tell the "
    told += "aggregator's people"
    assert caplog.text.count(told) == 1, caplog.text
    assert "Trying again" not in caplog.text


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_abort_is_held_to_what_the_offer_had_encrypted(hospital: Hospital, *, is_gone: bool) -> None:
    run = hospital.offer(run_configuration(sites=["north"], quorum=1, encrypt="all"))
    hospital.live()
    if is_gone:
        (hospital.work / "mirror" / MessageRef("offer", RUN).path / names.RUN_CONFIGURATION).unlink()
    last = hospital.channel.ledger.last_from_peer()
    answers = last.digest if last else hospital.site.card_digest
    abort = canonical(Abort(run=run.run, reason="as the test says").model_dump())
    put(hospital, MessageRef("abort", RUN), {names.ABORT: abort}, answers or "")
    said = "run.yaml is missing: it is not as it was left" if is_gone else "is not encrypted, which is not what the run"
    with pytest.raises(DropfedError, match=said):
        hospital.live()
    assert not hospital.is_signed(MessageRef("abort", RUN))


def test_a_round_that_a_refused_verdict_closed_is_not_trained(hospital: Hospital) -> None:
    run = hospital.offer()
    hospital.live()
    assert hospital.receive(MessageRef("consent", RUN))
    hospital.send_round(run, 1)
    put(hospital, MessageRef("verdict", RUN, 1), {names.VERDICT: b"{}"}, "0" * 64)
    with pytest.raises(RejectedError, match=r"verdict/manifest\.json: does not answer the message it should answer"):
        hospital.live()
    assert not hospital.is_signed(MessageRef("update", RUN, 1))
