"""An answer that comes once its round is closed counts in the next one, once: by rule, daemons and audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from aggregator.rounds import CloseRound
from aggregator.run_view import view_run
from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.records.verdicts import CameLate, Verdict
from shared.exchange.weights import TensorFile, write_tensors
from shared.folder.local import LocalFolder
from shared.learning.answers import MAY_COUNT_NEXT, ClosedRound, decide, why_late
from shared.learning.late import STALENESS_WEIGHT, move_on
from shared.learning.run_checks import check_together
from shared.learning.run_files import Late, Scored
from tests.audit.recorded import Recorded
from tests.audit.replaying import not_same, replayed
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics
from tests.staged import Staged

SITES = ["east", "north", "south"]
DIGEST = "ab" * 32


def late_run(**changes: object) -> RunConfiguration:
    return run_configuration(**{"run": "octa-1", "sites": SITES, "rounds": 3, "quorum": 1, "late": "next"} | changes)


# --- the rule ----------------------------------------------------------------------------------------------

SHARING = Sharing(
    tensors={"bias": TensorShape(dtype="F32", shape=[2]), "var": TensorShape(dtype="F32", shape=[1])},
    buffers=["var"],
    start={},
    personal=[],
)


def model(path: Path, bias: tuple[float, float], var: float) -> Path:
    numbers = {"bias": np.array(bias, np.float32), "var": np.array([var], np.float32)}
    write_tensors(path, SHARING.shared, numbers.__getitem__)
    return path


def moved(home: Path, sent: Path, now: tuple[float, float] = (3.0, -1.0)) -> dict[str, list[float]]:
    base, now_path = model(home / "base", (1.0, 1.0), 0.5), model(home / "now", now, 0.1)
    move_on(sent, base, now_path, SHARING, home / "moved", shown_as="model.safetensors")
    return {name: TensorFile(home / "moved").tensor(name).tolist() for name in SHARING.tensors}


def test_it_moves_the_next_model_by_the_difference_to_its_own_base_weighted_down(tmp_path: Path) -> None:
    assert pytest.approx(2**-0.5) == STALENESS_WEIGHT
    found = moved(tmp_path, model(tmp_path / "sent", (2.0, 1.0), 0.2))
    assert found["bias"] == pytest.approx([3.0 + STALENESS_WEIGHT, -1.0])
    mixed = (1 - STALENESS_WEIGHT) * 0.1 + STALENESS_WEIGHT * 0.2  # a difference would have made it negative
    assert found["var"] == pytest.approx([mixed])


def test_what_would_be_too_great_to_be_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match=r"bias holds .*, and no number may be beyond"):
        moved(tmp_path, model(tmp_path / "sent", (2.0**24, 1.0), 0.2), now=(2.0**24, 1.0))


class _Weigh:
    """In place of an ``Aggregation``: every accepted answer weighs the same."""

    def weights(self, accepted: dict[str, Any]) -> dict[str, float]:
        return {site: 1 / len(accepted) for site in accepted}

    def why_left_out(self, _count: int) -> str:
        return ""


def verdicts(
    run: RunConfiguration, own: dict[str, Scored | None], late: dict[str, Scored], withdrawn: set[str], round_no: int
) -> dict[str, Verdict]:
    came = {site: Late(update=DIGEST, scored=scored) for site, scored in late.items()}
    any_weights: Any = _Weigh()
    closed = ClosedRound(round_no, own, 0.5, lambda site: site, withdrawn, came)  # type: ignore[arg-type,return-value]
    return decide(run, closed, any_weights)


CHECKED = st.builds(
    Scored,
    score=st.sampled_from(["0.4", "0.9"]),
    theta=st.none(),
    epsilon=st.none(),
    reason=st.sampled_from(["", "refused"]),
).map(lambda each: each if not each.reason else Scored(score=None, theta=None, reason=each.reason))


@given(st.lists(st.tuples(st.none() | CHECKED, st.none() | CHECKED, st.booleans()), min_size=3, max_size=3))
def test_a_late_answer_counts_where_there_is_no_other_and_the_site_is_still_there(
    sites: list[tuple[Scored | None, Scored | None, bool]],
) -> None:
    own = {name: each[0] for name, each in zip(SITES, sites, strict=True)}
    late = {name: each[1] for name, each in zip(SITES, sites, strict=True) if each[1] is not None}
    withdrawn = {name for name, each in zip(SITES, sites, strict=True) if each[2]}
    run = late_run(tolerance=0.5)
    found = verdicts(run, own, late, withdrawn, 2)
    for name, verdict in found.items():
        scored = late.get(name)
        is_told = own[name] is None and name not in withdrawn and scored is not None
        assert (verdict.late is not None) == is_told
        counts = is_told and scored is not None and scored.score == "0.9"
        assert (verdict.share > 0) == (counts or (own[name] is not None and verdict.status == "accepted"))
        assert verdict.weight is None or verdict.late is None, "one answer of a site counts in a round"
        assert (verdict.status == "late") == (own[name] is None and name not in withdrawn)
    assert sum(each.share for each in found.values()) == pytest.approx(1) or not any(v.share for v in found.values())
    without = verdicts(run, own, {}, withdrawn, 2)
    assert all("late" not in verdict.model_dump() for verdict in without.values())


def test_the_verdict_of_its_round_says_what_may_become_of_it() -> None:
    def why(run: RunConfiguration, round_no: int) -> str:
        return verdicts(run, dict.fromkeys(SITES), {}, set(), round_no)["north"].reason

    assert why(late_run(), 2) == f"no answer came before the round closed{MAY_COUNT_NEXT}"
    assert why(late_run(), 3) == "no answer came before the round closed", "the closing round trains nothing"
    assert why(late_run(late=None), 2) == "no answer came before the round closed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "moon"}, "late: by moon more follows from an answer than a mean"),
        ({"method": "scaffold", "task_options": {"optimizer": "sgd"}}, "late: by scaffold more follows"),
        ({"combination": {"rule": "median"}, "quorum": 3}, "late: median compares models of one round"),
        ({"keep": "last 1"}, "keep: a late answer is a difference to the aggregate before the last"),
        ({"sites_per_round": 2}, "late: a site that the next round does not ask gets no verdict there"),
        ({"rounds": 1}, "late: there is no next round that trains"),
    ],
)
def test_what_it_does_not_go_with_is_told(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        check_together(late_run(**settings))
    assert any(problem.startswith(said) for problem in error.value.problems), error.value.problems


@pytest.mark.parametrize("method", ["mean", "fedavg", "fedprox", "fedbn", "fedrep"])
@pytest.mark.parametrize("keep", ["all", "best", "last 2"])
def test_what_it_goes_with(method: str, keep: str) -> None:
    check_together(late_run(method=method, keep=keep))


def test_a_run_that_does_not_say_it_is_written_as_ever() -> None:
    assert "late" not in late_run(late=None).model_dump()
    assert late_run().model_dump()["late"] == "next"


# --- the audit ---------------------------------------------------------------------------------------------

LATE = {("north", 1), ("north", 2), ("south", 3)}
"""The answer of north to round 1 counts in 2; that to 2 is followed by one in time; that of south to 3 is too late."""


@pytest.mark.parametrize(
    ("method", "wire"),
    [
        ("fedavg", {}),
        ("fedbn", {}),
        ("mean", {"numbers": "bfloat16", "difference": True, "compression": "zstd"}),
    ],
)
def test_a_run_with_late_answers_is_computed_again_byte_by_byte(
    tmp_path: Path, method: str, wire: dict[str, object]
) -> None:
    played = Recorded(tmp_path, late_run(method=method, wire=wire), late=LATE).play()
    steps = replayed(played.folders, "octa-1")
    untold = ("because deadlines are by the aggregator's clock", "because the held-out images are not here")
    assert [step for step in not_same(steps) if not step.detail.startswith(untold)] == []
    (late,) = [step for step in steps if step.what == "verdict on the answer of north to round 1"]
    assert (late.round, late.outcome) == (2, "same")
    assert late.detail.startswith("it counts here, weight 0.333")
    assert [step.outcome for step in steps if step.what == "aggregate 2"] == ["same"]
    card = played.store.card()
    assert card is not None and card.took_part == {"1": ["east", "south"], "2": SITES, "3": ["east", "north"], "4": []}
    assert all(findings(played, site) == [] for site in SITES)


def findings(played: Recorded, site: str) -> list[tuple[str, str]]:
    found = verify(LocalFolder(played.folders / site)).findings
    return [(each.file, each.what) for each in found if each.file != "status.json"]  # which nobody has written


def lying(
    home: Path, came_late: set[tuple[str, int]], round_no: int, *, of_round: int, weight: str, **settings: object
) -> Recorded:
    """A run whose aggregator says in a round that north's answer to another came late, and counts."""
    played: list[Recorded] = []

    def lies(verdict: Verdict) -> Verdict:
        if (verdict.site, verdict.round) != ("north", round_no):
            return verdict
        answer = played[0].messages["north", MessageRef("update", "octa-1", of_round)]
        told = CameLate(update=answer.digest, score="0.75", weight=weight, reason="score 0.7500 exceeds the tolerance")
        return verdict.model_copy(update={"late": told})

    played.append(Recorded(home, late_run(**settings), late=came_late, verdict=lies))
    return played[0].play()


VERDICT_2, VERDICT_3 = (f"runs/octa-1/rounds/000{number}/verdict/verdict.json" for number in (2, 3))


def test_an_answer_that_is_counted_twice_is_found(tmp_path: Path) -> None:
    played = lying(tmp_path, {("north", 1), ("north", 2), ("north", 3)}, 3, of_round=1, weight="0.3")
    assert findings(played, "north") == [
        (VERDICT_3, "tells of an answer to round 2 that came late, and names none that is here")
    ]
    (differs,) = [step for step in replayed(played.folders, "octa-1") if step.outcome == "differs"]
    assert differs.what == "answer of north to round 2, which came late"


def test_an_answer_that_is_said_to_be_late_and_was_not_is_found(tmp_path: Path) -> None:
    played = lying(tmp_path, {("north", 2)}, 2, of_round=1, weight="0.3")
    assert findings(played, "north") == [
        (VERDICT_2, "tells of the answer to round 1 as late, and the verdict on that says accepted")
    ]
    (differs,) = [step for step in replayed(played.folders, "octa-1") if step.outcome == "differs"]
    assert differs.what == "answer of north to round 1, which came late"


def test_another_weight_of_a_late_answer_is_found(tmp_path: Path) -> None:
    played = lying(tmp_path, {("north", 1), ("north", 2)}, 2, of_round=1, weight="0.25")
    differs = [step for step in replayed(played.folders, "octa-1") if step.outcome == "differs"]
    assert ("verdict on the answer of north to round 1", "weight is reported as 0.25, and is 0.3333333333333333") in [
        (step.what, step.detail) for step in differs
    ]


def test_a_run_that_counts_none_has_none(tmp_path: Path) -> None:
    played = lying(tmp_path, {("north", 1), ("north", 2)}, 2, of_round=1, weight="0.3", late=None)
    assert (VERDICT_2, "tells of an answer that came late, and the run counts none") in findings(played, "north")


# --- the daemons -------------------------------------------------------------------------------------------


def shifted(model: Path, by: float) -> bytes:
    return save({name: tensor + np.float32(by) for name, tensor in load_file(model).items()})


def test_an_answer_taken_up_before_a_kill_counts_once_and_the_run_is_computed_again(tmp_path: Path) -> None:
    """North answers round 1 once that is closed, and round 2 not in time; in between the aggregator is killed."""
    run = run_configuration(rounds=2, quorum=1, late="next", tolerance=None, round_deadline_hours=1.5 / 3600)
    update, received = MessageRef("update", RUN, 1), {}
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in run.sites}
        for site in sites.values():
            site.consent()
        received[1] = {name: site.receive_round(1) for name, site in sites.items()}
        sites["south"].answer(1, {names.SITE_MODEL: shifted(received[1]["south"], 0.5), names.METRICS: metrics(1)})
        told = sites["north"].verdict(1)
        assert (told.status, told.reason) == ("late", why_late(run, 1))
        sites["south"].verdict(1)
        sites["north"].answer(1, {names.SITE_MODEL: shifted(received[1]["north"], 2.0), names.METRICS: metrics(1)})
        received[2] = {name: site.receive_round(2) for name, site in sites.items()}
        mirror = federation.aggregator / "sites" / "north" / "mirror"
        federation.wait_until((mirror / update.manifest).exists, "the late answer at the aggregator")
        aggregator.kill()
        aggregator.wait()
        aggregator = federation.start_aggregator()
        sites["south"].answer(2, {names.SITE_MODEL: shifted(received[2]["south"], 1.0), names.METRICS: metrics(2)})
        told = sites["north"].verdict(2)
        answer = sites["north"].channel.ledger.message(update)
        assert told.status == "late" and told.weight is None and told.late is not None and answer is not None
        assert (told.late.update, told.late.weight, told.share) == (answer.digest, "0.5", 0.5)
        sites["south"].verdict(2)
        after = load_file(sites["south"].receive_round(3))
        sites["south"].answer(3, {names.METRICS: metrics(3)})
        sites["north"].answer(2, {names.SITE_MODEL: shifted(received[2]["north"], 9.0), names.METRICS: metrics(2)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        found = [line for name in run.sites for line in lines(verify(sites[name].folder)) if "status.json" not in line]
        assert found == []
        view = view_run(federation.aggregator, RunStore(federation.aggregator, RUN))
    before = load_file(received[2]["south"])
    for name, tensor in after.items():  # the mean of 1.0 in time and of 2.0 weighted down, but for statistics
        if "running" not in name:
            moved = (1.0 + STALENESS_WEIGHT * 2.0) / 2
            np.testing.assert_allclose(tensor - before[name], moved, rtol=1e-4, atol=1e-5, err_msg=name)
    assert view.card is not None and view.card.took_part == {"1": ["south"], "2": ["north", "south"], "3": []}
    told_of = {(of_round.round, site): part for of_round, site, part in view.parts()}
    assert (told_of[1, "north"].status, told_of[1, "north"].reason) == ("late", "counted in round 2")
    assert told_of[2, "north"].weight == 0.5
    here = "; the answer to round 1 counts here: models are not scored in this run"
    assert (told_of[2, "north"].reason or "").endswith(here)
    steps = {(step.round, step.what): step.outcome for step in replayed(tmp_path / "folders", RUN)}
    assert steps[2, "verdict on the answer of north to round 1"] == "same"
    assert steps[1, "aggregate 1"] == steps[2, "aggregate 2"] == "same"
    assert "differs" not in steps.values()


def until(run: Staged, is_so: Callable[[], bool], *, silent: str = "") -> None:
    """Let a staged run go on; no site acts that is silent."""
    for _ in range(40):
        if is_so():
            return
        run.aggregator_acts()
        for site, played in run.sites.items():
            run.folder_sync_works(site)
            if site != silent:
                played.acts()
    raise AssertionError("waited in vain")


def test_an_answer_that_came_with_a_withdrawal_while_its_round_was_being_closed_is_late(tmp_path: Path) -> None:
    """And nothing counts of a site that has left: also no late answer to the round before."""
    run = Staged(tmp_path, {"north": "accepted", "south": "accepted"}, rounds=3, late="next")
    north, of_run = run.sites["north"], run.store.configuration().run
    theirs = north.channel.ledger
    until(run, lambda: theirs.message(MessageRef("round", of_run, 1)) is not None)
    until(run, lambda: run.store.score(1, "south") is not None, silent="north")
    ours = run.daemon._ledgers["north"]
    run.daemon._act(CloseRound(1))  # at the deadline
    until(run, lambda: ours.message(MessageRef("update", of_run, 1)) is not None)
    until(run, lambda: theirs.message(MessageRef("update", of_run, 2)) is not None)
    assert ours.message(MessageRef("update", of_run, 2)) is None
    assert run.store.verdicts(2) is None
    north.withdraws()
    north.heartbeat.beat("waiting", north.channel, now=True)
    for _ in ("update", "withdrawal"):
        run.folder_sync_works("north")
    assert [message.ref.kind for message in ours.peer_messages()] == ["consent", "update", "update", "withdrawal"]
    run.daemon._act(CloseRound(2))  # which was decided at the deadline, before both of these were here
    verdicts = run.store.verdicts(2)
    assert verdicts is not None
    assert (verdicts["north"].status, verdicts["north"].late) == ("late", None)
