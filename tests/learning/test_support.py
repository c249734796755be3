"""What a score is over: images of each class beside it, and the main one's standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from aggregator.report.before_after import before_and_after
from aggregator.report.tables import as_in_papers
from aggregator.run_view import Part
from shared.errors import RejectedError
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.tables import MetricsRow, is_support, read_metrics, write_metrics
from shared.learning.measures import OF_SHAPES, task_of
from shared.learning.metrics import Score
from shared.learning.new_runs import as_of_now
from shared.learning.objectives import CrossEntropy, Ensemble
from shared.learning.standard_error import Jackknife
from shared.learning.tasks.classification import ClassScoring
from shared.learning.tasks.contract import Dataset, Evaluation, Scoring
from site_client.configuration import Policy
from site_client.disclosure import ScoreTable
from studies.simulation import Outcome, run_rounds
from tests.federation.running import make_data, run_configuration, staging_run
from tests.views import row, view_of_rounds


class Means(Scoring[float]):
    """Scores by the mean of what was seen."""

    def look(self, logits: object, targets: object) -> float:
        raise NotImplementedError

    def scores(self, looks: Sequence[float]) -> dict[str, Score]:
        return {"accuracy": Score(fmean(looks), len(looks))}


def error_of_means(values: Sequence[float], units: Sequence[str]) -> float | None:
    return Jackknife("accuracy", units).error(Means(), values)


def test_the_error_of_a_mean_is_that_of_its_formula() -> None:
    values = np.random.default_rng(3).random(100).tolist()
    each = [str(number) for number in range(100)]
    error = error_of_means(values, each)
    assert error == pytest.approx(float(np.std(values, ddof=1)) / 10)
    assert error_of_means(values[::-1], each) == pytest.approx(error), "no image counts more than another"
    many = np.random.default_rng(4).random(1000).tolist()
    assert error_of_means(many, [str(number) for number in range(1000)]) == pytest.approx(
        float(np.std(many)) / 1000**0.5, rel=0.2
    )


def test_a_patient_is_left_out_with_all_images() -> None:
    values = np.random.default_rng(3).random(50).tolist()
    each = [str(number) for number in range(50)]
    assert error_of_means(values * 4, each * 4) == pytest.approx(error_of_means(values, each)), (
        "copies make nothing surer"
    )
    assert error_of_means(values, ["one"] * 50) is None


LOGITS = np.random.default_rng(3).integers(-2, 3, (12, 2, 3)).astype(np.float32)  # few values: many are equal


@pytest.mark.parametrize("members", [1, 2], ids=["one network", "an ensemble"])
@pytest.mark.parametrize("grades", [[0, 1, 2] * 4, [0] * 12], ids=["all grades", "one grade"])
def test_a_score_of_grades_asked_for_alone_is_the_same(members: int, grades: list[int]) -> None:
    logits = torch.tensor(LOGITS[:, 0] if members == 1 else LOGITS)
    scoring = ClassScoring(CrossEntropy() if members == 1 else Ensemble(CrossEntropy()))
    looks = [scoring.look(logits[part], torch.tensor(grades)[part]) for part in (slice(5), slice(5, 12))]
    of_all = scoring.scores(looks)
    assert (of_all["auroc"].value is None) == (len({*grades}) == 1)
    assert {name: scoring.score(looks, name) for name in of_all} == {name: of_all[name].value for name in of_all}


def test_a_score_of_masks_asked_for_alone_is_the_same_with_the_measures_of_a_run() -> None:
    run = run_configuration(scores={"hausdorff_95": {}})
    scoring = task_of(run).scoring(CrossEntropy())
    logits = torch.tensor(LOGITS[:, 0, :, None, None] * np.ones((1, 1, 4, 4), np.float32))[:, :2]
    masks = torch.zeros(12, 4, 4, dtype=torch.int64)
    masks[3:, :2] = 1  # three images have no vessel
    looks = [scoring.look(logits[part], masks[part]) for part in (slice(5), slice(5, 12))]
    of_all = scoring.scores(looks)
    assert {"dice_mean", "dice_std", "hausdorff_95"} <= of_all.keys() and of_all["sensitivity_mean"].images == 1
    assert {name: scoring.score(looks, name) for name in of_all} == {name: of_all[name].value for name in of_all}
    nothing = [scoring.look(logits[:3], masks[:3])]
    assert scoring.score(nothing, "sensitivity_mean") is None


# --- what leaves -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graded:
    id: str
    grade: int
    image: None = None


def told_by_table(dataset: Dataset, scores: dict[str, Score], least: int) -> dict[str, float | None]:
    """Return what leaves of scores over the test images."""
    configuration = RoundConfiguration(round=2, epochs=1, learning_rate=0.1, batch_size=4, seed=1, augmentation={})
    table = ScoreTable(configuration, Policy(minimum_count=least), dataset)
    table.add(0, "test", Evaluation(len(dataset.test), 0.5, scores))
    (only,) = read_metrics(table.content(), "metrics.csv")
    return only.scores


def told(blocks: Sequence[Sequence[int]], least: int = 5) -> dict[str, float | None]:
    """Return the counts that leave of test images in these blocks, each of the grades of its images."""
    samples = [Graded(f"{b}-{n}", grade) for b, grades in enumerate(blocks) for n, grade in enumerate(grades)]
    numbers = {sample.id: int(sample.id.split("-")[0]) for sample in samples}
    dataset = Dataset((), (), tuple(samples), ("a", "b", "c"), blocks=numbers)
    counts = [sum(sample.grade == grade for sample in samples) for grade in range(3)]
    scores = {f"images_of_{grade}": Score(float(count), count) for grade, count in enumerate(counts)}
    scores |= {"auroc": Score(0.9, len(samples)), "auroc_error": Score(0.1, len(samples))}
    return told_by_table(dataset, scores, least)


def test_whole_blocks_are_told_and_parts_of_one_are_not() -> None:
    pure = told([[0] * 5, [1] * 6, [2] * 5])
    assert pure == {"images_of_0": 5, "images_of_1": 6, "images_of_2": 5, "auroc": 0.9, "auroc_error": 0.1}
    mixed = told([[0] * 5, [1, 1, 1, 2, 2]])
    assert mixed == {"images_of_0": 5, "images_of_1": None, "images_of_2": None, "auroc": None, "auroc_error": None}


def test_no_count_of_a_few_follows_from_the_others() -> None:
    few = told([[0] * 5, [1] * 6, [2] * 3])
    assert {few[f"images_of_{grade}"] for grade in range(3)} == {None}
    assert told([[0] * 5, [1] * 6, [2] * 3], least=1)["images_of_2"] == 3


DICE = [*np.random.default_rng(1).uniform(0.6, 0.9, 24).tolist(), 0.8123, 0.7741, 0.8562, 0.7011, 0.3377]


def told_of_patients(blocks: Sequence[Sequence[int]], least: int = 5) -> dict[str, float | None]:
    """Return what leaves of the last images of ``DICE``, in blocks of patients with so many each."""
    of_image = [
        (block, f"{block}-{patient}", f"{block}-{patient}-{image}")
        for block, patients in enumerate(blocks)
        for patient, images in enumerate(patients)
        for image in range(images)
    ]
    samples = tuple(Graded(name, 0) for _, _, name in of_image)
    dataset = Dataset(
        (),
        (),
        samples,
        ("background", "vessel"),
        blocks={name: block for block, _, name in of_image},
        groups={name: patient for _, patient, name in of_image},
    )
    values = DICE[-len(samples) :]
    error = error_of_means(values, [patient for _, patient, _ in of_image])
    scores = {name: Score(value, len(samples)) for name, value in (("dice_mean", fmean(values)), ("dice_error", error))}
    scores["dice_difference_error"] = Score(0.1, len(samples))
    return told_by_table(dataset, scores, least)


def test_a_mean_and_its_error_give_away_no_patients_score() -> None:
    # Of two patients, with four images and with one, both means follow from the mean of all and the jackknife's error.
    of_two = told_of_patients([[4, 1]], least=1)
    mean, error = of_two["dice_mean"], of_two["dice_error"]
    assert mean is not None and error is not None
    assert mean - 2 * error * 4 / 5 == pytest.approx(DICE[-1], abs=2e-4), "the only image of the second"

    def tells_errors(blocks: Sequence[Sequence[int]], least: int = 5) -> bool:
        of_all = told_of_patients(blocks, least)
        assert of_all["dice_mean"] is not None
        errors = {of_all["dice_error"] is not None, of_all["dice_difference_error"] is not None}
        assert len(errors) == 1
        return errors.pop()

    assert not tells_errors([[4, 1]])
    assert not tells_errors([[1] * 20, [4, 1]]), "beside a run without the second block, that block's two follow"
    assert not tells_errors([[3, 1, 1]]), "as few patients as a score is over images are wanted"
    assert tells_errors([[3, 1, 1], [2, 2, 1]]) and tells_errors([[3, 1, 1]], least=3)
    assert tells_errors([[1] * 5]) and not tells_errors([[1, 1], [1, 1]], least=2), "without groups, images"


def test_a_count_is_whole_and_an_error_a_share() -> None:
    def of(**scores: float) -> list[MetricsRow]:
        return read_metrics(write_metrics([MetricsRow(1, 0, "test", "20", 0.1, 0.5, {**scores})]), "metrics.csv")

    assert of(images_of_2=3, dice_error=0.25)[0].scores == {"images_of_2": 3, "dice_error": 0.25}
    for wrong in ({"images_of_2": 3.5}, {"images_of_2": -1.0}, {"dice_error": 1.5}):
        with pytest.raises(RejectedError, match=r"images_of_2 is|dice_error is"):
            of(**wrong)


# --- in a run ----------------------------------------------------------------------------------------------


def played(run: RunConfiguration, root: Path) -> Outcome:
    make_data(run, root / "data", 12)
    return run_rounds(run, {site: root / "data" / site for site in run.sites}, root / run.run)


def rows_of(outcome: Outcome) -> list[MetricsRow]:
    return [row for of_sites in outcome.tables.values() for table in of_sites.values() for row in table]


def without(row: MetricsRow) -> tuple[object, ...]:
    scores = {name: value for name, value in row.scores.items() if not is_support(name)}
    return row.round_no, row.epoch, row.split, row.images, row.loss, scores


@pytest.mark.parametrize("form", [run_configuration, staging_run])
def test_a_run_tells_it_of_what_was_received_and_nothing_else_is_another(form: object, tmp_path: Path) -> None:
    settings = {"rounds": 1, "tolerance": None}
    bare, run = form(run="bare", **settings), form(run="full", support=True, **settings)  # type: ignore[operator]
    first, full = played(bare, tmp_path), played(run, tmp_path)
    assert [without(row) for row in rows_of(full)] == [without(row) for row in rows_of(first)]
    assert not any(is_support(name) for row in rows_of(first) for name in row.scores)
    score = full.card.score_name.removesuffix("_mean")
    for each in rows_of(full):
        classes = [value for name, value in each.scores.items() if name.startswith("images_of_") and value is not None]
        if form is staging_run and each.epoch == 0:
            assert sum(classes) == int(each.images)
        assert (each.scores[f"{score}_error"] is not None) == ((each.epoch, each.split) == (0, "test"))


@pytest.mark.parametrize("is_one_patient", [True, False])
def test_the_hospitals_own_groups_are_drawn(is_one_patient: bool, tmp_path: Path) -> None:
    run = run_configuration(run="full", support=True, rounds=1, tolerance=None)
    make_data(run, tmp_path / "data", 12)
    for site in run.sites:
        images = sorted(path.stem for path in (tmp_path / "data" / site / "images").iterdir())
        sets = ["train"] * 6 + ["validation"] * 3 + ["test"] * 3
        patients = [name if is_one_patient else image for image, name in zip(images, sets, strict=True)]
        lines = [",".join(row) for row in zip(images, sets, patients, strict=True)]
        (tmp_path / "data" / site / "split.csv").write_text("\n".join(["id,split,group", *lines]) + "\n")
    outcome = run_rounds(run, {site: tmp_path / "data" / site for site in run.sites}, tmp_path / run.run)
    errors = [each.scores["dice_error"] for each in rows_of(outcome) if (each.epoch, each.split) == (0, "test")]
    assert len(errors) == 4 and {error is None for error in errors} == {is_one_patient}, "one patient tells no spread"


def test_new_runs_have_it_and_older_ones_go_on_without() -> None:
    run = run_configuration()
    assert as_of_now(run).support and b"support" not in dump_yaml(run)
    assert not as_of_now(run_configuration(support=False)).support
    assert parse_yaml(dump_yaml(as_of_now(run)), RunConfiguration, "run.yaml").support


def test_a_report_shows_what_a_score_is_over() -> None:
    north = row("40", auroc=0.8, auroc_error=0.05, dice_mean=0.5, dice_error=0.4, images_of_0=30, images_of_1=None)
    view = view_of_rounds([{"north": Part(test=north), "south": Part(test=row("20", dice_mean=0.4))}])
    shown = [[cell.text for cell in line] for line in as_in_papers(view, 0, "test").shown]
    assert shown[:4] == [
        ["images", "40", "20", "–"],
        ["images of class 0", "30", "not reported", "–"],
        ["dice ± 1.96 standard errors", "0.000 to 1.000", "not reported", "–"],
        ["dice (main score)", "0.500", "0.400", "0.450 ± 0.050"],
    ]
    assert not any("_error" in line[0] or "images_of" in line[0] for line in shown)
    assert "; both divide by the number, not by one less" in as_in_papers(view, 0, "test").caption
    notes = as_in_papers(view, 0, "test").notes
    assert notes[-1].startswith("± 1.96 standard errors: too narrow for few patients")
    assert notes[-2] == "means over classes cover those of which a site has images; reported: north 0"
    table = before_and_after(view, 0, "auroc", "AUROC")
    assert table.header == ("site", "before training", "after", "chosen model ± 1.96 standard errors", "test images")
    assert [cell.text for cell in table.shown[0]] == ["north", "0.800", "0.800", "0.702 to 0.898", "40"]
    assert table.notes[-1] == notes[-1]


def test_a_score_whose_name_ends_in_error_is_shown() -> None:
    assert not any(map(is_support, [*OF_SHAPES, "calibration_error", "mean_absolute_error"]))
    assert is_support("calibration_error_error")
    mine = Part(test=row("40", cup_to_disc_error=0.1, mean_absolute_error=2.5))
    shown = as_in_papers(view_of_rounds([{"north": mine}]), 0, "test").shown
    assert {"cup_to_disc_error", "mean_absolute_error"} <= {line[0].text.replace(" ", "_") for line in shown}


def test_a_standard_error_of_0_is_no_interval() -> None:
    perfect = row("6", dice_mean=1.0, dice_error=0.0)
    assert perfect.support("dice_mean").text == "6 images"
    other = Part(test=row("6", dice_mean=0.5, dice_error=0.1))
    view = view_of_rounds([{"north": Part(test=perfect), "south": other}])
    table = before_and_after(view, 0, "dice_mean", "Dice")
    assert [line[-2].text for line in table.shown] == ["–", "0.304 to 0.696"]
    alone = view_of_rounds([{"north": Part(test=perfect)}])
    assert before_and_after(alone, 0, "dice_mean", "Dice").header[-2] == "after"
