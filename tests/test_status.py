"""The status of both ends says in one screen who is waited for, since when, why, what comes next, what is moving."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator import overview as of_aggregator
from aggregator.cli import main as aggregator_command
from aggregator.commands.launch import End, _play
from aggregator.dashboard.state import page_state
from aggregator.listing import list_runs
from aggregator.results import best_so_far
from aggregator.store import RunStore, ToldByCode, queued_runs, take_turn
from shared import commands
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.order import consent_of, ending_of
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.signing import SigningKey, canonical, open_signed
from shared.folder.durable import write_file
from shared.folder.lock import LOCK, work_lock
from shared.folder.meter import TRANSFER, Meter
from shared.learning.kept_card import CARD
from shared.moments import moment_text
from site_client import overview as of_site
from site_client import store as site_store
from site_client.cli import main as site_command
from site_client.moving import HOME, LOOKED
from tests.federation.running import run_configuration
from tests.federation.upgraded import another_version
from tests.played import RUN, Played, daemon_of

TOLD = (("status",), ("report", RUN), ("status", "--json"))


def without_numbers(text: str) -> str:
    """A text that was told at another time."""
    return re.sub(r"[0-9]+", "", text)


def aggregator_says(run: Played) -> str:
    return of_aggregator.overview_text(of_aggregator.overview(run.drop.parent / "aggregator"))


def site_says(run: Played) -> str:
    return of_site.overview_text(of_site.overview(run.drop.parent / "north"))


def test_the_aggregator_through_a_run(run: Played, store: RunStore) -> None:
    said = aggregator_says(run)
    assert "waits for: north, south, since 20" in said
    assert "why: the run begins when every site has said yes or no, 0 of 2 have; at the deadline, in 7 d 0 h, " in said
    assert "next: round 1 opens" in said
    launch = f"dropfed-aggregator launch {store.home / 'run.yaml'} --work {run.drop.parent / 'aggregator'}"
    assert f"the aggregator is not running: `{launch}` goes on with the run" in said

    run.offer_and_consent()
    assert "waits for: south, since" in aggregator_says(run)
    store.ask(1, ("north",), ("north",))
    store.write_waited(1, 3600)
    said = aggregator_says(run)
    assert "waits for: north, since" in said
    deadline = "at the deadline, in 23 h 0 min, a quorum of 1 is enough"
    assert f"why: the round closes when every site it asks has answered, 0 of 1 have; {deadline}" in said
    assert "next: the answers are checked and combined, and the closing round (validation alone) opens" in said

    store.pause()
    said = aggregator_says(run)
    assert "run octa-1: paused, round 1 of 1" in said and "in 23 h 0 min of running time" in said
    resume = f"`dropfed-aggregator resume {RUN} --work {run.drop.parent / 'aggregator'}`"
    assert f"next: no new round opens until {resume}" in said
    store.resume()
    store.request_stop()
    assert "next: the best model so far is chosen, and the run ends" in aggregator_says(run)


def test_the_aggregator_at_the_end_of_a_run(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    card = FinalCard(
        run=RUN,
        task="octa_segmentation",
        method="mean",
        chosen_round=0,
        score_name="dice_mean",
        validation={},
        took_part={},
        reason="as the test says",
    )
    store.write_card(card)
    said = aggregator_says(run)
    assert "run octa-1: ending, round 1 of 1" in said and "waits for: north, since" in said
    assert "why: the run ends when every site's folder has what was signed for it" in said

    # The final model is signed, but the folder does not take it.
    content = {names.CARD: canonical(card.model_dump()), names.FINAL_MODEL: run.model(0.25)}
    consent = run.aggregator.ledger.message(MessageRef("consent", RUN))
    assert consent is not None
    run.aggregator.outbox.sign(MessageRef("final", RUN), content, in_reply_to=consent.digest)
    in_the_way = run.drop / MessageRef("final", RUN).path
    in_the_way.write_bytes(b"a file where a folder must be")
    run.folder_sync.start()
    trouble = run.drop.parent / "aggregator" / "sites" / "north" / "trouble.txt"
    deadline = time.monotonic() + 60
    while not trouble.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    said = aggregator_says(run)
    assert "waits for: north, since" in said and "  north: is being sent the final model" in said
    os.utime(trouble, (1e9, 1e9))
    assert re.search(r"\n      trouble: .*[^.] \(since 2001-09-09 \S+, when the ag.* last ran\)", aggregator_says(run))
    with work_lock(run.drop.parent / "aggregator"):
        assert re.search(r"\n      trouble: .*[^.] \(since 2001-09-09 \S+\)", aggregator_says(run))
    run.stop.set()
    run.folder_sync.join()
    launched = daemon_of(run, store)
    assert launched.final_model is None  # so `launch` says that it was interrupted
    in_the_way.unlink()
    run.stop.clear()
    assert run.folder_sync.work()
    assert launched.final_model == store.final_model
    said = aggregator_says(run)
    assert "run octa-1: ended" in said and "  north: finished" in said and "reason: as the test says" in said
    trouble.write_text("left by a daemon that was killed before it could say that it was over")
    assert all(word not in aggregator_says(run) for word in ("waits for", "why:", "next:", "not running", "trouble"))


def test_the_versions_of_both_ends_are_told_and_compared(
    run: Played, store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, status = f"dropfed {version('dropfed')}", run.drop / names.STATUS
    work = run.drop.parent / "aggregator" / "sites" / "north"
    run.offer_and_consent()
    assert f"\nsoftware: {ours}\n  north: agreed\n      software: {ours}\n" in aggregator_says(run), "as its card says"
    assert f"\nsoftware: {ours}; the aggregator's: not reported" in site_says(run)
    run.heartbeat.beat("waiting", run.site, now=True)
    assert b"software" not in status.read_bytes()
    card = work / "mirror" / names.SITE_CARD
    of_ours, key = card.read_bytes(), SigningKey.at(run.drop.parent / "north" / "signing.key")
    card.write_bytes(key.sign(json.loads(of_ours)["body"] | {"software": "a site of another make, 9.9"}))
    (work / names.STATUS).unlink(missing_ok=True)
    assert "\n      software: a site of another make, 9.9\n" in aggregator_says(run), "no version of ours"
    card.write_bytes(of_ours)
    for there, is_told in (("0.2.99", False), ("0.9.0", True), ("1.0.0rc1", True)):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(another_version(tmp_path, there))
            run.heartbeat.beat("waiting", run.site, now=True)
            assert f"\nsoftware: dropfed {there}; " in site_says(run)
        (work / names.STATUS).write_bytes(status.read_bytes())
        differ = f", and here {ours}: the older one may refuse what the newer asks; update both to one version"
        assert f"\n      software: dropfed {there}{differ if is_told else ''}\n" in aggregator_says(run)
        run.aggregator.inbox.open_status(status.read_bytes())
    (work.parent / "north" / "mirror" / names.SITE_CARD).unlink()
    assert "\n  north: not enrolled yet\n      software: not reported\n" in aggregator_says(run)


@pytest.mark.parametrize("told", [None, "", "dropfed", "dropfed 0.1.0 ", "dropfed 0.\u202e1", f"dropfed {'1' * 65}", 1])
def test_a_version_in_a_heartbeat_is_one_word_and_one_number(told: object, run: Played) -> None:
    run.heartbeat.beat("waiting", run.site, now=True)
    body, _ = open_signed((run.drop / names.STATUS).read_bytes())
    signed = SigningKey.at(run.drop.parent / "north" / "signing.key").sign(body | {"software": told})  # type: ignore[dict-item]
    with pytest.raises(RejectedError):
        run.aggregator.inbox.open_status(signed)


def test_a_run_that_waits_is_named_beside_the_one_whose_turn_it_is(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"
    later = RunStore(work, "later")
    later.begin(run_configuration(run="later", sites=["north", "south"]), store.sharing())
    run.run = "later"
    run.offer_and_consent()
    said = aggregator_says(run)
    assert said.startswith(f"run {RUN}: open, round 0 of ")
    assert "waits for its turn: later, 1 of 2 sites agreed, 0 declined" in said
    take_turn(work, "later")  # launched first, though begun last
    assert aggregator_says(run).startswith("run later: open, round 0 of ")
    take_turn(work, RUN)
    later.ask(1, ("north",), ("north",))  # launched alone: its rounds have begun
    assert aggregator_says(run).startswith("run later: open, round 1 of ")


def test_a_run_is_queued_until_launch_has_played_it_to_the_end(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"
    store.queue()
    store.abort("nobody agreed")  # its sites may not know yet
    assert [each.run for each in queued_runs(work)] == [RUN]
    store.unqueue()
    assert queued_runs(work) == []


def test_a_run_that_is_queued_is_called_so_until_launch_comes_to_it(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"
    store.queue()
    assert aggregator_says(run).startswith(f"run {RUN}: queued, round 0 of ")
    assert [each.state for each in list_runs(work)] == ["queued"]
    (store.home / "pause").touch()
    assert [each.state for each in list_runs(work)] == ["queued, paused"]
    listed = CliRunner().invoke(aggregator_command, ["queue", "--work", str(work)])
    assert listed.output.startswith(f"{RUN}, ") and listed.output.endswith(" declined, paused\n")
    (store.home / "pause").unlink()
    take_turn(work, RUN)
    assert aggregator_says(run).startswith(f"run {RUN}: open, round 0 of ")
    assert [each.state for each in list_runs(work)] == ["open, before round 1 of 1"]


def test_queued_runs_follow_each_other_as_they_were_queued(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"
    later = RunStore(work, "later")
    later.begin(store.configuration().model_copy(update={"run": "later"}), store.sharing())
    for each in (later, store):
        each.queue()
    later.queue()  # once more, which changes nothing
    for number, each in enumerate((store, later)):  # as a copy, or a clock that is put back, may leave them
        os.utime(each.home / "queued", (number, number))
    assert [each.run for each in queued_runs(work)] == ["later", RUN]


def test_a_file_that_is_of_another_run_by_now_is_not_played(run: Played, store: RunStore, tmp_path: Path) -> None:
    file = tmp_path / "RUN.yaml"
    file.write_bytes((store.home / "run.yaml").read_bytes())
    ends = _play(run.drop.parent / "aggregator", {"as-it-was": file}, accept_any=True)
    assert ends == {"as-it-was": End(f"{file}: run: is {RUN} by now, and was as-it-was; launch it by itself", 2)}


def test_what_changes_while_it_is_read_is_read_again(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    seen = []

    def tell(opened: of_aggregator.OpenedRun) -> int:
        seen.append(opened.store.round_no)
        if len(seen) < 3:
            store.ask(len(seen), ("north",), ("north",))  # as a daemon does meanwhile
        return seen[-1]

    assert of_aggregator.read_run_in_turn(run.drop.parent / "aggregator", tell) == 2
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("damaged", [b"", b"{}", b"\xff\xfe", b'{"round":1'])
def test_a_damaged_file_is_named_with_its_remedy(damaged: bytes, run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    store.write_waited(1, 3600)
    store.begin(
        store.configuration(), store.sharing(), ToldByCode(score_name="dice_mean", in_turn=False, at_aggregator={})
    )
    home, kept = store.home, {path: path.read_bytes() for path in store.home.iterdir() if path.is_file()}
    for name, remedy in (
        ("waited.json", "remove it, and the time until the deadline begins anew"),
        ("told-by-code.json", "put it back from a backup, or remove it, and launch the run with its plug-ins"),
        ("run.yaml", f"put it back from a backup or from sites/SITE/mirror/runs/{RUN}/offer, which has it too"),
        ("rounds/0001/opened.json", "put it back from a backup"),
    ):
        path = home / name
        before = kept.get(path) or path.read_bytes()
        path.write_bytes(damaged)
        result = CliRunner().invoke(aggregator_command, ["status", "--work", str(home.parent.parent)])
        assert result.exit_code in (1, 2) and isinstance(result.exception, SystemExit)
        assert str(path) in result.output and f"the file is damaged; {remedy}" in " ".join(result.output.split())
        path.write_bytes(before)
    tensors = home / "tensors.yaml"
    tensors.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match=r"tensors.yaml: .*the file is damaged"):
        store.begin(store.configuration(), Sharing(tensors={}, start={}, personal=[]))


@pytest.mark.parametrize("damaged", [b"", b"{}", b"\xff\xfe"])
def test_a_damaged_heartbeat_is_none(damaged: bytes, run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    for home in ("north", "aggregator/sites/north"):
        (run.drop.parent / home / "status.json").write_bytes(damaged)
    result = CliRunner().invoke(site_command, ["status", "--work", str(run.drop.parent / "north")])
    assert result.exit_code == 2 and "the daemon has not run here yet" in result.output
    assert "north: agreed" in aggregator_says(run)
    assert store.round_no == 0


def test_a_damaged_message_is_named_with_its_remedy(run: Played) -> None:
    run.offer_and_consent()
    path = run.drop.parent / "north" / "mirror" / MessageRef("offer", RUN).manifest
    path.write_bytes(b"")
    with pytest.raises(ActionRequiredError, match=f"{path} is empty: .* from the folder or a backup"):
        site_says(run)


@pytest.mark.parametrize("content", [b"xx", None])
@pytest.mark.parametrize(
    ("ref", "name"),
    [
        (MessageRef("consent", RUN), names.CONSENT),
        (MessageRef("update", RUN, 1), names.METRICS),
        (MessageRef("withdrawal", RUN), names.WITHDRAWAL),
    ],
)
def test_what_was_accepted_and_damaged_since_is_not_taken_as_the_site_s_word(
    ref: MessageRef, name: str, content: bytes | None, run: Played, store: RunStore
) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    run.round(1, trains=True)
    withdrawal = Withdrawal(run=RUN, reason="a holiday")
    run.send("withdrawal", 0, {names.WITHDRAWAL: canonical(withdrawal.model_dump())}, "offer")
    work = run.drop.parent / "aggregator"
    path = work / "sites" / "north" / "mirror" / ref.path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    problem = f"{path}.*: it is not as it was left here; put it back from the folder or a backup"
    for told in TOLD:
        result = CliRunner().invoke(aggregator_command, [*told, "--work", str(work)])
        if ref.kind == "update" and told[0] == "status":
            assert result.exit_code == 0  # it does not read tables
            continue
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert re.fullmatch(problem, " ".join(result.output.split()).replace("- ", "-"))
    assert re.search(problem, page_state(work)["problem"])
    with pytest.raises(ActionRequiredError, match=problem):
        if ref.kind == "update":
            best_so_far(store, {"north": run.aggregator.ledger}, "loss", in_turn=False)
        else:
            daemon_of(run, store).run()


@pytest.mark.parametrize(
    ("ref", "name", "read"),
    [
        (MessageRef("consent", RUN), names.CONSENT, lambda ledger, work: consent_of(ledger, RUN)),
        (
            MessageRef("round", RUN, 1),
            names.ROUND_CONFIGURATION,
            lambda ledger, work: ledger.record(MessageRef("round", RUN, 1), RoundConfiguration),
        ),
        (
            MessageRef("verdict", RUN, 1),
            names.VERDICT,
            lambda ledger, work: site_store.newest_accepted(work, ledger, RUN, before=2),
        ),
    ],
)
def test_nor_does_a_site_take_its_damaged_copies_as_what_was_said(
    ref: MessageRef, name: str, read: Callable[[Mirror, Path], object], run: Played
) -> None:
    run.offer_and_consent()
    run.round(1, trains=True)
    work = run.drop.parent / "north"
    read(run.site.ledger, work)
    path = work / "mirror" / ref.path / name
    path.write_bytes(b"xx")
    with pytest.raises(ActionRequiredError, match=f"{path}.* from the folder or a backup"):
        read(run.site.ledger, work)


def test_a_sites_own_consent_that_it_cannot_read_is_not_taken_for_a_no(run: Played) -> None:
    run.offer()
    run.sign_and_publish("consent", 0, {names.CONSENT: canonical({"run": RUN, "says": "yes, as tomorrow"})})
    for asked in (consent_of, ending_of):
        with pytest.raises(ActionRequiredError, match="signed here; install the version of dropfed that wrote it"):
            asked(run.site.ledger, RUN)


def test_a_run_that_is_not_here_is_told_with_those_that_are(run: Played, store: RunStore) -> None:
    work = str(run.drop.parent / "aggregator")
    for command in ("pause", "resume", "stop"):
        result = CliRunner().invoke(aggregator_command, [command, "octa-9", "--work", work])
        assert result.exit_code == 2 and f"there is no run octa-9 here; the runs here are {store.run}" in result.output


def test_a_daemon_that_runs_is_known(run: Played, store: RunStore) -> None:
    with work_lock(run.drop.parent / "aggregator"), work_lock(run.drop.parent / "north"):
        assert "not running" not in aggregator_says(run)
        run.offer_and_consent()
        assert "not running" not in site_says(run)
    command = f"`dropfed-site run --work {run.drop.parent / 'north'}`"
    assert f"the daemon is not running: start it with {command}" in site_says(run)
    assert store.round_no == 0


def test_a_second_launch_says_which_run_goes_on(run: Played, store: RunStore) -> None:
    work, other = run.drop.parent / "aggregator", run.drop.parent / "other.yaml"
    other.write_text("run: other\n")
    stop = f"`dropfed-aggregator stop {store.run} --work {work}`"
    with work_lock(work):
        result = CliRunner().invoke(aggregator_command, ["launch", str(other), "--work", str(work)])
    assert result.exit_code == 1
    assert f"run {store.run} goes on there, and nothing was begun: " in result.output and stop in result.output
    assert f"have yours follow it by `dropfed-aggregator queue RUN.yaml --work {work}`" in result.output
    store.abort("nobody agreed")
    with work_lock(work):
        result = CliRunner().invoke(aggregator_command, ["launch", str(other), "--work", str(work)])
    assert "nothing was begun; wait for it to end" in result.output and stop not in result.output


def test_who_may_only_read_is_told_the_same(run: Played, store: RunStore) -> None:
    """Another user of the machine: no secret is read, and nothing is written."""
    work = run.drop.parent / "aggregator"
    work.chmod(0o755)  # as its owner may open it to them, as long as no daemon is to start there
    run.offer_and_consent()

    def others_see_a_daemon() -> bool:
        if (child := os.fork()) == 0:
            os.chdir(work)  # what lies above may be closed to them
            if os.getuid() == 0:
                os.setuid(65534)
            os._exit(of_aggregator.is_at_work(Path()))
        return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with work_lock(work):
        (work / LOCK).chmod(0o444)
        assert others_see_a_daemon()
    assert not others_see_a_daemon()
    said = [CliRunner().invoke(aggregator_command, [*told, "--work", str(work)]).output for told in TOLD]
    for secret in (work / "signing.key", work / "encryption.key", *(work / "invites").iterdir()):
        secret.unlink()
    for told, before in zip(TOLD, said, strict=True):
        result = CliRunner().invoke(aggregator_command, [*told, "--work", str(work)])
        assert result.exit_code == 0 and without_numbers(result.output) == without_numbers(before)
    assert store.round_no == 0


def test_a_command_that_is_told_names_a_path_with_a_space_as_one_word(tmp_path: Path) -> None:
    home = tmp_path / "a study"
    home.mkdir()
    run, work, site = Played(home), home / "aggregator", home / "north"
    begun = RunStore(work, RUN)
    begun.begin(run_configuration(run=RUN, sites=["north"], quorum=1), Sharing(tensors={}, start={}, personal=[]))
    said = CliRunner().invoke(aggregator_command, ["status", "--work", str(work)]).output
    assert f"launch '{begun.home}/run.yaml' --work '{work}'" in said
    run.beat()
    assert f"--work '{site}'" in CliRunner().invoke(site_command, ["status", "--work", str(site)]).output
    (site / "signing.key").chmod(0o644)
    with pytest.raises(ActionRequiredError, match=f"chmod 600 '{site}/signing.key'"):
        SigningKey.at(site / "signing.key")


def test_trouble_is_told_when_it_begins_and_breaks_nothing(run: Played) -> None:
    run.offer_and_consent()
    heart, here, there = run.heartbeat, run.drop.parent / "north" / names.STATUS, run.drop / names.STATUS
    heart.beat("sending", run.site, now=True)
    heart.note_trouble(ActionRequiredError("the folder /data/x is full: free some"))
    assert "trouble: the folder /data/x is full" in site_says(run)
    assert b"needs attention" in there.read_bytes() and b"full" not in there.read_bytes()
    os.utime(here, (0, 0))
    heart.note_trouble(ActionRequiredError("the folder /data/x is full: free some"))
    assert here.stat().st_mtime == 0  # nothing new is nothing to write
    before = there.read_bytes()
    heart.note_trouble(TransientError("no answer"))
    assert "trouble: no answer" in site_says(run)
    assert there.read_bytes() == before  # who does not answer is not asked to take anything
    there.unlink()
    there.mkdir()
    heart.note_trouble(ActionRequiredError("wrong password"))
    assert "trouble: wrong password" in site_says(run)
    heart.note_trouble(None)
    assert "\ntrouble: " not in site_says(run)


def test_what_is_on_its_way(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    for home, says in (("aggregator/sites/north", aggregator_says), ("north", site_says)):
        with Meter(run.drop.parent / home / TRANSFER).transfer("runs/r/model", "up", 400 << 20) as moved:
            time.sleep(0.01)
            moved(100 << 20)
            said = says(run)
        assert "on its way: runs/r/model is sent: 105 MB of 419 MB, " in said and "B/s, 0 s left" in said
        assert "on its way" not in says(run)
    assert store.round_no == 0


def test_the_site_through_a_run(run: Played) -> None:
    work = run.drop.parent / "north"
    run.offer_and_consent()
    assert "waits for: the aggregator, to send a round or the final model, since 20" in site_says(run)
    run.round(1, trains=True)
    said = site_says(run)
    assert "waits for: the aggregator, to send a round or the final model" in said
    assert "next, once it runs: looks again within 30 s, then trains" in said
    assert "limits: 1 thread" in said
    site_store.pause(work)
    os.utime(work / site_store.PAUSED, (1e9, 1e9))
    said = site_says(run)
    assert f"waits for: a person here, to end the pause, since {moment_text(1e9)}" in said
    assert f"next, once it runs: nothing, until `dropfed-site resume --work {work}`" in said
    site_store.resume(work)
    run.finish()
    assert f"last run: {RUN} ended with the aggregate of round 1; it is not ready for use here yet" in site_says(run)
    write_file(site_store.final_home(work, RUN) / CARD, b"")
    said = site_says(run)
    assert f"last run: {RUN} ended with the aggregate of round 1\n" in said
    assert "waits for: the aggregator, to offer a run, since" in said


def test_the_site_says_which_run_it_declined_and_why(run: Played) -> None:
    run.offer()
    assert "last run" not in site_says(run)
    consent = Consent(run=RUN, agrees=False, reason="9 rounds are more than this hospital's 5", images={})
    run.send("consent", 0, {names.CONSENT: canonical(consent.model_dump())}, "offer")
    said = site_says(run)
    assert f"last run: {RUN} was declined here: 9 rounds are more than this hospital's 5\n" in said
    assert "waits for: the aggregator, to offer another run" in said


@pytest.mark.parametrize(
    ("met", "told"), [("", "went well"), ("the password is wrong", "met trouble: the password is wrong")]
)
def test_how_the_last_look_of_the_mover_went(run: Played, met: str, told: str) -> None:
    run.offer_and_consent()
    assert "dropfed-site move" not in site_says(run)
    looked = run.drop.parent / "north" / HOME / LOOKED
    write_file(looked, met.encode())
    os.utime(looked, (1e9, 1e9))
    assert re.search(rf"\nserver: the last look of `dropfed-site move`, 2001-09-09 [^,]+, {told}\n", site_says(run))


@pytest.mark.parametrize(("command", "home"), [(aggregator_command, "aggregator"), (site_command, "north")])
def test_for_scripts_and_again_and_again(
    command: object, home: str, run: Played, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.offer_and_consent()
    options = ["status", "--work", str(run.drop.parent / home)]
    state = json.loads(CliRunner().invoke(command, [*options, "--json"]).output)  # type: ignore[arg-type]
    assert {"waits_for", "since", "next", "running"} <= state.keys()
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(commands.time, "sleep", sleep)
    result = CliRunner().invoke(command, [*options, "--watch", "--json"])  # type: ignore[arg-type]
    assert (result.exit_code, result.stderr, len(looks)) == (0, "", 3)
    assert [json.loads(line)["next"] for line in result.output.splitlines() if line.startswith("{")] == [
        state["next"]
    ] * 3
    looks.clear()
    words = CliRunner().invoke(command, [*options, "--watch"]).stdout  # type: ignore[arg-type]
    assert len(words.strip().split("\n\n")) == 3
    assert store.round_no == 0


def test_pause_resume_and_stop_say_what_comes_of_it(run: Played, store: RunStore) -> None:
    work = run.drop.parent / "aggregator"

    def said(command: str, *options: str, answer: str | None = None) -> tuple[int, str]:
        arguments = [command, RUN, "--work", str(work), *options]
        result = CliRunner().invoke(aggregator_command, arguments, input=answer)
        return result.exit_code, result.output.rstrip("\n")

    launch = f"`dropfed-aggregator launch {store.home / 'run.yaml'} --work {work}` starts it"
    absent = f"; the aggregator is not running: {launch}"
    assert said("resume") == (0, f"{RUN} was not paused{absent}")
    assert said("pause") == (0, f"{RUN} is paused; go on with `dropfed-aggregator resume {RUN} --work {work}`")
    assert said("resume") == (0, f"{RUN} goes on{absent}")
    code, text = said("stop")
    assert code == 2
    assert "a yes cannot be asked for without a terminal; nothing was done: to go on, give --yes" in text
    code, text = said("stop", answer="n\n")
    assert code == 1 and f"End {RUN} for good?" in text and "stopped here: nothing was done" in text
    assert not store.stop_requested
    with work_lock(work):
        assert said("stop", "--yes") == (0, f"{RUN} is being closed with the best model so far")
    assert said("stop") == (0, f"{RUN} is being closed with the best model so far{absent}")
    assert said("pause") == (2, f"{RUN} is being closed, and cannot be paused any more")
    assert not store.paused
