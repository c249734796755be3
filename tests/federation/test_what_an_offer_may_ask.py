"""What an aggregator may ask of a hospital that agrees by its policy alone: each attack is declined, and told why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Consent
from shared.exchange.records.run import RunConfiguration
from shared.exchange.signing import canonical
from shared.exchange.tables import read_metrics
from shared.exchange.trust import open_record
from shared.folder.durable import write_file
from shared.folder.meter import Direction
from shared.learning.data.division import Block
from shared.learning.data.units import Unit
from shared.learning.requirements import requirements
from site_client.cli import main
from site_client.configuration import Policy, read_configuration
from site_client.division import (
    BUDGET,
    DIVISION,
    Agreed,
    Budget,
    Division,
    Kept,
    Spending,
    division_here,
    keep,
    kept,
    renew,
)
from site_client.folders import all_units, find
from site_client.offer import describe
from site_client.overview import what_it_waits_for
from site_client.rotation import read_ledger
from site_client.store import RESTORED, Decision, decision, noise_path, runs_with, write_decision
from tests.federation.hospital import Hospital
from tests.federation.running import TASK, run_configuration, write_data
from tests.learning.small_sites import LABELS, SIGNALS, write_small

IMAGES, BLOCK = 40, 5
USUAL = Policy(consent="auto")
PRIVATE = {
    "rounds": 1,
    "privacy": {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 1.0},
    "augmentation": {"copies": 0},
}
GB_WITHOUT_IMAGES = 1.01e-9 * requirements(run_configuration()).memory_bytes
FIVE_TIMES = {"copies": 4, "originals": True}
BACKUP = ("site.yaml", "signing.key", "encryption.key", "password", DIVISION, BUDGET)
_numbers = count(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_data(TASK, root, 0, IMAGES, seed=1)
    return root


@pytest.fixture
def hospital(tmp_path: Path, data: Path) -> Hospital:
    found = Hospital(tmp_path / "home", data)
    found.set_policy(USUAL)
    return found


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Hospital]:
    """A hospital that has agreed to nothing, whatever it was asked."""
    found = Hospital(tmp_path_factory.mktemp("unharmed") / "home", data)
    found.set_policy(USUAL)
    yield found
    assert not (found.work / BUDGET).exists()


def asked(**changes: object) -> RunConfiguration:
    """A run of a new name."""
    settings = {"run": f"run-{next(_numbers)}", "sites": ["north"], "quorum": 1, "rounds": 2}
    return run_configuration(**(settings | changes))


def consent(hospital: Hospital, run: RunConfiguration, *, early: bool = False) -> Consent:
    """Offer a run, and read the answer."""
    hospital.offer(run, early=early)
    hospital.live()
    assert hospital.receive(MessageRef("consent", run.run))
    path = hospital.drop / MessageRef("consent", run.run).path / names.CONSENT
    return open_record(path.read_bytes(), Consent, names.CONSENT)


def answer_once(hospital: Hospital, run: RunConfiguration) -> None:
    """Have the first round answered, and end the run."""
    hospital.send_round(run, 1)
    hospital.live()
    assert hospital.receive(MessageRef("update", run.run, 1))
    hospital.send_verdict(run, 1)
    hospital.send_final(run)
    hospital.live()


def assert_stuck(hospital: Hospital, why: str) -> None:
    """Have the daemon act, and see that it does nothing but tell its people why."""
    signed = set(hospital.drop.rglob(names.MANIFEST))
    with pytest.raises(ActionRequiredError, match=why):
        hospital.live()
    assert set(hospital.drop.rglob(names.MANIFEST)) == signed


def ids(hospital: Hospital, run: RunConfiguration) -> dict[str, frozenset[str]]:
    dataset = hospital.daemon.images(run.run)
    return {name: frozenset(image.id for image in getattr(dataset, name)) for name in ("train", "validation", "test")}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"split": {"train": 0.5, "validation": 0.25, "test": 0.25, "train_images": 1}},
            "it would train on fewer images",
        ),
        ({"rounds": 9998}, "9998 rounds are more than this hospital's 1000"),
        ({"epochs": 6}, "6 epochs per round are more than this hospital's 5"),
        (
            {"rounds": 100, "augmentation": {"copies": 50, "originals": True}},
            "5,100 times one image may be shown in the whole run are more than this hospital's 5,000",
        ),
        (
            {"method_options": {"fine_tuning_epochs": 1000}, "augmentation": {"copies": 5}},
            "6,012 times one image may be shown in the whole run are more than this hospital's 5,000",
        ),
        (
            {"rounds": 60, "augmentation": FIVE_TIMES, "method": "deep_ensembles", "method_options": {"members": 20}},
            "6,000 times one image may be shown in the whole run are more than this hospital's 5,000",
        ),
        (
            {"rounds": 20, "augmentation": FIVE_TIMES, "method": "mc_dropout", "method_options": {"passes": 100}},
            "10,000 times one image may be shown in the whole run are more than this hospital's 5,000",
        ),
        (
            {"task_options": {"image_size": 32, "widths": [64, 2048, 2048, 2048]}},
            "parameters are more than this hospital's",
        ),
        ({"batch_size": 4096, "task_options": {"image_size": 1024, "widths": [32, 64]}}, "GB of memory are more than"),
        (PRIVATE | {"privacy": {**PRIVATE["privacy"], "delta": 0.01}}, "δ = 0.01 is more than this hospital's 0.001"),
        (
            {"rounds": 1000, "epochs": 5, "augmentation": {"copies": 0}},
            "rows of scores over its validation set are more than the 5,000 that are left",
        ),
    ],
    ids=[
        "training on one image",
        "rounds",
        "epochs",
        "views by copies",
        "views by fine-tuning",
        "views by members",
        "views by passes",
        "parameters",
        "memory",
        "delta",
        "scores",
    ],
)
def test_an_offer_that_asks_too_much_is_declined(changes: dict[str, object], reason: str, unharmed: Hospital) -> None:
    run = asked(**changes)
    answered = consent(unharmed, run)
    assert not answered.agrees
    assert reason in answered.reason
    assert answered.images == {}


def test_a_question_about_file_names_is_declined_unanswered(unharmed: Hospital) -> None:
    """A pattern of the aggregator's is matched against nothing, be it one that takes for ever."""
    tiny = {"image_size": 32, "widths": [4, 8]}
    for pattern in ("^(?!.*rare).*$", "(a|a|a|a)*b", "a{4294967295}"):
        answered = consent(unharmed, asked(task_options={**tiny, "group_pattern": pattern}))
        assert (answered.agrees, answered.images) == (False, {})
        assert "group_pattern" in answered.reason
        assert pattern not in answered.reason


def test_two_runs_whose_sets_were_to_differ_by_one_image_differ_by_whole_blocks(hospital: Hospital) -> None:
    sets = []
    for validation in (0.25, 0.275, 0.3, 0.225):
        run = asked(split={"train": 0.5, "validation": validation, "test": 0.5 - validation})
        assert consent(hospital, run).agrees
        sets.append(ids(hospital, run))
    differences = [one[name] ^ other[name] for one, other in pairwise(sets) for name in one]
    assert any(differences)
    assert all(len(images) >= BLOCK for images in differences if images)
    assert all(len(images) >= BLOCK for of_run in sets for images in of_run.values())


def of_copies(
    tmp_path: Path, data: Path, **changes: object
) -> tuple[Hospital, RunConfiguration, dict[str, frozenset[str]]]:
    """A hospital with images of its own, which has agreed to a run, that run, and its sets."""
    hospital = Hospital(tmp_path / "home", shutil.copytree(data, tmp_path / "images"))
    hospital.set_policy(USUAL.model_copy(update={"minimum_training_images": 10}))
    run = asked(**changes)
    assert consent(hospital, run).agrees
    return hospital, run, ids(hospital, run)


def test_two_runs_before_and_after_an_image_was_removed_differ_by_a_whole_block(tmp_path: Path, data: Path) -> None:
    hospital, _, before = of_copies(tmp_path, data)
    images = hospital.data
    gone = min(before["validation"])
    for path in images.glob(f"*/{gone}.png"):
        path.unlink()
    again = asked()
    assert consent(hospital, again).agrees
    after = ids(hospital, again)
    for name in before:
        assert len(before[name] ^ after[name]) == 0 or len(before[name] ^ after[name]) >= BLOCK
    left_out = frozenset().union(*before.values()) - frozenset().union(*after.values())
    assert gone in left_out
    assert len(left_out) == BLOCK


def test_each_round_uses_the_images_that_are_whole_then(tmp_path: Path, data: Path) -> None:
    """One whose patient objects is used from the next round on by no run, without a restart of the daemon."""
    hospital, run, before = of_copies(tmp_path, data)
    images = hospital.data
    assert hospital.daemon.images(run.run) is hospital.daemon.images(run.run)  # what is the same is not read again
    gone, other, tested = *sorted(before["train"])[:2], min(before["test"])
    paths = [images / kind / f"{gone}.png" for kind in ("images", "masks")]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    after = ids(hospital, run)
    assert gone in before["train"] - after["train"] and len(before["train"] - after["train"]) == BLOCK
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert ids(hospital, run) == before
    for kind in ("images", "masks"):  # files are numbered anew
        first, second = (images / kind / f"{name}.png" for name in (gone, tested))
        contents = [first.read_bytes(), second.read_bytes()]
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
    swapped = ids(hospital, run)
    assert tested in swapped["train"] and gone in swapped["test"]
    (images / "masks" / f"{other}.png").write_bytes((images / "masks" / f"{gone}.png").read_bytes())  # corrected
    assert other not in ids(hospital, run)["train"]


def test_a_run_without_any_validation_images_left_is_not_answered(tmp_path: Path, data: Path) -> None:
    hospital, run, before = of_copies(tmp_path, data)
    for gone in before["validation"]:
        for path in hospital.data.glob(f"*/{gone}.png"):
            path.unlink()
    hospital.send_round(run, 1)
    assert_stuck(hospital, "too few of the blocks of images that it uses are whole")


def test_a_private_run_trains_on_as_many_images_as_its_cost_was_counted_for(tmp_path: Path, data: Path) -> None:
    hospital, run, before = of_copies(tmp_path, data, **PRIVATE)
    for path in hospital.data.glob(f"*/{min(before['train'])}.png"):
        path.unlink()
    hospital.send_round(run, 1)
    assert_stuck(hospital, "was agreed to with 20 training images; now there are 15: put them back")


def of_labels(*labels: str) -> RunConfiguration:
    options = {"encoder": "small", "weights": "random", "image_size": 32, "labels": list(labels)}
    return asked(task="image_classification", method="fedavg", task_options=options, augmentation={})


@pytest.fixture
def classes(tmp_path: Path) -> Hospital:
    """A hospital whose images lie in a folder for each class, 20 in each."""
    for number in range(60):
        label = ("cataract", "Glaucoma", "normal")[number % 3]
        path = tmp_path / "images" / label / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 50 + number, np.uint8)).save(path)
    found = Hospital(tmp_path / "home", tmp_path / "images", task="image_classification")
    found.set_policy(USUAL.model_copy(update={"tasks": ["image_classification"]}))
    return found


def test_a_class_that_a_run_does_not_name_does_not_count_towards_the_minimum(classes: Hospital) -> None:
    run = of_labels("normal", "cataract")
    assert consent(classes, run).images == {"train": "20", "validation": "10", "test": "10"}
    classes.set_policy(USUAL.model_copy(update={"tasks": ["image_classification"], "minimum_training_images": 21}))
    few = of_labels("normal", "cataract")
    answer = consent(classes, few)
    assert not answer.agrees and "fewer images than this hospital's minimum of 21" in answer.reason


def test_what_show_and_check_say_of_a_class_that_a_run_does_not_name(classes: Hospital) -> None:
    classes.set_policy(Policy(tasks=["image_classification"], minimum_training_images=21))
    run = of_labels("normal", "cataract")
    classes.offer(run)
    classes.live()
    shown = describe(classes.work, run.run)
    assert "trains on:          20 images of this site's, validated on 10 and tested on 10; 21 images or" in shown
    told = CliRunner().invoke(main, ["check", "--work", str(classes.work)]).output
    unused = "uses none of the 20 images in them, nor others of their blocks: Glaucoma 20"
    assert f"{run.run} names no class of some folders, and {unused}" in told
    assert f"{run.run} would train on 20 images here, and minimum_training_images in site.yaml (policy:) is 21" in told


def test_what_is_left_in_a_round_of_the_classes_that_a_run_names_must_be_enough(classes: Hospital) -> None:
    """Images of other classes do not make up for them."""
    run = of_labels("normal", "cataract")
    assert consent(classes, run).agrees
    gone = min(sample.id for sample in classes.daemon.images(run.run).train)
    (path,) = classes.data.glob(f"*/{gone}.png")
    path.unlink()
    classes.send_round(run, 1)
    assert_stuck(classes, "too few of the blocks of images that it uses are whole")


@pytest.mark.parametrize(
    ("consents", "remedy"),
    [("ask", "rename the folder"), ("auto", "have the run name it as your folder does, whose images are dealt")],
)
def test_what_check_says_of_a_folder_that_is_nearly_called_as_a_class(
    classes: Hospital, consents: str, remedy: str
) -> None:
    classes.set_policy(USUAL.model_copy(update={"tasks": ["image_classification"], "consent": consents}))
    run = of_labels("normal", "cataract", "glaucoma")
    classes.offer(run)
    classes.live()
    told = CliRunner().invoke(main, ["check", "--work", str(classes.work)]).output
    assert f"Glaucoma: run {run.run} calls a class glaucoma; {remedy}" in told


def test_of_a_block_with_images_of_a_class_that_the_run_does_not_name_none_counts(classes: Hospital) -> None:
    for number in range(3):  # too few for a block of their own
        path = classes.data / "other" / f"more-{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 150 + number, np.uint8)).save(path)
    run = of_labels("normal", "cataract", "Glaucoma")
    answer = consent(classes, run)
    dataset = classes.daemon.images(run.run)
    assert answer.images == {
        name: str(len(samples))
        for name, samples in (("train", dataset.train), ("validation", dataset.validation), ("test", dataset.test))
    }
    assert len([*dataset.train, *dataset.validation, *dataset.test]) < 60


def test_a_run_that_takes_something_else_as_true_of_the_same_images_is_left_to_a_person(hospital: Hospital) -> None:
    """Also where the runs before were declined at no cost: their number would find a single image."""

    def segmenting(*labels: str) -> RunConfiguration:
        return asked(task="segmentation", method="mean", task_options={"labels": list(labels)})

    first, other, again = segmenting("no", "yes"), segmenting("no", "some", "yes"), segmenting("no", "yes")
    hospital.set_policy(USUAL.model_copy(update={"tasks": ["segmentation", TASK]}))
    settings = hospital.work / "site.yaml"
    values = yaml.safe_load(settings.read_bytes())
    folders = {"segmentation": str(hospital.data), TASK: str(hospital.data)}
    write_file(settings, yaml.safe_dump(values | {"data": folders}).encode())
    assert not consent(hospital, first).agrees  # its tensors are not those of its network
    hospital.offer(other)
    hospital.live()
    assert not hospital.receive(MessageRef("consent", other.run))
    waits, _ = what_it_waits_for(hospital.work, read_configuration(hospital.work), read_ledger(hospital.work))
    assert f"`dropfed-site approve {other.run}" in waits
    assert f"other truths:       run {first.run} had other labels over the same images" in describe(
        hospital.work, other.run
    )
    assert not consent(hospital, again).agrees  # by itself, as the first
    assert consent(hospital, asked()).agrees  # of another task


def test_private_runs_spend_one_budget_and_what_an_aborted_run_never_took_is_given_back(hospital: Hospital) -> None:
    hospital.set_policy(USUAL.model_copy(update={"total_epsilon": 1.3}))
    aborted, first, second = (asked(**PRIVATE) for _ in range(3))
    assert consent(hospital, aborted).agrees
    assert runs_with(hospital.work, "noise") == [aborted.run]
    assert consent(hospital, first).agrees  # the one before it is aborted now
    assert runs_with(hospital.work, "noise") == [first.run]
    answer_once(hospital, first)
    declined = consent(hospital, second)
    assert not declined.agrees
    assert "with the private runs before it, it comes to ε = 1.37 at δ = 0.001" in declined.reason
    assert "more than this hospital's 1.3" in declined.reason
    assert "privacy so far:     ε 1.00 of 1.3, at δ 0.001, are taken by other private runs" in describe(
        hospital.work, second.run
    )


def test_rows_of_scores_are_counted_over_all_runs_and_shown(hospital: Hospital) -> None:
    """A run of two rounds takes up to five over its validation set: three of received models, two of trained ones."""
    hospital.set_policy(USUAL.model_copy(update={"rows_per_set": 7}))
    first, second, third = asked(), asked(), asked(rounds=3)
    assert consent(hospital, first).agrees
    answer_once(hospital, first)
    assert consent(hospital, second).agrees
    declined = consent(hospital, third)
    assert not declined.agrees
    assert "7 rows of scores over its validation set are more than the 5 that are left here" in declined.reason
    assert "rows of scores:     up to 7 over one set of images; 5 of 7 are left for all runs together" in describe(
        hospital.work, third.run
    )
    table = (hospital.drop / MessageRef("update", first.run, 1).path / names.METRICS).read_bytes()
    told = sum(row.split == "validation" for row in read_metrics(table, names.METRICS))
    budget = Budget.model_validate_json((hospital.work / BUDGET).read_bytes())
    assert budget.runs[first.run].rows["validation"] == told == 2


def test_runs_that_wait_never_come_to_more_than_the_policy_has(hospital: Hospital) -> None:
    """Each that was agreed to counts with all that it may take until it is over, also while its rounds go on."""
    hospital.set_policy(USUAL.model_copy(update={"rows_per_set": 12}))
    played, waiting = asked(), asked()
    assert consent(hospital, played).agrees
    assert consent(hospital, waiting, early=True).agrees
    hospital.send_round(played, 1)
    hospital.live()
    assert hospital.receive(MessageRef("update", played.run, 1))
    hospital.send_verdict(played, 1)
    third = consent(hospital, asked(), early=True)
    assert "5 rows of scores over its validation set are more than the 2 that are left here" in third.reason
    hospital.send_final(played)
    hospital.live()
    assert consent(hospital, asked(), early=True).agrees  # of the first, three were not taken
    hospital.send_round(waiting, 1)
    hospital.live()
    assert hospital.receive(MessageRef("update", waiting.run, 1))


def test_people_decide_about_several_runs_on_one_day_and_none_holds_up_another(hospital: Hospital) -> None:
    hospital.set_policy(USUAL.model_copy(update={"consent": "ask"}))
    one, other = asked(), asked()
    hospital.offer(one)
    hospital.offer(other, early=True)
    hospital.live()
    assert f"about run {one.run}: `dropfed-site approve {one.run} " in waits_for(hospital)
    assert f"; and about run {other.run}: `dropfed-site approve {other.run} " in waits_for(hospital)
    write_decision(hospital.work, other.run, Decision("yes"))
    hospital.live()
    assert hospital.receive(MessageRef("consent", other.run))
    assert other.run not in waits_for(hospital)
    hospital.send_round(other, 1)
    hospital.live()
    assert hospital.receive(MessageRef("update", other.run, 1))
    assert one.run in waits_for(hospital)
    shown = describe(hospital.work, one.run)
    assert "trains in:" in shown and "whose images:" not in shown  # they are dealt
    write_decision(hospital.work, one.run, Decision("yes"))
    hospital.live()
    assert hospital.receive(MessageRef("consent", one.run))
    assert waits_for(hospital).startswith("the aggregator's verdict on round 1, ")


def waits_for(hospital: Hospital) -> str:
    """What `status` says that the site waits for."""
    return what_it_waits_for(hospital.work, read_configuration(hospital.work), read_ledger(hospital.work))[0]


def test_what_training_costs_is_said_in_words_before_anyone_agrees(hospital: Hospital) -> None:
    hospital.set_policy(Policy())
    run = asked(**PRIVATE | {"rounds": 30})
    hospital.offer(run)
    hospital.live()
    shown = describe(hospital.work, run.run)
    for line in (
        "shows each image:   up to 30 times in the whole run (at most 5,000), in 30 rounds (at most 1,000)",
        "trains on:          20 images of this site's, validated on 10 and tested on 10; 20 images or more, or ",
        "trains in:          about 150 steps in the whole run, of 4 views each",
        "parameters (at most 200,000,000), about 0.0 GB of memory (at most 16)",
        "rows of scores:     up to 61 over one set of images; 5,000 of 5,000 are left for all runs together",
        "privacy so far:     ε 0.00 of 10, at δ 0.001, are taken by other private runs; of one run δ may be 0.001",
        "whose images:       nobody has said whose each image is: both eyes of a person may be trained on and tested",
    ):
        assert line in shown
    path = hospital.work / "site.yaml"
    write_file(path, yaml.safe_dump(yaml.safe_load(path.read_bytes()) | {"groups": {TASK: r".$"}}).encode())
    few = "whose images:       2 blocks of validation and test are of fewer than 3 patients or other groups, so scores"
    assert few in describe(hospital.work, run.run), "of ten people, each of four images"
    assert not hospital.is_signed(MessageRef("consent", run.run))


def test_of_recordings_show_and_check_say_what_they_count(tmp_path: Path) -> None:
    task = "time_series"
    write_small(task, tmp_path / "series", images=24, size=96)
    hospital = Hospital(tmp_path / "home", tmp_path / "series", task=task)
    hospital.set_policy(Policy(tasks=[task]))
    run = asked(task=task, method="fedavg", task_options=SIGNALS[task], augmentation={}, batch_size=8)
    hospital.offer(run)
    hospital.live()
    shown = describe(hospital.work, run.run)
    own = "12 recordings of this site's, validated on 6 and tested on 6; 20 recordings or more"
    assert f"trains on:          {own}" in shown
    each = "for each 1,000 windows that these recordings give: the longer, the more"
    assert f"trains in:          about 250 steps in the whole run, of 8 views each, {each}" in shown
    told = CliRunner().invoke(main, ["check", "--work", str(hospital.work)]).output
    assert f"{task}: 24 labelled recordings in " in told
    assert (
        f"{run.run} divides them into train 12 recordings, 60 windows (resting: 20, walking: 20, running: 20); " in told
    )
    assert f"{run.run} would train on 12 recordings here, and minimum_training_images" in told
    assert "no recording lies in two splits under two names" in told


def test_images_of_a_rarer_class_are_not_shown_more_often_than_a_hospital_allows(tmp_path: Path) -> None:
    """Each would be, where classes are balanced by drawing, and how often is known only once labels are read."""
    task = "image_classification"
    write_small(task, tmp_path / "eyes", images=50, size=32)
    hospital = Hospital(tmp_path / "home", tmp_path / "eyes", task=task)
    options = {"labels": list(LABELS), "image_size": 32, "encoder": "small", "balance": True, "balancing": "drawn"}
    run = asked(task=task, method="fedavg", task_options=options, augmentation={})
    views = requirements(run).views
    hospital.set_policy(Policy(consent="auto", tasks=[task], minimum_training_images=1, max_views=views))
    declined = consent(hospital, run)
    assert f"images of rarer classes would be shown more often than this hospital's {views} times" in declined.reason
    hospital.set_policy(Policy(consent="auto", tasks=[task], minimum_training_images=1, max_views=10 * views))
    assert consent(hospital, run.model_copy(update={"run": "run-of-many-views"})).agrees


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"max_rounds": 1}, "2 rounds are more than this hospital's 1"),
        ({"max_views": 1}, "times one image may be shown in the whole run are more than this hospital's 1"),
        ({"minimum_training_images": 30}, "it would train on fewer images than this hospital's minimum of 30"),
        ({"max_memory_gb": GB_WITHOUT_IMAGES}, "training and all images at once would take more than this hospital's"),
        ({"rows_per_set": 3}, "5 rows of scores over its validation set are more than the 3 that are left here"),
    ],
    ids=["what is said", "what follows", "images", "memory", "scores"],
)
def test_nobody_agrees_to_what_the_daemon_would_decline(
    policy: dict[str, object], reason: str, hospital: Hospital
) -> None:
    hospital.set_policy(Policy())
    run = asked()
    hospital.offer(run)
    hospital.live()
    hospital.set_policy(Policy(**policy))
    before = (hospital.work / DIVISION).read_bytes()
    approve = ["approve", run.run, "--work", str(hospital.work)]
    refused = CliRunner().invoke(main, approve)
    assert refused.exit_code == 2
    assert f"{run.run}: cannot be agreed to, for the daemon would decline it: " in refused.output
    assert reason in refused.output and f"see policy: in {hospital.work / 'site.yaml'}" in refused.output
    assert f"declined:           {reason}" in describe(hospital.work, run.run) or "times" in reason
    assert decision(hospital.work, run.run) is None and not (hospital.work / BUDGET).exists()
    assert (hospital.work / DIVISION).read_bytes() == before
    hospital.set_policy(Policy())
    assert CliRunner().invoke(main, approve).exit_code == 0
    hospital.live()
    assert hospital.daemon.consent(run.run).agrees  # type: ignore[union-attr]


@pytest.mark.parametrize("lost", [(DIVISION,), (BUDGET,), (DIVISION, BUDGET)], ids=" and ".join)
def test_a_site_without_its_division_joins_no_run_until_a_person_accepts_another(
    lost: tuple[str, ...], hospital: Hospital
) -> None:
    assert consent(hospital, asked()).agrees
    before = divided(hospital)
    not_lost = f"{DIVISION} and {BUDGET} are whole here. Divide the images anew?"
    ask = ["accept-division", "--work", str(hospital.work)]
    assert not_lost in CliRunner().invoke(main, ask, input="n\n").output
    for name in lost:
        (hospital.work / name).unlink()
    run = asked()
    hospital.offer(run)
    assert_stuck(hospital, "put the newest of both back from the backup")
    result = CliRunner().invoke(main, ask, input="n\n")
    assert result.exit_code != 0 and "Divide the images anew?" in result.output and not_lost not in result.output
    assert_stuck(hospital, "put the newest of both back from the backup")
    result = CliRunner().invoke(main, [*ask, "--yes"])
    assert result.exit_code == 0, result.output
    hospital.live()
    assert hospital.is_published(MessageRef("consent", run.run))
    anew = divided(hospital)
    assert len(anew) == len(before)
    assert {frozenset(each.id for each in block) for block in anew} != {
        frozenset(each.id for each in block) for block in before
    }


def divided(hospital: Hospital) -> list[tuple[Unit, ...]]:
    """The images of each block."""
    division, here = division_here(hospital.work), all_units(hospital.work, read_configuration(hospital.work))
    return [*find(TASK, here, division.blocks, BLOCK, division.key).own.blocks.values()]


def test_a_division_of_an_older_version_is_used_and_kept_without_names(hospital: Hospital) -> None:
    run, path = asked(), hospital.work / DIVISION
    assert consent(hospital, run).agrees
    content, images = path.read_bytes(), ids(hospital, run)
    blocks = [
        {"folders": {TASK: [{"id": each.id, "contents": [*each.contents], "label": each.label} for each in block]}}
        for block in divided(hospital)
    ]
    write_file(path, canonical({"version": 1, "secret": json.loads(content)["secret"], "blocks": blocks}), private=True)
    assert ids(hospital, run) == images
    assert consent(hospital, asked()).agrees
    assert path.read_bytes() == content and not [name for name in images["train"] if name.encode() in content]


def test_a_site_with_an_older_budget_joins_no_run(hospital: Hospital) -> None:
    assert consent(hospital, asked()).agrees
    older = (hospital.work / BUDGET).read_bytes()
    assert consent(hospital, asked()).agrees
    newer = (hospital.work / BUDGET).read_bytes()
    (hospital.work / BUDGET).write_bytes(older)
    run = asked()
    hospital.offer(run)
    assert_stuck(hospital, "put the newest of both back from the backup")
    (hospital.work / BUDGET).write_bytes(newer)
    hospital.live()
    assert hospital.is_published(MessageRef("consent", run.run))


def test_a_site_with_an_older_division_joins_no_run(hospital: Hospital) -> None:
    """Its secret is the same, and the newest block that a run uses was not dealt yet."""
    assert consent(hospital, asked()).agrees
    division = division_here(hospital.work)
    older = canonical(division.model_copy(update={"blocks": division.blocks[:-1]}).model_dump(mode="json"))
    write_file(hospital.work / DIVISION, older, private=True)
    hospital.offer(asked())
    assert_stuck(hospital, "are not as they were when this site agreed to its last run")


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the division's two files is written, and then the machine is gone."""
    writes = count(1)

    def written(path: Path, content: bytes, *, private: bool) -> None:
        if next(writes) == 2:
            raise DiskLostError
        write_file(path, content, private=private)

    monkeypatch.setattr("site_client.division.write_file", written)


def test_a_division_that_was_cut_off_as_images_were_dealt_goes_on(tmp_path: Path, cut_off: None) -> None:
    division = Division(secret="aa" * 32, blocks=[Block(folders={})])
    uses = Budget(division=division.mark, runs={"run": Agreed(sets={"train": [0]}, rows={})})
    with pytest.raises(DiskLostError):
        keep(tmp_path, Kept(division, uses))
    assert kept(tmp_path, ()).division == division


def test_a_new_division_that_was_cut_off_after_a_lost_disk_joins_no_run(tmp_path: Path, cut_off: None) -> None:
    (tmp_path / RESTORED).touch()
    with pytest.raises(DiskLostError):
        renew(tmp_path, {})
    with pytest.raises(ActionRequiredError, match="this site lost its disk"):
        kept(tmp_path, ())


def test_a_run_that_was_agreed_to_is_not_answered_with_another_division(hospital: Hospital) -> None:
    run = asked()
    assert consent(hospital, run).agrees
    assert CliRunner().invoke(main, ["accept-division", "--work", str(hospital.work), "--yes"]).exit_code == 0
    hospital.send_round(run, 1)
    assert_stuck(hospital, "was agreed to with an earlier division")


def test_what_counts_over_runs_survives_a_new_division(hospital: Hospital) -> None:
    run = asked()
    assert consent(hospital, run).agrees
    answer_once(hospital, run)
    for name in (DIVISION, BUDGET):
        (hospital.work / name).unlink()
    assert CliRunner().invoke(main, ["accept-division", "--work", str(hospital.work), "--yes"]).exit_code == 0
    taken = Budget.model_validate_json((hospital.work / BUDGET).read_bytes()).runs[run.run]
    assert (taken.sets, taken.is_over) == (None, True)
    assert taken.rows["validation"] == 5, "nothing tells how many were sent, so all that the run allowed count"


class DiskLostError(BaseException):
    """The machine is gone, and no last resort with it."""


def test_a_disk_lost_between_a_private_model_and_its_manifest_never_yields_a_second_noisy_version(
    hospital: Hospital,
) -> None:
    run = asked(**PRIVATE)
    assert consent(hospital, run).agrees
    sent = hospital.drop / MessageRef("update", run.run, 1).path / names.SITE_MODEL

    def lose(direction: Direction) -> None:
        if direction == "up":
            sent.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(hospital.work / "mirror" / MessageRef("update", run.run, 1).path / names.SITE_MODEL, sent)
            raise DiskLostError

    hospital.send_round(run, 1)
    hospital.folder.on_model = lose
    with pytest.raises(DiskLostError):
        hospital.live()
    hospital.folder.on_model = lambda direction: None
    first = sent.read_bytes()
    kept = {name: (hospital.work / name).read_bytes() for name in BACKUP if (hospital.work / name).exists()}
    shutil.rmtree(hospital.work)
    hospital.work.mkdir(mode=0o700)
    for name, content in kept.items():
        (hospital.work / name).write_bytes(content)
        (hospital.work / name).chmod(0o600)
    for _ in range(2):
        assert_stuck(hospital, "a second one would give away what the first has hidden")
    assert sent.read_bytes() == first
    assert CliRunner().invoke(main, ["withdraw", run.run, "--work", str(hospital.work), "--yes"]).exit_code == 0
    hospital.live()
    assert hospital.receive(MessageRef("withdrawal", run.run))
    taken = Budget.model_validate_json((hospital.work / BUDGET).read_bytes()).runs[run.run]
    reserved = Budget.model_validate_json(kept[BUDGET]).runs[run.run]
    assert taken.private == reserved.private is not None, "what had left in part counts as spent"


def put_back(hospital: Hospital, backup: dict[str, bytes]) -> None:
    """The disk is lost, and what the backup holds is put back."""
    shutil.rmtree(hospital.work)
    hospital.work.mkdir(mode=0o700)
    for name, content in backup.items():
        write_file(hospital.work / name, content, private=True)


def backed_up(hospital: Hospital) -> dict[str, bytes]:
    return {name: (hospital.work / name).read_bytes() for name in BACKUP if (hospital.work / name).exists()}


def remove_what_it_said(hospital: Hospital, run: RunConfiguration) -> None:
    """Whoever can write in the folder takes the site's own messages of a run out of it, what answered them, and the
    heartbeat, which speaks of them."""
    for ref in (MessageRef("consent", run.run), MessageRef("round", run.run, 1), MessageRef("update", run.run, 1)):
        shutil.rmtree(hospital.drop / ref.path)
    (hospital.drop / names.STATUS).unlink(missing_ok=True)


def test_a_site_that_restores_its_newest_backup_answers_no_private_run_again_whose_yes_was_removed(
    hospital: Hospital,
) -> None:
    run = asked(**PRIVATE)
    assert consent(hospital, run).agrees
    hospital.send_round(run, 1)
    hospital.live()
    backup = backed_up(hospital)
    put_back(hospital, backup)
    remove_what_it_said(hospital, run)
    for _ in range(2):
        assert_stuck(hospital, f"{run.run} was agreed to before.*so decline it")
    assert not runs_with(hospital.work, "noise")
    assert (hospital.work / BUDGET).read_bytes() == backup[BUDGET]
    assert CliRunner().invoke(main, ["decline", run.run, "--work", str(hospital.work)]).exit_code == 0
    hospital.live()
    declined = (hospital.drop / MessageRef("consent", run.run).path / names.CONSENT).read_bytes()
    assert not open_record(declined, Consent, names.CONSENT).agrees


def test_a_site_that_restores_an_older_backup_joins_a_private_run_only_once_a_person_accepts_that(
    hospital: Hospital,
) -> None:
    assert consent(hospital, asked()).agrees
    backup, run = backed_up(hospital), asked(**PRIVATE)
    assert consent(hospital, run).agrees
    hospital.send_round(run, 1)
    hospital.live()
    put_back(hospital, backup)
    remove_what_it_said(hospital, run)
    for _ in range(2):
        assert_stuck(hospital, f"{run.run} is private, and this site lost its disk")
    assert not runs_with(hospital.work, "noise")
    assert CliRunner().invoke(main, ["accept-division", "--work", str(hospital.work), "--yes"]).exit_code == 0
    hospital.live()
    assert hospital.is_published(MessageRef("consent", run.run))


@pytest.mark.parametrize(
    "known",
    [{"is_over": True}, {"sets": None}, {}],
    ids=["over", "of another division", "without its secret"],
)
def test_what_the_budget_knows_of_a_run_is_not_overwritten_when_the_run_is_offered_again(
    known: dict[str, object], hospital: Hospital
) -> None:
    run = asked(**PRIVATE)
    assert consent(hospital, asked()).agrees
    budget = Budget.model_validate_json((hospital.work / BUDGET).read_bytes())
    spent = Spending(noise_multiplier="1.0", sampling_rate="0.5", steps=1000)
    before = Agreed(sets={"train": [0]}, rows={"train": 5000}, private=spent).model_copy(update=known)
    kept = canonical(budget.with_run(run.run, before).model_dump(mode="json"))
    write_file(hospital.work / BUDGET, kept, private=True)
    hospital.offer(run)
    assert_stuck(hospital, f"{run.run} was agreed to before")
    assert not runs_with(hospital.work, "noise")
    assert Budget.model_validate_json((hospital.work / BUDGET).read_bytes()).runs[run.run] == before


def test_a_yes_that_was_cut_off_before_it_was_signed_is_given_at_the_next_start(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(**PRIVATE)
    hospital.offer(run)
    for seam in ("site_client.commitment.keep", "site_client.consents.split_counts"):
        with monkeypatch.context() as patched:
            patched.setattr(seam, _lose_power)
            with pytest.raises(DiskLostError):
                hospital.live()
        assert runs_with(hospital.work, "noise") == [run.run]
    secret = noise_path(hospital.work, run.run).read_bytes()
    hospital.live()
    assert hospital.is_published(MessageRef("consent", run.run))
    assert noise_path(hospital.work, run.run).read_bytes() == secret


def _lose_power(*given: object, **named: object) -> None:
    raise DiskLostError
