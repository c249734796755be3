"""What an aggregator or a site says against the records that it follows from is found, one lie after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.audit.reading import Reading
from shared.audit.report import report
from shared.audit.verify import verified, verify
from shared.exchange import names
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.answers import Abort, Consent, Withdrawal
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.signing import canonical
from shared.exchange.tables import MetricsRow, write_metrics
from shared.folder.local import LocalFolder
from shared.learning.schedules import round_configuration
from shared.learning.spoilers import TOGETHER
from tests.federation.running import run_configuration
from tests.played import RUN, Played

VERDICT = {
    "run": RUN, "round": 1, "site": "north", "status": "accepted", "score": "0.9", "tolerance": "0.01", "theta": None,
    "weight": "1.0", "epsilon": None, "reason": "ok",
}  # fmt: skip
CARD = {
    "run": RUN, "task": "octa_segmentation", "method": "mean", "chosen_round": 1, "score_name": "dice_mean",
    "validation": {"1": "0.5"}, "took_part": {"1": ["north"], "2": []}, "epsilon": {}, "reason": "best",
}  # fmt: skip


def found(run: Played) -> list[tuple[str, str]]:
    return [(finding.file, finding.what) for finding in verify(LocalFolder(run.drop)).findings]


def with_verdict(home: Path, changes: dict[str, object], *, answers: bool = True, **offered: object) -> Played:
    run = Played(home)
    run.offer_and_consent(rounds=1, **offered)
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, trains=True), "round")
    content = canonical(Verdict.model_validate(VERDICT | changes).model_dump())
    run.sign_and_publish("verdict", 1, {names.VERDICT: content}, answers_nothing=not answers)
    return run


def with_card(home: Path, changes: dict[str, object], model: float = 0.25) -> Played:
    run = Played(home)
    run.offer_and_consent(rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    content = canonical(FinalCard.model_validate(CARD | changes).model_dump())
    run.sign_and_publish("final", 0, {names.CARD: content, names.FINAL_MODEL: run.model(model)})
    return run


def test_what_follows_holds(tmp_path: Path) -> None:
    assert found(with_verdict(tmp_path / "verdict", {})) == []
    assert found(with_card(tmp_path / "card", {})) == []
    left_out = {"status": "omitted", "weight": None, "reason": f"{TOGETHER}: w would hold NaN"}
    assert found(with_verdict(tmp_path / "together", left_out)) == []


def test_a_verdict_that_accepts_nothing_is_found(tmp_path: Path) -> None:
    """The verdict is sound in itself, and names no answer."""
    run = with_verdict(tmp_path, {}, answers=False)
    assert found(run) == [
        (f"{MessageRef('verdict', RUN, 1).path}/verdict.json", "says accepted, and names no answer that is here")
    ]


LIES: dict[str, tuple[dict[str, object], str]] = {
    "late-with-an-answer": ({"status": "late", "score": None, "weight": None}, "says late, and names an answer"),
    "withdrawn": (
        {"status": "withdrawn", "score": None, "weight": None},
        "says withdrawn, and there is no withdrawal",
    ),
    "validated": (
        {"status": "validated", "score": None, "weight": None},
        "says validated in a round that trains",
    ),
    "no-weight": ({"weight": None}, "says accepted, without a weight"),
    "omitted-with-weight": ({"status": "omitted", "score": "0.0"}, "says omitted, with weight 1.0"),
    "another-tolerance": ({"tolerance": "0.3"}, "tells the tolerance 0.3, the run's is 0.01"),
    "no-tolerance": ({"tolerance": None}, "tells the tolerance None, the run's is 0.01"),
    "no-score": ({"score": None}, "accepts a model without a score"),
    "too-low": ({"score": "0.01"}, "says accepted at score 0.01 and tolerance 0.01"),
    "too-high-to-omit": (
        {"status": "omitted", "weight": None},
        "says omitted at score 0.9 and tolerance 0.01",
    ),
    "another-reason": (
        {"reason": "score 0.0001 does not exceed the tolerance 0.5"},
        "says accepted, and its reason is that of another verdict",
    ),
    "a-reason-of-none-here": (
        {"reason": "no answer came before the round closed"},
        "says accepted, and its reason is that of another verdict",
    ),
    "a-reason-of-another-score": (
        {"reason": "score 0.8000 exceeds the tolerance 0.01"},
        "says accepted, and its reason is that of another verdict",
    ),
    "a-reason-to-omit": (
        {"reason": f"{TOGETHER}: w would hold NaN"},
        "says accepted, and its reason is that of another verdict",
    ),
    "a-reason-to-accept": (
        {"status": "omitted", "weight": None, "score": "0.0", "reason": "score 0.9000 exceeds the tolerance 0.01"},
        "says omitted, and its reason is that of another verdict",
    ),
    "no-share": ({"weight": "0.0"}, "tells the weight 0.0 of the run's only site, whose weight is 1.0"),
    "half-a-share": ({"weight": "0.5"}, "tells the weight 0.5 of the run's only site, whose weight is 1.0"),
    "theta": ({"theta": "0.7"}, "tells the θ 0.7, the answer None"),
    "epsilon": ({"epsilon": "1.5"}, "tells the ε 1.5, the answer None"),
    "another-run": ({"run": "octa-2"}, "speaks of another run or round"),
    "another-round": ({"round": 2}, "speaks of another run or round"),
    "another-site": ({"site": "south"}, "speaks of another site"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_verdict_against_its_answer_is_found(tmp_path: Path, lie: str) -> None:
    changes, what = LIES[lie]
    assert (f"{MessageRef('verdict', RUN, 1).path}/verdict.json", what) in found(with_verdict(tmp_path, changes))


@pytest.mark.parametrize("told", [{"theta": "0.7"}, {"epsilon": "1.0"}, {}])
def test_a_verdict_on_no_answer_tells_nothing_of_one(tmp_path: Path, told: dict[str, object]) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 1, run.to_site(1), "consent")
    late = {"status": "late", "score": None, "weight": None, "reason": "no answer came before the round closed"}
    content = canonical(Verdict.model_validate(VERDICT | late | told).model_dump())
    run.sign_and_publish("verdict", 1, {names.VERDICT: content}, answers_nothing=True)
    assert [what for _, what in found(run)] == (["says late, and tells the θ or ε of an answer"] if told else [])


PRIVATE = {"max_grad_norm": 1.0, "delta": 0.001, "noise_multiplier": 1.0}


def test_what_was_spent_is_told_of_an_answer_that_passed_by_itself_alone(tmp_path: Path) -> None:
    """Nothing was wrong with it but what came of it with the others', and no score says so where none is measured."""
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1, privacy=PRIVATE, tolerance=None)
    run.send("round", 1, run.to_site(1), "consent")
    row = MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5, "epsilon": 1.5})
    run.send("update", 1, run.from_site(1, trains=True) | {names.METRICS: write_metrics([row])}, "round")
    omitted = {"status": "omitted", "score": None, "tolerance": None, "weight": None, "epsilon": "1.5"}
    reason = {"reason": f"{TOGETHER}: w would hold NaN"}
    content = canonical(Verdict.model_validate(VERDICT | omitted | reason).model_dump())
    run.sign_and_publish("verdict", 1, {names.VERDICT: content})
    assert [what for _, what in found(run) if "ε" in what] == []


LATE = {"update": "ab" * 32, "score": "0.9", "weight": "1.0", "reason": "ok"}
COUNTED_LATE: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "no-score": ({"score": None}, {}, "counts an answer that came late without a score"),
    "a-score-of-none": (
        {},
        {"tolerance": None},
        "tells a score of an answer that came late, 0.9, where no model is scored",
    ),
    "too-low": ({"score": "0.01"}, {}, "counts an answer that came late at score 0.01 and tolerance 0.01"),
}


@pytest.mark.parametrize("lie", COUNTED_LATE)
def test_a_late_answer_against_the_runs_tolerance_is_found(tmp_path: Path, lie: str) -> None:
    changes, offered, what = COUNTED_LATE[lie]
    verdict = {"status": "late", "score": None, "weight": None, "late": LATE | changes}
    run = with_verdict(tmp_path, verdict, answers=False, late="next", **offered)
    assert (f"{MessageRef('verdict', RUN, 1).path}/verdict.json", what) in found(run)


BELOW_LAST = {"below_last": 0.2}
LIMITS: dict[str, tuple[dict[str, object], str | None]] = {
    "can-be": ({"tolerance": "0.3679", "reason": "score 0.9000 exceeds the tolerance 0.3679"}, None),
    "none": ({"tolerance": None}, "tells the tolerance None, and the run's is 0.2 below a score"),
    "more-than-any-score-less-that": (
        {"tolerance": "0.8001"},
        "tells the tolerance 0.8001, and the run's is 0.2 below a score",
    ),
    "of-five-decimals": (
        {"tolerance": "0.36785", "reason": "score 0.9000 exceeds the tolerance 0.36785"},
        "tells the tolerance 0.36785, which is not rounded to 4 decimals",
    ),
    "above-the-score": ({"tolerance": "0.5", "score": "0.4"}, "says accepted at score 0.4 and tolerance 0.5"),
    "another-than-the-reasons": (
        {"tolerance": "0.5", "reason": "score 0.9000 exceeds the tolerance 0.4"},
        "says accepted, and its reason is that of another verdict",
    ),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_tolerance_relative_to_the_last_aggregate_is_one_that_can_be(tmp_path: Path, case: str) -> None:
    changes, what = LIMITS[case]
    expected = [] if what is None else [(f"{MessageRef('verdict', RUN, 1).path}/verdict.json", what)]
    assert found(with_verdict(tmp_path, changes, tolerance=BELOW_LAST)) == expected


CARDS: dict[str, tuple[dict[str, object], str]] = {
    "another-task": ({"task": "dr_staging"}, "tells the task dr_staging, the run's is octa_segmentation"),
    "another-method": ({"method": "fedavg"}, "tells the method fedavg, the run's is mean"),
    "another-score": ({"score_name": "auroc"}, "tells the score_name auroc, the run's is dice_mean"),
    "chosen-round-77": ({"chosen_round": 77}, "speaks of an aggregate after the last, 1"),
    "validation-of-none": ({"validation": {"1": "0.5", "9": "0.1"}}, "speaks of an aggregate after the last, 1"),
    "round-of-none": ({"took_part": {"1": ["north"], "7": []}}, "speaks of a round that is none of 1 to 2"),
    "stranger": ({"took_part": {"1": ["east", "north"]}}, "names east, no site of the run"),
    "twice": ({"took_part": {"1": ["north", "north"]}}, "does not name each site once, and by name, in round 1"),
    "in-another-order": (
        {"took_part": {"1": ["north", "east"]}},
        "does not name each site once, and by name, in round 1",
    ),
    "closing": ({"took_part": {"1": ["north"], "2": ["east"]}}, "says that a site took part in the closing round"),
    "no-part": ({"took_part": {"1": []}}, "says of north that it took no part in round 1"),
    "part": ({"took_part": {"1": ["north"], "2": ["north"]}}, "says of north that it took part in round 2"),
    "epsilon": ({"epsilon": {"north": "1.0"}}, "tells an ε, and the run is not private"),
    "not-the-best": ({"chosen_round": 0}, "tells the chosen_round 0, and the best validation is that of 1"),
    "chosen-of-no-round": ({"took_part": {}}, "tells the chosen_round 1, and of rounds up to 0"),
    "validation-of-no-round": (
        {"took_part": {"1": ["north"]}},
        "tells the validation of an aggregate that none of its rounds, up to 1, brought",
    ),
    "better-than-told": (
        {"validation": {"1": "0.99"}},
        "tells the validation 0.99 of aggregate 1, of which north, the only site, reported 0.5",
    ),
    "validation-of-nobody": (
        {"validation": {"0": "0.1", "1": "0.5"}},
        "tells the validation 0.1 of aggregate 0, of which north, the only site, reported none",
    ),
    "no-validation": ({"validation": {}}, "tells no validation of aggregate 1, of which north reported 0.5"),
}


@pytest.mark.parametrize("lie", CARDS)
def test_a_final_card_of_another_run_is_found(tmp_path: Path, lie: str) -> None:
    changes, what = CARDS[lie]
    assert (f"{MessageRef('final', RUN).path}/card.json", what) in found(with_card(tmp_path, changes))


@pytest.mark.parametrize("mean", ["77.5", "-1e+300", "-0.5"])
def test_a_validation_that_is_no_score_is_found(tmp_path: Path, mean: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    content = canonical(CARD | {"validation": {"1": mean}})
    run.sign_and_publish("final", 0, {names.CARD: content, names.FINAL_MODEL: run.model(0.25)})
    ((file, what),) = found(run)
    assert file == f"{MessageRef('final', RUN).path}/card.json"
    assert "validation.1: must be in [0, 1]" in what


@pytest.mark.parametrize("validation", [{"3": "0.9"}, {}], ids=["told", "not-told"])
def test_an_aggregate_of_a_round_that_was_never_played_is_not_chosen(
    tmp_path: Path, validation: dict[str, str]
) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=3)
    run.round(1, trains=True)
    card = CARD | {"chosen_round": 3, "validation": validation, "took_part": {"1": ["north"]}}
    files = {names.CARD: canonical(card), names.FINAL_MODEL: run.model(0.25)}
    run.sign_and_publish("final", 0, dict(files))
    file = f"{MessageRef('final', RUN).path}/card.json"
    assert (file, "tells the chosen_round 3, and of rounds up to 1") in found(run)


def private_run(home: Path, told: str | None, *, late: bool = False) -> Played:
    """A run whose answers tell ε 1.5 and 3.0, and whose card tells what it is told to.

    Args:
        late: the verdict on the second names none.
    """
    run = Played(home)
    private = {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 4.0, "noise_multiplier": None}
    run.offer_and_consent(rounds=2, privacy=private)
    for number, trains in ((1, True), (2, True), (3, False)):
        run.send("round", number, run.to_site(number), "consent")
        rate = round_configuration(run_configuration(rounds=2), number, "north").learning_rate
        scores = {
            "dice_mean": None if number == 1 else 0.5,
            "dice_std": 0.1,
            "epsilon": 1.5 * number if trains else None,
        }
        table = write_metrics([MetricsRow(number, 0, "validation", "10", rate, 0.5, scores)])
        run.send("update", number, run.from_site(number, trains) | {names.METRICS: table}, "round")
        is_late = late and number == 2
        status = "late" if is_late else "accepted" if trains else "validated"
        counts = status == "accepted"
        changes: dict[str, Any] = VERDICT | {
            "round": number,
            "status": status,
            "reason": "",
            "score": None,
            "weight": None,
        }
        changes |= {"score": "0.9", "weight": "1.0", "epsilon": str(1.5 * number)} if counts else {}
        content = canonical(Verdict.model_validate(changes).model_dump())
        ref = run.sign_and_publish("verdict", number, {names.VERDICT: content}, answers_nothing=is_late)
        manifest, answer = run.site.inbox.notice(ref), run.site.ledger.head_of("north").digest
        assert manifest is not None
        assert run.site.inbox.fetch(ref, manifest, answers=(answer, None), max_weights_bytes=0)
    took_part: dict[str, list[str]] = {"1": ["north"], "2": [] if late else ["north"], "3": []}
    epsilon = {"north": told} if told else {}
    card = CARD | {"validation": {"1": "0.5", "2": "0.5"}, "took_part": took_part, "epsilon": epsilon}
    files = {names.CARD: canonical(FinalCard.model_validate(card).model_dump()), names.FINAL_MODEL: run.model(0.25)}
    run.sign_and_publish("final", 0, files)
    return run


@pytest.mark.parametrize(
    ("told", "late", "holds"),
    [
        ("3.0", False, True),
        ("1.5", False, False),
        ("2.0", False, False),
        (None, False, False),
        ("3.0", True, True),
        ("1.5", True, True),
        (None, True, False),
    ],
)
def test_the_epsilon_of_a_card_is_the_greatest_that_was_surely_read_or_a_later_one(
    tmp_path: Path, told: str | None, late: bool, holds: bool
) -> None:
    run = private_run(tmp_path, told, late=late)
    what = f"tells the ε {told} of north, whose answers tell 1.5, 3.0"
    assert found(run) == ([] if holds else [(f"{MessageRef('final', RUN).path}/{names.CARD}", what)])
    reading = Reading(LocalFolder(run.drop))
    document = report({"north": reading}, {"north": verified(reading)}, is_key_compared=False)
    assert [site["epsilon"] for each in document["runs"] for site in each["sites"].values()] == [3.0]


def test_a_final_model_that_is_no_aggregate_is_found(tmp_path: Path) -> None:
    assert found(with_card(tmp_path, {}, model=0.75)) == [
        (f"{MessageRef('final', RUN).path}/model.safetensors", "is not the aggregate 1 that round 2 brought")
    ]


def test_an_answer_at_another_rate_is_found(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 1, run.to_site(1), "consent")
    table = write_metrics([MetricsRow(1, 0, "validation", "10", 0.7, 0.5, {"dice_mean": 0.5})])
    run.send("update", 1, run.from_site(1, trains=True) | {names.METRICS: table}, "round")
    (finding,) = found(run)
    assert finding == (
        f"{MessageRef('update', RUN, 1).path}/metrics.csv", "tells another learning rate than the round's, 0.1"
    )  # fmt: skip


TABLES: dict[str, tuple[str, str, str | None]] = {
    "more-to-train-on": ("train", "4000", "tells of 4000 train images, and the consent of 12"),
    "one-more": ("train", "13", "tells of 13 train images, and the consent of 12"),
    "of-no-test-set": ("test", "999999999", "tells of 999999999 test images, and the consent of 0"),
    "as-many": ("train", "12", None),
    "some-lost-since": ("train", "11", None),
    "withheld-since": ("train", "fewer than 20", None),
}


@pytest.mark.parametrize("case", TABLES)
def test_an_answer_about_more_images_than_the_consent_is_found(tmp_path: Path, case: str) -> None:
    split, images, what = TABLES[case]
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 1, run.to_site(1), "consent")
    received = MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5})
    more = replace(received, epoch=0 if split == "test" else 1, split=split, images=images)
    if images.startswith("fewer"):
        more = replace(more, loss=None, scores={"dice_mean": None})
    table = write_metrics([received, more])
    run.send("update", 1, run.from_site(1, trains=True) | {names.METRICS: table}, "round")
    assert found(run) == ([] if what is None else [(f"{MessageRef('update', RUN, 1).path}/metrics.csv", what)])


@pytest.mark.parametrize("loss", [0.5, None])
def test_what_was_measured_on_training_images_is_found_in_a_private_run(tmp_path: Path, loss: float | None) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1, privacy=PRIVATE)
    run.send("round", 1, run.to_site(1), "consent")
    received = MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5, "epsilon": None})
    trained = MetricsRow(1, 1, "train", "12", 0.1, loss, {"dice_mean": None, "epsilon": 1.0})
    run.send(
        "update",
        1,
        run.from_site(1, trains=True) | {names.METRICS: write_metrics([received, trained])},
        "round",
    )
    what = "tells what was measured on training images, and the run is private"
    assert (what in [told for _, told in found(run)]) == (loss is not None)


def test_an_answer_without_the_received_model_is_found(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 1, run.to_site(1), "consent")
    table = write_metrics([MetricsRow(1, 1, "train", "12", 0.1, 0.5, {"dice_mean": 0.5})])
    run.send("update", 1, run.from_site(1, trains=True) | {names.METRICS: table}, "round")
    assert found(run) == [
        (f"{MessageRef('update', RUN, 1).path}/metrics.csv",
         "does not tell how the received model did on the validation images")
    ]  # fmt: skip


def test_scores_in_a_round_that_asks_none_are_found(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=3, score_every=2)
    run.round(1, trains=True)
    run.round(2, trains=True)
    what = "tells scores in a round in which the run, by score_every: 2, asks none"
    assert found(run) == [(f"{MessageRef('update', RUN, 2).path}/{names.METRICS}", what)]


def test_a_round_after_the_closing_one_is_found(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 3, run.to_site(2), "consent")
    assert (MessageRef("round", RUN, 3).manifest, "is of a round after the closing one, 2") in found(run)


@pytest.mark.parametrize(
    ("offered", "what"),
    [
        ({"run": "octa-2"}, "speaks of another run or round"),
        ({"sites": ["south"]}, "offers north a run that it has no part in"),
    ],
)
def test_an_offer_of_another_run_or_to_other_sites_is_found(
    tmp_path: Path, offered: dict[str, object], what: str
) -> None:
    run = Played(tmp_path)
    run.offer(**offered)
    assert found(run) == [(f"{MessageRef('offer', RUN).path}/{names.RUN_CONFIGURATION}", what)]


def test_a_site_that_declined_is_asked_nothing(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer(rounds=1)
    declined = canonical({"run": RUN, "agrees": False, "reason": "no", "images": {"train": "12"}})
    run.sign_and_publish("consent", 0, {names.CONSENT: declined})
    manifest = run.aggregator.inbox.notice(MessageRef("consent", RUN))
    offer = run.aggregator.ledger.message(MessageRef("offer", RUN))
    assert manifest is not None and offer is not None
    assert run.aggregator.inbox.fetch(MessageRef("consent", RUN), manifest, answers=[offer.digest], max_weights_bytes=0)
    run.sign_and_publish("round", 1, run.to_site(1))
    assert {what for _, what in found(run)} == {
        "tells of images though it says no",
        "asks a site that has declined",
    }


@pytest.mark.parametrize("kind", ["final", "abort"])
def test_no_end_is_sent_to_a_site_whose_no_was_read(tmp_path: Path, kind: Kind) -> None:
    run = Played(tmp_path)
    run.offer(rounds=1)
    declined = canonical(Consent(run=RUN, agrees=False, reason="no", images={}).model_dump())
    run.send("consent", 0, {names.CONSENT: declined}, "offer")
    card = CARD | {"chosen_round": 0, "validation": {}, "took_part": {}}
    files: dict[Kind, dict[str, bytes | Path]] = {
        "final": {
            names.CARD: canonical(FinalCard.model_validate(card).model_dump()),
            names.FINAL_MODEL: run.model(0.5),
        },
        "abort": {names.ABORT: canonical(Abort(run=RUN, reason="too few agreed").model_dump())},
    }
    run.sign_and_publish(kind, 0, files[kind])
    what = "was signed although the site's no to the offer was known"
    assert found(run) == [(MessageRef(kind, RUN).manifest, what)]


def test_an_abort_that_crossed_a_no_holds(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer(rounds=1)
    abort = {names.ABORT: canonical(Abort(run=RUN, reason="too few agreed").model_dump())}
    run.aggregator.outbox.sign(MessageRef("abort", RUN), abort, in_reply_to=run.card_digest)
    declined = canonical(Consent(run=RUN, agrees=False, reason="no", images={}).model_dump())
    run.send("consent", 0, {names.CONSENT: declined}, "offer")
    run.aggregator.outbox.publish()
    assert found(run) == []


def test_withdrawn_is_said_of_a_site_that_has_left(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.send("round", 1, run.to_site(1), "consent")
    run.send("withdrawal", 0, {names.WITHDRAWAL: canonical(Withdrawal(run=RUN, reason="").model_dump())}, "offer")
    changes: dict[str, Any] = VERDICT | {"status": "withdrawn", "score": None, "weight": None}
    content = canonical(Verdict.model_validate(changes).model_dump())
    verdict = run.sign_and_publish("verdict", 1, {names.VERDICT: content}, answers_nothing=True)
    assert found(run) == []
    consent = run.aggregator.ledger.message(MessageRef("consent", RUN))
    assert consent is not None
    after = MessageRef("round", RUN, 2)
    run.aggregator.outbox.sign(after, run.to_site(2), in_reply_to=consent.digest)
    run.aggregator.outbox.publish()
    what = f"says withdrawn, and {after.path} follows it, a message of the same run"
    assert found(run) == [(f"{verdict.path}/{names.VERDICT}", what)]


SHARES = st.none() | st.floats(0, 1).map(decimal_text)
VERDICTS = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["accepted", "omitted", "late", "withdrawn", "validated"]),
        "score": SHARES,
        "weight": SHARES | st.just("1.0"),
        "theta": SHARES,
    }
)


@settings(max_examples=20)
@given(told=VERDICTS, answers=st.booleans())
def test_of_all_verdicts_on_an_answer_only_those_hold_that_an_aggregator_can_give(
    tmp_path_factory: pytest.TempPathFactory, told: dict[str, str | None], answers: bool
) -> None:
    run = with_verdict(tmp_path_factory.mktemp("any"), dict(told), answers=answers)
    status, score, weight = told["status"], told["score"], told["weight"]
    passes = score is not None and float(score) > 0.01
    can_be = told["theta"] is None and (
        (status == "accepted" and answers and passes and weight is not None and float(weight) >= 1 - 1e-6)
        or (status == "omitted" and weight is None and not passes)
        or (status == "late" and not answers and (score, weight) == (None, None))
    )
    assert (found(run) == []) == can_be
