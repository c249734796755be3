"""Referable retinopathy and diseases of the fundus: what is read, a base that never changes, and balanced classes."""

import csv
import shutil
import unicodedata
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import dropfed
from shared.errors import ConfigurationError, DataError
from shared.exchange.records.run import RunConfiguration
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.labelled_photographs import labelled_units, read_labelled, read_retina, retina_square
from shared.learning.data.scans import PICTURES, read_scans, three_channels
from shared.learning.data.splits import Folds, SplitPlan
from shared.learning.data.units import settled
from shared.learning.kept_model import open_model
from shared.learning.new_runs import as_of_now
from shared.learning.predictions import predict
from shared.learning.run_checks import check_together
from shared.learning.targets import trained_counts
from shared.learning.tasks import task_named
from shared.learning.tasks.classification import balanced, balancing, drawing
from shared.learning.training import Epoch, plan_batches
from studies.simulation import run_rounds
from tests.learning.dealt import opened_anew
from tests.learning.exports import write_kept
from tests.learning.small_sites import LABELS, SEVERITIES, write_small

TASKS = ("rdr_classification", "fundus_disease")
OPTIONS = {"encoder": "plain", "weights": "random", "image_size": 32, "hidden": [8]}
SITES = ("north", "south")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("frozen")
    for task in TASKS:
        for number, site in enumerate(SITES):
            write_small(task, root / task / site, images=15, size=32, seed=number, site=number)  # as in test_cells
    return root


def opened(task, folder, split=None, **options):
    return opened_anew(task, folder, OPTIONS | options, split)


def test_a_scan_has_three_channels_each_between_its_own_least_and_greatest():
    ramp = np.linspace(0.25, 0.5, 40 * 40, dtype=np.float32).reshape(40, 40)
    high, low = np.full((40, 40), 0.75, np.float32), np.zeros((40, 40), np.float32)
    high[:20] = 0
    channels = three_channels([ramp, ramp.T, high, ramp], 40)
    assert channels.shape == (40, 40, 3)
    for channel in range(3):
        assert (channels[..., channel].min(), channels[..., channel].max()) == (0, 255)
    # The third is the greater of two: the ramp above, 0.75 below.
    assert (channels[20:, :, 2] == 255).all()
    assert (channels[:20, :, 2] < 255).all()
    assert (channels[..., 1] == channels[..., 0].T).all()
    assert (three_channels([low] * 4, 40) == 0).all()


def test_severities_become_two_classes_and_folds_are_stratified_by_all_of_them(data):
    scans = read_scans(data / "rdr_classification" / "north", SEVERITIES, 2, 32)
    assert {(scan.severity, scan.grade) for scan in scans} == {(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)}
    for outer in range(3):
        split = SplitPlan(folds=Folds(count=3, outer=outer, inner=1))
        dataset = opened("rdr_classification", data / "rdr_classification" / "north", split)
        assert sorted(scan.severity for scan in dataset.test) == [0, 1, 2, 3, 4]


def listed(root, rows):
    root.mkdir(parents=True, exist_ok=True)
    for name in "abcd":
        Image.fromarray(np.full((40, 40), 9, np.uint8)).save(root / f"{name}.png")
    with (root / "scans.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *PICTURES, "severity"])
        writer.writerows(rows)
    return root


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([["x", "a.png", "b.png", "c.png", "d.png", "worst"]], "severity must be one of normal"),
        ([["x", "a.png", "b.png", "c.png", "d.png", "5"]], "severity must be one of normal"),
        ([["x", "../a.png", "b.png", "c.png", "d.png", "0"]], "no path within the data folder"),
        ([["x", "/etc/passwd", "b.png", "c.png", "d.png", "0"]], "no path within the data folder"),
        ([["x", "e.png", "b.png", "c.png", "d.png", "0"]], "e.png"),
        ([["x", "a.png", "b.png", "c.png", "d.png", "0"]] * 2, "there twice"),
        ([["", "a.png", "b.png", "c.png", "d.png", "0"]], "is empty"),
        ([["x", "a.png", "b.png", "c.png", "d.png", "0", "5"]], r"scans\.csv, line 2: has more cells than columns"),
        ([], "lists no scan"),
    ],
)
def test_a_wrong_table_of_scans_is_explained(tmp_path, rows, sentence):
    with pytest.raises(DataError, match=sentence):
        read_scans(listed(tmp_path / "site", rows), SEVERITIES, 2, 32)


def test_columns_that_are_missing_are_named(tmp_path):
    (tmp_path / "scans.csv").write_text("id,superficial,severity\n")
    with pytest.raises(DataError, match="the columns must be id, superficial, deep"):
        read_scans(tmp_path, SEVERITIES, 2, 32)
    with pytest.raises(DataError, match=r"scans\.csv"):
        read_scans(tmp_path / "nowhere", SEVERITIES, 2, 32)


def test_a_model_of_scans_is_asked_about_those_that_a_table_lists_and_about_nothing_else(data, tmp_path):
    write_kept(tmp_path / "model", ["no", "yes"], task="rdr_classification", method="fedavg", task_options=OPTIONS)
    kept, site = open_model(tmp_path / "model"), tmp_path / "site"
    shutil.copytree(data / "rdr_classification" / "north", site)
    with (site / "scans.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    with (site / "scans.csv").open("w", newline="") as file:
        csv.writer(file).writerows(row[:-1] for row in (header, *rows))
    graded = kept.task.open_images(data / "rdr_classification" / "north", kept.options).samples
    for path in (site, site / "scans.csv"):
        inputs = dropfed.load(tmp_path / "model").transform(path)
        assert torch.equal(inputs, kept.task.collate(graded)[0])
    (site / rows[0][1]).unlink()
    table, count, (problem,) = predict(kept, site, tmp_path / "out")
    assert count == len(rows) - 1 and problem.startswith("scans.csv, line 2: ")
    assert [row["image"] for row in csv.DictReader(table.open())] == [scan.id for scan in graded[1:]]
    for path in (site / "pictures", site / rows[1][1]):
        with pytest.raises(DataError, match=r"^.*: a scan is four pictures; name a folder whose scans\.csv lists them"):
            predict(kept, path, tmp_path / "out")
    with pytest.raises(DataError, match=r"^scans\.csv, line 2: "):
        dropfed.load(tmp_path / "model").predict(site)
    foreign = kept.task.open_unlabelled(site / "pictures", kept.options)  # images unlike the site's own
    assert len(foreign) == 4 * len(rows) - 1


def test_a_photograph_is_cropped_to_the_square_around_its_retina():
    image = np.zeros((100, 160, 3), np.uint8)
    image[20:80, 50:130] = 100
    square = retina_square(image)
    assert square.shape == (80, 80, 3)
    assert (square[10:70] == 100).all()
    assert (square[:10] == 0).all()
    assert (square[70:] == 0).all()
    assert retina_square(np.zeros((30, 50, 3), np.uint8)).shape == (50, 50, 3)


def test_contrast_is_evened_out(tmp_path):
    rng = np.random.default_rng(1)
    dull = rng.integers(100, 110, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(dull).save(tmp_path / "dull.png")
    seen = read_retina(tmp_path / "dull.png", 64)
    assert seen.shape == (64, 64, 3)
    assert seen.std() > 2 * dull.std()


def test_labels_come_from_a_table_or_from_folders(data, tmp_path):
    folder = data / "fundus_disease" / "north"
    found = read_labelled(folder, LABELS, partial(read_retina, side=32))
    labels = {row["id"]: row["label"] for row in csv.DictReader((folder / "labels.csv").open())}
    assert {image.id: LABELS[image.grade] for image in found} == labels
    for image, label in labels.items():
        (tmp_path / label).mkdir(exist_ok=True)
        (source,) = (folder / "images").glob(f"{image}.*")
        (tmp_path / label / source.name).write_bytes(source.read_bytes())
    again = read_labelled(tmp_path, LABELS, partial(read_retina, side=32))
    assert [(image.id, image.grade) for image in again] == [(image.id, image.grade) for image in found]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id,label\na,normal\n", "'b' has no line"),
        ("id,label\na,normal\nb,drusen\n", "label must be one of normal, glaucoma, cataract"),
        ("id,label\na,normal\na,normal\n", "line 3: 'a' is there twice; keep one line"),
        ("id,label\na,normal\nB.png,normal\n", "line 3: nothing here is called 'B.png'; write it without its ending"),
        ("id,label\na,0,5\nb,normal\n", "line 2: has more cells than columns"),
        ("id,grade\na,1\n", "must be id and label"),
    ],
)
def test_wrong_labels_are_explained(tmp_path, text, sentence):
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.fromarray(np.full((40, 40, 3), 90, np.uint8)).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_labelled(tmp_path, LABELS, partial(read_retina, side=32))


def test_names_are_found_in_either_way_to_write_accents_and_blank_rows_are_none(tmp_path):
    composed, apart = unicodedata.normalize("NFC", "Müller"), unicodedata.normalize("NFD", "Müller")
    (tmp_path / "images").mkdir()
    for level, name in enumerate(("a", apart)):
        Image.fromarray(np.full((40, 40, 3), level, np.uint8)).save(tmp_path / "images" / f"{name}.png")
    rows = f"id,label\na,normal,\n,\n{composed},cataract\n , \n"
    (tmp_path / "labels.csv").write_text(rows, encoding="utf-8")
    (tmp_path / "split.csv").write_text(rows.replace("label", "group"), encoding="utf-8")
    assert {(unit.id, unit.kind, unit.group) for unit in settled(labelled_units(tmp_path), tmp_path, None)} == {
        ("a", "normal", "normal"),
        (apart, "cataract", "cataract"),
    }


def test_images_of_rare_classes_are_seen_more_often_and_count_once(data):
    dataset = opened("rdr_classification", data / "rdr_classification" / "north", referable_from=4)
    often = dataset.repeats
    rare = [scan for scan in dataset.train if scan.grade == 1]
    common = [scan for scan in dataset.train if scan.grade == 0]
    assert often == balancing(dataset.train)
    assert set(often) == {scan.id for scan in rare}
    epoch = Epoch(0.1, 4, 1, Augmentation(copies=1, originals=False), often)
    seen = [(sample.id, copy) for batch in plan_batches(dataset.train, epoch) for sample, copy in batch]
    assert len(set(seen)) == len(seen)
    views = len(rare) * often[rare[0].id]
    assert abs(views - len(common)) <= len(rare)
    assert len(seen) == len(common) + views
    assert trained_counts(task_named("rdr_classification"), dataset) == [len(common), views]
    assert opened("rdr_classification", data / "rdr_classification" / "north", balance=False).repeats == {}


def test_images_are_drawn_until_classes_are_equal(data):
    """226 and 151, as in the paper: 75 are drawn, by the seed; where the run is older, none is."""
    samples = [SimpleNamespace(id=f"scan-{number}", grade=int(number < 151)) for number in range(377)]
    often = drawing(samples, 7)
    assert (len(often), set(often.values()), balancing(samples)) == (75, {2}, {})
    assert often == drawing(samples[::-1], 7) != drawing(samples, 8)
    folder = data / "rdr_classification" / "north"
    new, old = (opened("rdr_classification", folder, referable_from=4, balancing=how) for how in ("drawn", "whole"))
    options = task_named("rdr_classification").options(OPTIONS | {"balancing": "drawn"})
    seen = Counter()
    for scan in new.train:
        seen[scan.grade] += balanced(new, options, 7).repeats.get(scan.id, 1)
    assert len(set(seen.values())) == 1
    assert old.repeats == balancing(old.train)


def test_the_released_head_stands_on_every_position_of_the_last_layer(data):
    """VGG-19 halves 512 pixels five times: 16 × 16 positions of 16."""
    task = task_named("rdr_classification")
    with torch.device("meta"):
        whole = task.build_model(task.options({"head": "released"}), 2, 1)
    shapes = {name: tuple(each.shape) for name, each in whole.head.named_parameters()}
    assert shapes["dense.weight"] == (16, 512, 1, 1)
    assert shapes["classify.weight"] == (2, 16 * 16 * 16)
    kinds = [type(layer).__name__ for layer in whole.head]
    assert kinds == ["Dropout", "Conv2d", "ReLU", "BatchNorm2d", "Dropout", "Flatten", "Linear"]
    network = task.build_model(task.options(OPTIONS | {"head": "released"}), 2, 1)
    images = torch.rand(3, 3, 32, 32)
    assert (network.features(images).shape, network(images).shape) == ((3, 128, 2, 2), (3, 2))
    assert torch.equal(network.features(images).mean(dim=(2, 3)), network.encoder(images))


def test_an_older_run_has_the_head_and_the_views_that_it_had(data):
    run = RunConfiguration(run="r", task="rdr_classification", method="mean", sites=["north"], rounds=1)
    task, new = task_named("rdr_classification"), as_of_now(run)
    assert (task.options({}).head, task.options({}).balancing) == ("layers", "whole")
    assert (new.task_options, new.augmentation) == (
        {"head": "released", "balancing": "drawn"},
        {"translation": (-0.05, 0.05)},
    )
    assert as_of_now(run.model_copy(update={"task_options": {"head": "layers"}})).task_options["head"] == "layers"


def task_base(file):
    return [name for name in file.keys() if name.startswith("encoder.")]  # noqa: SIM118  (it is no dictionary)


@pytest.mark.parametrize("method", ["mean", "fedrep", "moon", "fedee"])
@pytest.mark.parametrize("task", TASKS)
def test_the_base_never_changes_and_never_travels_after_the_offer(task, method, data, tmp_path):
    options = OPTIONS | ({"head": "released"} if task == "rdr_classification" else {})
    run = RunConfiguration(
        run="frozen",
        task=task,
        method=method,
        sites=list(SITES),
        rounds=2,
        batch_size=8,
        learning_rate={"initial": 0.01, "period": 1},
        task_options=options,
    )
    if method in {"fedee", "fedrep"}:
        with pytest.raises(ConfigurationError, match=method):
            run_rounds(run, {site: data / task / site for site in SITES}, tmp_path / "home")
        return
    outcome = run_rounds(run, {site: data / task / site for site in SITES}, tmp_path / "home")
    with safe_open(tmp_path / "home" / "runs" / "frozen" / "start.safetensors", "pt") as start:
        base = {name: start.get_tensor(name) for name in task_base(start)}
    assert base
    head_before = task_named(task).build_model(task_named(task).options(options), 2, 1).head.state_dict()
    for final in outcome.finals.values():
        network = final.network()
        state = network.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in base.items())
        assert not all(torch.equal(network.head.state_dict()[name], tensor) for name, tensor in head_before.items())
    sent = next((tmp_path / "home").rglob("0001.trained.safetensors"))
    with safe_open(sent, "pt") as file:
        assert not set(file.keys()) & set(base)


def test_a_private_run_takes_every_image_once():
    run = {"run": "r", "task": "rdr_classification", "method": "mean", "sites": ["north"], "rounds": 1}
    run |= {"privacy": {"noise_multiplier": 1.0, "delta": 0.001, "max_grad_norm": 1.0}}
    with pytest.raises(ConfigurationError, match="balance: takes some images more than once"):
        check_together(RunConfiguration(**run, task_options=OPTIONS))
    check_together(RunConfiguration(**run, task_options=OPTIONS | {"balance": False}))


def test_the_labels_of_a_run_are_the_classes_of_its_network(data):
    task = task_named("fundus_disease")
    options = task.options(OPTIONS | {"labels": ["healthy", "ill"]})
    assert task.build_model(options, 7, 1).classes == 2
    for labels in (["a"], ["a", "a"], ["a/b", "c"], [".a", "b"], ["a", ""]):
        with pytest.raises(ConfigurationError):
            task.options({"labels": labels})
