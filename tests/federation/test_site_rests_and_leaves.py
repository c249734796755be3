"""A person at the hospital pauses the site or withdraws: its real daemon and commands, an aggregator played here."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
import yaml
from click.testing import CliRunner, Result

from aggregator.store import withdrawal_of
from shared.audit.reading import Reading
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.order import ending_of
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.run import RunConfiguration
from shared.exchange.trust import open_record
from shared.folder.durable import hash_file, write_file
from shared.folder.local import LocalFolder
from shared.folder.meter import Direction
from site_client.cli import main
from site_client.heartbeat import PUBLIC_TROUBLE, last_status
from site_client.store import has_final, personal_path
from tests.federation.hospital import Hospital
from tests.federation.running import POLICY, RUN, TASK, run_configuration, write_data
from tests.played import work_later


def site(hospital: Hospital, *arguments: str, answer: str | None = None) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--work", str(hospital.work)], input=answer)
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_data(TASK, folder, 0, 12, seed=1)
    return folder


@pytest.fixture
def hospital(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    monkeypatch.setattr("site_client.heartbeat.EVERY_S", 0.0)  # no time passes here between two heartbeats
    return Hospital(tmp_path, images)


def agreed(hospital: Hospital, run: RunConfiguration | None = None) -> RunConfiguration:
    run = hospital.offer(run)
    hospital.live()
    assert hospital.receive(MessageRef("consent", run.run))
    return run


def during_training(hospital: Hospital, *command: str, percent: int = 0) -> None:
    """Have a person type a command while the site trains; the site beats for it once at the beginning.

    Args:
        percent: of the work that is done by then, or more.
    """

    def type_it(status: dict[str, object]) -> None:
        if status["phase"] == "training" and int(str(status["progress_percent"])) >= percent:
            hospital.folder.on_heartbeat = lambda _: None
            assert site(hospital, *command).exit_code == 0

    hospital.folder.on_heartbeat = type_it


def trained(hospital: Hospital, round_no: int) -> str:
    return hash_file(hospital.drop / MessageRef("update", RUN, round_no).path / names.SITE_MODEL)[1]


# --- pausing ----------------------------------------------------------------------------------------------------


def test_a_paused_site_asks_its_folder_for_nothing_and_says_so(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    run = agreed(hospital)
    hospital.send_round(run, 1)
    assert site(hospital, "pause").exit_code == 0
    before, hospital.folder.phases = hospital.folder.requests, []
    told = json.loads((hospital.drop / names.STATUS).read_bytes())["body"]["own_head"]
    caplog.set_level("INFO")
    hospital.live()  # a restart changes nothing
    assert "and only the heartbeat sent, until `dropfed-site resume" in caplog.text
    assert hospital.folder.requests == before + 3, "but for the card and the last heartbeat, before the first"
    now = json.loads((hospital.drop / names.STATUS).read_bytes())["body"]["own_head"]
    assert now == told and told["seq"] > 0, "how much was sent does not depend on who looks"
    assert not hospital.is_signed(MessageRef("round", RUN, 1))
    shown = site(hospital, "status").output
    assert "waits for: a person here, to end the pause" in shown
    assert f", once it runs: nothing, until `dropfed-site resume --work {hospital.work}`" in shown
    assert site(hospital, "resume").exit_code == 0
    assert "to end the pause" not in site(hospital, "status").output
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))


def test_a_training_that_is_paused_is_repeated_to_the_same_bytes(hospital: Hospital, tmp_path: Path) -> None:
    run = agreed(hospital)
    hospital.send_round(run, 1)
    shutil.copytree(tmp_path, tmp_path.with_name("undisturbed"))
    during_training(hospital, "pause")
    hospital.live()
    assert "training" in hospital.folder.phases
    assert not hospital.is_signed(MessageRef("update", RUN, 1))
    hospital.live()
    assert not hospital.is_signed(MessageRef("update", RUN, 1))
    site(hospital, "resume")
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))
    disturbed = trained(hospital, 1)
    shutil.rmtree(tmp_path)
    shutil.move(tmp_path.with_name("undisturbed"), tmp_path)
    hospital.live()
    assert trained(hospital, 1) == disturbed


def during_transfer(hospital: Hospital, way: Direction, *command: str) -> list[Direction]:
    """Have a person type a command while a model moves that way; returns the models that were let pass."""
    passed: list[Direction] = []
    typed = False

    def on_model(direction: Direction) -> None:
        nonlocal typed
        if direction == way and not typed:
            typed = True
            assert site(hospital, *command).exit_code == 0
        hospital.daemon.permit(direction)
        passed.append(direction)

    hospital.folder.on_model = on_model
    return passed


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_pause_breaks_off_what_is_on_its_way(
    way: Direction, hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hospital.send_round(agreed(hospital), 1)
    passed = during_transfer(hospital, way, "pause")
    hospital.live()
    assert passed == (["down"] if way == "up" else [])
    assert not hospital.is_published(MessageRef("update", RUN, 1))
    assert hospital.is_signed(MessageRef("round", RUN, 1)) == (way == "up")
    assert "what was on its way is put off while the site is paused" in caplog.text
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    shown = site(hospital, "status").output
    assert (
        "trouble" not in shown
        and f", once it runs: nothing, until `dropfed-site resume --work {hospital.work}`" in shown
    )
    site(hospital, "resume")
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))


def test_a_withdrawal_breaks_off_what_comes_but_not_what_is_signed(hospital: Hospital) -> None:
    run = agreed(hospital)
    hospital.send_round(run, 1)
    passed = during_transfer(hospital, "down", "withdraw", RUN, "--yes")
    hospital.live()
    assert passed == [] and hospital.is_published(MessageRef("withdrawal", RUN))
    hospital.live()
    assert passed == [] and not hospital.is_signed(MessageRef("update", RUN, 1))
    hospital.send_verdict(run, 1)

    second = agreed(hospital, run.model_copy(update={"run": "another-run"}))
    hospital.send_round(second, 1)
    passed = during_transfer(hospital, "up", "withdraw", "another-run", "--yes")
    hospital.live()
    assert passed == ["down", "up"]
    assert hospital.is_published(MessageRef("update", "another-run", 1))
    assert hospital.is_published(MessageRef("withdrawal", "another-run"))


def test_whoever_asks_for_one_look_is_told_what_the_site_waits_for(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hospital.send_round(agreed(hospital), 1)
    assert "nothing more to do now; this site waits for the aggregator, to send a round or the final" in caplog.text
    in_hours = [(datetime.now() + timedelta(hours=hours)).strftime("%H:%M") for hours in (2, 3)]
    settings, hours = hospital.work / "site.yaml", "-".join(in_hours)
    values = yaml.safe_load(settings.read_text())
    settings.write_text(yaml.safe_dump(values | {"limits": {"training_hours": hours}}))
    hospital.live()
    assert f"nothing more to do now; this site waits for its hours for training, {hours}" in caplog.text
    assert not hospital.is_signed(MessageRef("update", RUN, 1))


# --- trouble ----------------------------------------------------------------------------------------------------


def test_trouble_that_begins_while_sending_is_told_at_once(hospital: Hospital) -> None:
    """The folder takes no model: the status says so here in full, and in the folder that there is trouble."""

    def said(path: Path) -> dict[str, object]:
        return dict(json.loads(path.read_bytes())["body"])

    hospital.send_round(agreed(hospital), 1)
    blocked = hospital.drop / MessageRef("update", RUN, 1).path
    blocked.write_bytes(b"a file where a folder must be")
    here, there = hospital.work / names.STATUS, hospital.drop / names.STATUS
    with hospital.living():
        hospital.wait_until(lambda: said(here)["trouble"])
        hospital.wait_until(lambda: said(there)["trouble"])
        assert said(here)["phase"] == said(there)["phase"] == "sending"
        assert "cannot be used" in str(said(here)["trouble"]) and said(there)["trouble"] == PUBLIC_TROUBLE
        shown = site(hospital, "status").output
        assert "trouble: " in shown and ", once it runs: tries again, and goes on once it is over" in shown
    blocked.unlink()
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))
    assert said(here)["trouble"] is None


# --- being away -------------------------------------------------------------------------------------------------


def test_a_site_that_was_away_needs_no_weights_of_rounds_that_passed(hospital: Hospital) -> None:
    """It was asked in rounds 2 and 5 and missed them; their models are gone from the folder. It answers round 7."""
    run = agreed(hospital)
    for round_no in (2, 5):
        ref = hospital.send_round(run, round_no)
        hospital.send_verdict(run, round_no)
        (hospital.drop / ref.path / names.GLOBAL_MODEL).unlink()
    hospital.send_round(run, 7)
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 7))
    for round_no, has_model in ((2, False), (5, False), (7, True)):
        mirrored = hospital.work / "mirror" / MessageRef("round", RUN, round_no).path
        assert {path.name for path in mirrored.iterdir()} == {names.MANIFEST, names.ROUND_CONFIGURATION} | (
            {names.GLOBAL_MODEL} if has_model else set()
        )
        assert hospital.is_published(MessageRef("update", RUN, round_no)) == has_model


def test_a_run_that_never_started_holds_up_no_other(hospital: Hospital) -> None:
    """Aborted after this site agreed: it is told so, and takes up the next run that is offered."""
    run = agreed(hospital)
    hospital.send_abort(run.run)
    hospital.live()
    assert f"last run: {RUN} was aborted: as the test says" in site(hospital, "status").output
    assert f"{RUN}: it was aborted: as the test says" in site(hospital, "withdraw", RUN, "--yes").output
    agreed(hospital, run_configuration(run="another-run", sites=["north"], quorum=1))
    assert verify(LocalFolder(hospital.drop)).findings == []


# --- leaving ----------------------------------------------------------------------------------------------------


def test_what_stayed_here_of_a_run_that_is_over_goes_once_another_is_agreed_to(hospital: Hospital) -> None:
    first = agreed(hospital)
    hospital.send_final(first)
    hospital.live()
    stayed = [personal_path(hospital.work, run, 1) for run in (first.run, "octa-9")]
    for path in stayed:
        write_file(path, b"head")
    agreed(hospital, run_configuration(run="octa-2", sites=["north"], quorum=1))
    assert [path.exists() for path in stayed] == [False, True], "octa-9 has not ended"


def test_a_site_that_withdraws_in_mid_training_leaves_at_once_and_for_good(hospital: Hospital) -> None:
    run = agreed(hospital)
    hospital.send_round(run, 1)
    during_training(hospital, "withdraw", RUN, "--yes", "--reason", "the ethics board\nobjects")
    hospital.live()
    assert not hospital.is_signed(MessageRef("update", RUN, 1))

    # The aggregator goes on before it knows: all of that is read, without weights, and nothing is answered.
    hospital.send_verdict(run, 1)
    hospital.send_round(run, 2)
    hospital.live()
    hospital.send_verdict(run, 2)
    hospital.live()
    assert hospital.is_signed(MessageRef("verdict", RUN, 2))
    assert not (hospital.work / "mirror" / MessageRef("round", RUN, 2).path / names.GLOBAL_MODEL).exists()
    assert not hospital.is_published(MessageRef("update", RUN, 2))

    # Then it knows, and has nothing more to say.
    assert f"last run: {RUN} was left by this site\n" in site(hospital, "status").output
    ref = MessageRef("withdrawal", RUN)
    assert hospital.receive(ref)
    message, offer = hospital.channel.ledger.message(ref), hospital.channel.ledger.message(MessageRef("offer", RUN))
    assert message is not None and offer is not None and message.manifest.in_reply_to == offer.digest
    content = hospital.channel.ledger.path(ref, names.WITHDRAWAL).read_bytes()
    assert open_record(content, Withdrawal, ref.path) == Withdrawal(run=RUN, reason="the ethics board objects")
    assert not (hospital.work / "final").exists()

    # A new run is a new question.
    agreed(hospital, run_configuration(run="another-run", sites=["north"], quorum=1))
    assert verify(LocalFolder(hospital.drop)).findings == []


def test_a_site_that_withdraws_once_all_is_trained_still_sends_no_model(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("NOTED_EVERY_S", "PROGRESS_SHARE"):
        monkeypatch.setattr(f"site_client.heartbeat.{pause}", 0.0)
    hospital.send_round(agreed(hospital), 1)
    during_training(hospital, "withdraw", RUN, "--yes", percent=100)
    hospital.live()
    assert not hospital.is_signed(MessageRef("update", RUN, 1))
    assert hospital.is_published(MessageRef("withdrawal", RUN))


def test_a_final_model_that_cannot_be_made_ready_is_tried_again(
    hospital: Hospital, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the disk with the images cannot be reached for a while."""
    monkeypatch.setattr("site_client.round_work.KEPT_AGAIN_AFTER_S", 2.0)
    away = tmp_path / "away"
    hospital.send_final(agreed(hospital))
    shutil.copytree(images, own := tmp_path / "own")
    path = hospital.work / "site.yaml"
    write_file(path, path.read_bytes().replace(str(images).encode(), str(own).encode()))
    own.rename(away)
    with hospital.living():
        hospital.wait_until(lambda: "its final model is not ready for use" in caplog.text)
        assert not has_final(hospital.work, RUN)
        not_yet = "; it is not ready for use here yet: log.txt tells what is in the way\n"
        hospital.wait_until(lambda: not_yet in site(hospital, "status").output)
        away.rename(own)
        hospital.wait_until(lambda: has_final(hospital.work, RUN))
    assert "not ready" not in site(hospital, "status").output
    assert caplog.text.count("its final model is not ready for use") == 1


def test_a_withdrawal_that_the_final_model_has_not_read_comes_too_late_for_everybody(hospital: Hospital) -> None:
    """The two cross on their way: the site, the aggregator and an auditor have it that the run is finished."""
    run = agreed(hospital)
    site(hospital, "withdraw", RUN, "--yes")
    hospital.live()
    hospital.send_final(run)
    hospital.live()
    assert ending_of(hospital.daemon._ledger, RUN) == "finished"
    assert (hospital.work / "final" / RUN).exists()  # its model is the site's
    assert "was over before the aggregator read that this site withdraws" in site(hospital, "status").output
    work_later(hospital.site)
    assert hospital.channel.ledger.message(MessageRef("withdrawal", RUN)) is not None
    assert ending_of(hospital.channel.ledger, RUN) == "finished"
    assert Reading(LocalFolder(hospital.drop)).ending(RUN) == "finished"
    assert verify(LocalFolder(hospital.drop)).findings == []
    agreed(hospital, run_configuration(run="another-run", sites=["north"], quorum=1))


def test_a_round_that_was_signed_after_the_withdrawal_was_read_is_not_taken(hospital: Hospital) -> None:
    run = agreed(hospital)
    site(hospital, "withdraw", RUN, "--yes")
    hospital.live()
    assert hospital.receive(MessageRef("withdrawal", RUN))
    hospital.send_round(run, 1)
    with pytest.raises(RejectedError, match="does not answer the message it should answer"):
        hospital.live()
    assert not hospital.is_signed(MessageRef("round", RUN, 1))


def test_to_withdraw_twice_is_to_withdraw_once(hospital: Hospital) -> None:
    agreed(hospital)
    site(hospital, "withdraw", RUN, "--yes", "--reason", "moving house")
    for again in ((), ("--reason", "another")):
        result = site(hospital, "withdraw", RUN, "--yes", *again)
        assert result.exit_code == 0
        assert f"{RUN}: a person here has withdrawn already, for this reason: moving house;" in result.output
    hospital.live()
    assert hospital.receive(MessageRef("withdrawal", RUN))
    assert withdrawal_of(hospital.channel.ledger, RUN) == "moving house"


def test_who_lost_the_disk_has_still_withdrawn(hospital: Hospital) -> None:
    run = agreed(hospital)
    site(hospital, "withdraw", RUN, "--yes")
    hospital.live()
    hospital.send_round(run, 1)
    kept = {name: (hospital.work / name).read_bytes() for name in ("site.yaml", "signing.key")}
    shutil.rmtree(hospital.work)
    hospital.work.mkdir(mode=0o700)
    for name, content in kept.items():
        (hospital.work / name).write_bytes(content)
        (hospital.work / name).chmod(0o600)
    hospital.live()
    assert hospital.is_signed(MessageRef("withdrawal", RUN)) and hospital.is_signed(MessageRef("round", RUN, 1))
    assert not hospital.is_signed(MessageRef("update", RUN, 1))


def test_what_was_signed_before_comes_before_the_withdrawal(hospital: Hospital) -> None:
    """The answer is signed, the folder fails, the person withdraws: the chain keeps its order and the answer counts."""
    run = agreed(hospital)
    hospital.send_round(run, 1)
    (hospital.drop / MessageRef("update", RUN, 1).path).parent.mkdir(exist_ok=True)
    blocked = hospital.drop / MessageRef("update", RUN, 1).path
    blocked.write_bytes(b"a file where a folder must be")
    with pytest.raises(ActionRequiredError, match="cannot be used"):
        hospital.live()
    assert hospital.is_signed(MessageRef("update", RUN, 1))
    site(hospital, "withdraw", RUN, "--yes")
    blocked.unlink()
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))
    work_later(hospital.site)
    assert withdrawal_of(hospital.channel.ledger, RUN) == "it gave no reason"
    assert verify(LocalFolder(hospital.drop)).findings == []


@pytest.mark.parametrize("consent", ["ask", "auto"])
def test_status_tells_a_person_to_decide_only_where_a_person_must(
    consent: Literal["ask", "auto"], hospital: Hospital
) -> None:
    """Images that cannot be read are what both policies wait for in the end."""
    hospital.set_policy(POLICY.model_copy(update={"consent": consent}))
    hospital.offer()
    settings = hospital.work / "site.yaml"
    settings.write_text(settings.read_text().replace(str(hospital.data), str(hospital.home / "gone")))
    here = hospital.work / names.STATUS
    with hospital.living():
        if consent == "ask":
            hospital.wait_until(lambda: b"asked for consent" in here.read_bytes())
            answers = [f"`dropfed-site {answer} {RUN} --work {hospital.work}`" for answer in ("approve", "decline")]
            said = f"waits for: a person here, to decide about run {RUN}: {' or '.join(answers)}"
            assert said in site(hospital, "status").output
            site(hospital, "approve", RUN)
        hospital.wait_until(lambda: b'"phase":"trouble"' in here.read_bytes())
        said = site(hospital, "status").output
    assert "waits for: an end of the trouble told below" in said and "a person" not in said
    assert ", once it runs: tries again, and goes on once it is over" in said and "\ntrouble: " in said


def test_the_heartbeat_names_the_run_that_a_person_is_asked_about(hospital: Hospital) -> None:
    run = agreed(hospital)
    hospital.set_policy(POLICY.model_copy(update={"consent": "ask"}))
    hospital.offer(run.model_copy(update={"run": "second"}), early=True)
    with hospital.living():
        hospital.wait_until(lambda: (status := last_status(hospital.work)) and status.phase == "asked for consent")
        status = last_status(hospital.work)
    assert status is not None and (status.phase, status.run, status.round) == ("asked for consent", "second", 0)


def test_to_withdraw_from_what_was_only_offered_is_to_decline(hospital: Hospital) -> None:
    hospital.set_policy(POLICY.model_copy(update={"consent": "ask"}))
    hospital.offer()
    hospital.live()
    result = site(hospital, "withdraw", RUN, "--yes", "--reason", "too early for us")
    assert "has not agreed yet, so this declines;" in result.output
    hospital.live()
    ref = MessageRef("consent", RUN)
    assert hospital.receive(ref)
    consent = open_record(hospital.channel.ledger.path(ref, names.CONSENT).read_bytes(), Consent, ref.path)
    assert not consent.agrees and consent.reason == "a person at the hospital said no: too early for us"
    assert not hospital.is_signed(MessageRef("withdrawal", RUN))
    for command in (("withdraw", "--yes"), ("approve",), ("decline",)):
        result = site(hospital, command[0], RUN, *command[1:])
        assert result.exit_code == 2 and "has declined it already" in result.output


def test_each_wish_that_comes_too_late_is_one_sentence(hospital: Hospital) -> None:
    assert "no such run was offered" in site(hospital, "withdraw", RUN, "--yes").output
    run = agreed(hospital)
    for command in ("approve", "decline"):
        assert f"`dropfed-site withdraw {RUN} --work {hospital.work}` leaves it" in site(hospital, command, RUN).output
    assert site(hospital, "withdraw", RUN, answer="n\n").exit_code == 1
    assert not (hospital.work / "decisions" / RUN).exists()
    assert site(hospital, "resume").output == "it was not paused; nothing was changed\n"
    site(hospital, "pause")
    assert "once it is resumed" in site(hospital, "withdraw", RUN, answer="y\n").output
    hospital.live()
    assert not hospital.is_signed(MessageRef("withdrawal", RUN))
    site(hospital, "resume")
    hospital.live()
    assert hospital.is_published(MessageRef("withdrawal", RUN))
    assert "withdrawn from it already" in site(hospital, "withdraw", RUN, "--yes").output
    agreed(hospital, run.model_copy(update={"run": "another-run"}))
    assert hospital.receive(MessageRef("withdrawal", RUN))
    hospital.send_final(run.model_copy(update={"run": "another-run"}))
    hospital.live()
    result = site(hospital, "withdraw", "another-run", "--yes")
    assert result.exit_code == 2 and "there is nothing to withdraw from" in result.output


# --- the end of a run -------------------------------------------------------------------------------------------


def test_fine_tuning_at_the_end_can_be_paused_and_is_done_once_the_site_goes_on(hospital: Hospital) -> None:
    tuned = {"fine_tuning_epochs": 1}
    run = agreed(hospital, run_configuration(sites=["north"], quorum=1, method_options=tuned))
    hospital.send_final(run)
    card = hospital.work / "final" / RUN / "card.yaml"
    during_training(hospital, "pause")
    hospital.live()
    assert "training" in hospital.folder.phases
    assert not card.exists()
    site(hospital, "resume")
    hospital.live()
    assert card.exists()


PRIVATE = {
    "privacy": {"max_grad_norm": 1.0, "delta": 0.01, "noise_multiplier": 1.0},
    "augmentation": {"copies": 0},
}


def test_who_withdraws_from_a_private_run_keeps_no_secret_of_its_noise(hospital: Hospital) -> None:
    run = agreed(hospital, run_configuration(sites=["north"], quorum=1, rounds=9, **PRIVATE))
    hospital.send_round(run, 1)
    hospital.live()
    assert hospital.receive(MessageRef("update", RUN, 1))
    secret = hospital.work / "noise" / RUN
    assert secret.exists()
    site(hospital, "withdraw", RUN, "--yes")
    hospital.live()
    assert hospital.is_published(MessageRef("withdrawal", RUN))
    assert not secret.exists()


def test_a_private_run_that_so_few_images_cannot_be_is_declined_at_once(tmp_path: Path) -> None:
    many = tmp_path / "many"
    write_data(TASK, many, 0, 12, seed=1)
    for path in [*many.glob("*/*.png")]:
        for copy in range(16):  # other bytes, or it would be the same image
            path.with_stem(f"{path.stem}-{copy}").write_bytes(path.read_bytes() + bytes([copy]))
    hospital = Hospital(tmp_path / "home", many)
    run = agreed(hospital, run_configuration(sites=["north"], quorum=1, **PRIVATE))
    consent = open_record(
        (hospital.drop / MessageRef("consent", run.run).path / names.CONSENT).read_bytes(), Consent, names.CONSENT
    )
    assert not consent.agrees
    assert "delta: 0.01 is not below 1 / n, of this site's n training images" in consent.reason
    assert "102" not in consent.reason
