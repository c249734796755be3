"""Two runs that differ in a setting, set side by side, are about whole blocks of images, or about no image."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import RejectedError
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.tables import MetricsRow, read_metrics
from shared.learning.metrics import Score
from shared.learning.objectives import CrossEntropy, Weighted
from shared.learning.requirements import requirements
from shared.learning.tasks import task_named
from shared.learning.tasks.classification import drawing
from shared.learning.tasks.contract import Dataset, Evaluation
from shared.learning.training import bounded, evaluate_answers, evenly
from site_client.configuration import Policy
from site_client.disclosure import ScoreTable
from site_client.heartbeat import PUBLIC_TROUBLE, last_status
from site_client.policy import excesses, judge
from tests.federation.running import run_configuration
from tests.learning.test_support import Graded
from tests.played import Played


@given(sizes=st.lists(st.integers(5, 9), min_size=1, max_size=12), most=st.integers(1, 120))
def test_batchnorm_is_measured_on_whole_blocks(sizes: list[int], most: int) -> None:
    samples = [Graded(f"{block}-{number}", 0) for block, size in enumerate(sizes) for number in range(size)]
    blocks = {sample.id: int(sample.id.split("-")[0]) for sample in samples}
    taken = Counter(blocks[sample.id] for sample in evenly(samples, most, blocks))
    assert taken and all(taken[block] == sizes[block] for block in taken)


@pytest.mark.parametrize(("least", "is_told"), [(5, False), (1, True)])
@pytest.mark.parametrize("why", ["some images more often", "classes by weights"])
def test_training_that_weighs_images_otherwise_tells_no_score(why: str, least: int, is_told: bool) -> None:
    samples = [Graded(f"{number}", number % 2) for number in range(21)]
    repeats = drawing(samples, seed=1) if why == "some images more often" else {}
    assert repeats or why == "classes by weights"
    dataset = Dataset(tuple(samples), (), tuple(samples), ("a", "b"), repeats=repeats)
    configuration = RoundConfiguration(round=2, epochs=1, learning_rate=0.1, batch_size=4, seed=1, augmentation={})
    table = ScoreTable(configuration, Policy(minimum_count=least), dataset, weighs_classes=not repeats)
    for epoch, split in ((0, "test"), (1, "train")):
        table.add(epoch, split, Evaluation(21, 0.5, {"kappa": Score(0.75, 21)}))  # type: ignore[arg-type]
    tested, trained = read_metrics(table.content(), "metrics.csv")
    assert (tested.loss, tested.scores["kappa"]) == (0.5, 0.75)
    assert (trained.loss, trained.scores["kappa"]) == ((0.5, 0.75) if is_told else (None, None))
    assert isinstance(trained, MetricsRow) and trained.images == "21"


def test_what_a_run_spends_is_rounded_up_and_a_score_that_is_no_number_is_not_told() -> None:
    dataset = Dataset(tuple(Graded(f"{number}", 0) for number in range(20)), (), (), ("a", "b"))
    configuration = RoundConfiguration(round=2, epochs=1, learning_rate=0.1, batch_size=4, seed=1, augmentation={})
    table = ScoreTable(configuration, Policy(), dataset)
    table.add(1, "train", Evaluation(20, 0.5, {"kappa": Score(math.nan, 20)}))  # type: ignore[arg-type]
    table.spent(0.12341, 20)
    (row,) = read_metrics(table.content(), "metrics.csv")
    assert row.scores == {"kappa": None, "epsilon": 0.1235}


def test_a_score_is_over_no_more_images_than_its_set_whatever_a_plugin_counts() -> None:
    dataset = Dataset(tuple(Graded(f"{number}", 0) for number in range(3)), (), (), ("a", "b"))
    configuration = RoundConfiguration(round=2, epochs=1, learning_rate=0.1, batch_size=4, seed=1, augmentation={})
    table = ScoreTable(configuration, Policy(minimum_count=5), dataset)
    table.add(1, "train", Evaluation(3, 0.5, {"lesions": Score(0.5, 200)}))  # type: ignore[arg-type]
    (row,) = read_metrics(table.content(), "metrics.csv")
    assert (row.images, row.loss, row.scores) == ("fewer than 5", None, {"lesions": None})


def test_a_scores_loss_weighs_no_class_and_no_image_beyond_its_bound() -> None:
    task: Any = task_named("image_classification")
    logits, grades = torch.tensor([[2.0, 0.0], [0.0, 0.0], [900.0, 0.0]]), torch.tensor([0, 1, 1])
    plain, weighted = (
        evaluate_answers(task, [([Graded("a", 0)] * 3, logits, grades)], objective).loss
        for objective in (CrossEntropy(), Weighted(CrossEntropy(), (0.75, 1.5)))
    )
    assert plain == weighted == pytest.approx((math.log(1 + math.exp(-2)) + math.log(2) + 10) / 3)
    assert bounded(torch.tensor([math.inf]))[0] == math.inf  # a model that has diverged is told as ever


@pytest.mark.parametrize(
    ("task", "options", "changed"),
    [
        ("rdr_classification", {}, {"referable_from": 3}),
        ("rdr_classification", {}, {"severities": ["none", "mild", "moderate", "severe", "proliferative"]}),
        ("segmentation", {"labels": ["no", "yes"]}, {"labels": ["no", "a", "b"]}),
        ("image_classification", {"labels": ["no", "yes"]}, {"labels": ["no", "yes", "else"]}),
        ("time_series", {"labels": ["a", "b"]}, {"window": 256}),
        ("time_series", {"labels": ["a", "b"]}, {"stride": 128}),
        ("spectrograms", {"labels": ["a", "b"]}, {"segment_seconds": 4.0}),
    ],
)
def test_what_is_true_of_an_image_changes_between_two_runs_by_a_persons_will_alone(
    task: str, options: dict[str, object], changed: dict[str, object]
) -> None:
    first = run_configuration(run="first", task=task, method="mean", task_options=options)
    second = first.model_copy(update={"run": "second", "task_options": options | changed})
    policy = Policy(consent="auto", tasks=[task], methods=["mean"])
    assert judge(policy, second, None).answer == "yes"
    judged = judge(policy, second, None, answered=[first, first])
    assert judged.answer == "ask"
    assert judged.reason.endswith(f"for run first had other {next(iter(changed))} over the same images")
    assert judge(policy, second, True, answered=[first]).answer == "yes"
    # What only trains otherwise, another task, and the same run again are nobody's matter.
    longer = first.model_copy(update={"run": "second", "task_options": options | {"weight_decay": 0.1}})
    elsewhere = first.model_copy(update={"task": "dr_staging", "task_options": {}})
    assert judge(policy, longer, None, answered=[first]).answer == "yes"
    assert judge(policy, second, None, answered=[elsewhere, second]).answer == "yes"


def test_a_decline_does_not_tell_how_rare_a_class_is() -> None:
    asked = replace(requirements(run_configuration()), views=90)
    told = {tuple(excesses(Policy(max_views=100), asked, repeats)) for repeats in (2, 3, 60)}
    assert told == {("images of rarer classes would be shown more often than this hospital's 100 times",)}
    assert excesses(Policy(max_views=100), asked, 1) == []


def test_where_a_damaged_file_of_this_machine_lies_is_not_told(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.beat()
    for file, is_told in (("runs/octa-1/offer/run.yaml", True), (str(tmp_path / "start.safetensors"), False)):
        run.beat(RejectedError(file, "is not a safetensors file"))
        status = last_status(run.drop)  # as it leaves
        assert status is not None and status.trouble is not None
        assert (file in status.trouble) == is_told and (status.trouble == PUBLIC_TROUBLE) != is_told
