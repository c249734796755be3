"""The task of grading: options, data, batches, training, evaluation, and that nothing but the seed decides."""

import hashlib

import numpy as np
import pytest
import torch

from deploy.local.synthetic_fundus import CLINIC, GRADE_NAMES, HANDHELD, write_graded_site
from shared.errors import ConfigurationError, DataError
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.models.encoders import IMAGENET_FILES
from shared.learning.objectives import CrossEntropy, Evidential
from shared.learning.optimizers import new_optimizer
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import open_anew
from shared.learning.tasks.dr_staging.task import DrStaging
from shared.learning.tasks.dr_staging.terms import DrOptions
from shared.learning.training import Epoch, evaluate, plan_batches, train_epoch, view_of

TASK = DrStaging()
SMALL = DrOptions(encoder="small", weights="random", image_size=32)
PLAIN = CrossEntropy()
EVIDENTIAL = Evidential(temperature=0.05, kl_weight=0.2)


def samples(count=12, grades=4, size=32):
    """Dark squares, the brighter the higher their grade, with grain."""
    rng = np.random.default_rng(count)
    made = []
    for number in range(count):
        grade = number % grades
        image = 40 + 45 * grade + rng.integers(0, 20, size=(size, size, 3))
        made.append(GradedImage(f"eye-{number:02d}", image.astype(np.uint8), grade))
    return made


def epoch(seed=1, rate=0.01, batch_size=4, **changes):
    return Epoch(rate, batch_size, seed, TASK.augmentation(changes))


def quietly(done, total):
    """Watches nothing."""


def trained(objective=PLAIN, rounds=1, made=None, options=SMALL):
    made = made or samples()
    model = TASK.build_model(options, 4, 1)
    optimizer = new_optimizer(model, options, 0.01)
    for seed in range(rounds):
        one = epoch(seed, batch_size=12)
        plain, local = open_method("mean", {}), Local(model)
        train_epoch(TASK, plain, local, optimizer, made, epoch=one, objective=objective, on_batch=quietly)
    return model


def digest_of(model):
    """SHA-256 of all of a model's state."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Two hospitals' folders: 4 grades in one, 6 in the other."""
    root = tmp_path_factory.mktemp("sites")
    write_graded_site(root / "four", style=CLINIC, images=20, size=40, seed=1, grades=4)
    write_graded_site(root / "six", style=HANDHELD, images=18, size=40, seed=2, grades=6)
    return root


def test_it_is_called_by_its_name():
    assert isinstance(task_named("dr_staging"), DrStaging)
    assert (TASK.head_is_local, TASK.selection_score, TASK.tolerance_scores) == (True, "auroc", ("balanced_accuracy",))


def test_options_default_to_the_paper():
    """Wang et al. 2023: ImageNet's ResNet-50, the released head, 256 pixels, SGD."""
    assert TASK.options({}).model_dump() == {
        "encoder": "resnet50",
        "weights": "imagenet",
        "train": "all",
        "head": "released",
        "image_size": 256,
        "normalise": True,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "max_grad_norm": None,
    }


def test_every_wrong_option_is_named_at_once():
    with pytest.raises(ConfigurationError) as caught:
        TASK.options(
            {
                "encoder": "ResNet 50",
                "weights": "own",
                "head": "double",
                "image_size": 31,
                "optimizer": "sam",
                "group_pattern": "^(.*)_left$",
                "colour": True,
            }
        )
    for sentence in (
        "encoder: must be a torchvision classifier's name, as in resnet50 or vit_b_16, or timm: and a timm model's",
        "weights: must be 'imagenet' or 'random'",
        "head: must be 'released' or 'linear'",
        "image_size: must be 32 or more",
        "optimizer: must be 'sgd', 'adam' or 'adamw'",
        "group_pattern: is not a known key",
        "colour: is not a known key; remove it or use one of optimizer, momentum, weight_decay, max_grad_norm",
    ):
        assert sentence in str(caught.value)
    assert len(caught.value.problems) == 7


def test_the_optimizer_is_plain():
    """No momentum, no weight decay (Wang et al. 2023)."""
    model = TASK.build_model(SMALL, 4, 1)
    (group,) = new_optimizer(model, SMALL, 0.01).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0, 0)
    assert len(group["params"]) == len(list(model.parameters()))
    adam = new_optimizer(model, TASK.options({"optimizer": "adam"}), 0.001)
    assert isinstance(adam, torch.optim.Adam)
    assert adam.param_groups[0]["weight_decay"] == 0


def test_augmentation_defaults_to_a_flip_and_a_turn():
    """One varied view of each image in each epoch, and not the image as it is."""
    assert TASK.augmentation({}) == Augmentation(
        copies=1,
        originals=False,
        pixel_dropout=(0, 0),
        contrast=(1, 1),
        gamma=(1, 1),
        rotation_degrees=(-30, 30),
        horizontal_flip=0.5,
        vertical_flip=0,
    )
    plan = plan_batches(samples(6), epoch())
    assert sorted((sample.id, copy) for batch in plan for sample, copy in batch) == [
        (f"eye-{number:02d}", 1) for number in range(6)
    ]


def test_a_run_may_change_each_part_of_the_augmentation_and_the_rest_stays():
    changed = TASK.augmentation({"rotation_degrees": [-5, 5], "originals": True, "copies": 2})
    assert (changed.rotation_degrees, changed.originals, changed.copies) == ((-5, 5), True, 2)
    assert (changed.horizontal_flip, changed.contrast) == (0.5, (1, 1))
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        TASK.augmentation({"copies": 0})
    with pytest.raises(ConfigurationError, match="tilt: is not a known key"):
        TASK.augmentation({"tilt": 1})


@pytest.mark.parametrize(("site", "grades"), [("four", 4), ("six", 6)])
def test_a_site_is_read_and_divided(sites, site, grades):
    dataset = open_anew(TASK, sites / site, SMALL, SplitPlan(), 1, secret=b"")
    assert dataset.classes == GRADE_NAMES[grades]
    divided = (dataset.train, dataset.validation, dataset.test)
    ids = [{sample.id for sample in part} for part in divided]
    whole = TASK.open_images(sites / site, SMALL)
    assert whole.classes == dataset.classes
    assert set().union(*ids) == {sample.id for sample in whole.samples}
    assert sum(map(len, ids)) == len(whole.samples)
    assert len(dataset.train) == 11  # of 20 and of 18: each grade is shared out among the sets by itself
    first = dataset.train[0]
    assert (first.image.shape, first.image.dtype) == ((32, 32, 3), np.uint8)
    again = open_anew(TASK, sites / site, SMALL, SplitPlan(), 1, secret=b"")
    other = open_anew(TASK, sites / site, SMALL, SplitPlan(), 2, secret=b"")
    assert [sample.id for sample in again.train] == [sample.id for sample in dataset.train]
    assert [sample.id for sample in other.train] != [sample.id for sample in dataset.train]


def test_a_single_image_to_train_on_is_refused(tmp_path):
    write_graded_site(tmp_path, style=CLINIC, images=8, size=32, seed=1, grades=4)
    stems = sorted(path.stem for path in (tmp_path / "images").iterdir())
    splits = ["train", *["validation"] * 3, *["test"] * 4]
    lines = [f"{stem},{split}" for stem, split in zip(stems, splits, strict=True)]
    (tmp_path / "split.csv").write_text("\n".join(["id,split", *lines]))
    with pytest.raises(DataError, match="the train split has a single image"):
        open_anew(TASK, tmp_path, SMALL, SplitPlan(), 1, secret=b"")


def test_images_of_no_known_grade_are_read_for_prediction(sites):
    found = TASK.open_unlabelled(sites / "six" / "images", SMALL)
    assert [sample.id for sample in found] == [f"handheld-{number:03d}" for number in range(1, 19)]
    labelled = TASK.open_images(sites / "six", SMALL).samples
    assert all(np.array_equal(one.image, two.image) for one, two in zip(found, labelled, strict=True))


def test_a_batch_has_imagenets_mean_and_deviation():
    made = samples(3)
    black = GradedImage("black", np.zeros((32, 32, 3), np.uint8), 3)
    inputs, targets = TASK.collate([*made, black])
    assert (inputs.shape, inputs.dtype) == ((4, 3, 32, 32), torch.float32)
    assert (targets.tolist(), targets.dtype) == ([0, 1, 2, 3], torch.int64)
    assert inputs[3, :, 0, 0].tolist() == pytest.approx([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rel=1e-6)
    level = made[1].image[5, 7, 2]  # row 5, column 7, blue
    assert inputs[1, 2, 5, 7].item() == pytest.approx((level / 255 - 0.406) / 0.225, rel=1e-5)


@pytest.mark.parametrize("count", [2, 3, 31, 32, 33, 64, 65, 97])
def test_no_batch_is_one_image(count):
    """A BatchNorm cannot learn from one."""
    made = samples(count, size=1)
    batches = TASK.batches(made)
    assert [sample for batch in batches for sample in batch] == made
    assert min(map(len, batches)) >= 2
    assert max(map(len, batches)) <= 33
    planned = plan_batches(made, epoch(batch_size=32))
    assert min(map(len, planned)) >= 2


@pytest.mark.parametrize("seed", range(3))
def test_variation_is_decided_by_the_seed_and_never_moves_the_grade(seed):
    sample = GradedImage("eye", np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8), 3)
    one, same, other = (TASK.vary(sample, TASK.augmentation({}), number) for number in (seed, seed, seed + 100))
    assert one.image.tobytes() == same.image.tobytes()
    assert one.image.tobytes() != other.image.tobytes()
    assert (one.id, one.grade, one.image.shape, one.image.dtype) == ("eye", 3, (32, 32, 3), np.uint8)


def test_an_image_looks_different_in_every_epoch():
    """Published code has made one variation and shown it in all epochs."""
    sample = GradedImage("eye", np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8), 3)
    views = [view_of(TASK, sample, 1, epoch(seed)).image.tobytes() for seed in range(6)]
    assert len(set(views)) == 6


@pytest.mark.parametrize("objective", [PLAIN, EVIDENTIAL], ids=["cross-entropy", "evidential"])
@pytest.mark.parametrize("head", ["released", "linear"])
def test_training_lowers_the_loss(objective, head):
    options = SMALL.model_copy(update={"head": head})
    made = samples(24)
    before = evaluate(TASK, TASK.build_model(options, 4, 1), made, objective)
    after = evaluate(TASK, trained(objective, 5, made, options), made, objective)
    assert after.loss < 0.8 * before.loss
    assert after.scores["accuracy"].value > 0.5
    if objective is EVIDENTIAL:
        ice, kl, tce = (after.scores[f"loss_{name}"].value for name in ("ice", "kl", "tce"))
        assert after.loss == pytest.approx(ice + 0.2 * kl + tce, rel=1e-5)


@pytest.mark.parametrize("grades", [4, 6])
@pytest.mark.parametrize("objective", [PLAIN, EVIDENTIAL], ids=["cross-entropy", "evidential"])
def test_scores_are_named_alike_and_an_absent_grade_is_absent(grades, objective):
    model = TASK.build_model(SMALL, grades, 1)
    all_grades = evaluate(TASK, model, samples(2 * grades, grades), objective)
    without_last = [sample for sample in samples(2 * grades, grades) if sample.grade != grades - 1]
    some_grades = evaluate(TASK, model, without_last, objective)
    names = set(all_grades.scores)
    assert names == set(some_grades.scores)
    assert {"accuracy", "auroc", "auroc_logits", "balanced_accuracy", "kappa", "misdiagnosis_auroc"} <= names
    assert {name for name in names if name.startswith("accuracy_of_")} == {f"accuracy_of_{k}" for k in range(grades)}
    assert ({"loss_ice", "loss_kl", "loss_tce"} <= names) is (objective is EVIDENTIAL)
    absent = f"accuracy_of_{grades - 1}"
    assert some_grades.scores[absent].value is None
    assert all_grades.scores[absent].value is not None
    recalls = [some_grades.scores[f"accuracy_of_{k}"].value for k in range(grades - 1)]
    assert some_grades.scores["balanced_accuracy"].value == pytest.approx(np.mean(recalls))
    assert some_grades.images == 2 * grades - 2


def test_the_predicted_grade_is_that_of_the_greatest_logit():
    """Evidence, belief and tempered belief keep the order of the logits."""
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(1)).double() * 3
    for objective in (PLAIN, EVIDENTIAL):
        probabilities = objective.probabilities(logits)
        assert torch.equal(probabilities.argmax(dim=1), logits.argmax(dim=1))
        assert torch.allclose(probabilities.sum(dim=1), torch.ones(50, dtype=torch.float64))


def test_another_seed_is_another_model_and_the_encoder_does_not_depend_on_the_grades():
    four, six, other = (TASK.build_model(SMALL, grades, seed) for grades, seed in ((4, 1), (6, 1), (4, 2)))
    first = four.encoder.state_dict()
    assert all(torch.equal(first[name], value) for name, value in six.encoder.state_dict().items())
    assert not torch.equal(first["stage1.conv.weight"], other.encoder.state_dict()["stage1.conv.weight"])


def test_absent_imagenet_weights_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    options = TASK.options({"encoder": "resnet18"})
    model = TASK.build_model(options, 4, 1)
    with pytest.raises(ConfigurationError) as caught:
        TASK.load_initial_weights(model, options, [tmp_path / "weights"])
    (problem,) = caught.value.problems
    assert f"{IMAGENET_FILES['resnet18']} is in none of {tmp_path / 'weights'}" in problem
    assert "weights: random" in problem
    small = TASK.options({"encoder": "small"})
    with pytest.raises(ConfigurationError, match="no ImageNet weights for the encoder 'small'"):
        TASK.load_initial_weights(TASK.build_model(small, 4, 1), small, [tmp_path])


def test_random_weights_need_no_file(tmp_path):
    model = TASK.build_model(SMALL, 4, 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    TASK.load_initial_weights(model, SMALL, [tmp_path])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_global_random_state_neither_matters_nor_changes():
    first = digest_of(trained())
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state()
    assert digest_of(trained()) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_without_normalisation_the_first_layer_sees_levels_between_0_and_1():
    """As in the released code; no tensor's name or shape is another, so that published weights fit."""
    inputs, _ = TASK.collate(samples(4))
    plain, as_read = (
        TASK.build_model(SMALL.model_copy(update={"normalise": normalise}), 4, 1).eval() for normalise in (True, False)
    )
    assert list(plain.state_dict()) == list(as_read.state_dict())
    seen = []
    as_read.encoder.stage1.conv.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        as_read(inputs)
        assert not torch.equal(plain(inputs), as_read(inputs))
    levels = torch.stack([torch.from_numpy(sample.image) for sample in samples(4)]).movedim(3, 1) / 255
    assert torch.allclose(seen[0], levels, atol=1e-6)
